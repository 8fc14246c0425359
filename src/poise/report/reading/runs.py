"""What a report knows about a run, as plain values: what was run, how far it got, and what its journal says.

Everything in `report` and `studies` works on `RunRecord`s; `poise.report.reading.folders` reads them from run folders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from poise.actions import Action, AxisValue
from poise.data.sources.registry import own_name
from poise.policies import DEFAULT_POLICY
from poise.report.reading.machines import changed_precision, machines_of
from poise.runfolder import (
    CHANCE_KEYS,
    SECONDS_PHASE_0,
    backward_transfer,
    is_tuned,
    method_name,
    say_changed_code,
    without_empty_keys,
)
from poise.words import file_word

#: What is done to training images beyond the augmentation of most methods, by the word of the recipe, as a label.
AUGMENTATIONS: Final = {
    "autoaugment": "AutoAugment",
    "cutout": "Cutout",
    "autoaugment+cutout": "AutoAugment and Cutout",
}
#: Results that are not ordinary, by their key in result.json: a word for tables, and a line of explanation.
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
#: The word of a recipe that leaves a choice to poise, such as that of the classifier.
AUTO: Final = "auto"
#: The label of a row whose memory cannot be compared with a plain one without a word.
MORE_HELD: Final = LABELS["more_after_phase_0"][0]
#: So much of a digest is shown.
DIGITS: Final = 8
#: The word for a result without a digest: whether it was changed cannot be told.
UNVERIFIED: Final = "unverified"
#: The word for runs of which a table over seeds has another one with the same seed.
REPEATED: Final = "not counted"
#: The labels of rows that cannot be compared with others without a word: all tables explain them.
EXPLAINED: Final = (MORE_HELD, *AUGMENTATIONS.values())
#: Those labels that mean that more was known than a learner can know: from an exam, or from images that are gone.
INFORMED: Final = frozenset(LABELS[key][0] for key in ("oracle", "oracle_all_images", "leak"))


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
    hits_by_classifier: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # how many `fc` and `ncm` got right
    distribution: tuple[float, ...] | None = None  # of the policy when it decided, in the order of `RunRecord.arms`
    reward: float | None = None  # the local reward of the decided action, where it was tried

    @property
    def classifier(self) -> str:
        """The classifier that counts, `fc` or `ncm`."""
        return str(self.action.get("classifier"))

    @property
    def hits(self) -> tuple[int, ...]:
        """How many images of each of `labels` the classifier that counts got right."""
        return self.hits_by_classifier.get(self.classifier, ())

    def accuracy_by(self, classifier: str) -> float:
        """The accuracy of this classifier, `fc` or `ncm`, on all classes seen so far."""
        return {"fc": self.accuracy_fc, "ncm": self.accuracy_ncm}.get(classifier, self.accuracy)

    def accuracy_of(self, labels: Sequence[int], classifier: str | None = None) -> float:
        """Percent of the exam images of some classes that this classifier, or the one that counts, got right."""
        wanted, hits = set(labels), self.hits_by_classifier[classifier or self.classifier]
        chosen = [place for place, label in enumerate(self.labels) if label in wanted]
        return 100 * sum(hits[place] for place in chosen) / max(1, sum(self.images[place] for place in chosen))


@dataclass(frozen=True)
class TrialRecord:
    """An action that was tried: the phase, the number of epochs, and the reward (a share).

    `accuracies` are those on each class at its end, scaled so that their mean is the reward; zeros if it diverged.
    """

    phase: int
    action: Mapping[str, AxisValue]
    reward: float
    epochs: int
    full: bool
    diverged: bool
    purpose: str  # `action`, or `classifier` where only the classifier was judged
    accuracies: tuple[float, ...] = ()

    @property
    def length(self) -> tuple[bool, int]:
        """Whether it ran at full length, and until which epoch: trials of equal length can be compared."""
        return self.full, self.epochs


@dataclass(frozen=True)
class RunRecord:
    """One run."""

    path: Path  # its folder, or the file of its result
    name: str  # a short name, unique in the report
    recipe: Mapping[str, Any]  # its resolved keys; for a bare result, those that are known
    result: Mapping[str, Any] | None  # what result.json says; None while it is unfinished
    machine: Mapping[str, Any]  # what machine.json says; empty where there is none
    phases: tuple[PhaseRecord, ...]  # the phases learned so far, in order
    trials: tuple[TrialRecord, ...] = ()  # the trials, in order
    confusion: tuple[tuple[int, int, int], ...] = ()  # of the last exam: true class, predicted class, images
    class_names: tuple[str, ...] = ()  # by class number; empty where they are not recorded
    space: Mapping[str, Any] | None = None  # tuned axes, number of actions, the default one; None: nothing is tuned
    labels: tuple[str, ...] = ()  # words of `LABELS`, where it is not an ordinary run
    events: Mapping[str, int] = field(default_factory=dict)  # number of journal events of each kind
    last_event: Mapping[str, Any] = field(default_factory=dict)  # its kind and phase
    net_source: str | None = None  # a digest of the file that its network is made by; None: no file, or not known
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
        if Path(word).is_absolute():  # older results have the name of the file alone
            return own_name(Path(word))
        return str(self.result["data"]) if self.result else word

    @property
    def method(self) -> str:
        """The method's name, with RMM's memory `aanets+rmm`."""
        return method_name(self.recipe)

    @property
    def setting(self) -> str:
        """`tfh`, `tfs` or `groups`."""
        return str(self.recipe["setting"])

    @property
    def stream(self) -> int:
        """N: how many phases its setting has."""
        groups = self.recipe.get("groups")
        if self.setting == "groups" and groups:
            return len(groups)
        return int(self.recipe["phases"])

    @property
    def exams(self) -> int:
        """How many exams the whole run has: one more than N in TFH."""
        return self.stream + (self.setting == "tfh")

    @property
    def policy(self) -> str:
        """The policy's name; `crossval` for that oracle, `online-1` for a result of the first `online`."""
        named = str(self.result["policy"] if self.result else self.recipe["policy"])
        return "online-1" if named == DEFAULT_POLICY and self.recipe.get("policy") == "online-1" else named

    @property
    def policy_label(self) -> str:
        """The policy's name with the labels of the result: `crossval (oracle)`, `race (leak)`."""
        return f"{self.policy} ({', '.join(self.labels)})" if self.labels else self.policy

    @property
    def fixed(self) -> bool:
        """Whether it uses the method's own hyperparameters."""
        return not is_tuned(self.policy) and not self.informed

    @property
    def judged(self) -> bool:
        """Whether it chooses the classifier and nothing else: `policy=fixed action.classifier=auto`."""
        return self.fixed and (self.recipe.get("action") or {}).get("classifier") == AUTO

    @property
    def informed(self) -> bool:
        """Whether it knew more than a learner can know: an oracle or a leak, which is compared with nothing."""
        return not INFORMED.isdisjoint(self.labels)

    @property
    def varied(self) -> str:
        """The word of the recipe for how training images are varied; `data`: as the data say."""
        return str((self.result or {}).get("augmentation") or self.recipe.get("augmentation") or "data")

    @property
    def augmentation(self) -> str | None:
        """The word of the recipe for a stronger augmentation than that of most methods; None without one."""
        return self.varied if self.varied in AUGMENTATIONS else None

    @property
    def seed(self) -> int:
        """The seed of every random draw."""
        return int(self.recipe["seed"])

    @property
    def starts_elsewhere(self) -> bool:
        """Whether another run trained its phase 0, so that its seconds are without that training."""
        return self.recipe.get("start") is not None

    def may_share_phase_0(self, other: RunRecord) -> bool:
        """Whether two runs of one seed are not known to have different phases 0."""
        return self.phase_0 is None or other.phase_0 is None or self.phase_0 == other.phase_0

    @property
    def computed(self) -> dict[str, Any]:
        """Beside the recipe: precision, ranks where there were several, sources of one's own code; what is known.

        The precision has `+changed` if the run was resumed in another one.
        """
        asked = self.recipe.get("precision")
        precision = self.machine.get("precision") or (asked if asked != AUTO else None)
        if precision and changed_precision(self.machine, auto=asked in (AUTO, None)):
            precision = f"{precision}+changed"
        ranks = (self.result or {}).get("ranks") or self.machine.get("ranks") or 1
        known = {"precision": precision, "ranks": ranks if ranks != 1 else None, "net_source": self.net_source}
        known |= {f"{kind}_source": self.own_source(f"{kind} {self.recipe.get(kind)}") for kind in ("method", "policy")}
        return {name: value for name, value in known.items() if value}

    def own_source(self, name: str) -> str | None:
        """The beginnings of the digests of the files that code of one's own comes from, by its name in machine.json.

        With `+changed` if the run was resumed with other code.
        """
        versions = self.machine.get("versions")
        found = versions.get(name) if isinstance(versions, Mapping) else None
        if not isinstance(found, str):
            return None
        changed = "+changed" if say_changed_code(name) in str(self.machine.get("resumes")) else ""
        return " ".join(digest[:DIGITS] for digest in found.split()) + changed

    @property
    def machines(self) -> tuple[str, ...]:
        """The GPU it ran on, or the processor; several if it was resumed on another one."""
        return machines_of(self.machine)

    @property
    def exam(self) -> str:
        """`test` or `dev`."""
        return str(self.recipe.get("exam", "test"))

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
        if self.finished and not self.verified:
            return f"finished, {UNVERIFIED}"
        return "finished" if self.finished else f"{len(self.phases)} of {self.exams} phases"

    @property
    def average(self) -> float | None:
        """Average accuracy over all exams, percent; None while it is unfinished."""
        return float(self.result["average_accuracy"]) if self.result else None

    @property
    def last(self) -> float | None:
        """Accuracy after the last phase, percent; None while it is unfinished."""
        return float(self.result["last_accuracy"]) if self.result else None

    @property
    def forgetting(self) -> float | None:
        """Average forgetting, percent; None while it is unfinished."""
        return float(self.result["average_forgetting"]) if self.result else None

    @cached_property
    def accuracy_matrix(self) -> tuple[tuple[float, ...], ...]:
        """Row: exam, column: the classes of a phase; percent, by the classifier that counted. Empty where not known.

        A result of before it was part of one has it from its journal, and so has a run that is not finished.
        """
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
        return float(self.result.get("backward_transfer", backward_transfer(matrix)))

    @property
    def seconds(self) -> Mapping[str, float]:
        """`train`, `policy`, `evaluate`, `total`, and of the latter `phase_0`; empty while it is unfinished."""
        return self.result["seconds"] if self.result else {}

    @property
    def seconds_after_phase_0(self) -> float | None:
        """Of the total, what was spent after phase 0; None where that is not known."""
        before = self.seconds.get(SECONDS_PHASE_0)
        return self.seconds["total"] - before if before is not None else None

    @property
    def tuned(self) -> bool:
        """Whether it has trials, or a space to choose actions from."""
        return bool(self.trials) or self.space is not None

    @property
    def axes(self) -> dict[str, tuple[AxisValue, ...]]:
        """The tuned axes with their values; empty where nothing is tuned."""
        return {axis: tuple(values) for axis, values in ((self.space or {}).get("axes") or {}).items()}

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """The actions of the space in words, in the order of `PhaseRecord.distribution`; the last axis runs fastest."""
        if self.space is None:
            return ()
        if "arms" in self.space:
            return tuple(str(Action(**arm)) for arm in self.space["arms"])
        rows: list[dict[str, AxisValue]] = [{}]
        for axis, values in self.axes.items():
            rows = [{**row, axis: value} for row in rows for value in values]
        words = [str(Action(**row)) for row in rows]
        return tuple([*words, "default (off the grid)"] if len(words) < int(self.space["actions"]) else words)

    def configuration(self, without: Sequence[str] = ()) -> str:
        """Everything that was chosen, as one comparable word; two runs that share it differ only by seed.

        `without` leaves out more keys: `STREAM_KEYS` for a row of a table, also `POLICY_KEYS` to find its baseline.
        """
        kept = {key: value for key, value in self.recipe.items() if key not in (*CHANCE_KEYS, *without)}
        if "data" in kept and self.same_data is not None:
            kept["data"] = self.same_data
        kept |= {"start": self.other_start, **self.computed}
        if "policy" in without:
            kept.pop("policy_source", None)
        else:
            kept |= {"policy": self.policy, "labels": list(self.labels)}
        return json.dumps(without_empty_keys(kept), sort_keys=True)
