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
from poise.training import Backend, Evaluator, Extracted, both_classifiers, evaluate, make_backend

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

    def test_large_images_come_in_smaller_batches(
        self, model: Model, make_images: MakeImages, cpu: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        images, sizes = make_images([0] * 7), list[int]()
        model.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
        height, width = images.pixels.shape[2:]
        monkeypatch.setattr(evaluate, "PIXELS", 3 * height * width)
        assert len(Evaluator(preprocessing(False), cpu).extract(model, images.pixels).features) == 7
        assert sizes == [2, 2, 2, 1]

    @pytest.mark.parametrize("training", [True, False])
    def test_it_leaves_no_trace(self, training: bool, model: Model, make_images: MakeImages, cpu: Backend) -> None:
        model.train(training)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        found = Evaluator(preprocessing(False), cpu).extract(model, make_images([0] * 7).pixels)
        assert not found.features.requires_grad
        assert model.training is training
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class TestBothClassifiers:
    def test_the_best_mean_is_the_nearest_one(self) -> None:
        rng = np.random.default_rng(0)
        features, means = rng.normal(size=(50, 8)), rng.normal(size=(CLASSES, 8))
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        scores = both_classifiers(
            Extracted(torch.from_numpy(features), torch.zeros(50, CLASSES)), torch.from_numpy(means)
        )["ncm"]
        nearest = [int(np.argmin([np.linalg.norm(unit(f) - mean) for mean in means])) for f in features]
        assert scores.argmax(dim=1).tolist() == nearest
        assert len(set(nearest)) == CLASSES


class TestGuesses:
    def test_they_are_the_best_row_of_each_classifier_or_of_some_rows(
        self, model: Model, make_images: MakeImages, cpu: Backend
    ) -> None:
        images, evaluator = make_images([0, 1, 2] * 4), Evaluator(preprocessing(True), cpu)
        means = evaluator.class_means(model, images, CLASSES)
        features, logits = evaluator.extract(model, images.pixels)
        scores = {"fc": logits, "ncm": torch.stack([torch.cosine_similarity(each[None], means) for each in features])}
        guesses = evaluator.guesses(model, means, images.pixels)
        assert {name: rows.tolist() for name, rows in guesses.items()} == {
            name: found.argmax(dim=1).tolist() for name, found in scores.items()
        }
        for name, rows in evaluator.guesses(model, means, images.pixels, torch.tensor([0, 2])).items():
            assert rows.tolist() == [2 if last > first else 0 for first, last in scores[name][:, [0, 2]].tolist()]

    def test_known_answers(self, cpu: Backend) -> None:
        """The feature is the mean of each channel; rows and means are directions, in another order each."""

        class Channels(torch.nn.Module):
            def forward(self, images: Tensor) -> Tensor:
                return images.mean(dim=(2, 3))

        model = Model(Channels(), build_head("linear", 3))
        model.head.grow(CLASSES, torch_generator(0, "head", 0))
        model.head.adopt({"new": torch.eye(3)[[1, 2, 0]], "new_bias": torch.zeros(3)})
        pixels = 200 * torch.eye(3, dtype=torch.uint8)[:, :, None, None].expand(3, 3, 4, 4)
        chain = Preprocessing((0.0,) * 3, (1.0,) * 3, Augmentation(pad=0))
        guesses = Evaluator(chain, cpu).guesses(model, torch.eye(3)[[2, 0, 1]], pixels)
        assert {name: rows.tolist() for name, rows in guesses.items()} == {"fc": [2, 0, 1], "ncm": [1, 2, 0]}


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 100])
def test_filling_up_changes_no_feature(model: Model, cpu: Backend, count: int) -> None:
    pixels = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    whole = evaluate.pad_to_power_of_two(pixels)
    assert len(whole) >= count
    assert len(whole) & (len(whole) - 1) == 0
    found, expected = (Evaluator(preprocessing(False), cpu).extract(model, each) for each in (whole, pixels))
    torch.testing.assert_close(found.features[:count], expected.features)


@pytest.mark.gpu
def test_a_gpu_finds_the_same_features(model: Model, cpu: Backend) -> None:
    gpu = make_backend("cuda", "fp32", deterministic=True)
    pixels = torch.randint(0, 256, (2100, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    expected = Evaluator(preprocessing(False), cpu).extract(model, pixels)
    with gpu.active():
        found = Evaluator(preprocessing(False), gpu).extract(model.placed(gpu.device), pixels)
        torch.testing.assert_close(found.features.cpu(), expected.features, rtol=1e-3, atol=1e-4)
        assert len(found.logits) == 2100


# Memory ---------------------------------------------------------------------------------------------------------------

LOOKED_AT = """
import torch
from torch import nn
from poise.data import Augmentation, ImageSet, Preprocessing
from poise.nets import Model, build_head, torch_generator
from poise.training import Evaluator, make_backend

class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 64)

    def forward(self, images):
        return self.linear(images.mean(dim=(2, 3)))

torch.set_num_threads(1)
model = Model(Pooled(), build_head("cosine", 64))
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
