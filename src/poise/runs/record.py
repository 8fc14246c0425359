"""Run folders and kept results as values: what was run, how far it got, what its journal says.

A folder is read whether its run is finished, still running or was stopped. One that cannot be read becomes an
`UnreadPath` with the reason, and the others are still read. Nothing here trains or examines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from poise import store
from poise.actions import Action, AxisValue
from poise.data.sources.registry import own_name
from poise.errors import MOST, Damaged, PoiseError, UserError, kind_and_line, shown
from poise.policies import UNTUNED
from poise.runs.examiner import backward_transfer
from poise.runs.findings import SECONDS, SECONDS_PHASE_0
from poise.runs.folder import CROSSVAL, JOURNAL, MACHINE, PAGE, RECIPE, RESULT, START_FINGERPRINT, RunFolder
from poise.runs.journal import PACKED, read_journal
from poise.runs.machine import OWN_NETWORK, say_changed_code
from poise.settings import flat_keys, said_keys, tagged
from poise.words import file_word, one_line, one_line_each

#: Recipe keys that say how phase 0 is trained; how classes arrive; how actions are chosen.
PHASE_0_KEYS, STREAM_KEYS, POLICY_KEYS = tagged("phase 0"), tagged("stream"), tagged("policy")
#: Recipe keys that do not say what was compared: chance, and where it was computed.
CHANCE_KEYS: Final = tagged("chance")
#: What a result repeats of its recipe.
RESULT_KEYS: Final = tagged("result")
#: What is done to training images beyond the augmentation of most methods, by the word of the recipe, as a label.
AUGMENTATIONS: Final = {
    "autoaugment": "AutoAugment",
    "cutout": "Cutout",
    "autoaugment+cutout": "AutoAugment and Cutout",
}
#: What is not ordinary about a run, by its key in result.json: a label, and a line of explanation.
LABELS: Final = {
    "oracle": ("oracle", "oracle: chosen with the exam of whole runs; no learner could have known it"),
    "oracle_all_images": (
        "oracle: all images",
        "oracle: all images: every image of every phase was kept and trained on again, which no learner here may do",
    ),
    "leak": ("leak", "leak: the policy was told the exam accuracy of its trials; shown to measure the leak only"),
    "knows_increment": (
        "knows increment",
        "knows increment: RMM's released memory, told how many images come next; it holds more than its budget",
    ),
    "more_after_phase_0": (
        "more after phase 0",
        "more after phase 0: between phase 0 and phase 1 RMM's memory holds more images than the plain rule keeps, and "
        "cuts them when phase 1 arrives, before its images are stored",
    ),
    "pretrained_on": (
        "pretrained",
        "pretrained: the network was trained on other images before and may have seen these classes; compare it with "
        "networks that have, not with those that start from nothing",
    ),
    **{
        key: (word, f"{word}: a stronger augmentation of the training images; compare it with rows that have it, too")
        for key, word in AUGMENTATIONS.items()
    },
}
#: Labels of runs that knew more than a learner can know: an exam, or images that are gone.
INFORMED: Final = frozenset(LABELS[key][0] for key in ("oracle", "oracle_all_images", "leak"))
#: The word for a result without a digest: whether it was changed cannot be told.
UNVERIFIED: Final = "unverified"
#: The word for a machine that is not recorded.
UNKNOWN: Final = "unknown"
#: The word of a recipe that leaves a choice to poise, such as that of the classifier.
AUTO: Final = "auto"
#: What the journal of a kept result is called: `NAME.journal.jsonl.xz` beside `NAME.json`.
KEPT_JOURNAL: Final = f".{JOURNAL}{PACKED}"

_DIGITS: Final = 8  # of a digest are shown
_ROUNDING: Final = 1e-3  # by how much the accuracies of a journal and of its result may differ, in percent
_NUMBERS: Final = ("average_accuracy", "last_accuracy", "average_forgetting")
_EXAM_NUMBERS: Final = ("phase", "classes", "accuracy", "accuracy_fc", "accuracy_ncm")
_UNFINISHED_CROSSVAL: Final = "is not finished; give the same 'poise crossval' command again"


@dataclass(frozen=True)
class PhaseRecord:
    """One phase that was learned and examined. Accuracies in percent; details are empty where there is no journal."""

    phase: int  # its number, from 0
    classes: int  # number of classes seen so far
    accuracy: float  # of the classifier that counts, on all classes seen so far
    accuracy_fc: float  # the same with the head
    accuracy_ncm: float  # the same with the nearest class mean
    action: Mapping[str, AxisValue]  # the action it was trained with; `auto` is replaced by what was chosen
    stored: int | None = None  # images in memory after the phase, reserve included
    held: int | None = None  # images held during the phase, including new ones
    budget: int | None = None  # how many may be held during the phase
    labels: tuple[int, ...] = ()  # all classes seen so far, in the order in which they came
    arrived: tuple[int, ...] = ()  # those of them that arrived in this phase
    images: tuple[int, ...] = ()  # exam images of each of `labels`
    hits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of each of `labels`, by `fc` and `ncm`
    reward: float | None = None  # the local reward of the decided action, where it was tried

    @property
    def classifier(self) -> str:
        """The classifier that counts, `fc` or `ncm`."""
        return str(self.action.get("classifier"))

    def accuracy_by(self, classifier: str) -> float:
        """The accuracy of this classifier, `fc` or `ncm`, on all classes seen so far."""
        return {"fc": self.accuracy_fc, "ncm": self.accuracy_ncm}.get(classifier, self.accuracy)

    def accuracy_of(self, labels: Sequence[int]) -> float:
        """Percent of the exam images of some classes that the classifier that counts got right."""
        places = [place for place, label in enumerate(self.labels) if label in set(labels)]
        hits = self.hits[self.classifier]
        return 100 * sum(hits[place] for place in places) / max(1, sum(self.images[place] for place in places))


@dataclass(frozen=True)
class TrialRecord:
    """An action that was tried: the phase, the number of epochs, and the reward (a share)."""

    phase: int
    action: Mapping[str, AxisValue]
    reward: float
    epochs: int
    full: bool
    diverged: bool
    purpose: str  # `action`, or `classifier` where only the classifier was judged


@dataclass(frozen=True)
class UnreadPath:
    """A path without a readable run, and the reason."""

    path: Path
    reason: str
    damaged: bool = False  # whether there is a file of poise's that is not as it was written

    @property
    def error(self) -> PoiseError:
        """An error for a command that needs this path."""
        return (Damaged if self.damaged else UserError)(f"{self.path} {self.reason}")


@dataclass(frozen=True)
class RunRecord:
    """The record of one run."""

    path: Path  # its folder, or the file of its result
    name: str  # a short name, unique in the report
    recipe: Mapping[str, Any]  # its resolved keys; for a bare result, those that are known
    result: Mapping[str, Any] | None  # what result.json says; None while it is unfinished
    policy: str  # its name; `crossval` for that oracle
    policy_label: str  # the name with the labels of the result: `crossval (oracle)`, `race (leak)`
    informed: bool  # whether it knew more than a learner can know: an oracle or a leak, which is compared with nothing
    fixed: bool  # whether it uses the method's own hyperparameters; a policy that is not known here chooses others
    setting: str  # `tfh`, `tfs` or `groups`
    stream: int  # N: how many phases its setting has
    seed: int  # of every random draw
    exam: str  # `test` or `dev`
    average: float | None  # average accuracy over all exams, percent; None while it is unfinished
    last: float | None  # accuracy after the last phase, percent; None while it is unfinished
    forgetting: float | None  # average forgetting, percent; None while it is unfinished
    seconds: Mapping[str, float]  # `train`, `policy`, `evaluate`, `total`, of it `phase_0`; empty while unfinished
    starts_elsewhere: bool  # whether another run trained its phase 0, so that its seconds are without that training
    machine: Mapping[str, Any]  # what machine.json says; empty where there is none
    machines: tuple[str, ...]  # the GPU it ran on, or the processor; several if it was resumed on another one
    phases: tuple[PhaseRecord, ...]  # the phases learned so far, in order
    trials: tuple[TrialRecord, ...] = ()  # the trials, in order
    confusion: tuple[tuple[int, int, int], ...] = ()  # of the last exam: true class, predicted class, images
    class_names: tuple[str, ...] = ()  # by class number; empty where they are not recorded
    space: Mapping[str, Any] | None = None  # tuned axes, number of actions, the default one; None: nothing is tuned
    axes: Mapping[str, tuple[AxisValue, ...]] = field(default_factory=dict)  # the tuned axes with their values
    labels: tuple[str, ...] = ()  # words of `LABELS`, where it is not an ordinary run
    events: Mapping[str, int] = field(default_factory=dict)  # number of journal events of each kind
    last_event: Mapping[str, Any] = field(default_factory=dict)  # its kind and phase
    fingerprint: str = ""  # what its images are recognised by, wherever they lie; empty where it is not recorded
    same_data: str | None = None  # the path at which another run of the report found the same images
    phase_0: str | None = None  # what its state after phase 0 is recognised by, where another run may have the same
    other_start: Mapping[str, Any] = field(default_factory=dict)  # keys with which its `start` was trained otherwise
    verified: bool = True  # whether the result has a digest, which was found right; unfinished ones need none

    @property
    def finished(self) -> bool:
        """Whether it has a result."""
        return self.result is not None

    @property
    def data(self) -> str:
        """The name of the data set. A file or folder of the user's is never called like one that poise knows."""
        word = str(self.same_data or self.recipe.get("data", "?"))
        if Path(word).is_absolute():
            return own_name(Path(word))
        return str(self.result["data"]) if self.result else word

    @property
    def method(self) -> str:
        """The method's name, with RMM's memory `aanets+rmm`: in the paper that is a method of its own.

        Of one that a word FILE.py:NAME names, the word without the folders.
        """
        rmm = (self.recipe.get("memory") or {}).get("rule") == "rmm"
        name = Path(self.recipe["method"]).name
        return f"{name}+rmm" if rmm else name

    @property
    def exams(self) -> int:
        """How many exams the whole run has: one more than N in TFH."""
        return self.stream + (self.setting == "tfh")

    @property
    def judged(self) -> bool:
        """Whether it chooses the classifier and nothing else: `policy=fixed action.classifier=auto`."""
        return self.fixed and (self.recipe.get("action") or {}).get("classifier") == AUTO

    @property
    def augmentation(self) -> str | None:
        """The word of the recipe for a stronger augmentation than that of most methods; None without one."""
        word = str((self.result or {}).get("augmentation") or self.recipe.get("augmentation") or "data")
        return word if word in AUGMENTATIONS else None

    @property
    def exam_name(self) -> str:
        """The data set and the exam as a word for file names."""
        return file_word(self.data if self.exam == "test" else f"{self.data}-{self.exam}")

    @property
    def where(self) -> str:
        """The data set and the exam in words."""
        return self.data if self.exam == "test" else f"{self.data}, {self.exam} exam"

    @property
    def state(self) -> str:
        """How far it is, and whether its result could be verified."""
        if self.finished:
            return "finished" if self.verified else f"finished, {UNVERIFIED}"
        return f"{len(self.phases)} of {self.exams} phases"

    @cached_property
    def accuracy_matrix(self) -> tuple[tuple[float, ...], ...]:
        """Row: exam, column: the classes of a phase; percent, by the classifier that counted. Empty where not known."""
        if self.result and self.result.get("accuracy_matrix"):
            return tuple(tuple(map(float, row)) for row in self.result["accuracy_matrix"])
        if not all(phase.labels for phase in self.phases):
            return ()
        return tuple(
            tuple(exam.accuracy_of(phase.arrived) for phase in self.phases[: place + 1])
            for place, exam in enumerate(self.phases)
        )

    @property
    def backward_transfer(self) -> float | None:
        """Mean change of earlier phases' classes since they were learned, in points; None where it is not known."""
        if not self.result or not (matrix := self.accuracy_matrix):
            return None
        found = self.result.get("backward_transfer")
        return backward_transfer(matrix) if found is None else float(found)

    @property
    def seconds_after_phase_0(self) -> float | None:
        """The seconds spent after phase 0; None where they are not known."""
        before = self.seconds.get(SECONDS_PHASE_0)
        return self.seconds["total"] - before if before is not None else None

    @cached_property
    def computed(self) -> dict[str, Any]:
        """Beside the recipe: precision, ranks where there were several, digests of one's own code; what is known.

        Each has `+changed` if the run was resumed in another precision or with other code.
        """
        asked = self.recipe.get("precision")
        precision = self.machine.get("precision") or (asked if asked != AUTO else None)
        resumes = self.machine.get("resumes") or ()
        if precision and any(each.get("precision", precision) != precision for each in resumes):
            precision = f"{precision}+changed"
        ranks = (self.result or {}).get("ranks") or self.machine.get("ranks") or 1
        known = {"precision": precision, "ranks": ranks if ranks != 1 else None}
        names = {"net": OWN_NETWORK, **{kind: f"{kind} {self.recipe.get(kind)}" for kind in ("method", "policy")}}
        versions = self.machine.get("versions") or {}
        for kind, name in names.items():
            if isinstance(digest := versions.get(name), str):
                changed = "+changed" if say_changed_code(name) in str(resumes) else ""
                known[f"{kind}_source"] = " ".join(word[:_DIGITS] for word in digest.split()) + changed
        return {name: value for name, value in known.items() if value}

    @cached_property
    def flat_recipe(self) -> dict[str, Any]:
        """Every key that was chosen, nested ones with dots, and what is known beside the recipe; nothing empty."""
        kept = {key: value for key, value in self.recipe.items() if key not in CHANCE_KEYS}
        if "data" in kept and self.same_data is not None:
            kept["data"] = self.same_data
        kept |= {"start": self.other_start, **self.computed, "policy": self.policy, "labels": list(self.labels)}
        return said_keys(kept)


# From paths to runs ---------------------------------------------------------------------------------------------------


def read_runs(paths: Sequence[Path]) -> tuple[list[RunRecord], list[UnreadPath]]:
    """The runs at these paths, each once; a folder that holds only folders stands for the runs in it."""
    found: dict[Path, Path] = {}
    for given in paths:
        try:
            found |= {path.resolve(): path for path in run_folders_below(given)}
        except (OSError, RuntimeError):  # no permission, a loop of links: it is told when it is read
            found[given.absolute()] = given
    runs: list[RunRecord] = []
    unread: list[UnreadPath] = []
    names: set[str] = set()
    for path in found.values():
        try:
            run = read_run(path, _free_name(path, names))
            _refuse_unshowable(run)
            runs.append(run)
            names.add(run.name)
        except Exception as error:  # whatever is wrong with one run stops no other
            unread.append(UnreadPath(path, reason_for(path, error), not isinstance(error, UserError | OSError)))
    return _with_phase_0(_with_same_data(runs)), unread


def read_run(path: Path, name: str | None = None) -> RunRecord:
    """The run in this folder or of this result file; raises if it cannot be read."""
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if not path.is_dir():
        return _read_kept_result(path, name or path.stem)
    kind = next((file for file in (RECIPE, CROSSVAL) if (path / file).exists()), None)
    if kind is None:
        raise UserError(f"{path} {'is empty' if not any(path.iterdir()) else 'is not a run folder'}")
    finished = (path / RESULT).exists()
    if not finished and kind == CROSSVAL:
        raise UserError(f"{path} {_UNFINISHED_CROSSVAL}")
    events = JournalEvents.read(path / JOURNAL)
    result, verified = store.read_verified(path / RESULT) if finished else (None, True)
    saved = store.read_json(path / kind)
    with suppress(OSError, PoiseError):  # a report can do without it
        saved["machine"] = store.read_json(path / MACHINE)
    if result is not None and kind == RECIPE:
        _refuse_contradiction(path, saved["recipe"], result)
    return replace(_make_record(path, name or path.name, saved, result, events), verified=verified)


def run_of_result(result: Mapping[str, Any], path: Path = Path()) -> RunRecord:
    """A run of which only the result is known."""
    return _make_record(path, "", {}, result, JournalEvents())


def load_result(folder: Path) -> dict[str, Any]:
    """The result of a finished run, as it was written: one that was changed since is refused."""
    if not folder.is_dir():
        fault = "is not a folder; give that of a finished run" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {fault}")
    if not (folder / RESULT).exists():
        todo = "is not a run folder"
        if (folder / RECIPE).exists():
            todo = f"is not finished; continue with 'poise resume {folder}'"
        raise UserError(f"{folder} {_UNFINISHED_CROSSVAL if (folder / CROSSVAL).exists() else todo}")
    result = store.read_json(folder / RESULT)
    check_result(folder / RESULT, result)
    return result


def reason_for(path: Path, error: Exception) -> str:
    """Why what lies at a path is not shown, in one line that follows its name."""
    if isinstance(error, PoiseError):
        return str(error).removeprefix(f"{path} ").removeprefix(f"{path}{os.sep}")
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"is not as poise writes it ({kind_and_line(error, 200)})"


def run_folders_below(path: Path, depth: int = 3) -> Iterator[Path]:
    """The path itself, or the run folders below it if it only holds such folders."""
    if not path.is_dir() or any((path / name).exists() for name in (RECIPE, CROSSVAL, RESULT, JOURNAL)):
        yield path
        return
    inner = [child for child in sorted(path.iterdir()) if child.is_dir() and not child.name.startswith(".")]
    inner = [child for child in inner if not (child / PAGE).exists()]  # an earlier report
    if not inner or not depth:
        yield path
    for child in inner if depth else ():
        yield from run_folders_below(child, depth - 1)


def _refuse_unshowable(run: RunRecord) -> None:
    """Work out what a report shows of a run, so that one that cannot be shown is told by its name here."""
    json.dumps([run.flat_recipe, run.accuracy_matrix, run.axes, run.data])
    for action in [part.action for part in run.phases] + [part.action for part in run.trials]:
        str(Action(**action))


def _free_name(path: Path, taken: set[str]) -> str:
    """The folder's name, preceded by parent folders as far as needed to make it unique."""
    parts = path.resolve().parts
    name = parts[-1].removesuffix(".json")
    for part in reversed(parts[:-1]):
        if name not in taken:
            return name
        name = f"{part}/{name}"
    return name


def _read_kept_result(path: Path, name: str) -> RunRecord:
    """The run of a result that was kept, with its journal where that lies beside it, compressed."""
    result, verified = store.read_verified(path)
    check_result(path, result)
    journal = path.with_suffix(KEPT_JOURNAL)
    events = JournalEvents.read(journal)
    exams = zip(events.phases, result["curve"], strict=False)
    if any(abs(exam.accuracy - point["accuracy"]) > _ROUNDING for exam, point in exams):
        raise UserError(f"{journal} is the journal of another run than {path}")
    return replace(_make_record(path, name, {}, result, events), verified=verified)


def _refuse_contradiction(path: Path, recipe: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Refuse a recipe that says otherwise than the result what was run: one of them was changed.

    The result has a digest, the recipe has none. A key that one of them does not have is no contradiction.
    """
    names = [name for name in RESULT_KEYS if name != "data" and (name != "phases" or recipe.get("setting") != "groups")]
    said, found = (dict(flat_keys({name: each.get(name) for name in names})) for each in (recipe, result))
    for name, value in found.items():
        if None not in (value, said.get(name)) and value != said[name]:
            words = f"{name} is {shown(said[name])} in {RECIPE} and {shown(value)} in {RESULT}"
            raise UserError(f"{path} says two things of what was run ({words}): one of the files was changed")


# From files to values -------------------------------------------------------------------------------------------------


@dataclass
class JournalEvents:
    """The contents of a journal, collected event by event."""

    phases: list[PhaseRecord] = field(default_factory=list)
    trials: list[TrialRecord] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    action: dict[str, Any] = field(default_factory=dict)
    stored: int | None = None

    @classmethod
    def read(cls, path: Path) -> JournalEvents:
        """Read the journal of a run, finished or not."""
        found = cls()
        for event in read_journal(path):
            kind = one_line(str(event["event"]))
            found.counts[kind] = found.counts.get(kind, 0) + 1
            found.last = {"event": kind, "phase": event.get("phase", found.last.get("phase"))}
            if kind == "action":
                found.action = {**event, "action": one_line_each(event.get("action", {}))}
            elif kind == "learned":
                found.stored = int(event["memory_images"])
            elif kind == "trial":
                found._add_trial(event)
            elif kind == "exam":
                found._add_exam(event)
        return found

    def _add_trial(self, event: Mapping[str, Any]) -> None:
        plan = event["trial"]
        self.trials.append(
            TrialRecord(
                phase=int(event["phase"]),
                action=one_line_each(event["action"]),
                reward=float(event["reward"]),
                epochs=int(plan["epochs"]),
                full=bool(plan["full"]),
                diverged=bool(event["diverged"]),
                purpose=str(plan.get("purpose", "action")),
            )
        )

    def _add_exam(self, event: Mapping[str, Any]) -> None:
        labels, images = tuple(event["classes"]), tuple(event["images"])
        hits = {name: tuple(event[f"hits_{name}"]) for name in ("fc", "ncm")}
        before = self.phases[-1].labels if self.phases else ()
        if len({len(labels), len(images), *map(len, hits.values())}) > 1 or labels[: len(before)] != before:
            raise UserError(f"the exam of phase {event['phase']} in the journal does not fit together")
        self.confusion = event.get("confusion") or []
        self.phases.append(
            PhaseRecord(
                phase=int(event["phase"]),
                classes=len(labels),
                accuracy=float(event["accuracy"]),
                accuracy_fc=100 * sum(hits["fc"]) / max(1, sum(images)),
                accuracy_ncm=100 * sum(hits["ncm"]) / max(1, sum(images)),
                action={**self.action.get("action", {}), "classifier": one_line(str(event["classifier"]))},
                stored=self.stored,
                labels=labels,
                arrived=labels[len(before) :],
                images=images,
                hits=hits,
                reward=self.action.get("reward"),
            )
        )


def _make_record(
    path: Path, name: str, saved: Mapping[str, Any], result: Mapping[str, Any] | None, events: JournalEvents
) -> RunRecord:
    """A run: if it is finished, its result is authoritative and its journal adds details."""
    saved, result = one_line_each(saved), one_line_each(result)
    if result is None:
        recipe, phases = saved["recipe"], events.phases
        memory = recipe.get("memory") or {}
        marks = {
            "leak": saved.get("runner") == "audit",
            "knows_increment": memory.get("knows_increment"),
            "oracle_all_images": memory.get("rule") == "all",
            "pretrained_on": saved.get("pretrained_on"),
        }
    else:
        check_result(path, result)
        recipe = saved.get("recipe") or {key: result.get(key) for key in RESULT_KEYS}
        details = {phase.phase: phase for phase in events.phases}
        phases = [_finished_phase(point, details.get(point["phase"])) for point in result["curve"]]
        marks = dict(result)
    marks |= {str(marks.get("augmentation") or recipe.get("augmentation")): True}
    memory = recipe.get("memory") or {}
    shares = memory.get("allocation")  # RMM's, which by default holds more after phase 0 than the plain rule keeps
    first = shares[0] if isinstance(shares, list) else shares
    untold = not memory.get("knows_increment") and memory.get("after_phase_0") == "rmm"
    marks["more_after_phase_0"] = untold and first != 0
    for needed in ("method", "setting", "seed", "phases", "policy"):
        if recipe.get(needed) is None:
            raise UserError(f"{path} does not say its {needed}")
    policy, labels = (
        str((result or recipe)["policy"]),
        tuple(word for key, (word, _) in LABELS.items() if marks.get(key)),
    )
    informed = not INFORMED.isdisjoint(labels)
    groups, machine = recipe.get("groups"), saved.get("machine", {})
    space = (saved if result is None else result).get("space")
    places = [machine.get("hardware") or {}, *(machine.get("resumes") or ())]
    average, last, forgetting = (None if result is None else float(result[number]) for number in _NUMBERS)
    return RunRecord(
        path=path,
        name=one_line(name),
        recipe=recipe,
        result=result,
        policy=policy,
        policy_label=f"{policy} ({', '.join(labels)})" if labels else policy,
        informed=informed,
        fixed=policy == UNTUNED and not informed,
        setting=str(recipe["setting"]),
        stream=len(groups) if recipe["setting"] == "groups" and groups else int(recipe["phases"]),
        seed=int(recipe["seed"]),
        exam=str(recipe.get("exam", "test")),
        average=average,
        last=last,
        forgetting=forgetting,
        seconds={} if result is None else result["seconds"],
        starts_elsewhere=recipe.get("start") is not None,
        machine=machine,
        machines=tuple(dict.fromkeys(str(each.get("gpu") or each.get("processor") or UNKNOWN) for each in places)),
        phases=tuple(phases),
        trials=tuple(events.trials),
        confusion=tuple((int(true), int(guess), int(count)) for true, guess, count in events.confusion),
        class_names=tuple(saved.get("class_names") or ()),
        space=space,
        axes={axis: tuple(values) for axis, values in ((space or {}).get("axes") or {}).items()},
        labels=labels,
        events=events.counts,
        last_event=events.last,
        fingerprint=" ".join(str(saved[name]) for name in ("fingerprint", "exam_images") if saved.get(name)),
        phase_0=saved.get(START_FINGERPRINT),
    )


def check_result(path: Path, result: Mapping[str, Any]) -> None:
    """Refuse anything that is not the result of a run or lacks a figure that tables show."""
    curve, seconds = result.get("curve"), result.get("seconds")
    points = isinstance(curve, list) and all(isinstance(point, Mapping) for point in curve)
    if not curve or not points or not isinstance(seconds, Mapping):
        raise UserError(f"{path} holds no result of a run")
    wanted = [(result, name) for name in _NUMBERS]
    wanted += [(result, "backward_transfer")] * ("backward_transfer" in result)
    wanted += [(seconds, name) for name in (*SECONDS, SECONDS_PHASE_0) if name in seconds or name in SECONDS]
    wanted += [(point, name) for point in curve for name in _EXAM_NUMBERS]
    for part, name in wanted:
        if not _is_number(found := part.get(name)):
            raise UserError(f"{path} holds a result in which {name} is {shown(found)}, which is not a number")
    matrix = result.get("accuracy_matrix") or []
    rows = matrix if isinstance(matrix, list) and all(isinstance(row, list) for row in matrix) else [[]]
    triangle = not rows or [*map(len, rows)] == [*range(1, len(curve) + 1)]
    if not triangle or not all(_is_number(cell) for row in rows for cell in row):
        raise UserError(f"{path} holds a result whose accuracy_matrix is no triangle of numbers, a row for each exam")
    if not all(isinstance(point.get("action"), Mapping) and "classifier" in point["action"] for point in curve):
        raise UserError(f"{path} holds a result that does not say which classifier counted")


def _is_number(found: object) -> bool:
    return not isinstance(found, bool) and isinstance(found, int | float) and abs(found) <= MOST


def _finished_phase(point: Mapping[str, Any], journal: PhaseRecord | None) -> PhaseRecord:
    """A point of the result's curve with the details of the journal."""
    known = journal or PhaseRecord(int(point["phase"]), 0, 0.0, 0.0, 0.0, {})
    stored = point.get("stored_images")
    return replace(
        known,
        classes=int(point["classes"]),
        accuracy=float(point["accuracy"]),
        accuracy_fc=float(point["accuracy_fc"]),
        accuracy_ncm=float(point["accuracy_ncm"]),
        action=point["action"],
        stored=known.stored if stored is None else int(stored),
        held=point.get("held_images") or None,
        budget=point.get("budget_images"),
    )


# What runs have in common ---------------------------------------------------------------------------------------------


def _with_same_data(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs, those of equal images at several paths with the first of these: they are of the same data."""
    first, found = dict[str, str](), list[RunRecord]()
    for run in runs:
        data = run.recipe.get("data")
        own = run.fingerprint and isinstance(data, str) and Path(data).is_absolute()
        found.append(replace(run, same_data=first.setdefault(run.fingerprint, str(data))) if own else run)
    return found


def _with_phase_0(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs, with what their phase 0 is recognised by where another run started from one, and how it was trained."""
    begun = {(run.seed, run.phase_0) for run in runs if run.starts_elsewhere}
    seeds = {seed for seed, _ in begun}
    own = [run.phase_0 or (RunFolder(run.path).phase_0_fingerprint() if run.seed in seeds else None) for run in runs]
    origins: dict[tuple[int, str | None], Mapping[str, Any]] = {
        (run.seed, phase_0): run.recipe
        for run, phase_0 in zip(runs, own, strict=True)
        if phase_0 is not None and not run.starts_elsewhere
    }
    found = []
    for run, phase_0 in zip(runs, own, strict=True):
        origin = (origins.get((run.seed, phase_0)) or _origin_of(run)) if run.starts_elsewhere else None
        other = _other_keys(origin, run.recipe) if origin else {}
        found.append(replace(run, phase_0=phase_0, other_start=other))
    return found


def _other_keys(origin: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The keys with which a phase 0 was trained otherwise than a recipe says."""
    there, here = (said_keys({name: each.get(name) for name in PHASE_0_KEYS}) for each in (origin, recipe))
    return {name: there.get(name) for name in sorted({*there, *here}) if there.get(name) != here.get(name)}


def _origin_of(run: RunRecord) -> Mapping[str, Any] | None:
    """The recipe of the run that it started from, if that still lies there."""
    with suppress(Exception):  # no folder of those to be read: what is wrong with it does not matter here
        folder = Path(run.recipe["start"])
        if RunFolder(folder).phase_0_fingerprint() == run.phase_0:
            recipe: Mapping[str, Any] = store.read_json(folder / RECIPE)["recipe"]
            return recipe if recipe.get("start") is None else None
    return None
