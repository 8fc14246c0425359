from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from poise import losses

Array = npt.NDArray[np.float64]
SEEDS = st.integers(0, 10_000)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def softmax(values: Array) -> Array:
    powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum())


def sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-values)))


def slow_kl(student: Tensor, teacher: Tensor, temperature: float) -> float:
    total = 0.0
    for new, old in zip(student.numpy(), teacher.numpy(), strict=True):
        p, q = softmax(old / temperature), softmax(new / temperature)
        total += float((p * np.log(p / q)).sum())
    return total / len(student)


def slow_margin(scores: Tensor, labels: Tensor, old: int, margin: float, hardest: int) -> float:
    losses_of_old = []
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        if label < old:
            rivals = sorted(row[old:], reverse=True)[:hardest]
            losses_of_old.append(np.mean([max(0.0, margin - row[label] + rival) for rival in rivals]))
    return float(np.mean(losses_of_old)) if losses_of_old else 0.0


def slow_bce_over_all_outputs(logits: Tensor, teacher: Tensor, labels: Tensor) -> float:
    """The target vector of iCaRL: one-hot, its old part overwritten by the old model's outputs."""
    targets = np.eye(logits.shape[1])[labels.numpy()]
    targets[:, : teacher.shape[1]] = sigmoid(teacher.numpy())
    p = sigmoid(logits.numpy())
    return float(-(targets * np.log(p) + (1 - targets) * np.log(1 - p)).mean())


class TestLogitKd:
    @given(SEEDS, st.sampled_from([1.0, 2.0, 5.0]))
    def test_equals_the_slow_formula(self, seed: int, temperature: float) -> None:
        student, teacher = random(6, 5, seed=seed), random(6, 5, seed=seed + 1)
        slow = slow_kl(student, teacher, temperature) * temperature**2 / 4
        assert losses.logit_kd(student, teacher, temperature).item() == pytest.approx(slow)

    def test_sure_teachers_are_no_danger(self) -> None:
        student, teacher = random(2, 3).requires_grad_(), torch.tensor([[1e4, 0.0, 0.0], [0.0, -1e4, 0.0]]).double()
        loss = losses.logit_kd(student, teacher)
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.isfinite()
        assert student.grad is not None
        assert student.grad.isfinite().all()


class TestFeatureKd:
    @given(SEEDS, st.floats(1e-3, 1e3))
    def test_equals_the_slow_formula_whatever_the_lengths(self, seed: int, length: float) -> None:
        student, teacher = random(6, 5, seed=seed), random(6, 5, seed=seed + 1)
        slow = np.mean(
            [
                1 - s @ t / np.linalg.norm(s) / np.linalg.norm(t)
                for s, t in zip(student.numpy(), teacher.numpy(), strict=True)
            ]
        )
        assert losses.feature_kd(student * length, teacher).item() == pytest.approx(slow, abs=1e-6)


class TestMarginRanking:
    @given(SEEDS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
    def test_equals_the_slow_formula(self, seed: int, old: int, new: int, hardest: int) -> None:
        scores = torch.tanh(random(8, old + new, seed=seed))
        labels = torch.from_numpy(np.random.default_rng(seed).integers(0, old + new, 8))
        slow = slow_margin(scores, labels, old, 0.5, hardest)
        assert losses.margin_ranking(scores, labels, old, 0.5, hardest).item() == pytest.approx(slow)

    @pytest.mark.parametrize(("labels", "classes"), [([3, 4, 3, 4], 5), ([0, 1, 2, 0], 3)], ids=["no old", "no new"])
    def test_without_old_images_or_new_classes_it_is_zero_with_zero_gradient(
        self, labels: list[int], classes: int
    ) -> None:
        scores = random(4, classes).requires_grad_()
        loss = losses.margin_ranking(scores, torch.tensor(labels), old=3)
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.item() == 0
        assert scores.grad is not None
        assert not scores.grad.any()


def slow_nca(logits: Tensor, labels: Tensor) -> float:
    found = []
    for row, label in zip(logits.numpy(), labels.tolist(), strict=True):
        s = row - row.max()
        found.append(-s[label] + np.log(1 + sum(np.exp(value) for j, value in enumerate(s) if j != label)))
    return float(np.mean(found))


class TestNca:
    @given(SEEDS, st.floats(-50, 50))
    def test_equals_the_slow_formula_and_is_blind_to_a_margin_for_all(self, seed: int, margin: float) -> None:
        logits, labels = 5 * random(6, 4, seed=seed), torch.tensor([0, 3, 1, 1, 2, 0])
        assert losses.nca(logits, labels).item() == pytest.approx(slow_nca(logits, labels))
        assert losses.nca(logits - margin, labels).item() == pytest.approx(slow_nca(logits, labels))

    def test_a_known_answer(self) -> None:
        logits = torch.tensor([[1.0, 3.0]])
        assert losses.nca(logits, torch.tensor([0])).item() == pytest.approx(2 + np.log(2))
        assert losses.nca(logits, torch.tensor([1])).item() == pytest.approx(np.log(1 + np.exp(-2)))


def slow_pod(student: Tensor, teacher: Tensor) -> float:
    distances = []
    for new, old in zip(student.numpy(), teacher.numpy(), strict=True):
        pooled = []
        for maps in (new, old):
            sums = [(row**2).sum() for channel in maps for row in channel]  # over the width
            sums += [(column**2).sum() for channel in maps for column in channel.T]  # over the height
            pooled.append(np.array(sums) / np.linalg.norm(sums))
        distances.append(np.linalg.norm(pooled[0] - pooled[1]))
    return float(np.mean(distances))


class TestPodSpatial:
    @given(SEEDS, st.floats(1e-2, 1e2))
    def test_equals_the_slow_formula_averaged_over_levels(self, seed: int, size: float) -> None:
        student = [random(3, 2, 4, 5, seed=seed), random(3, 6, 2, 2, seed=seed + 1)]
        teacher = [random(3, 2, 4, 5, seed=seed + 2), random(3, 6, 2, 2, seed=seed + 3)]
        slow = np.mean([slow_pod(new, old) for new, old in zip(student, teacher, strict=True)])
        found = losses.pod_spatial([size * maps for maps in student], teacher)
        assert found.item() == pytest.approx(float(slow), rel=1e-4)

    def test_networks_with_other_levels_are_no_teachers(self) -> None:
        with pytest.raises(ValueError, match="zip"):
            losses.pod_spatial([random(1, 1, 2, 2)], [])


class TestSigmoid:
    @given(SEEDS, st.integers(0, 4), st.integers(1, 3))
    def test_both_parts_are_the_mean_over_all_outputs(self, seed: int, old: int, new: int) -> None:
        logits, teacher = random(6, old + new, seed=seed), random(6, old, seed=seed + 1)
        labels = torch.from_numpy(np.random.default_rng(seed).integers(0, old + new, 6))
        both = losses.sigmoid_new(logits, labels, old) + losses.sigmoid_kd(logits, teacher, old)
        assert both.item() == pytest.approx(slow_bce_over_all_outputs(logits, teacher, labels))


TERMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logit_kd": losses.logit_kd,
    "feature_kd": losses.feature_kd,
    "pod_spatial": lambda student, teacher: losses.pod_spatial([student[..., None, None]], [teacher[..., None, None]]),
}


@pytest.mark.parametrize("term", TERMS)
def test_distillation_does_not_pull_a_student_that_equals_its_teacher(term: str) -> None:
    teacher = random(4, 5)
    student = teacher.clone().requires_grad_()
    loss = TERMS[term](student, teacher)
    loss.backward()  # type: ignore[no-untyped-call]
    assert student.grad is not None
    assert loss.item() == pytest.approx(0, abs=1e-9)
    assert student.grad.abs().max() < 1e-9


def test_the_margin_of_a_batch_is_the_mean_of_its_parts_weighed_by_their_images() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(12, 5, generator=generator), torch.tensor([0, 1, 0, 1, 2, 3, 4, 2, 3, 4, 2, 0])
    whole = losses.margin_ranking(scores, labels, 2)
    for cut in (3, 6, 9):  # parts of other shares of old images, and without any
        parts = [(scores[:cut], labels[:cut]), (scores[cut:], labels[cut:])]
        mean = sum(len(part) / 12 * losses.margin_ranking(values, part, 2, batch=labels) for values, part in parts)
        torch.testing.assert_close(mean, whole)
    nothing = losses.margin_ranking(scores, torch.full((12,), 3), 2, batch=torch.full((24,), 3))
    assert float(nothing) == 0
    assert torch.equal(losses.margin_ranking(scores, labels, 2, batch=labels), whole)
