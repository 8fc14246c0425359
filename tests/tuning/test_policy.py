"""The learner with policies that try actions: no test image, exact resume, nothing lost."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from poise import Budget, Learner, UserError
from poise.actions import Action
from poise.data.sources import DigitsSource
from poise.errors import Damaged
from poise.methods import make_method
from poise.policies import POLICIES as POLICY_BUILDERS
from poise.policies import Trial, register
from poise.training import ActionDecided, Event, PhaseDone, StageDone, TrialDone
from poise.tuning import TrialResult, Trials

OWN = make_method("lucir").default_action
GRID = {"feature_kd": [0.1, 1], "lr": [0.1, 0.02]}
SETTINGS: dict[str, Any] = {
    "net": "small",
    "memory": 6,
    "epochs": 12,
    "space": GRID,
    "device": "cpu",
    "preprocessing": DigitsSource.preprocessing,
}
POLICIES: dict[str, dict[str, Any]] = {
    "grid": {},
    "race": {"safe": 1.0},
    "exp3": {"iterations": 4},
    "hedge": {},
    "gp": {"trials": 3, "batch": 2},
    "thompson": {"trials": 3, "batch": 2},
    "random": {"trials": 2},
}


def phase(labels: list[int], count: int = 24) -> tuple[Tensor, Tensor]:
    images = DigitsSource().train()
    chosen = torch.cat([(images.labels == label).nonzero().flatten()[:count] for label in labels])
    return images.pixels[chosen], images.labels[chosen]


def learned(**changes: Any) -> Learner:
    return Learner(**{**SETTINGS, "policy": "grid", **changes}).partial_fit(*phase([0, 1, 2]))


def tensors_of(learner: Learner) -> dict[str, Tensor]:
    return learner.state(images=True)[0]


def assert_same(a: Learner, b: Learner) -> None:
    first, second = tensors_of(a), tensors_of(b)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert a.state(images=False)[1] == b.state(images=False)[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_tries_decides_and_the_phase_is_trained_with_that(policy: str) -> None:
    learner = learned(policy=policy, policy_options=POLICIES[policy])
    events = list(learner.fitting(*phase([3])))
    trials = [event for event in events if isinstance(event, TrialDone)]
    (decided,) = [event for event in events if isinstance(event, ActionDecided)]
    assert trials
    assert all(0 <= trial.reward <= 1 and Action(**trial.action) in learner.space.actions for trial in trials)
    assert learner.action_ == Action(**decided.action)
    if policy in ("grid", "random"):
        assert max(trial.reward for trial in trials) == max(
            trial.reward for trial in trials if trial.action == decided.action
        )


def test_nothing_is_tried_in_the_first_phase() -> None:
    learner = Learner(**SETTINGS, policy="grid")
    events = list(learner.fitting(*phase([0, 1])))
    assert not [event for event in events if isinstance(event, TrialDone)]


@pytest.mark.parametrize("policy", ["race", "exp3", "gp"])
def test_saved_after_any_trial_and_gone_on_it_ends_the_same(policy: str) -> None:
    settings = {"policy": policy, "policy_options": POLICIES[policy]}
    straight = learned(**settings)
    states = []
    for event in straight.fitting(*phase([3])):
        if isinstance(event, TrialDone | ActionDecided):
            tensors, meta = straight.state(images=True)
            states.append(({name: value.clone() for name, value in tensors.items()}, meta))
    straight.partial_fit(*phase([4]))
    for tensors, meta in states[:: max(1, len(states) // 3)]:
        resumed = Learner.from_state(tensors, meta, device="cpu")
        list(resumed.fitting(*phase([3])))
        resumed.partial_fit(*phase([4]))
        assert_same(straight, resumed)


def test_a_resumed_phase_does_not_repeat_its_events() -> None:
    learner = learned(policy="grid")
    told: list[Event] = []
    for event in learner.fitting(*phase([3])):
        told.append(event)
        if isinstance(event, TrialDone) and event.trial["id"] == 1:
            saved = learner.state(images=True)
            break
    resumed = Learner.from_state(*saved, device="cpu")
    told += list(resumed.fitting(*phase([3])))
    straight = list(learned(policy="grid").fitting(*phase([3])))
    assert [event.as_json() for event in told if event.kept] == [event.as_json() for event in straight if event.kept]


def test_a_phase_that_was_given_up_leaves_no_trace_in_the_policy() -> None:
    learner, straight = learned(policy="exp3"), learned(policy="exp3")
    going = learner.fitting(*phase([3]))
    for event in going:
        if isinstance(event, TrialDone):
            break
    going.close()  # type: ignore[attr-defined]
    assert_same(learner, straight)
    learner.partial_fit(*phase([4]))
    straight.partial_fit(*phase([4]))
    assert_same(learner, straight)


def test_where_nothing_can_be_held_out_the_default_stays(caplog: pytest.LogCaptureFixture) -> None:
    learner = Learner(**{**SETTINGS, "memory": 1}, policy="grid").partial_fit(*phase([0, 1], count=1))
    learner.partial_fit(*phase([2], count=1))
    assert learner.action_ == learner.space.actions[learner.space.default]
    assert "nothing to validate on" in caplog.text


def test_the_reserve_decides_auto_and_is_never_trained_on() -> None:
    learner = learned(policy="grid", memory=Budget(6, reserve=2), action={"classifier": "auto"})
    done = [event for event in learner.fitting(*phase([3])) if isinstance(event, PhaseDone)]
    assert done[0].classifier in ("fc", "ncm")
    assert learner.memory is not None
    assert len(learner.memory.reserve) == 8
    assert len(learner.memory) == 24


def test_fixed_ignores_the_space() -> None:
    assert len(learned(policy="fixed").space) == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"policy": "exp4"}, "unknown policy 'exp4'; did you mean 'exp3'?"),
        ({"space": "papr"}, "did you mean 'paper'?"),
        ({"space": {"featur_kd": [0, 1]}}, "did you mean 'feature_kd'?"),
        ({"tune": ["kdd"]}, "did you mean 'kd'?"),
        ({"policy_options": {"roundz": 2}}, "did you mean 'rounds'?"),
    ],
)
def test_mistakes_are_found_when_the_learner_is_made(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        Learner(**{**SETTINGS, "policy": "grid", **wrong})
    assert words in str(caught.value)


def test_an_overtaken_phase_cannot_spoil_the_policy() -> None:
    learner, straight = learned(policy="exp3"), learned(policy="exp3")
    overtaken = learner.fitting(*phase([3]))
    while not isinstance(next(overtaken), TrialDone):
        pass
    learner.partial_fit(*phase([4]))
    straight.partial_fit(*phase([4]))
    assert_same(learner, straight)
    with pytest.raises(UserError, match="learned another phase in the meantime"):
        list(overtaken)
    assert_same(learner, straight)
    again = Learner.from_state(*learner.state(images=True), device="cpu")
    assert_same(again, learner)


def test_a_model_for_predictions_needs_no_policy(tmp_path: Path) -> None:
    register("a policy of one's own")(POLICY_BUILDERS["grid"])
    learner = learned(policy="a policy of one's own").partial_fit(*phase([3]))
    learner.save(tmp_path / "model", memory=False)
    del POLICY_BUILDERS["a policy of one's own"]
    images, _ = phase([0, 3])
    assert (Learner.load(tmp_path / "model").predict(images) == learner.predict(images)).all()


SHORT_PHASES = {"epochs": 4, "memory": 4, "trials": {"length": 0.25}, "batch": 64}


def few(labels: list[int]) -> tuple[Tensor, Tensor]:
    return phase(labels, count=12)


def small(**changes: Any) -> Learner:
    """A learner of short phases that has learned the first."""
    return Learner(**{**SETTINGS, **SHORT_PHASES, "policy": "grid", **changes}).partial_fit(*few([0, 1, 2]))


# An action that the caller decided ----------------------------------------------------------------------------------


def decided_in(events: list[Event]) -> ActionDecided:
    (decided,) = [event for event in events if isinstance(event, ActionDecided)]
    return decided


def tried_in(events: list[Event], purpose: str | None = None) -> list[TrialDone]:
    return [event for event in events if isinstance(event, TrialDone) and event.trial.get("purpose") == purpose]


@pytest.mark.parametrize("policy", ["fixed", "grid"])
def test_a_given_action_is_trained_with_and_nothing_is_tried(policy: str) -> None:
    given: dict[str, Any] = {"feature_kd": 3.0, "lr": 0.03, "old_rows": "trained", "classifier": "ncm"}
    learner = small(policy=policy)
    events = list(learner.fitting(*few([3]), action=given))
    assert not tried_in(events)
    wanted = Action(**{**OWN, **given})
    assert (decided_in(events).policy, Action(**decided_in(events).action)) == ("given", wanted)
    assert (learner.action_, learner.classifier_) == (wanted, "ncm")
    set_before = small(policy="fixed", action=given)
    set_before.partial_fit(*few([3]))
    trained, expected = tensors_of(learner), tensors_of(set_before)
    assert all(torch.equal(trained[name], expected[name]) for name in expected)


def policy_entries(learner: Learner) -> list[dict[str, Any]]:
    """What the policy has learned from: all of the history but the judgements of classifiers."""
    history: list[dict[str, Any]] = learner.state(images=False)[1]["history"]
    return [entry for entry in history if "judged" not in entry]


def as_an_older_policy(meta: dict[str, Any]) -> dict[str, Any]:
    """What a poise would have saved whose policy had tried the arms in another order and decided another one."""
    arms = len([entry for entry in meta["history"] if "trial" in entry])
    history = [
        {**entry, "trial": {**entry["trial"], "arm": (entry["trial"]["arm"] + 1) % arms}}
        if "trial" in entry
        else {**entry, "decided": (entry["decided"] + 1) % arms}
        if "decided" in entry
        else entry
        for entry in meta["history"]
    ]
    return {**{key: value for key, value in meta.items() if key != "rules"}, "history": history}


def test_a_learner_of_an_older_policy_predicts_and_learns_on(caplog: pytest.LogCaptureFixture) -> None:
    learner = small(policy="grid")
    learner.partial_fit(*few([3]))
    tensors, meta = learner.state(images=True)
    older = Learner.from_state(tensors, as_an_older_policy(meta), device="cpu")
    assert "starts anew" in caplog.text
    pixels, _ = few([0, 3])
    assert older.predict(pixels).tolist() == learner.predict(pixels).tolist()
    assert older.state(images=True)[1]["judged"] == meta["judged"]
    older.partial_fit(*few([4]))
    assert {entry["phase"] for entry in policy_entries(older)} == {2}
    again = Learner.from_state(*older.state(images=True), device="cpu")
    for each in (older, again):
        each.partial_fit(*few([5]))
    assert_same(older, again)


def test_a_history_that_the_present_policy_cannot_have_is_refused() -> None:
    learner = small(policy="grid")
    learner.partial_fit(*few([3]))
    tensors, meta = learner.state(images=True)
    with pytest.raises(Damaged, match="does not ask for"):
        Learner.from_state(tensors, {**as_an_older_policy(meta), "rules": meta["rules"]}, device="cpu")


def test_trials_of_an_older_policy_cannot_be_gone_on_with() -> None:
    learner = small(policy="grid")
    for event in learner.fitting(*few([3])):
        if isinstance(event, TrialDone):
            tensors, meta = learner.state(images=True)
            break
    (entry,) = meta["pending"]["history"]
    other = {**entry, "trial": {**entry["trial"], "arm": entry["trial"]["arm"] + 1}}
    older = {**meta, "rules": 1, "pending": {**meta["pending"], "history": [other]}}
    with pytest.raises(UserError, match="finish the phase with that version"):
        Learner.from_state(tensors, older, device="cpu")


def test_a_given_action_leaves_the_policy_as_it_was() -> None:
    learner = small(policy="exp3", policy_options={"iterations": 2})
    learner.partial_fit(*few([3]))
    before, distribution = policy_entries(learner), learner.policy.distribution()
    events = list(learner.fitting(*few([4]), action={"lr": 0.02}))
    assert not tried_in(events)
    assert decided_in(events).action["classifier"] == "auto"  # the learner's own, so its classifiers are judged
    assert len(tried_in(events, "classifier")) == 1
    assert policy_entries(learner) == before
    assert distribution is not None
    assert learner.policy.distribution() == pytest.approx(distribution)
    again = Learner.from_state(*learner.state(images=True), device="cpu")
    for each in (learner, again):
        each.partial_fit(*few([5]))
    assert_same(learner, again)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"featur_kd": 1.0}, "unknown action axis 'featur_kd'; did you mean 'feature_kd'?"),
        ({"lr": 0}, "action lr=0 must be above 0"),
        ({"old_rows": "thawed"}, "action old_rows='thawed'; did you mean 'trained'?"),
    ],
)
def test_a_wrong_action_is_refused_before_anything_happens(given: dict[str, Any], words: str) -> None:
    learner = small(policy="fixed")
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        learner.fitting(*few([3]), action=given)
    assert words in str(caught.value)


# Studies ------------------------------------------------------------------------------------------------------------


def test_trials_for_a_study_leave_the_learner_as_it_is() -> None:
    learner = small(policy="exp3", memory=Budget(4, reserve=2))
    tensors, meta = learner.state(images=True)
    before = {name: value.clone() for name, value in tensors.items()}, json.dumps(meta)
    trials = learner.trials(*few([3, 4]), witness=lambda model, means: model.head.classes)
    assert trials.possible
    assert trials.classes == (0, 1, 2, 3, 4)
    result = trials.run(Trial(0, 0, 2), learner.space.actions[0], "fc", 2)
    assert result.witnessed == {1: 5, 2: 5}
    tensors, meta = learner.state(images=True)
    assert json.dumps(meta) == before[1]
    assert before[0].keys() == tensors.keys()
    assert all(torch.equal(value, before[0][name]) for name, value in tensors.items())


def test_trials_for_a_study_are_those_of_the_phase() -> None:
    learner = small()
    study = learner.trials(*few([3]))
    events = tried_in(list(learner.fitting(*few([3]))))
    for event in events[:2]:
        trial = Trial(**event.trial)
        result = study.run(trial, learner.space.actions[trial.arm], event.classifier, learner.policy.setup.short)
        assert (result.outcome.reward, result.as_json()) == (event.reward, event.record)


def test_there_are_no_trials_before_the_first_phase() -> None:
    with pytest.raises(UserError, match=r"^nothing is tried in the first phase; learn it first$"):
        Learner(**SETTINGS, policy="grid").trials(*phase([0, 1]))


# The classifier apart from the trials -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "classifiers"),
    [
        ({}, {"auto"}),
        ({"tune": ["kd", "classifier"]}, {"auto"}),
        ({"tune": ["classifier"]}, {"auto"}),
        ({"method": "icarl", "space": {"lr": [0.1, 0.05]}}, {"auto"}),
        ({"action": {"classifier": "ncm"}}, {"ncm"}),
        ({"tune": ["kd"]}, {"fc"}),
        ({"tune": ["kd", "lr"]}, {"fc"}),
        ({"method": "icarl", "space": {"lr": [0.1, 0.05]}, "tune": ["lr"]}, {"ncm"}),
        ({"space": "joint"}, {"fc", "ncm"}),
        ({"space": "joint", "tune": ["kd"]}, {"fc"}),
        ({"space": {"classifier": ["fc", "ncm"]}}, {"fc", "ncm"}),
        ({"policy": "fixed"}, {"fc"}),
        ({"policy": "fixed", "action": {"classifier": "auto"}}, {"auto"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_with_a_tuning_policy_the_classifier_is_auto_unless_it_was_said(
    changes: dict[str, Any], classifiers: set[str]
) -> None:
    space = Learner(**{**SETTINGS, "policy": "grid", **changes}).space
    assert {action.classifier for action in space.actions} == classifiers


def hits_of(event: TrialDone) -> dict[str, int]:
    last = event.record["hits"][max(event.record["hits"], key=int)]
    return {name: sum(counts) for name, counts in last.items()}


def test_without_a_reserve_one_training_of_full_length_judges_the_classifiers_and_hits_add_up() -> None:
    learner = small()
    assert learner.classifier_ == "fc"
    total = {"fc": 0, "ncm": 0}
    for label in (3, 4):
        events = list(learner.fitting(*few([label])))
        (judged,) = tried_in(events, "classifier")
        assert (judged.trial["epochs"], judged.trial["full"]) == (4, True)
        assert judged.action == decided_in(events).action
        total = {name: total[name] + count for name, count in hits_of(judged).items()}
        assert learner.state(images=False)[1]["judged"] == total
        expected = "fc" if total["fc"] >= total["ncm"] else "ncm"
        assert [event.classifier for event in events if isinstance(event, PhaseDone)] == [expected]
        assert learner.classifier_ == expected


def test_a_classifier_that_was_said_is_not_judged() -> None:
    learner = small(action={"classifier": "fc"})
    events = list(learner.fitting(*few([3])))
    assert tried_in(events)
    assert not tried_in(events, "classifier")
    assert learner.state(images=False)[1]["judged"] == {"fc": 0, "ncm": 0}


def test_with_a_reserve_the_trained_model_itself_is_judged() -> None:
    learner = small(memory=Budget(4, reserve=2))
    before = learner.state(images=False)[1]["judged"]
    events = list(learner.fitting(*few([3])))
    assert not tried_in(events, "classifier")
    assert learner.memory is not None
    reserve = learner.memory.reserve
    found = {
        name: int((rows == reserve.labels.numpy()).sum()) for name, rows in learner.predictions(reserve.pixels).items()
    }
    after = learner.state(images=False)[1]["judged"]
    assert after == {name: before[name] + hits for name, hits in found.items()}


def test_a_finalist_of_the_race_is_judge_enough() -> None:
    learner = small(policy="race", policy_options={"finalists": 1})
    events = list(learner.fitting(*few([3])))
    assert not tried_in(events, "classifier")
    finals = [event for event in tried_in(events) if event.trial["full"] and event.action == decided_in(events).action]
    assert len(finals) == 1
    assert learner.state(images=False)[1]["judged"] == hits_of(finals[0])


def test_where_the_decided_action_was_no_finalist_it_is_trained_for_the_judgement() -> None:
    learner = small(policy="race", policy_options={"finalists": 1, "every": 2})
    first, second = (list(learner.fitting(*few([label]))) for label in (3, 4))
    assert not tried_in(first, "classifier")
    assert not tried_in(second)  # the action stays as it was decided before
    assert len(tried_in(second, "classifier")) == 1


def test_the_papers_way_judges_by_two_short_trainings_in_the_first_tuned_phase_only() -> None:
    learner = small(trials={"length": 0.5, "classifier": "paper"})
    first, second = (list(learner.fitting(*few([label]))) for label in (3, 4))
    judged = tried_in(first, "classifier")
    assert [(event.classifier, event.trial["epochs"], event.trial["full"]) for event in judged] == [
        ("fc", 2, False),
        ("ncm", 2, False),
    ]
    suited = [(event.action["feature_kd"], event.action["logit_kd"], event.action["margin"]) for event in judged]
    assert suited == [(1.0, 0.0, 1.0), (0.0, 1.0, 0.0)]
    hits = {event.classifier: hits_of(event)[event.classifier] for event in judged}
    assert any(hits.values())
    assert not tried_in(second, "classifier")
    assert learner.state(images=False)[1]["judged"] == hits
    assert learner.classifier_ == ("fc" if hits["fc"] >= hits["ncm"] else "ncm")


# Killed anywhere ----------------------------------------------------------------------------------------------------

KILLED: dict[str, dict[str, Any]] = {
    "finalists": {
        "policy": "race",
        "policy_options": {"finalists": 1, "rungs": 2},
        "space": {"lr": [0.1], "balance": ["finetune", "none"]},
        "action": {"balance": "finetune"},
        "trials": {"length": 0.5},
    },
    "judged at full length": {"policy": "exp3", "policy_options": {"iterations": 2}, "action": {"balance": "finetune"}},
    "look-ahead": {"space": {"lr": [0.1, 0.02]}, "trials": {"environment": "both"}},
    "the paper's candidates": {"space": {"lr": [0.1, 0.02]}, "trials": {"classifier": "paper"}},
    "horizon": {"space": {"lr": [0.1, 0.02]}, "trials": {"horizon": 1}},
}


@pytest.mark.parametrize("case", KILLED)
def test_killed_at_any_event_and_gone_on_it_ends_with_the_same_bytes(case: str) -> None:
    straight = small(**KILLED[case])
    arriving = few([3, 4])
    states, events = [], []
    for event in straight.fitting(*arriving):
        tensors, meta = straight.state(images=True)
        states.append(({name: value.clone() for name, value in tensors.items()}, json.loads(json.dumps(meta))))
        events.append(event)
    balanced = "action" in KILLED[case]
    stages = [event.stage for event in events if isinstance(event, StageDone)]
    assert stages == (["main", "balance"] if balanced else ["main"])
    assert straight.state(images=False)[1]["judged"] != {"fc": 0, "ncm": 0}
    for place, event in enumerate(events[:-1]):  # after the last one the phase is learned
        if not balanced and not isinstance(event, TrialDone):
            continue  # the training itself was killed everywhere in the other cases
        resumed = Learner.from_state(*states[place], device="cpu")
        told = list(resumed.fitting(*arriving))
        assert_same(straight, resumed)
        assert told == events[place + 1 :]


# The judgement of classifiers beside the training, as on a GPU ------------------------------------------------------


def beside(learner: Learner) -> Learner:
    learner._judges_beside = True
    return learner


ONE_TRIAL: dict[str, Any] = {"policy": "exp3", "policy_options": {"iterations": 1}, "action": {"balance": "finetune"}}
BESIDE: dict[str, dict[str, Any]] = {
    "shorter than the training": ONE_TRIAL,
    "both environments": {**ONE_TRIAL, "trials": {"environment": "both"}},
    "a finalist": {"policy": "race", "policy_options": {"finalists": 1, "rungs": 2}, "space": {"lr": [0.1, 0.02]}},
    "the paper's candidates": {"space": {"lr": [0.1, 0.02]}, "trials": {"classifier": "paper"}},
    "a reserve": {"space": {"lr": [0.1, 0.02]}, "memory": Budget(4, reserve=2)},
}


def in_any_order(events: list[Event]) -> list[str]:
    return sorted(json.dumps(event.as_json(), sort_keys=True) for event in events if event.kept)


@pytest.mark.parametrize("case", BESIDE)
def test_beside_the_training_the_judgement_is_what_it_is_before_it(case: str) -> None:
    before, learner = small(**BESIDE[case]), beside(small(**BESIDE[case]))
    for arriving in (few([3, 4]), few([5])):
        told, expected = list(learner.fitting(*arriving)), list(before.fitting(*arriving))
        assert in_any_order(told) == in_any_order(expected)
        assert_same(learner, before)
        judged = tried_in(told, "classifier")
        if case in ("both environments", "shorter than the training"):
            assert told.index(judged[0]) > told.index(decided_in(told))


@pytest.mark.parametrize("case", ["shorter than the training", "both environments"])
def test_killed_with_a_judgement_beside_it_ends_with_the_same_bytes(case: str) -> None:
    straight, arriving = beside(small(**BESIDE[case])), few([3, 4])
    states, events = [], []
    for event in straight.fitting(*arriving):
        tensors, meta = straight.state(images=True)
        states.append(({name: value.clone() for name, value in tensors.items()}, json.loads(json.dumps(meta))))
        events.append(event)
    assert isinstance(events[-2], StageDone) is (case == "shorter than the training")
    for number, place in enumerate(range(0, len(events) - 1, 1 if case == "shorter than the training" else 3)):
        resumed = Learner.from_state(*states[place], device="cpu")
        resumed._judges_beside = number % 2 == 0  # what was begun on a GPU may end on a CPU
        told = list(resumed.fitting(*arriving))
        assert_same(straight, resumed)
        assert in_any_order(told) == in_any_order(events[place + 1 :])


def test_a_judgement_without_memory_beside_the_training_comes_after_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = BESIDE["both environments"]
    before, learner = small(**settings), beside(small(**settings))
    expected = list(before.fitting(*few([3, 4])))
    original, calls = Trials.beside, 0

    def starved(self: Trials, *asked: Any) -> Generator[int, None, TrialResult]:
        nonlocal calls
        going = original(self, *asked)
        for _ in range(3):
            calls += 1
            yield next(going)
        raise torch.cuda.OutOfMemoryError("injected")

    monkeypatch.setattr(Trials, "beside", starved)
    told = list(learner.fitting(*few([3, 4])))
    assert calls == 3
    assert "out of memory beside the training of phase 1" in caplog.text
    assert in_any_order(told) == in_any_order(expected)
    assert isinstance(told[-2], TrialDone)
    assert_same(learner, before)


# The record ---------------------------------------------------------------------------------------------------------


def test_the_decision_carries_its_reward_and_those_of_earlier_phases() -> None:
    learner, past = small(trials={"length": 0.5}), 0.0
    for label in (3, 4, 5):
        events = list(learner.fitting(*few([label])))
        decided = decided_in(events)
        (reward,) = [event.reward for event in tried_in(events) if event.action == decided.action]
        assert decided.reward == reward
        assert decided.past_reward == pytest.approx(past)
        past += reward
        learner = Learner.from_state(*learner.state(images=True), device="cpu")
    assert past > 0


def test_a_decision_without_a_trial_has_no_reward_and_adds_nothing() -> None:
    learner = small(policy_options={"every": 2})
    rewards = []
    for label in (3, 4, 5):
        decided = decided_in(list(learner.fitting(*few([label]))))
        rewards.append((decided.reward, decided.past_reward))
    assert rewards[0][0] is not None
    assert rewards[1] == (None, rewards[0][0])
    assert rewards[2][1] == rewards[0][0]
    fixed = decided_in(list(small(policy="fixed").fitting(*few([3]))))
    assert (fixed.reward, fixed.past_reward) == (None, 0.0)


def test_a_trial_carries_the_distribution_from_which_it_was_drawn() -> None:
    learner = small(policy="exp3", policy_options={"iterations": 3})
    for label in (3, 4):
        events = list(learner.fitting(*few([label])))
        trials = tried_in(events)
        assert len(trials) == 3
        for event in trials:
            assert event.distribution is not None
            assert len(event.distribution) == len(learner.space)
            assert sum(event.distribution) == pytest.approx(1)
        assert trials[0].distribution != trials[1].distribution != decided_in(events).distribution
        if label == 3:
            assert trials[0].distribution == pytest.approx([1 / len(learner.space)] * len(learner.space))


# Bugs that are known ------------------------------------------------------------------------------------------------


def test_a_judgement_that_was_told_is_not_told_again() -> None:
    learner, events = small(), []
    for event in learner.fitting(*few([3])):
        events.append(event)
        if isinstance(event, TrialDone) and event.trial.get("purpose") == "classifier":
            saved = learner.state(images=True)
            break
    told = list(Learner.from_state(*saved, device="cpu").fitting(*few([3])))
    assert len(tried_in([*events, *told], "classifier")) == 1


def test_the_papers_candidates_do_not_continue_trials_of_the_policy() -> None:
    settings = {"policy": "race", "policy_options": {"rungs": 2}, "trials": {"length": 0.5, "classifier": "paper"}}
    learner, saved = small(**settings), None
    told: list[TrialDone] = []
    for event in learner.fitting(*few([3])):
        if isinstance(event, TrialDone):
            told.append(event)
            if event.trial.get("purpose") is None:
                saved = learner.state(images=True)
    assert saved is not None
    resumed = Learner.from_state(*saved, device="cpu")
    again = tried_in(list(resumed.fitting(*few([3]))), "classifier")
    assert again == tried_in(list(told), "classifier")


def test_every_action_of_the_space_can_be_given() -> None:
    learner = small(space={"epochs": [2, 4]})
    for action in learner.space.actions:
        learner.fitting(*few([3]), action=action)


def test_a_given_action_counts_in_the_first_phase_too() -> None:
    learner = Learner(**{**SETTINGS, **SHORT_PHASES})
    events = list(learner.fitting(*few([0, 1]), action={"lr": 0.03}))
    assert decided_in(events).action["lr"] == 0.03
