"""Networks of other libraries, and functions of one's own, make known features of images; what is wrong is one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise import Augmentation, Learner, Preprocessing, UserError, store
from poise.nets import Adapted, NetInfo, adapt, build_net, check_backbone
from poise.nets.adapt import _read_hidden, _without_classifier
from poise.runs import Run, RunFolder, load_recipe, make_plan

from . import libraries
from .libraries import MEAN, STD, Stem, TimmNet, TorchvisionNet, VisionTransformer, known_features

SETTINGS: dict[str, Any] = {"policy": "fixed", "epochs": 1, "memory": 2, "batch": 4, "device": "cpu"}
HEADS = {
    "fc": nn.Linear(4, 10),
    "classifier": nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 10)),
    "heads": nn.Sequential(nn.Linear(4, 10)),
}
FILE = """
import torch
from torch import nn
from neighbour import WIDTH
from poise.nets import adapt

def make():
    return nn.Sequential(nn.Conv2d(3, WIDTH, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def own():
    return adapt(make(), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), pretrained_on="my photos")

def number():
    return 3

def broken():
    raise RuntimeError("no weights\\nhere")
"""


@pytest.fixture
def images() -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3, 64, 64)).astype(np.float32))


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries are installed."""
    for name, module in libraries.modules().items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with functions that make networks, and a neighbour that it imports."""
    (tmp_path / "neighbour.py").write_text("WIDTH = 6\n", encoding="utf-8")
    path = tmp_path / "my nets+.py"
    path.write_text(FILE, encoding="utf-8")
    return path


def plain(features: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(features or Stem(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def built(word: str) -> Adapted:
    found = build_net(word, "lucir", 3, 0)
    assert isinstance(found, Adapted)
    return found


def some_images(
    count: int = 8, *, channels: int = 3, side: int = 64
) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], Any]:
    pixels = np.random.default_rng(1).integers(0, 256, (count, side, side, channels), dtype=np.uint8)
    return pixels, np.arange(count) % 2


def assert_known(net: Adapted, images: Tensor, times: float = 1.0) -> None:
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(images), times * known_features(images))
    assert net.width == 4


class TestLibraries:
    @pytest.mark.usefixtures("packages")
    @pytest.mark.parametrize(
        ("word", "times", "info"),
        [
            ("timm:tiny", 1, NetInfo(MEAN, STD, 3, (64, 64), pretrained_on="a1_in1k")),
            ("torchvision:resnet", 1, NetInfo(MEAN, STD, 3, (64, 64), pretrained_on="IMAGENET1K_V1")),
            ("transformers:some/vit", 2, NetInfo(MEAN, STD, 3, (64, 64), fixed=True, pretrained_on="some/vit")),
            ("open_clip:ViT-B-32:laion", 1, NetInfo(MEAN, STD, 3, (64, 64), pretrained_on="laion")),
        ],
    )
    def test_by_a_word(self, word: str, times: float, info: NetInfo, images: Tensor) -> None:
        check_backbone(word, "lucir")
        found = built(word)
        assert_known(found, images, times)
        assert found.info == NetInfo(**{**vars(info), "word": word})
        frozen = built(f"{word}/frozen")
        assert not frozen.training
        assert not any(parameter.requires_grad for parameter in frozen.parameters())
        assert all(parameter.requires_grad for parameter in built(f"{word}/trainable").parameters())

    @pytest.mark.parametrize("name", HEADS)
    def test_a_classifier_of_torchvision_loses_its_last_layer(self, name: str, images: Tensor) -> None:
        assert_known(adapt(nn.Sequential(_without_classifier(TorchvisionNet(name, HEADS[name])))), images)

    @pytest.mark.parametrize(
        ("body", "times"),
        [
            (VisionTransformer(nn.Identity()), 2),  # the pooled class token
            (VisionTransformer(nn.Sequential(nn.Linear(4, 4), nn.Tanh())), 2),  # untrained: the token itself
            (VisionTransformer(class_token=False), 1),  # a grid of patches: their mean
        ],
    )
    def test_a_transformer_gives_its_pooled_output_unless_a_layer_learned_it(
        self, body: nn.Module, times: int, images: Tensor
    ) -> None:
        torch.testing.assert_close(_read_hidden(body, images), times * known_features(images))

    @pytest.mark.parametrize(
        ("module", "word"),
        [(TimmNet(), "timm:NAME"), (TorchvisionNet("fc", HEADS["fc"]), "torchvision:NAME")],
    )
    def test_a_raw_one_is_refused_and_told_how(self, module: nn.Module, word: str) -> None:
        with pytest.raises(UserError, match=rf"'{word}'.*adapt\(module, mean=…, std=…, size=…\)") as raised:
            Learner(net=module, **SETTINGS).partial_fit(*some_images())
        assert "\n" not in str(raised.value)


class TestModules:
    def test_ones_own_with_constants(self, images: Tensor) -> None:
        found = adapt(plain(), mean=MEAN, std=STD, pretrained_on="photos")
        assert_known(found, images)
        assert found.info == NetInfo(MEAN, STD, 3, pretrained_on="photos")
        assert_known(adapt(nn.Sequential(Stem())), images)  # maps are averaged
        assert adapt(plain(Stem(1))).info == NetInfo(channels=1)

    @pytest.mark.usefixtures("packages")
    def test_what_is_given_wins_over_what_a_library_says(self) -> None:
        info = adapt("timm:tiny", mean=[0.5] * 3, std=[0.25] * 3, size=32, pretrained_on="nothing").info
        assert (info.mean, info.std, info.size, info.pretrained_on) == ((0.5,) * 3, (0.25,) * 3, (32, 32), "nothing")
        assert built("timm:tiny").info.mean == MEAN  # another copy

    def test_the_given_one_stays_as_it_is(self) -> None:
        given = plain()
        assert not any(parameter.requires_grad for parameter in adapt(given, frozen=True).parameters())
        assert all(parameter.requires_grad for parameter in (*given.parameters(), *adapt(given).parameters()))

    @pytest.mark.parametrize(
        ("given", "options", "line"),
        [
            (nn.Linear(5, 2), {}, r"Linear does not map images \[1, 3, 224, 224\] to features \[1, width\]"),
            (nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), {"size": 8}, r"\[1, 3, 8, 8\].*adapt\(net, size=…\)"),
            (nn.Sequential(Stem(), nn.Flatten(0)), {}, r"it returns \[\d+\]"),
            (plain(), {"mean": [0.5]}, "mean and std go together"),
            (plain(), {"mean": [0.5], "std": [0.5] * 3}, "must have one number for each channel"),
            (plain(), {"mean": [0.5] * 3, "std": [0] * 3}, r"std \(0.0, 0.0, 0.0\) above 0"),
            (plain(), {"size": (32, 32)}, r"size=\(32, 32\) must be a whole number, at least 1"),
            (nn.Linear, {}, "is neither a word nor a module"),
        ],
    )
    def test_what_cannot_be_adapted_is_one_line(self, given: Any, options: dict[str, Any], line: str) -> None:
        with pytest.raises(UserError, match=rf"^[^\n]*({line})[^\n]*$"):
            adapt(given, **options)


class TestWords:
    @pytest.mark.usefixtures("packages")
    @pytest.mark.parametrize(
        ("word", "line"),
        [
            ("zoo:net", "known are timm:NAME, torchvision:NAME"),
            ("timm:large", "could not be made .RuntimeError: Unknown model"),
            ("open_clip:ViT-B-32", "use open_clip:NAME:WEIGHTS"),
            ("efficientnet-lite", "did you mean 'efficientnet-lite0'"),
            ("FILE:absent", "has no function 'absent'"),
            ("FILE:number", "'number' returns int, it must return a torch module"),
            ("FILE:broken", "could not be made .RuntimeError: no weights here"),
            ("absent.py:make", r"cannot be read \(No such file"),
        ],
    )
    def test_what_is_missing_is_one_line(self, word: str, line: str, file: Path) -> None:
        with pytest.raises(UserError, match=rf"^[^\n]*({line})[^\n]*$"):
            Learner(net=word.replace("FILE", str(file)), **SETTINGS).partial_fit(*some_images())

    def test_a_library_that_is_not_installed_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(UserError, match="there is no package 'timm' here; install it"):
            Learner(net="timm:tiny", **SETTINGS).partial_fit(*some_images())

    def test_first_values_are_drawn_by_the_seed_and_nothing_else(self, file: Path) -> None:
        def weights(seed: int) -> Tensor:
            return next(build_net(f"{file}:make", "", 3, seed).parameters())

        state = torch.get_rng_state()
        first = weights(0)
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(1)
        assert not torch.equal(first, weights(1))
        assert not torch.equal(first, weights(2))  # which leaves the first one out of the cache
        assert torch.equal(first, weights(0))
        assert str(file.parent) not in sys.path

    def test_the_word_is_saved_and_the_network_made_again(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pixels, labels = some_images()
        monkeypatch.chdir(file.parent)
        learner = Learner("lucir", net=f"{file.name}:own", **SETTINGS).partial_fit(pixels, labels)
        learner.save(tmp_path / "one")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        loaded = Learner.load(tmp_path / "one", device="cpu")
        assert loaded.net_info == learner.net_info
        assert loaded.net_info.pretrained_on == "my photos"
        for each, name in ((learner, "whole"), (loaded, "loaded")):
            each.partial_fit(pixels[::-1].copy(), labels + 2).save(tmp_path / name)
        assert (tmp_path / "whole").read_bytes() == (tmp_path / "loaded").read_bytes()

    @pytest.mark.usefixtures("packages")
    def test_a_library_is_not_asked_for_weights_that_the_file_has(self, tmp_path: Path) -> None:
        learner = Learner("icarl", net="timm:tiny", **SETTINGS).partial_fit(*some_images())
        learner.save(tmp_path / "one")
        libraries.calls.clear()
        loaded = Learner.load(tmp_path / "one", device="cpu")
        assert not any(libraries.calls)
        np.testing.assert_array_equal(loaded.predict_proba(some_images()[0]), learner.predict_proba(some_images()[0]))
        assert loaded.net_info == learner.net_info

    def test_of_a_lost_file_the_module_itself_helps(self, file: Path, tmp_path: Path) -> None:
        """Grey images are repeated for it, as when the word made it."""
        images, labels = some_images(channels=1)
        learner = Learner("icarl", net=f"{file}:own", **SETTINGS).partial_fit(images, labels)
        learner.save(tmp_path / "one")
        net = built(f"{file}:own").body
        file.unlink()
        with pytest.raises(UserError, match="restore it, or give the module itself: net=…"):
            Learner.load(tmp_path / "one")
        loaded = Learner.load(tmp_path / "one", net=net, device="cpu")
        np.testing.assert_array_equal(loaded.predict_proba(images), learner.predict_proba(images))

    def test_a_run_takes_a_word_and_records_what_the_network_was_trained_on(self, file: Path, tmp_path: Path) -> None:
        words = [f"net={file}:own", "groups=[2,1,1]", "epochs=1", "batch=64"]
        plan = make_plan("digits/lucir", load_recipe("digits/lucir", words))
        Run(plan, RunFolder(tmp_path / "run")).start()
        assert store.read_json(tmp_path / "run" / "result.json")["pretrained_on"] == "my photos"
        model = Learner.load(tmp_path / "run" / "model.safetensors")
        assert model.preprocessing_.mean == MEAN  # the network's, not those of the digits
        assert not model.preprocessing_.augmentation.flip  # which is the digits'


def known_net(**options: Any) -> Adapted:
    return adapt(plain(), mean=MEAN, std=STD, size=64, **options)


class TestLearner:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_the_nets_own_constants_are_used(self, channels: int) -> None:
        pixels, labels = some_images(channels=channels)
        learner = Learner("icarl", net=known_net(frozen=True), **SETTINGS).partial_fit(pixels, labels)
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
        learner = Learner("icarl", net=known_net(), preprocessing=own, **SETTINGS)
        assert learner.partial_fit(*some_images()).preprocessing_ == own

    @pytest.mark.usefixtures("packages")
    @pytest.mark.parametrize(
        ("net", "shape", "line"),
        [
            ("timm:strict", (4, 32, 32, 3), "expected 64×64"),
            ("timm:least", (4, 32, 32, 3), "at least 48×48 pixels, yours are 32×32; give image_size=48 or more"),
            (adapt(plain(Stem(1))), (4, 8, 8, 3), "1 channels, yours have 3"),
        ],
    )
    def test_images_that_it_cannot_take_are_one_line(self, net: Any, shape: tuple[int, ...], line: str) -> None:
        with pytest.raises(UserError, match=line):
            Learner(net=net, policy="fixed", epochs=1).partial_fit(np.zeros(shape, dtype=np.uint8), [0, 0, 1, 1])

    def test_much_smaller_images_are_said_aloud(self, caplog: pytest.LogCaptureFixture) -> None:
        Learner("icarl", net=known_net(), **SETTINGS).partial_fit(*some_images(4, side=16))
        assert "images of 16 pixels are small for this net, which was trained with 64" in caplog.text

    @pytest.mark.parametrize("again", [True, False], ids=["adapted", "as it was"])
    def test_it_is_saved_and_learns_on_with_the_module_given_again(self, again: bool, tmp_path: Path) -> None:
        net = known_net(frozen=True, pretrained_on="photos")
        learner = Learner("lucir", net=net, **SETTINGS).partial_fit(*some_images())
        learner.save(tmp_path / "one")
        loaded = Learner.load(tmp_path / "one", net=net if again else plain(), device="cpu")
        assert loaded.net_info == learner.net_info == net.info
        pixels, labels = some_images()
        for each, name in ((learner, "whole"), (loaded, "loaded")):
            each.partial_fit(pixels[::-1].copy(), labels + 2).save(tmp_path / name)
        assert (tmp_path / "whole").read_bytes() == (tmp_path / "loaded").read_bytes()
