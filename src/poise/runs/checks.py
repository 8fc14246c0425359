"""Two checks of a policy that look at exams, and say so in every table: how large a leak would be, and an oracle.

`Audit` is a run whose policy is told the exam accuracy of its trials. A learner cannot do this, as it holds no exam
image; here the runner hands it another reward, whose witness is the examiner. `run_crossval` (row 5 of the Table 3 of
"Online Hyperparameter Optimization for Class-Incremental Learning", Liu, Li, Schiele and Sun, AAAI 2023) runs every
action of a space as the constant action of a whole run and keeps the best by the exam, which no learner could.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from poise import store
from poise.actions import Action, ActionSpace
from poise.errors import Diverged, Interrupted, RunFailed, UserError
from poise.learner import Learner
from poise.policies import UNTUNED, Outcome
from poise.runs.examiner import FIGURES, Exam, Examiner, figures, matrix_in_percent
from poise.runs.findings import SECONDS
from poise.runs.folder import CROSSVAL, RESULT, RunFolder
from poise.runs.journal import read_journal
from poise.runs.plan import Plan
from poise.runs.record import load_result
from poise.runs.run import Run
from poise.runs.sweep import Cell, sweep_cells
from poise.settings import TrialSettings
from poise.tuning.results import Reward, TrialResult

NAME = "crossval"


class ExamReward(Reward):
    """The accuracy of a temporary model on the exam images: each class has the same weight, as in the local reward."""

    def __init__(self, examiner: Examiner, learner: Learner) -> None:
        self.witness = lambda model, means, classes: {
            **examiner.score(model, means, classes, learner.evaluator),
            "images": examiner.counts(classes),
        }

    def told(self, result: TrialResult, classifier: str) -> tuple[Outcome, dict[str, Any]]:
        """What the examiner saw at the end, in place of the validation part; labelled, with the local reward."""
        outcome, record, seen = result.outcome, result.as_json(), dict(result.witnessed or {})
        images = seen.pop("images", [])
        exam = {str(result.epochs): seen} if seen else {}
        record.update(leak=True, local_reward=outcome.reward, exam=exam)
        if not outcome.diverged:
            shares = tuple(right / count for right, count in zip(seen[classifier], images, strict=True) if count)
            outcome = Outcome(outcome.trial, sum(shares) / len(shares), shares)
        return outcome, record


@dataclass
class Audit(Run):
    """A run whose policy is rewarded by the exam. It can be killed anywhere and resumed, like a run."""

    runner: ClassVar[str] = "audit"

    def __post_init__(self) -> None:
        policy, settings = self.plan.recipe.policy, self.plan.settings
        if not settings.kind.tunes:
            raise UserError(
                f"policy={policy} tries nothing, so nothing can leak; name another policy, e.g. policy=race"
            )
        if not settings.kind.asks:
            raise UserError(f"policy={policy} is told no rewards of trials that could leak; name another policy")
        if settings.trials.environment == "lookahead":
            raise UserError("the exam can be told only of models of the real classes; use trials.environment=local")

    def _reward(self, learner: Learner, examiner: Examiner) -> Reward:
        return ExamReward(examiner, learner)

    def _result(self) -> dict[str, Any]:
        result = super()._result()
        resolved = {**result["resolved_policy"], "reward": f"exam {self.plan.recipe.exam} (leak)"}
        return {**result, "resolved_policy": resolved, "leak": True}


def runner_in(folder: RunFolder) -> type[Run]:
    """A function that resumes the run in this folder."""
    return Audit if folder.description().runner == Audit.runner else Run


# The oracle -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A constant action with a constant classifier, and its run; None if that diverged."""

    action: Action
    result: Mapping[str, Any] | None
    figures: Mapping[str, float | None]

    def as_json(self) -> dict[str, Any]:
        """Its line in the result."""
        return {"action": dict(self.action), **self.figures}


def run_crossval(
    plan: Plan,
    out: Path,
    lanes: int | None,
    say: Callable[[str], None],
    checkpoint_seconds: float = store.CHECKPOINT_SECONDS,
) -> dict[str, Any]:
    """Run every action of the space as the constant action of a whole run, and keep the best average.

    All runs share one phase 0, in which nothing is tuned. Each is an ordinary run folder in `out`: finished ones are
    not run again, stopped ones are resumed. Where the classifier is tuned apart from the actions, each run is a
    candidate with each classifier. An action that diverges cannot win, and has no figures in the result.
    """
    # The space of a learner that would try actions with this recipe, whatever its policy.
    space = replace(plan, recipe=plan.recipe.replace(policy="grid", policy_options={})).settings.action_space
    _claim(out, {**plan.as_json(), "space": space.as_json()})
    if (out / RESULT).exists():
        say(f"{out} holds this {NAME}, finished")
        return load_result(out)
    first = RunFolder(out / "phase-0")
    if plan.recipe.start is None and not first.phase_0.exists():
        say("phase 0, which all actions share")
        job = Run(_constant(plan, plan.recipe.action), first, until=1)
        try:
            job.to_end(job.continuing())
        except Interrupted as stopped:
            raise Interrupted("interrupted; the same command continues", stopped.exit_code) from stopped
    start = plan.recipe.start or str(first.path.resolve())
    cells = [
        Cell(f"arm-{arm:03d}", _constant(plan, _without_judging(plan, action), start))
        for arm, action in enumerate(space.actions)
    ]
    failed = sweep_cells(cells, out, lanes, checkpoint_seconds)
    if other := {name: error for name, error in failed.items() if not isinstance(error, Diverged)}:
        name, error = next(iter(other.items()))
        raise RunFailed(
            f"{len(other)} of {len(cells)} actions failed and have no result ({', '.join(other)}), so the best one is "
            f"not known; {name}: {error}; the same command tries them again"
        )
    candidates = [
        candidate
        for cell, action in zip(cells, space.actions, strict=True)
        for candidate in _candidates(cell.plan, RunFolder(out / cell.name), action)
    ]
    result = _result(space, candidates, _seconds(first, [RunFolder(out / cell.name) for cell in cells]))
    store.write_json(out / RESULT, result, digest=True)
    return result


def _claim(out: Path, wanted: Mapping[str, Any]) -> None:
    """Refuse a folder that holds something else, and say what this one holds."""
    file = out / CROSSVAL
    if not file.exists():
        if out.exists() and any(out.iterdir()):
            raise UserError(f"{out} holds files of something else; choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        store.write_json(file, wanted)
    saved = store.read_json(file)
    other = [key for key in wanted if saved.get(key) != wanted[key]]
    if other:
        raise UserError(f"{out} holds another {NAME} (other {', '.join(other)}); choose another --out")


def _without_judging(plan: Plan, action: Action) -> Action:
    """The action as it is trained: nothing is spent on judging classifiers, both of which are examined anyway."""
    own = plan.settings.made_method.default_action.classifier
    return action.replace(classifier="fc" if own == "auto" else own) if action.classifier == "auto" else action


def _constant(plan: Plan, action: Mapping[str, float | str], start: str | None = None) -> Plan:
    """The run of this recipe with a constant action."""
    fixed: Any = {"policy": UNTUNED, "policy_options": {}, "space": None, "tune": None, "trials": TrialSettings()}
    return replace(plan, recipe=plan.recipe.replace(**fixed, action=dict(action), start=start or plan.recipe.start))


def _candidates(plan: Plan, folder: RunFolder, action: Action) -> Iterator[Candidate]:
    """The action with each classifier it may have, examined as if that had counted from the start."""
    exams = [Exam.from_json(event) for event in read_journal(folder.journal.path) if event["event"] == "exam"]
    for classifier in ("fc", "ncm") if action.classifier == "auto" else (action.classifier,):
        chosen = action.replace(classifier=classifier)
        counted = [replace(exam, classifier=classifier) for exam in exams]
        if not folder.finished:
            yield Candidate(chosen, None, dict.fromkeys(FIGURES))
            continue
        result = load_result(folder.path)
        curve = [
            {
                **point,
                "accuracy": point[f"accuracy_{classifier}"],
                "action": {**point["action"], "classifier": classifier},
            }
            for point in result["curve"]
        ]
        matrix = matrix_in_percent(counted, plan.stream)
        own = {**result, "accuracy_matrix": matrix, "curve": curve}
        yield Candidate(chosen, own, figures(counted, plan.stream))


def _seconds(first: RunFolder, folders: Sequence[RunFolder]) -> dict[str, float]:
    """The seconds of a whole run, phase 0 included where it was trained here."""
    found = first.newest_checkpoint() if first.exists else None
    spent = [found.meta.seconds] if found is not None else []
    spent += [load_result(folder.path)["seconds"] for folder in folders if folder.finished]
    return {part: round(sum(each[part] for each in spent), 3) for part in SECONDS}


def _result(space: ActionSpace, candidates: Sequence[Candidate], seconds: Mapping[str, float]) -> dict[str, Any]:
    """The winner's result, labelled, with how every candidate did."""
    finished = [candidate for candidate in candidates if candidate.result is not None]
    if not finished:
        raise RunFailed(f"every one of the {len(space)} actions diverged; choose another space")
    best = max(finished, key=lambda candidate: candidate.figures["average_accuracy"] or 0.0)
    assert best.result is not None
    return {
        **best.result,
        **best.figures,
        "policy": NAME,
        "oracle": True,
        "resolved_policy": {
            "name": NAME,
            "oracle": "the constant action with the best average accuracy in the exams of whole runs",
            "action": dict(best.action),
        },
        "space": space.as_json(),
        "seconds": dict(seconds),
        "actions": [candidate.as_json() for candidate in candidates],
    }
