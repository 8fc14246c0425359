"""What tests of tuning share: phases, learners that are saved, resumed and compared, and the events that they tell."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from poise import Learner
from poise.data import Augmentation, Preprocessing
from poise.data.sources import DigitsSource
from poise.learner import LearnerState
from poise.methods import Growth, Method
from poise.nets import Model, build_backbone, build_head, torch_generator
from poise.training.context import PhaseContext
from poise.training.device import Backend
from poise.training.events import ActionDecided, Event, Progress, TrialDone
from poise.training.optimiser import Schedule
from poise.tuning.results import TrialResult
from poise.tuning.trials import Attempt, Trials

E = TypeVar("E", bound=Event)
T = TypeVar("T")

SETTINGS: dict[str, Any] = {"net": "small", "device": "cpu", "preprocessing": DigitsSource.preprocessing}

#: Not in alphabetical order: a file that sorts its keys changes the arms.
GRID = {"lr": [0.1, 0.02], "feature_kd": [0.1, 1.0]}

#: Of learners of short phases.
SMALL: dict[str, Any] = {
    "method": "lucir",
    **SETTINGS,
    "policy": "grid",
    "space": GRID,
    "epochs": 4,
    "memory": 4,
    "trials": {"length": 0.25},
    "batch": 64,
}

Saved = tuple[dict[str, Tensor], dict[str, Any]]


def phase_context(
    method: Method,
    backend: Backend,
    growth: Growth = Growth(2, 1),  # noqa: B008 - a plain value
    *,
    net: nn.Module | None = None,
    width: int = 64,
    epochs: int = 40,
    kind: type[PhaseContext] = PhaseContext,
) -> PhaseContext:
    """What a phase of small grey images starts from: by default the second, with one new class."""
    model = Model(net or build_backbone("small", method.variant, 1, 0), build_head(method.head, width))
    if growth.old:
        model.head.grow(growth.old, torch_generator(0, "test"))
    preprocessing = Preprocessing((0.5,), (0.25,), Augmentation(1, False))
    model, schedule = model.placed(backend.device).eval(), Schedule(epochs=epochs, batch=16)
    return kind(model, method, growth, preprocessing, schedule, backend, seed=0, phase=int(growth.old > 0))


def ended(work: Generator[object, None, T]) -> T:
    """What work that pauses on the way ends with."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: T = end.value
            return found


def digits(labels: list[int], count: int = 12, first: int = 0) -> tuple[Tensor, Tensor]:
    """So many images of each label."""
    images = DigitsSource().train()
    chosen = [(images.labels == label).nonzero().flatten()[first : first + count] for label in labels]
    return images.pixels[torch.cat(chosen)], images.labels[torch.cat(chosen)]


def tiny_net(width: int = 64) -> nn.Module:
    """A net that trains ten times as fast as the smallest ResNet."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(width)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), norm, nn.ReLU(), nn.Linear(width, width))


def small(**changes: Any) -> Learner:
    """A learner of short phases that has learned the first."""
    return Learner(**{**SMALL, **changes}).partial_fit(*digits([0, 1, 2]))


def saved(learner: Learner) -> Saved:
    """The state as a checkpoint has it: bytes of its own, and plain values that went through JSON."""
    tensors, meta = learner.state().tensors(images=True)
    return {name: value.clone() for name, value in tensors.items()}, json.loads(json.dumps(meta, allow_nan=False))


def reopened(state: Saved) -> Learner:
    """The learner that was saved."""
    return Learner.from_state(LearnerState.from_tensors(*state), device="cpu")


def assert_same(a: Learner, b: Learner) -> None:
    """Two learners are equal to the last bit, with all that they remember."""
    (first, first_meta), (second, second_meta) = saved(a), saved(b)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first_meta == second_meta


def telling(learner: Learner, arriving: tuple[Tensor, Tensor]) -> Iterator[Event]:
    """The events of the learner's next phase without those from inside of trials: resumed, one begins again."""
    return (event for event in learner.fitting(*arriving) if not isinstance(event, Progress))


def run_one(trials: Trials, attempt: Attempt) -> TrialResult:
    """What comes of one attempt."""
    (result,) = trials.run_all([attempt])
    return result


def of(kind: type[E], events: list[Event]) -> list[E]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def decided_in(events: list[Event]) -> ActionDecided:
    """The decision of a phase."""
    (decided,) = of(ActionDecided, events)
    return decided


def tried_in(events: list[Event], purpose: str | None = None) -> list[TrialDone]:
    """The trials of the policy; with a purpose, those that are not the policy's."""
    return [event for event in of(TrialDone, events) if event.trial.get("purpose") == purpose]


def hits_of(event: TrialDone) -> dict[str, int]:
    """All hits of each classifier at the end of a trial."""
    last = event.record["hits"][max(event.record["hits"], key=int)]
    return {name: sum(counts) for name, counts in last.items()}
