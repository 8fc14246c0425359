from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from poise.data import Augmentation, ImageSet, Preprocessing
from poise.nets import Model, build_backbone, build_head, torch_generator
from poise.training import Backend, Extracted, both_classifiers, class_means, evaluate, extract, make_backend

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
        means = class_means(model, images, CLASSES, chain, cpu).numpy()
        np.testing.assert_allclose(means, slow_class_means(model, images, chain, mirrored=flip), atol=1e-5)
        other = np.array(slow_class_means(model, images, chain, mirrored=not flip))
        assert np.abs(means - other).max() > 1e-3, "mirror images must matter for this test"

    def test_they_have_unit_length(self, model: Model, make_images: MakeImages, cpu: Backend) -> None:
        means = class_means(model, make_images([0, 1, 2] * 4), CLASSES, preprocessing(True), cpu)
        assert torch.allclose(means.norm(dim=1), torch.ones(CLASSES))


class TestExtract:
    def test_in_batches_it_gives_what_each_image_gives(
        self, model: Model, make_images: MakeImages, cpu: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        images, chain = make_images([0] * 7), preprocessing(False)
        monkeypatch.setattr(evaluate, "BATCH", 3)
        found = extract(model, images.pixels, chain, cpu)
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
        assert len(extract(model, images.pixels, preprocessing(False), cpu).features) == 7
        assert sizes == [2, 2, 2, 1]

    @pytest.mark.parametrize("training", [True, False])
    def test_it_leaves_no_trace(self, training: bool, model: Model, make_images: MakeImages, cpu: Backend) -> None:
        model.train(training)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        found = extract(model, make_images([0] * 7).pixels, preprocessing(False), cpu)
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

    def test_fc_is_the_head(self, model: Model, make_images: MakeImages, cpu: Backend) -> None:
        images = make_images([0, 1, 2] * 4)
        found = extract(model, images.pixels, preprocessing(True), cpu)
        means = class_means(model, images, CLASSES, preprocessing(True), cpu)
        assert torch.equal(both_classifiers(found, means)["fc"], found.logits)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 100])
def test_filling_up_changes_no_feature(model: Model, cpu: Backend, count: int) -> None:
    pixels = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    whole = evaluate.filled(pixels)
    assert len(whole) >= count
    assert len(whole) & (len(whole) - 1) == 0
    found, expected = (extract(model, each, preprocessing(False), cpu) for each in (whole, pixels))
    torch.testing.assert_close(found.features[:count], expected.features)


@pytest.mark.gpu
def test_a_gpu_finds_the_same_features(model: Model, cpu: Backend) -> None:
    gpu = make_backend("cuda", "fp32", deterministic=True)
    pixels = torch.randint(0, 256, (2100, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    expected = extract(model, pixels, preprocessing(False), cpu)
    with gpu.active():
        found = extract(model.placed(gpu.device), pixels, preprocessing(False), gpu)
        torch.testing.assert_close(found.features.cpu(), expected.features, rtol=1e-3, atol=1e-4)
        assert len(found.logits) == 2100
