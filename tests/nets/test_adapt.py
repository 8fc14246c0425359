"""Networks of other libraries, recognised by their attributes, make known features of images."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise import Augmentation, Learner, Preprocessing, UserError
from poise.nets import Adapted, NetInfo, adapt, net_info

from .conventions import (
    MEAN,
    STD,
    Clip,
    ImageClassifier,
    ImageProcessor,
    OldTimmNet,
    Stem,
    TimmNet,
    TorchvisionNet,
    VisionTransformer,
    Weights,
    known_features,
    timm_config,
)

HEADS = {
    "fc": nn.Linear(4, 10),
    "_fc": nn.Linear(4, 10),
    "classifier": nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 10)),
    "heads": nn.Sequential(nn.Linear(4, 10)),
    "head": nn.Linear(4, 10),
}


@pytest.fixture
def images() -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3, 64, 64)).astype(np.float32))


def plain(features: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(features or Stem(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def assert_known(net: Adapted, images: Tensor, times: float = 1.0) -> None:
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(images), times * known_features(images))
    assert net.width == 4


class TestConventions:
    @pytest.mark.parametrize("kind", [TimmNet, OldTimmNet])
    def test_timm(self, kind: type[TimmNet], images: Tensor) -> None:
        given = kind()
        found = adapt(given)
        assert_known(found, images)
        assert given(images).shape == (3, 10)  # the given module is as it was
        assert (found.info.mean, found.info.std) == (MEAN, STD)
        assert (found.info.channels, found.info.size, found.info.fixed) == (3, (64, 64), False)
        assert found.info.pretrained_on == "ImageNet-1k"

    def test_timm_says_which_sizes_it_takes_and_may_keep_its_configuration_as_an_object(self) -> None:
        config = SimpleNamespace(**timm_config(fixed_input_size=True, min_input_size=(3, 48, 48), tag="in21k_ft_in1k"))
        info = adapt(TimmNet(config)).info
        assert (info.fixed, info.least, info.image_size) == (True, 48, 64)
        assert info.pretrained_on == "ImageNet-21k, then ImageNet-1k"

    @pytest.mark.parametrize("name", HEADS)
    def test_torchvision(self, name: str, images: Tensor) -> None:
        found = adapt(TorchvisionNet(name, copy.deepcopy(HEADS[name])), preprocess=Weights.DEFAULT)
        assert_known(found, images)
        assert (found.info.mean, found.info.std, found.info.size) == (MEAN, STD, (64, 64))
        assert found.info.pretrained_on == "ImageNet-1k"
        assert not any(isinstance(module, nn.Linear) for module in found.modules())

    def test_of_several_layers_in_a_classifier_only_the_last_is_taken_off(self) -> None:
        head = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Dropout(), nn.Linear(7, 10))
        assert adapt(TorchvisionNet("classifier", head)).width == 7

    def test_transformers(self, images: Tensor) -> None:
        found = adapt(VisionTransformer(nn.Identity()), preprocess=ImageProcessor())
        assert_known(found, images, 2.0)  # the pooled class token
        assert found.info == NetInfo(MEAN, STD, 3, (64, 64), fixed=True, pretrained_on="ImageNet-21k")
        untrained = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        assert_known(adapt(VisionTransformer(untrained)), images, 2.0)  # the token itself
        assert_known(adapt(VisionTransformer(class_token=False)), images)  # a grid of patches: their mean
        assert_known(adapt(ImageClassifier(VisionTransformer())), images, 2.0)

    def test_an_image_processor_that_does_not_normalise(self) -> None:
        info = adapt(VisionTransformer(), preprocess=SimpleNamespace(do_normalize=False)).info
        assert (info.mean, info.std) == ((0.0,) * 3, (1.0,) * 3)

    def test_open_clip(self, images: Tensor) -> None:
        found = adapt(Clip())
        assert_known(found, images)
        assert (found.info.mean, found.info.std, found.info.size) == (MEAN, STD, (64, 64))
        assert len(list(found.parameters())) == 1  # without the tower for texts

    def test_a_plain_module_with_constants_of_its_own(self, images: Tensor) -> None:
        net = plain()
        net.mean, net.std, net.pretrained_on = MEAN, STD, "photos"  # type: ignore[assignment]
        found = adapt(net)
        assert_known(found, images)
        assert found.info == NetInfo(MEAN, STD, 3, pretrained_on="photos")
        assert_known(adapt(nn.Sequential(Stem())), images)  # maps are averaged
        assert adapt(plain(Stem(1))).info == NetInfo(channels=1)

    def test_a_module_that_normalises_by_its_own_buffers_is_left_alone(self) -> None:
        net = plain()
        for name in ("mean", "std"):
            net.register_buffer(name, torch.ones(1, 3, 1, 1))
        assert adapt(net).info.mean is None

    def test_what_is_given_wins(self) -> None:
        given = Preprocessing((0.5,) * 3, (0.25,) * 3, Augmentation())
        info = adapt(TimmNet(), preprocess=given, size=32, pretrained_on="nothing").info
        assert (info.mean, info.std, info.size, info.pretrained_on) == ((0.5,) * 3, (0.25,) * 3, (32, 32), "nothing")

    def test_frozen_and_in_eval_mode_if_asked(self) -> None:
        given = TimmNet()
        assert not any(parameter.requires_grad for parameter in adapt(given, frozen=True).parameters())
        assert not adapt(given, frozen=True).training
        assert all(parameter.requires_grad for parameter in (*given.parameters(), *adapt(given).parameters()))


class TestRefused:
    @pytest.mark.parametrize(
        ("given", "options", "line"),
        [
            (nn.Linear(5, 2), {}, r"Linear does not map images \[1, 3, 224, 224\] to features \[1, width\]"),
            (nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), {"size": 8}, r"\[1, 3, 8, 8\].*size=…, channels=…"),
            (nn.Sequential(Stem(), nn.Flatten(0)), {}, r"it returns \[\d+\]"),
            (plain(), {"preprocess": {"mean": [0.5]}}, "has no mean and std"),
            (plain(), {"preprocess": {"mean": "grey", "std": [1]}}, "not one number for each channel"),
            (plain(), {"preprocess": {"mean": [0.5], "std": [0.5] * 3}}, "must have one number for each channel"),
            (plain(), {"preprocess": {"mean": [0.5] * 3, "std": [0] * 3}}, r"std \(0.0, 0.0, 0.0\) above 0"),
            (plain(), {"size": (32, 32)}, r"size=\(32, 32\) must be a whole number, at least 1"),
            (plain(), {"size": 0}, "size=0 must be a whole number, at least 1"),
            (plain(), {"channels": "three"}, "channels='three' must be a whole number, at least 1"),
            (plain(), {"pretrained_on": 3}, "pretrained_on=3 must be a name"),
            (TimmNet, {}, "a class of your own must be made first"),
        ],
    )
    def test_what_cannot_be_adapted_is_one_line(self, given: Any, options: dict[str, Any], line: str) -> None:
        with pytest.raises(UserError, match=line) as raised:
            adapt(given, **options)
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize(
        ("config", "shape", "line"),
        [
            ({"fixed_input_size": True}, (4, 32, 32, 3), "64×64 pixels, yours are 32×32|expected 64×64"),
            ({"min_input_size": (3, 48, 48)}, (4, 32, 32, 3), "at least 48×48 pixels, yours are 32×32"),
        ],
    )
    def test_images_that_are_too_small(self, config: dict[str, Any], shape: tuple[int, ...], line: str) -> None:
        learner = Learner(net=adapt(TimmNet(timm_config(**config))), policy="fixed", epochs=1)
        with pytest.raises(UserError, match=line):
            learner.partial_fit(np.zeros(shape, dtype=np.uint8), [0, 0, 1, 1])

    def test_colours_for_a_net_that_takes_grey(self) -> None:
        learner = Learner(net=adapt(plain(Stem(1))), policy="fixed", epochs=1)
        with pytest.raises(UserError, match="1 channels, yours have 3"):
            learner.partial_fit(np.zeros((4, 8, 8, 3), dtype=np.uint8), [0, 0, 1, 1])


def some_images(count: int, *, channels: int = 3, side: int = 64) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], Any]:
    pixels = np.random.default_rng(1).integers(0, 256, (count, side, side, channels), dtype=np.uint8)
    return pixels, np.arange(count) % 2


SETTINGS: dict[str, Any] = {"policy": "fixed", "epochs": 1, "memory": 2, "batch": 4, "device": "cpu"}


class TestLearner:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_the_nets_own_constants_are_used(self, channels: int) -> None:
        pixels, labels = some_images(8, channels=channels)
        learner = Learner("icarl", net=adapt(TimmNet(), frozen=True), **SETTINGS).partial_fit(pixels, labels)
        assert learner.preprocessing_ is not None
        assert learner.model is not None
        assert (learner.preprocessing_.mean, learner.preprocessing_.std) == (MEAN, STD)
        colours = torch.from_numpy(pixels).permute(0, 3, 1, 2).expand(-1, 3, -1, -1) / 255
        wanted = known_features((colours - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1))
        found = learner.evaluator.extract(learner.model, torch.from_numpy(pixels).permute(0, 3, 1, 2)).features
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert learner.shape_ == (channels, 64, 64)  # grey images stay small in memory

    def test_but_not_instead_of_those_that_are_given(self) -> None:
        own = Preprocessing((0.5,) * 3, (0.5,) * 3, Augmentation(pad=0, flip=False))
        learner = Learner("icarl", net=adapt(TimmNet()), preprocessing=own, **SETTINGS)
        assert learner.partial_fit(*some_images(8)).preprocessing == own
        augmented = Learner("icarl", net=adapt(TimmNet()), augmentation=Augmentation(pad=2, flip=False), **SETTINGS)
        augmented.partial_fit(*some_images(8))
        assert augmented.preprocessing == Preprocessing(MEAN, STD, Augmentation(pad=2, flip=False))

    def test_a_net_without_constants_has_them_measured(self) -> None:
        pixels, labels = some_images(8)
        bare, adapted = (Learner("icarl", net=net, **SETTINGS) for net in (plain(), adapt(plain())))
        assert bare.partial_fit(pixels, labels).preprocessing == adapted.partial_fit(pixels, labels).preprocessing

    def test_constants_for_other_channels_are_refused(self) -> None:
        own = Preprocessing((0.5,) * 3, (0.5,) * 3, Augmentation())
        with pytest.raises(UserError, match="3 means, but images have 1 channel"):
            Learner("icarl", net="small", preprocessing=own, **SETTINGS).partial_fit(*some_images(8, channels=1))

    def test_files_are_scaled_to_the_only_size_that_a_net_takes(self, tmp_path: Path) -> None:
        from PIL import Image

        paths = [tmp_path / f"{number}.png" for number in range(4)]
        for path in paths:
            Image.fromarray(some_images(1, side=40)[0][0]).save(path)
        learner = Learner("icarl", net=adapt(VisionTransformer()), **SETTINGS)
        assert learner.partial_fit(paths, [0, 0, 1, 1]).shape_ == (3, 64, 64)

    def test_much_smaller_images_are_said_aloud(self, caplog: pytest.LogCaptureFixture) -> None:
        Learner("icarl", net=adapt(TimmNet()), **SETTINGS).partial_fit(*some_images(4, side=16))
        assert "images of 16 pixels are small for this net, which was trained with 64" in caplog.text
        caplog.clear()
        Learner("icarl", net=adapt(TimmNet()), **SETTINGS).partial_fit(*some_images(4, side=32))
        assert "small for this net" not in caplog.text

    @pytest.mark.parametrize("trainable", [False, True])
    def test_it_is_saved_and_learns_on(self, trainable: bool, tmp_path: Path) -> None:
        net = adapt(TimmNet(), frozen=not trainable)
        learner = Learner("lucir", net=net, **SETTINGS).partial_fit(*some_images(8))
        learner.save(tmp_path / "one")
        loaded = Learner.load(tmp_path / "one", net=net, device="cpu")
        assert loaded.net_info == learner.net_info == net.info
        pixels, labels = some_images(8)
        for each, name in ((learner, "whole"), (loaded, "loaded")):
            each.partial_fit(pixels[::-1].copy(), labels + 2).save(tmp_path / name)
        assert (tmp_path / "whole").read_bytes() == (tmp_path / "loaded").read_bytes()
        assert learner.model is not None
        still = torch.equal(learner.model.backbone.state_dict()["body.stem.conv.weight"], Stem().conv.weight)
        assert still is not trainable


def test_a_module_that_was_adapted_may_be_given_again_as_it_was(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (8, 64, 64, 3), dtype=np.uint8), [0, 1] * 4
    learner = Learner("icarl", net=adapt(TimmNet(), pretrained_on="photos"), policy="fixed", epochs=1, device="cpu")
    learner.partial_fit(images, labels).save(tmp_path / "one")
    loaded = Learner.load(tmp_path / "one", net=TimmNet(), device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(images), learner.predict_proba(images))
    assert loaded.net_info == learner.net_info


def test_a_network_inside_another_is_found() -> None:
    inner = adapt(TimmNet())
    assert net_info(nn.Sequential(nn.Identity(), inner)) is inner.info
    assert net_info(plain()) is None
    assert net_info(None) is None
