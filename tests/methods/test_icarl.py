from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from poise.methods import Growth, ICaRL, LwF
from poise.nets import Output

Array = npt.NDArray[np.float64]
GROWTH = Growth(3, 2)


def output(classes: int, seed: int) -> Output:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(6, classes)))
    return Output(torch.from_numpy(rng.normal(size=(6, 4))), (), logits, logits)


def labels(classes: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, classes, 6))


def log_softmax(values: Array) -> Array:
    return np.asarray(values - np.log(np.exp(values).sum(axis=1, keepdims=True)))


@given(st.integers(0, 1000))
def test_softmax_terms_equal_the_slow_reference(seed: int) -> None:
    student, teacher, truth = output(5, seed), output(3, seed + 1), labels(5, seed)
    terms = ICaRL().terms(student, teacher, truth, GROWTH)
    z = student.logits.numpy()
    assert terms["ce"].item() == pytest.approx(-log_softmax(z)[np.arange(6), truth.numpy()].mean())
    new, old = log_softmax(z[:, :3] / 2), log_softmax(teacher.logits.numpy() / 2)
    assert terms["logit_kd"].item() == pytest.approx((np.exp(old) * (old - new)).sum(axis=1).mean())
    assert sorted(terms) == ["ce", "logit_kd"]


@given(st.integers(0, 1000))
def test_sigmoid_terms_equal_the_slow_reference(seed: int) -> None:
    student, teacher, truth = output(5, seed), output(3, seed + 1), labels(5, seed)
    terms = ICaRL(loss="sigmoid").terms(student, teacher, truth, GROWTH)
    targets = np.eye(5)[truth.numpy()]
    targets[:, :3] = 1 / (1 + np.exp(-teacher.logits.numpy()))  # also for images of old classes
    p = 1 / (1 + np.exp(-student.logits.numpy()))
    slow = -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).mean()
    assert sorted(terms) == ["ce", "logit_kd"]
    assert sum(term.item() for term in terms.values()) == pytest.approx(slow)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_the_first_phase_only_classifies(loss: str) -> None:
    assert list(ICaRL(loss=loss).terms(output(3, 0), None, labels(3, 0), Growth(0, 3))) == ["ce"]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_lwf_is_icarls_training_with_the_fc_classifier(loss: str) -> None:
    icarl, lwf = ICaRL(loss=loss), LwF(loss=loss)
    arguments = output(5, 0), output(3, 1), labels(5, 0), GROWTH
    one, other = icarl.terms(*arguments), lwf.terms(*arguments)
    assert {name: term.item() for name, term in one.items()} == {name: term.item() for name, term in other.items()}
    assert (icarl.variant, icarl.head, icarl.stages(GROWTH)) == (lwf.variant, lwf.head, lwf.stages(GROWTH))
    assert lwf.default_action == icarl.default_action.replace(classifier="fc")
    assert icarl.default_action.classifier == "ncm"
