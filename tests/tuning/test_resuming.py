"""Every way to choose an action: killed at any event and resumed, a phase ends with the same bytes and events."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from poise import Learner
from poise.testing import check_resuming
from poise.training.events import TrialDone, TuningDone

from .learners import GRID, SMALL, digits, reopened, saved, small, telling

RATES: dict[str, Any] = {"space": {"lr": [0.1, 0.02]}}
CASES: dict[str, dict[str, Any]] = {
    "race, with finalists": {
        "policy": "race",
        "policy_options": {"finalists": 1, "rungs": 2},
        "space": {"lr": [0.1], "balance": ["finetune", "none"]},
        "action": {"balance": "finetune"},
        "trials": {"length": 0.5},
    },
    "race, safe": {"policy": "race", "policy_options": {"safe": 1.0}, "trials": {"length": 0.5}},
    "judged at full length": {"policy": "exp3", "policy_options": {"iterations": 2}, "action": {"balance": "finetune"}},
    "look-ahead": {**RATES, "trials": {"environment": "both"}},
    "judged by trials": {**RATES, "trials": {"length": 0.5, "classifier": "trials"}},
    "horizon": {**RATES, "trials": {"horizon": 1}},
    "online": {"policy": "online", "space": [{"lr": [0.05]}, {"feature_kd": [0.0], "lr": [0.1, 0.02]}], "trials": None},
    "bilevel": {"policy": "bilevel", "policy_options": {"rounds": 2, "steps": 2}, "space": None},
}
OFFLINE: dict[str, Any] = {"policy": "offline-rl", "policy_options": {"episodes": 3}, "space": GRID}


@pytest.mark.parametrize("case", CASES)
def test_a_phase_stopped_anywhere_goes_on_to_the_same_bytes(case: str) -> None:
    learner, (pixels, labels) = small(**CASES[case]), digits([3, 4])
    check_resuming(lambda: copy.deepcopy(learner), pixels[:, 0].numpy(), labels.numpy())


def test_so_does_the_first_phase_in_which_offline_rl_learns() -> None:
    pixels, labels = digits([0, 1, 2, 3])
    check_resuming(lambda: Learner(**{**SMALL, **OFFLINE}), pixels[:, 0].numpy(), labels.numpy())


@pytest.mark.parametrize("case", ["race, with finalists", "judged at full length", "bilevel"])
def test_what_was_told_is_not_told_again(case: str) -> None:
    """Trials of the policy, judgements of classifiers and rounds: a resumed phase tells the ones that are left."""
    straight, arriving = small(**CASES[case]), digits([3, 4])
    killed = reopened(saved(straight))
    events = list(telling(straight, arriving))
    steps = [place for place, event in enumerate(events) if isinstance(event, TrialDone | TuningDone)]
    going = telling(killed, arriving)
    for _ in range(steps[-1] + 1):
        next(going)
    assert list(telling(reopened(saved(killed)), arriving)) == events[steps[-1] + 1 :]
