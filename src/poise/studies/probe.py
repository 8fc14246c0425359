"""A probe: every action of a space tried in one phase, with the exam of the temporary models beside their rewards.

It answers how far a reward can be trusted, and feeds the simulator. What it writes is labelled: exam figures of
temporary models are recorded for this study, and no policy ever sees them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from poise import files, locks, store
from poise.actions import MOST_EPOCHS
from poise.data import ImageSet
from poise.data.sources import digest
from poise.errors import Interrupted, UserError, check_whole
from poise.journal import Journal, read_journal
from poise.learner import Learner, LearnerState, Settings
from poise.learner.phase import Phase
from poise.policies import MOST_TRIALS, Trial
from poise.runfolder import FULL, POLICY_KEYS, PROBE
from poise.runs.contents import check_phase_0
from poise.runs.examiner import Examiner
from poise.runs.folder import Checkpoint, RunFolder
from poise.runs.machine import threads_to_resume_with
from poise.runs.overrides import parse_once
from poise.runs.plan import Plan, images_by_origin, make_plan, reopen
from poise.runs.progress import Watcher
from poise.runs.recipe import make_recipe
from poise.runs.run import Run
from poise.runs.stopping import Stop, as_many_threads, stopping
from poise.schema import contents_of
from poise.training import Pause
from poise.tuning import Attempt, Reward, TrialResult, Trials

LINE_SECONDS = 10.0  # between lines about progress
#: Recipe keys that do not change what was learned before the probed phase.
FREE = (*POLICY_KEYS, "device")
AGAIN = "interrupted; the same command continues"


@dataclass(frozen=True)
class Question:
    """What a probe asks.

    Attributes:
        phase: in which phase the actions are tried.
        lengths: epochs M₁ of the trials, each with a schedule of its own; empty: the learner's M₁.
        full: also train every action at full length M₂ on the local training part, in the first round.
        rounds: on how many splits of the environment.
    """

    phase: int
    lengths: tuple[int, ...] = ()
    full: bool = False
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.phase < 1:
            raise UserError("phase 0 is plain classification, in which nothing is tuned; probe phase 1 or a later one")
        check_whole("--rounds", self.rounds, 1, MOST_TRIALS)
        for length in self.lengths:
            check_whole("--lengths", length, 1, MOST_EPOCHS)

    def trials(self, arms: int, short: Sequence[int], full: int) -> Iterator[tuple[int, list[Trial]]]:
        """Batches of trials with the M₁ of their schedule, the long ones last."""
        for number in range(self.rounds):
            for length in short:
                yield length, [Trial(arm, arm, length, round=number) for arm in range(arms)]
        if self.full:
            yield full, [Trial(arm, arm, full, full=True) for arm in range(arms)]


def tuning_settings(plan: Plan) -> Settings:
    """The settings of a learner that would try actions with this recipe, whatever its policy: its space and its M₁."""
    recipe = plan.recipe.changed(policy="grid", policy_options={})
    return replace(plan, recipe=recipe).settings


def reach(plan: Plan, folder: RunFolder, phase: int, watcher: Watcher) -> None:
    """Bring an ordinary run of the recipe to where this phase begins; it continues from where it stands."""
    refuse_phase(plan, phase)
    job = Run(plan, folder, (watcher,), until=phase)
    try:
        if not folder.exists:
            job.start()
            return
        job.refuse_other()
        if not folder.finished:
            job.resume()
    except Interrupted as error:
        raise Interrupted(AGAIN, error.exit_code) from error


def refuse_phase(plan: Plan, phase: int) -> None:
    """Refuse a phase that the stream does not have."""
    if not phase < len(plan.stream):
        raise UserError(f"the stream has no phase {phase}; its last one is {len(plan.stream) - 1}")


def reopen_for_probe(path: Path, overrides: Sequence[str]) -> tuple[Plan, RunFolder]:
    """The plan of a run with keys changed that do not touch what was learned, and its folder."""
    folder, plan = reopen(path)
    for words in parse_once(overrides):
        key = words.partition(".")[0]
        if key not in FREE:
            raise UserError(f"{key} cannot be changed for a run that exists; probe the recipe instead of {path}")
    if overrides:
        plan = make_plan(plan.name, make_recipe(plan.recipe.model_dump(mode="json"), overrides))
    return plan, folder


class Probe:
    """One probe: its question, where it starts from, and its files.

    `FILE.json` is written when all trials are done; until then they are lines of `FILE.jsonl`, and the same command
    continues after the last whole one.
    """

    def __init__(self, plan: Plan, folder: RunFolder, question: Question, out: Path) -> None:
        refuse_phase(plan, question.phase)
        if out.suffix != ".json":
            raise UserError(f"--out {out} must end in .json")
        self.plan, self.folder, self.question, self.out = plan, folder, question, out
        self.journal = Journal(out.with_suffix(".jsonl"))
        self._settings = tuning_settings(plan)
        self.space = self._settings.action_space
        self.lengths = tuple(sorted(set(question.lengths))) or (self._settings.tuner.setup.short,)

    def run(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Run what is left of it; returns the table."""
        stop = Stop()
        with stopping(stop), as_many_threads(threads_to_resume_with(self.folder.machine)):
            train, exam = self.plan.images()
            examiner = Examiner(exam, self.plan.stream)
            learner = self._learner(train)
            phase = self._phase(learner, examiner, train)
            asked = self._describe_question(learner, examiner, phase)
            if self.out.exists():
                self._refuse_other(store.read_json(self.out), asked, self.out)
                say(f"{self.out} holds this probe, finished")
                return store.read_json(self.out)
            with self._alone():
                done = self._read_done(asked)
                with closing(learner.backend.guard(self._run_trials(phase.task.trials, done, say))) as going:
                    for entry in going:
                        done += [] if isinstance(entry, Pause) else [entry]
                        if stop.is_set() and len(done) < self._count():
                            raise stop.interruption(AGAIN)
                table = {**asked, "trials": done}
                store.write_json(self.out, table, digest=True)
                self.journal.path.unlink()
        return table

    # What it starts from ----------------------------------------------------------------------------------------

    def _learner(self, train: ImageSet) -> Learner:
        """The learner as it was before the phase. What decided the actions of earlier phases is not asked again."""
        phase, (path, tensors, meta) = self.question.phase, self._read_state()
        with contents_of(path):
            state = LearnerState.from_tensors(tensors, meta["learner"], lookup=images_by_origin(train))
        if state.knowledge.phases != phase:
            raise UserError(
                f"{self.folder.path} stands in phase {state.knowledge.phases}, its state before phase {phase} is gone; "
                f"probe the recipe instead, which trains up to there"
            )
        return self.plan.restored_learner(state.forgetting_trials(self._settings.untuned()))

    def _read_state(self) -> Checkpoint:
        if self.question.phase == 1 and (path := self.folder.phase_0).exists():
            found = Checkpoint(path, *store.read_tensors(path, kind="phase 0"))
            with contents_of(path):
                check_phase_0(found.meta)
            return found
        if (newest := self.folder.newest_checkpoint()) is not None:
            return newest
        raise UserError(f"{self.folder.path} has no checkpoint yet; continue with 'poise resume {self.folder.path}'")

    def _phase(self, learner: Learner, examiner: Examiner, train: ImageSet) -> Phase:
        arrived = train.of_labels(self.plan.stream[self.question.phase])
        witnessed = Reward()
        witnessed.witness = lambda model, means, classes: examiner.score(model, means, classes, learner.evaluator)
        phase = learner.phase_of(arrived, arrived.labels, witnessed)
        if not phase.task.trials.possible:
            raise UserError(f"phase {self.question.phase} has nothing to validate on; keep more images (memory=…)")
        return phase

    def _describe_question(self, learner: Learner, examiner: Examiner, phase: Phase) -> dict[str, Any]:
        """Everything about the probe but the trials; two probes with the same are the same probe."""
        recipe, tensors = self.plan.recipe, learner.state().tensors(images=False)[0]
        classes, old = [int(label) for label in phase.arrival.classes], len(learner.classes_)
        settings = self._settings.as_json()
        described = {
            "kind": PROBE,
            "name": self.plan.name,
            "recipe": recipe.model_dump(mode="json"),
            "fingerprint": self.plan.source.fingerprint,
            "seed": recipe.seed,
            "phase": self.question.phase,
            "state": digest([tensor for _, tensor in sorted(tensors.items())]),
            "space": self.space.as_json(),
            "actions": [dict(action) for action in self.space.actions],
            "default": self.space.default,
            "counts": [phase.rule.classifier_for(action) for action in self.space.actions],
            "environment": {key: settings[key] for key in ("trials", "memory")},
            "lengths": self.lengths,
            "full": recipe.epochs if self.question.full else None,
            "rounds": self.question.rounds,
            "classes": classes,
            "old": old,
            "new": len(classes) - old,
            "exam": {
                "name": recipe.exam,
                "what": "hits of the temporary models on exam images; they never enter a reward",
                "fingerprint": examiner.fingerprint,
                "images": examiner.counts(phase.arrival.classes),
            },
        }
        return dict(_plain(described))

    # The trials -------------------------------------------------------------------------------------------------

    def _count(self) -> int:
        return sum(len(batch) for _, batch in self._batches())

    def _batches(self) -> Iterator[tuple[int, list[Trial]]]:
        return self.question.trials(len(self.space), self.lengths, self.plan.recipe.epochs)

    def _run_trials(
        self, trials: Trials, done: Sequence[Mapping[str, Any]], say: Callable[[str], None]
    ) -> Generator[dict[str, Any] | Pause, None, None]:
        """The trials that are left, each written down before the next one is shown; with pauses inside of them."""
        known = {_key(entry) for entry in done}
        count, began, spoke, ran = self._count(), time.monotonic(), time.monotonic(), 0
        say(f"phase {self.question.phase}: {count - len(known)} of {count} trials to run, {self.space}")
        for short, batch in self._batches():
            attempts = [
                Attempt(trial, self.space.actions[trial.arm], "fc", short)
                for trial in batch
                if _place(trial) not in known
            ]
            for result in trials.pausing(attempts):
                if isinstance(result, Pause):
                    yield result
                    continue
                entry = _plain(_entry(result))
                self.journal.append({"event": "trial", **entry})
                ran, number = ran + 1, len(known) + ran + 1
                if time.monotonic() - spoke > LINE_SECONDS or number == count:
                    spoke, each = time.monotonic(), (time.monotonic() - began) / ran
                    rest = timedelta(seconds=round(each * (count - number)))
                    say(f"  trial {number} of {count}, {each:.1f} s each, about {rest} left")
                yield entry

    # Its files --------------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep a second process with the same --out away."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        busy = f"writes {self.out}; wait for it or choose another --out"
        with locks.locked(self.journal.path, busy):
            try:
                yield
            finally:
                self.journal.close()

    def _read_done(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The trials that were done before; a line that was being written then is cut off."""
        path = self.journal.path
        self.journal.rewind(files.read_bytes(path, files.MOST_JOURNAL).rfind(b"\n") + 1)
        lines = [{key: value for key, value in line.items() if key != "event"} for line in read_journal(path)]
        if not lines:
            self.journal.append({"event": PROBE, **asked})
            return []
        self._refuse_other(lines[0], asked, path)
        return lines[1:]

    def _refuse_other(self, found: Mapping[str, Any], asked: Mapping[str, Any], path: Path) -> None:
        other = [key for key in asked if found.get(key) != asked[key]]
        if other:
            raise UserError(f"{path} holds another probe (other {', '.join(other[:4])}); choose another --out")


def _entry(result: TrialResult) -> dict[str, Any]:
    """What is written down of a trial: hits per class on B, and on the exam images."""
    trial = result.outcome.trial
    return {
        "length": FULL if trial.full else trial.epochs,
        "round": trial.round,
        "arm": trial.arm,
        "diverged": result.outcome.diverged,
        "classes": result.classes,
        "images": result.images,
        "hits": {str(epoch): dict(hits) for epoch, hits in result.hits.items()},
        "exam": {str(epoch): seen for epoch, seen in result.witnessed.items()},
    }


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return entry["length"], entry["round"], entry["arm"]


def _place(trial: Trial) -> tuple[Any, ...]:
    return (FULL if trial.full else trial.epochs), trial.round, trial.arm


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """As it will be read back."""
    return json.loads(json.dumps(value))
