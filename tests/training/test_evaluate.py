from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from poise.data import Augmentation, ImageSet, Preprocessing
from poise.nets import Model, build_backbone, build_head, torch_generator
from poise.training import evaluate
from poise.training.device import Backend, make_backend
from poise.training.evaluate import Evaluator

MakeImages = Callable[..., ImageSet]
CLASSES = 3


@pytest.fixture
def model() -> Model:
    """A network whose batch norms have seen something."""
    model = Model(build_backbone("small", "lucir", 3, 0), build_head("cosine", 64))
    model.head.grow(CLASSES, torch_generator(0, "head", 0))
    with torch.no_grad():
        model(torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    return model


def preprocessing(flip: bool) -> Preprocessing:
    return Preprocessing((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), Augmentation(pad=1, flip=flip))


def unit(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(values / np.linalg.norm(values))


@torch.no_grad()
def slow_feature(model: Model, image: npt.NDArray[np.uint8], chain: Preprocessing) -> npt.NDArray[np.float64]:
    """The feature of one image, normalised here."""
    mean, std = (np.array(values)[:, None, None] for values in (chain.mean, chain.std))
    values = torch.from_numpy(((image / 255 - mean) / std).astype(np.float32))
    return np.asarray(model.eval()(values[None]).features[0].double().numpy())


def slow_class_means(model: Model, images: ImageSet, chain: Preprocessing, *, mirrored: bool) -> list[list[float]]:
    means = []
    for label in range(CLASSES):
        members = images.pixels[images.labels == label].numpy()
        views = [members, members[:, :, :, ::-1]] if mirrored else [members]
        view_means = [np.mean([unit(slow_feature(model, image, chain)) for image in view], axis=0) for view in views]
        means.append(unit(np.mean(view_means, axis=0)).tolist())
    return means


class TestClassMeans:
    @pytest.mark.parametrize("flip", [True, False])
    def test_mirror_images_count_exactly_where_the_data_is_flipped(
        self, flip: bool, model: Model, make_images: MakeImages, cpu: Backend
    ) -> None:
        images, chain = make_images([0, 1, 1, 2, 2, 2, 0]), preprocessing(flip)
        means = Evaluator(chain, cpu).class_means(model, images, CLASSES).numpy()
        np.testing.assert_allclose(means, slow_class_means(model, images, chain, mirrored=flip), atol=1e-5)
        other = np.array(slow_class_means(model, images, chain, mirrored=not flip))
        assert np.abs(means - other).max() > 1e-3, "mirror images must matter for this test"


class TestExtract:
    def test_in_batches_it_gives_what_each_image_gives(
        self, model: Model, make_images: MakeImages, cpu: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        images, chain = make_images([0] * 7), preprocessing(False)
        monkeypatch.setattr(evaluate, "BATCH", 3)
        found = Evaluator(chain, cpu).extract(model, images.pixels)
        slow = [slow_feature(model, image, chain) for image in images.pixels.numpy()]
        np.testing.assert_allclose(found.features.numpy(), slow, rtol=1e-4, atol=1e-5)
        assert found.logits.shape == (7, CLASSES)

    @pytest.mark.parametrize("training", [True, False])
    def test_it_leaves_no_trace(self, training: bool, model: Model, make_images: MakeImages, cpu: Backend) -> None:
        model.train(training)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        found = Evaluator(preprocessing(False), cpu).extract(model, make_images([0] * 7).pixels)
        assert not found.features.requires_grad
        assert model.training is training
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class TestGuesses:
    def test_known_answers(self, cpu: Backend) -> None:
        """The feature is the mean of each channel; rows and means are directions, in another order each."""

        class Channels(torch.nn.Module):
            def forward(self, images: Tensor) -> Tensor:
                return images.mean(dim=(2, 3))

        model = Model(Channels(), build_head("linear", 3))
        model.head.grow(CLASSES, torch_generator(0, "head", 0))
        near = torch.eye(3) / 10
        model.head.adopt({"new": torch.eye(3)[[1, 2, 0]] + near[[2, 0, 1]], "new_bias": torch.zeros(3)})
        pixels = 200 * torch.eye(3, dtype=torch.uint8)[:, :, None, None].expand(3, 3, 4, 4)
        chain = Preprocessing((0.0,) * 3, (1.0,) * 3, Augmentation(pad=0))
        means = torch.eye(3)[[2, 0, 1]] + near
        for among, wanted in (
            (None, {"fc": [2, 0, 1], "ncm": [1, 2, 0]}),
            (torch.tensor([0, 2]), {"fc": [2, 0, 0], "ncm": [0, 2, 0]}),
        ):
            guesses = Evaluator(chain, cpu).guesses(model, means, pixels, among)
            assert {name: rows.tolist() for name, rows in guesses.items()} == wanted


@pytest.mark.gpu
def test_a_gpu_finds_the_same_features(model: Model, cpu: Backend) -> None:
    gpu = make_backend("cuda", "fp32", deterministic=True)
    pixels = torch.randint(0, 256, (2100, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    expected = Evaluator(preprocessing(False), cpu).extract(model, pixels)
    with gpu.active():
        found = Evaluator(preprocessing(False), gpu).extract(model.placed(gpu.device), pixels)
        torch.testing.assert_close(found.features.cpu(), expected.features, rtol=1e-3, atol=1e-4)
        assert len(found.logits) == 2100


LOOKED_AT = """
import torch
from torch import nn
from poise.data import Augmentation, ImageSet, Preprocessing
from poise.nets import Model, build_head, torch_generator
from poise.training.device import make_backend
from poise.training.evaluate import Evaluator

torch.set_num_threads(1)
net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 64))
model = Model(net, build_head("cosine", 64))
model.head.grow(3, torch_generator(0, "head", 0))
count = 2000
pixels, places = torch.zeros(count, 3, 224, 224, dtype=torch.uint8), torch.arange(count)
images = ImageSet(pixels, torch.zeros_like(places), places)
images = images.select(torch.arange(count).flip(0))
evaluator = Evaluator(Preprocessing((0.5,) * 3, (0.25,) * 3, Augmentation(pad=0)), make_backend("cpu", "fp32", False))
evaluator.extract(model, images.select(torch.arange(64)))
found, peak = peak_while(lambda: evaluator.extract(model, images))
print(len(found.features), images.store.nbytes, peak)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by /proc")
def test_looking_at_images_takes_the_memory_of_a_few_batches(measured_apart: Callable[..., list[str]]) -> None:
    count, size, peak = map(int, measured_apart(LOOKED_AT))
    assert count == 2000
    assert peak < size * 3 / 4  # 44 to 154 MB, four batches in float32; it was more than all of the 301 MB
