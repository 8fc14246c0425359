"""Which classifier counts: the rule, and how both are judged where an action leaves it open."""

from __future__ import annotations

from typing import Any

import pytest

from poise import Budget, Learner
from poise.actions import Action
from poise.training.events import Event, PhaseDone, TrialDone
from poise.tuning.classifier import ClassifierRule

from .learners import SMALL, decided_in, digits, hits_of, of, small, tried_in

# The rule -----------------------------------------------------------------------------------------------------------

NONE = {"fc": 0, "ncm": 0}
AUTO = Action(classifier="auto")


@pytest.mark.parametrize(
    ("own", "in_force", "phases", "expected"),
    [
        ("fc", "fc", 1, "fc"),
        ("ncm", "fc", 1, "ncm"),  # after a first phase, in which FC counted: nothing was judged yet
        ("ncm", "fc", 2, "fc"),
        ("fc", "ncm", 2, "ncm"),
        ("auto", "fc", 1, "fc"),
        ("auto", "ncm", 3, "ncm"),
    ],
)
def test_where_the_action_leaves_it_open_the_classifier_in_force_is_rewarded(
    own: str, in_force: str, phases: int, expected: str
) -> None:
    rule = ClassifierRule(own, in_force, phases)
    assert rule.classifier_for(AUTO) == expected
    for name in ("fc", "ncm"):
        assert rule.classifier_for(Action(classifier=name)) == name


@pytest.mark.parametrize(
    ("own", "phases", "hits", "expected"),
    [
        ("ncm", 0, {"fc": 0, "ncm": 9}, "fc"),  # after the first phase
        ("fc", 1, {"fc": 7, "ncm": 8}, "ncm"),
        ("ncm", 1, {"fc": 8, "ncm": 7}, "fc"),
        ("ncm", 2, {"fc": 8, "ncm": 8}, "ncm"),
        ("fc", 2, {"fc": 8, "ncm": 8}, "fc"),
        ("fc", 1, NONE, "fc"),
        ("ncm", 1, NONE, "ncm"),
        ("auto", 2, NONE, "fc"),  # as it is in force
    ],
)
def test_more_hits_decide_what_auto_becomes_and_the_methods_own_classifier_a_tie(
    own: str, phases: int, hits: dict[str, int], expected: str
) -> None:
    rule = ClassifierRule(own, "fc", phases)
    assert rule.classifier_after(AUTO, hits) == expected
    for name in ("fc", "ncm"):
        assert rule.classifier_after(Action(classifier=name), hits) == name


# The classifier apart from the trials -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "classifiers"),
    [
        ({}, {"auto"}),
        ({"tune": ["kd", "classifier"]}, {"auto"}),
        ({"method": "icarl", "space": {"lr": [0.1, 0.05]}}, {"auto"}),
        ({"action": {"classifier": "ncm"}}, {"ncm"}),
        ({"tune": ["kd", "lr"]}, {"fc"}),
        ({"method": "icarl", "space": {"lr": [0.1, 0.05]}, "tune": ["lr"]}, {"ncm"}),
        ({"space": "joint"}, {"fc", "ncm"}),
        ({"space": {"classifier": ["fc", "ncm"]}}, {"fc", "ncm"}),
        ({"policy": "fixed"}, {"fc"}),
        ({"policy": "fixed", "action": {"classifier": "auto"}}, {"auto"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_with_a_tuning_policy_the_classifier_is_auto_unless_it_was_said(
    changes: dict[str, Any], classifiers: set[str]
) -> None:
    space = Learner(**{**SMALL, **changes}).settings.action_space
    assert {action.classifier for action in space.actions} == classifiers


def test_a_classifier_that_was_said_is_not_judged() -> None:
    learner = small(action={"classifier": "fc"})
    events = list(learner.fitting(*digits([3])))
    assert tried_in(events)
    assert not tried_in(events, "classifier")
    assert learner.knowledge.hits == {"fc": 0, "ncm": 0}


def test_a_finalist_of_the_race_is_judge_enough_and_where_there_is_none_the_decided_action_is_trained() -> None:
    learner = small(policy="race", policy_options={"finalists": 1, "every": 2})
    events = list(learner.fitting(*digits([3])))
    assert not tried_in(events, "classifier")
    decided = decided_in(events).action
    (final,) = [event for event in tried_in(events) if event.trial["full"] and event.action == decided]
    assert learner.knowledge.hits == hits_of(final)
    events = list(learner.fitting(*digits([4])))
    assert not tried_in(events)  # the action stays as it was decided before
    assert len(tried_in(events, "classifier")) == 1


JUDGED: dict[str, dict[str, Any]] = {
    "full": {},
    "trials": {"trials": {"length": 0.5, "classifier": "trials"}},
    "online": {"policy": "online", "space": [{"lr": [0.05]}, {"feature_kd": [0.0], "lr": [0.1, 0.02]}], "trials": None},
}


def decided_trial(events: list[Event]) -> TrialDone:
    (found,) = [event for event in tried_in(events) if event.action == decided_in(events).action]
    return found


@pytest.mark.parametrize("case", JUDGED)
def test_a_training_of_full_length_or_the_trial_of_the_decided_action_judges_and_hits_add_up(case: str) -> None:
    learner, total = small(**JUDGED[case]), dict(NONE)
    assert learner.classifier_ == "fc"
    for labels in ([3, 4], [5]):
        events = list(learner.fitting(*digits(labels)))
        apart = tried_in(events, "classifier")
        if case == "full":
            assert [(event.trial["epochs"], event.trial["full"]) for event in apart] == [(4, True)]
            assert apart[0].action == decided_in(events).action
        else:
            assert not apart, "nothing is trained for it"
            assert len(tried_in(events)) == len(learner.settings.action_space)
        hits = hits_of(apart[0] if apart else decided_trial(events))
        total = {name: total[name] + count for name, count in hits.items()}
        assert any(total.values())
        assert learner.knowledge.hits == total
        expected = "fc" if total["fc"] >= total["ncm"] else "ncm"
        assert [event.classifier for event in of(PhaseDone, events)] == [expected]
        assert learner.classifier_ == expected


def test_a_phase_without_trials_of_its_own_leaves_the_classifier() -> None:
    learner = small(**{**JUDGED["trials"], "policy_options": {"every": 2}})
    first, second = (list(learner.fitting(*digits([label]))) for label in (3, 4))
    hits = hits_of(decided_trial(first))
    assert not of(TrialDone, second)
    assert learner.knowledge.hits == hits
    assert [event.classifier for event in of(PhaseDone, second)] == [event.classifier for event in of(PhaseDone, first)]


def test_with_a_reserve_which_is_never_trained_on_the_trained_model_itself_is_judged() -> None:
    learner = small(**JUDGED["trials"], memory=Budget(per_class=6, reserve=2))
    before = learner.knowledge.hits
    events = list(learner.fitting(*digits([3])))
    assert tried_in(events)
    assert not tried_in(events, "classifier")
    assert learner.memory_ is not None
    reserve = learner.memory_.reserve
    assert (len(learner.memory_), len(reserve)) == (24, 8)
    found = {
        name: int((rows == reserve.labels.numpy()).sum()) for name, rows in learner.predictions(reserve.pixels).items()
    }
    assert learner.knowledge.hits == {name: before[name] + hits for name, hits in found.items()}
