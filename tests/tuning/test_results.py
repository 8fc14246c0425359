"""What tuners remember: every kind of entry to JSON and back, and what a history says."""

from __future__ import annotations

import json
import math

import pytest

from poise.actions import Action
from poise.errors import Damaged
from poise.policies import Decided, Outcome, Trial, Tried
from poise.tuning.results import Entry, Episode, HyperStep, Judged, decided_rewards, entry_as_json, entry_from_json

ACTION = Action(lr=0.05, feature_kd=0.1, classifier="auto")
FULL = Outcome(Trial(7, 1, 40, full=True), 0.5, (0.25, 0.75))
ENTRIES: list[Entry] = [
    Tried(1, Outcome(Trial(3, 2, 4, round=1), 0.1 + 0.2, (1 / 3, 0.5))),
    Tried(1, Outcome(Trial(0, 0, 4), 0.0, diverged=True)),
    Tried(2, FULL, {"fc": 5, "ncm": 4}),
    Decided(2, 1),
    Judged(2, {"fc": 5, "ncm": 4}),
    HyperStep(1, 0, ACTION, 1.25, {"lr": -1e-3, "feature_kd": 0.0}),
    Episode(4, (((1.0, -0.4, 0.1 + 0.2), 3, 1 / 3), ((1.0, 0.0, 2.0), 0, 0.0))),
    Episode(5, ()),
]


def read_again(entry: Entry) -> Entry:
    return entry_from_json(json.loads(json.dumps(entry_as_json(entry), allow_nan=False)))


def test_entries_come_back_from_json_to_the_last_bit() -> None:
    for entry in ENTRIES:
        assert type(read_again(entry)) is type(entry)
        assert read_again(entry) == entry
    again = read_again(HyperStep(1, 2, ACTION, math.inf, {"lr": math.nan}))
    assert isinstance(again, HyperStep)
    assert (again.phase, again.round, again.action, again.finite) == (1, 2, ACTION, False)
    with pytest.raises(Damaged, match=r"^the history has an entry that nobody writes, with phase, dreamt$"):
        entry_from_json({"phase": 1, "dreamt": 3})


def tried(phase: int, arm: int, epochs: int, reward: float) -> Tried:
    return Tried(phase, Outcome(Trial(0, arm, epochs), reward))


def test_the_reward_of_a_decision_is_that_of_its_last_trial_in_the_same_phase() -> None:
    history: list[Entry] = [
        *(tried(1, 0, 2, 0.25), tried(1, 1, 2, 0.5), tried(1, 1, 4, 0.75), Decided(1, 1)),
        *(tried(2, 0, 2, 0.5), Judged(2, {"fc": 1, "ncm": 0}), Decided(2, 1)),  # not tried in this phase
        *(tried(3, 0, 2, 0.125), Decided(3, 0)),
    ]
    assert decided_rewards(history) == {1: 0.75, 3: 0.125}
