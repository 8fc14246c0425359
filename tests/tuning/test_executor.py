"""Trials elsewhere: benches and attempts are plain values, and nobody can tell where a result was made."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
from torch import Tensor

from poise import Learner
from poise.methods import make_method
from poise.nets import Model
from poise.policies import Trial
from poise.training.device import make_backend
from poise.training.events import Event, TrialDone
from poise.training.lanes import Bench, Lanes
from poise.tuning.trials import Attempt, Trials

from .learners import SMALL, assert_same, digits, of, run_one

ATTEMPT = Attempt(Trial(0, 0, 1), make_method("lucir").default_action, "fc")

A = TypeVar("A")
R = TypeVar("R")


def count_classes(model: Model, means: Tensor, classes: Sequence[Any]) -> int:
    return model.head.classes


def test_a_witness_and_what_it_looks_at_stay_here(make_trials: Callable[..., Trials]) -> None:
    class Elsewhere:
        def run(self, bench: Bench[A, R], attempts: Sequence[A]) -> Iterator[list[R]]:
            raise AssertionError("a study's trials were sent away")

    watched = make_trials(witness=count_classes)
    trials = Trials(watched.inputs, executor=Elsewhere(), witness=count_classes)
    result = run_one(trials, ATTEMPT)
    assert result.witnessed == sum(watched.inputs.context.growth)
    assert not run_one(pickle.loads(pickle.dumps(trials)), ATTEMPT).witnessed


@pytest.mark.gpu
def test_a_backend_on_a_gpu_has_a_stream_of_its_own_where_it_arrives() -> None:
    backend = make_backend("cuda", "bf16", deterministic=True)
    again = pickle.loads(pickle.dumps(backend))
    assert (again.device, again.precision, again.deterministic) == (backend.device, "bf16", True)
    assert again.lane not in (None, backend.lane)


class Away:
    """Sends every attempt to a bench of its own, the last one first, and keeps what was sent."""

    def __init__(self) -> None:
        self.sent = 0

    def run(self, bench: Bench[A, R], attempts: Sequence[A]) -> Iterator[list[R]]:
        letters = [pickle.dumps((bench, attempt)) for attempt in attempts]
        answers = [self._answer(letter) for letter in reversed(letters)]
        self.sent += len(letters)
        return ([pickle.loads(answer)] for answer in reversed(answers))

    @staticmethod
    def _answer(letter: bytes) -> bytes:
        bench, attempt = pickle.loads(letter)
        lanes = Lanes(make_backend("cpu", "fp32", deterministic=False))
        ((result,),) = filter(None, lanes.run(bench, [attempt]))
        return pickle.dumps(result)


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "race", "policy_options": {"rungs": 2, "finalists": 1}, "trials": {"length": 0.5}},
        {"trials": {"environment": "both"}, "space": {"lr": [0.1, 0.02]}},
        {"trials": {"horizon": 1}, "space": {"lr": [0.1, 0.02]}},
    ],
    ids=["race", "both environments", "horizon"],
)
def test_a_learner_whose_trials_run_elsewhere_is_the_same(settings: dict[str, Any]) -> None:
    executor = Away()
    here, there = Learner(**{**SMALL, **settings}), Learner(**{**SMALL, **settings}, executor=executor)
    tried = 0
    for labels in ([0, 1, 2], [3, 4], [5]):
        expected, told = (list(learner.fitting(*digits(labels))) for learner in (here, there))
        assert journal(told) == journal(expected)
        tried += len(of(TrialDone, told))
    assert_same(here, there)
    assert executor.sent == tried > 0


def journal(events: list[Event]) -> list[dict[str, Any]]:
    return [event.as_json() for event in events if event.kept]
