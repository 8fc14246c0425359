from __future__ import annotations

import pytest
import torch
from torch import Tensor

from poise.methods import Growth, Lucir
from poise.nets import Output


def output(features: Tensor, scores: Tensor, scale: float = 1.0) -> Output:
    return Output(features, (), scores, scale * scores)


def feature_weight(old: int, new: int, method: Lucir | None = None) -> float:
    """The term at orthogonal features, where 1 − cos is 1: the factor itself."""
    labels = torch.tensor([0, old])
    student = output(torch.eye(2), torch.zeros(2, old + new))
    teacher = output(torch.eye(2).flip(0), torch.zeros(2, old))
    return (method or Lucir()).terms(student, teacher, labels, Growth(old, new))["feature_kd"].item()


@pytest.mark.parametrize(("old", "new", "expected"), [(50, 10, 11.18), (90, 10, 15.0), (20, 20, 5.0), (98, 2, 35.0)])
def test_the_feature_weight_grows_with_the_share_of_old_classes(old: int, new: int, expected: float) -> None:
    assert feature_weight(old, new) == pytest.approx(expected, abs=0.005)
    assert feature_weight(old, new, Lucir(lambda_base=10.0)) == pytest.approx(2 * expected, abs=0.01)


def test_a_trial_on_half_of_the_new_classes_has_the_weight_of_the_phase_that_it_stands_for() -> None:
    student = output(torch.eye(2), torch.zeros(2, 15))
    teacher = output(torch.eye(2).flip(0), torch.zeros(2, 10))
    growth = Growth(10, 5, trial_of=Growth(10, 10))
    assert Lucir().terms(student, teacher, torch.tensor([0, 10]), growth)["feature_kd"].item() == pytest.approx(5.0)
    assert (sum(growth), *growth) == (15, 10, 5)
