"""What remains after a training, against answers worked out by hand: images of one colour, whose feature is that."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from poise.data import Augmentation, ImageSet, Memory, Preprocessing
from poise.errors import Diverged
from poise.methods import Growth, make_method
from poise.nets import Model, build_head, torch_generator
from poise.training.context import PhaseContext, keep_memory, measure_means
from poise.training.device import Backend
from poise.training.evaluate import ClassMeans, Evaluator
from poise.training.optimiser import Schedule

RED, GREEN, YELLOW = (200, 0, 0), (0, 200, 0), (150, 150, 0)
ORANGE, BLUE, VIOLET = (200, 100, 0), (0, 0, 200), (150, 0, 150)


class Colour(nn.Module):
    """The mean colour is the feature."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * images.mean(dim=(2, 3))


def model_of(backbone: nn.Module) -> Model:
    model = Model(backbone, build_head("linear", 3))
    model.head.grow(3, torch_generator(0, "head", 0))
    return model


@pytest.fixture
def evaluator(cpu: Backend) -> Evaluator:
    return Evaluator(Preprocessing((0.0,) * 3, (1.0,) * 3, Augmentation(pad=0)), cpu)


def images(*coloured: tuple[int, tuple[int, int, int]], first: int = 0) -> ImageSet:
    """One image of each label and colour; origins count from `first`."""
    colours = torch.tensor([colour for _, colour in coloured], dtype=torch.uint8).reshape(len(coloured), 3, 1, 1)
    labels = torch.tensor([label for label, _ in coloured], dtype=torch.long)
    return ImageSet(colours.expand(-1, -1, 4, 4).contiguous(), labels, torch.arange(first, first + len(coloured)))


def found(kept: ImageSet) -> list[tuple[int, int]]:
    return list(zip(kept.labels.tolist(), kept.origins.tolist(), strict=True))


OLD = images((0, BLUE), (0, VIOLET), (0, RED), (1, GREEN), (1, YELLOW))
NEW = images((2, RED), (2, YELLOW), (2, GREEN), first=100)


def exemplars(evaluator: Evaluator, kept: ImageSet, new: ImageSet, quota: int) -> ImageSet:
    return keep_memory(evaluator, model_of(Colour()), Memory.of(kept), new, quota).exemplars


class TestExemplars:
    @pytest.mark.parametrize(
        ("quota", "order"), [(1, [101]), (2, [101, 100]), (3, [101, 100, 102]), (9, [101, 100, 102])]
    )
    def test_new_classes_are_herded(self, quota: int, order: list[int], evaluator: Evaluator) -> None:
        """Yellow lies between red and green and so on their mean; of the other two, equally good, the first is next."""
        kept = exemplars(evaluator, images(), NEW, quota)
        assert found(kept) == [(2, origin) for origin in order]
        assert torch.equal(kept.pixels, NEW.pixels[torch.tensor(order) - 100])

    def test_a_known_class_with_new_images_is_chosen_anew_from_old_and_new_ones(self, evaluator: Evaluator) -> None:
        """The new yellow image lies on the mean of the red exemplar, the green one and itself."""
        kept = images((0, RED), (0, GREEN), (1, BLUE))
        new = images((0, YELLOW), first=100)
        assert found(exemplars(evaluator, kept, new, 2)) == [(0, 100), (0, 0), (1, 2)]


class TestMemory:
    def test_the_reserve_is_part_of_the_quota(self, evaluator: Evaluator) -> None:
        before = Memory(OLD, images((0, ORANGE), (0, RED), (1, ORANGE), first=50))
        reserve = images((2, ORANGE), first=200)
        kept = keep_memory(evaluator, model_of(Colour()), before, NEW, 2, reserve, reserved=1)
        assert found(kept.exemplars) == [(0, 0), (1, 3), (2, 101)]
        assert found(kept.reserve) == [(0, 50), (1, 52), (2, 200)]
        assert len(kept) == 3 * 2


class TestMeans:
    """Of three classes, the third of which arrived; `BEFORE` is what was known of the other two."""

    BEFORE = ClassMeans(torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]), (3, 1))

    def context(self, evaluator: Evaluator, before: ClassMeans | None = BEFORE) -> PhaseContext:
        model, method = model_of(Colour()), make_method("icarl")
        chain = evaluator.preprocessing
        return PhaseContext(model, method, Growth(2, 1), chain, Schedule(), evaluator.backend, 0, 1, means=before)

    def test_with_exemplars_all_are_measured_on_them(self, evaluator: Evaluator) -> None:
        context = self.context(evaluator)
        kept = images((0, RED), (1, GREEN), (2, BLUE))
        found = measure_means(context, context.model, kept, NEW)
        assert torch.allclose(found.vectors, torch.eye(3)[[0, 1, 2]])
        assert found.images == (1, 1, 1)

    def test_without_any_old_ones_stay_and_new_images_count(self, evaluator: Evaluator) -> None:
        context, none = self.context(evaluator), images()
        new = images((2, RED), (2, GREEN), (1, GREEN), (1, GREEN), (1, GREEN))
        found = measure_means(context, context.model, none, new)
        wanted = [[0.0, 0.0, 1.0], [1 / 10**0.5, 3 / 10**0.5, 0.0], [0.5**0.5, 0.5**0.5, 0.0]]
        assert torch.equal(found.vectors[0], self.BEFORE.vectors[0])
        assert torch.allclose(found.vectors, torch.tensor(wanted), atol=1e-6)
        assert found.images == (3, 4, 2)

    def test_features_that_were_added_are_zero_in_old_means(self, evaluator: Evaluator) -> None:
        before = ClassMeans(torch.tensor([[0.6, 0.8], [1.0, 0.0]]), (3, 1))
        context = self.context(evaluator, before)
        found = measure_means(context, context.model, images(), NEW)
        assert found.vectors[:2].tolist() == torch.tensor([[0.6, 0.8, 0.0], [1.0, 0.0, 0.0]]).tolist()


@pytest.mark.parametrize("scale", [float("inf"), float("nan"), 3e38], ids=["inf", "nan", "overflow"])
def test_features_that_are_not_finite_mean_that_it_diverged(scale: float, evaluator: Evaluator) -> None:
    """Weights can be finite and so large that features are not."""

    class Squared(Colour):
        def forward(self, images: Tensor) -> Tensor:
            return self.scale * super().forward(images)

    model = model_of(Squared(scale))
    with pytest.raises(Diverged, match=r"^the features of the trained model are not finite, or too large; lower .*$"):
        keep_memory(evaluator, model, Memory.of(OLD), NEW, 2, images((2, RED), first=200), reserved=1)
