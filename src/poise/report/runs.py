"""Run folders as values: what was run, how far it came, and what its journal tells. Nothing here trains or examines.

A folder is read whether its run is finished, still going on or was stopped; one that cannot be read becomes a
`Broken` with its reason, and stops no other. Everything else in this room works on `Run`:

* `poise.report.tables` and the page take `Sequence[Run]`;
* `poise.report.figures` offers `figures(runs: Sequence[Run]) -> list[Figure]`, where a `Figure` has `name` (a file
  name without ending), `title`, `caption`, `data` (a list of flat rows, `list[dict[str, float | int | str | None]]`,
  also written as CSV) and `draw() -> matplotlib.figure.Figure`; a figure that these runs cannot fill is left out.
  The rows come from `poise.report.series`, which the page draws from too, so that no number is computed twice.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from poise import store
from poise.actions import Action, AxisValue
from poise.errors import PoiseError, UserError

#: What is no ordinary result, by its key in result.json: a word for tables, and a line.
LABELS: Final = {
    "oracle": ("oracle", "oracle: chosen with the exam of whole runs; no learner could have known it"),
    "leak": ("leak", "leak: the policy was told the exam accuracy of its trials; shown to measure the leak only"),
    "knows_increment": (
        "knows increment",
        "knows increment: RMM's released memory, told how many images come next; it holds more than its budget",
    ),
}
#: Those of them that say that an exam chose.
INFORMED: Final = frozenset(LABELS[key][0] for key in ("oracle", "leak"))
#: Keys of a recipe that do not say what was compared: chance, and where it was computed.
CHANCE: Final = ("seed", "start", "device", "precision", "deterministic")
#: Keys that say how classes arrive.
STREAM: Final = ("setting", "phases", "groups")
#: Keys that say how actions are chosen.
POLICY: Final = ("policy", "policy_options", "space", "tune", "trials")


def method_name(keys: Mapping[str, Any]) -> str:
    """The method of a recipe or a result, with RMM's memory `aanets+rmm`: in the paper that is a method of its own."""
    memory = keys.get("memory")
    rule = memory.get("rule") if isinstance(memory, Mapping) else None
    return f"{keys['method']}+{rule}" if rule not in (None, "plain") else str(keys["method"])


@dataclass(frozen=True)
class Phase:
    """One phase that was learned and examined. Accuracies in percent; details are empty where no journal is left.

    Attributes:
        phase: its number, from 0.
        classes: how many classes were seen so far.
        accuracy: of the classifier that counts, on all classes seen so far.
        accuracy_fc: the same with the head.
        accuracy_ncm: the same with the nearest class mean.
        action: the action it was trained with; `auto` is replaced by what it became.
        stored: images in memory after the phase, reserve included.
        held: images held in the phase, those that arrived included; None where nobody counted them.
        budget: how many may be held in it.
        labels: all classes seen so far, in the order in which they came.
        arrived: those of them that arrived in this phase.
        images: exam images of each of `labels`.
        hits: how many of them the classifier that counts got right.
        distribution: the policy's over its space when it decided, in the order of `Run.arms`; None without one.
        reward: the local reward of the decided action, where it was tried.
    """

    phase: int
    classes: int
    accuracy: float
    accuracy_fc: float
    accuracy_ncm: float
    action: Mapping[str, AxisValue]
    stored: int | None = None
    held: int | None = None
    budget: int | None = None
    labels: tuple[int, ...] = ()
    arrived: tuple[int, ...] = ()
    images: tuple[int, ...] = ()
    hits: tuple[int, ...] = ()
    distribution: tuple[float, ...] | None = None
    reward: float | None = None

    def accuracy_of(self, labels: Sequence[int]) -> float | None:
        """Percent of the exam images of some classes that the classifier that counts got right."""
        chosen = [row for row, label in enumerate(self.labels) if label in set(labels)]
        images = sum(self.images[row] for row in chosen)
        return 100 * sum(self.hits[row] for row in chosen) / images if images else None


@dataclass(frozen=True)
class Trial:
    """An action that was tried: in which phase, for how many epochs, and the reward it got (a share)."""

    phase: int
    action: Mapping[str, AxisValue]
    reward: float
    epochs: int
    full: bool
    diverged: bool
    purpose: str  # `action`, or `classifier` where only the classifier was judged


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        path: its folder (or the file of its result).
        name: a short name, unlike that of every other run of the report.
        recipe: its resolved keys; of an old folder or a bare result, those that are known.
        title: the name of the recipe.
        result: what result.json says; None while it is unfinished.
        machine: what machine.json says; empty where there is none.
        phases: what was learned so far, in order.
        trials: what was tried, in order.
        confusion: of the last exam, `(true class, predicted class, images)`.
        class_names: by class number; empty where nobody wrote them down.
        space: the tuned axes, the number of actions and the default one; None where nothing is tuned.
        labels: words of `LABELS`, where it is no ordinary run.
        events: how many events of each kind the journal has.
        last_event: kind and phase of the last event of the journal.
    """

    path: Path
    name: str
    recipe: Mapping[str, Any]
    title: str
    result: Mapping[str, Any] | None
    machine: Mapping[str, Any]
    phases: tuple[Phase, ...]
    trials: tuple[Trial, ...] = ()
    confusion: tuple[tuple[int, int, int], ...] = ()
    class_names: tuple[str, ...] = ()
    space: Mapping[str, Any] | None = None
    labels: tuple[str, ...] = ()
    events: Mapping[str, int] = field(default_factory=dict)
    last_event: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether it has a result."""
        return self.result is not None

    @property
    def data(self) -> str:
        """The name of the data set."""
        return str(self.result["data"]) if self.result else Path(str(self.recipe.get("data", "?"))).name

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
        """The policy's name; `crossval` of that oracle."""
        return str(self.result["policy"] if self.result else self.recipe["policy"])

    @property
    def policy_label(self) -> str:
        """The policy's name with what sets the result apart: `crossval (oracle)`, `race (leak)`."""
        return f"{self.policy} ({', '.join(self.labels)})" if self.labels else self.policy

    @property
    def fixed(self) -> bool:
        """Whether it is the method's own hyperparameters, chosen by nobody."""
        return self.policy == "fixed" and not self.informed

    @property
    def informed(self) -> bool:
        """Whether an exam had a say in its hyperparameters: it is an oracle or a leak, and compared with nothing."""
        return not INFORMED.isdisjoint(self.labels)

    @property
    def seed(self) -> int:
        """Of every random draw."""
        return int(self.recipe["seed"])

    @property
    def exam(self) -> str:
        """`test` or `dev`."""
        return str(self.recipe.get("exam", "test"))

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

    @property
    def seconds(self) -> Mapping[str, float]:
        """`train`, `policy`, `evaluate`, `total`; empty while it is unfinished."""
        return self.result["seconds"] if self.result else {}

    @property
    def tuned(self) -> bool:
        """Whether something was tried."""
        return bool(self.trials) or self.space is not None

    @property
    def axes(self) -> dict[str, tuple[AxisValue, ...]]:
        """The tuned axes with their values; empty where nothing is tuned."""
        return {axis: tuple(values) for axis, values in ((self.space or {}).get("axes") or {}).items()}

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """The actions of the space in words, in the order of `Phase.distribution`; the last axis runs fastest."""
        if self.space is None:
            return ()
        rows: list[dict[str, AxisValue]] = [{}]
        for axis, values in self.axes.items():
            rows = [{**row, axis: value} for row in rows for value in values]
        words = [str(Action(**row)) for row in rows]
        return tuple([*words, "default (off the grid)"] if len(words) < int(self.space["actions"]) else words)

    def configuration(self, without: Sequence[str] = ()) -> str:
        """Everything that was chosen but chance, as one comparable word; two runs that share it differ by seed only.

        `without` leaves out more keys: `STREAM` for a row of a table, `STREAM` and `POLICY` to find its baseline.
        """
        kept = {key: value for key, value in self.recipe.items() if key not in (*CHANCE, *without)}
        if "policy" not in without:
            kept |= {"policy": self.policy, "labels": list(self.labels)}
        return json.dumps(_said(kept), sort_keys=True)


@dataclass(frozen=True)
class Broken:
    """A path that holds no run that can be read, and why."""

    path: Path
    reason: str


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[Broken]]:
    """The runs at these paths, each once; a folder that holds only folders stands for the runs in it."""
    runs: list[Run] = []
    broken: list[Broken] = []
    taken: set[str] = set()
    found = {path.resolve(): path for given in paths for path in _expanded(given)}
    for path in found.values():
        try:
            run = read_run(path, _free_name(path, taken))
        except PoiseError as error:
            broken.append(Broken(path, str(error).removeprefix(f"{path} ").removeprefix(f"{path}{os.sep}")))
        except OSError as error:
            broken.append(Broken(path, error.strerror or str(error)))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            broken.append(Broken(path, f"is not as poise writes it ({type(error).__name__}: {error})"))
        else:
            runs.append(run)
            taken.add(run.name)
    return runs, broken


def read_run(path: Path, name: str | None = None) -> Run:
    """The run in this folder, or of this result file; raises where there is none that can be read."""
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if path.is_file():
        return _from_result(path, name or path.stem, path, {}, {})
    kind = next((file for file in ("recipe.json", "crossval.json") if (path / file).exists()), None)
    result = path / "result.json"
    if kind is None:
        raise UserError(f"{path} {'is empty' if not any(path.iterdir()) else 'is not a run folder'}")
    saved = store.read_json(path / kind)
    machine = _machine(path / "machine.json")
    own = name or path.name
    if result.exists():
        return _from_result(path, own, result, saved, machine)
    if kind == "crossval.json":
        raise UserError(f"{path} is not finished; give the same 'poise crossval' command again")
    return _unfinished(path, own, saved, machine)


def _expanded(path: Path, depth: int = 3) -> Iterator[Path]:
    """The path itself, or the run folders below it where it is a folder of such."""
    own = ("recipe.json", "crossval.json", "result.json", "journal.jsonl")
    if not path.is_dir() or any((path / name).exists() for name in own):
        yield path
        return
    inner = [child for child in sorted(path.iterdir()) if child.is_dir() and not child.name.startswith(".")]
    inner = [child for child in inner if not (child / "index.html").exists()]  # an earlier report
    if not inner or not depth:
        yield path
    for child in inner if depth else ():
        yield from _expanded(child, depth - 1)


def _free_name(path: Path, taken: set[str]) -> str:
    """The folder's name, with those above it as far as needed to tell it apart."""
    parts = path.resolve().parts
    name = parts[-1].removesuffix(".json")
    for part in reversed(parts[:-1]):
        if name not in taken:
            return name
        name = f"{part}/{name}"
    return name


# Reading --------------------------------------------------------------------------------------------------------------


@dataclass
class _Told:
    """What a journal tells, event by event."""

    phases: list[Phase] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    action: dict[str, Any] = field(default_factory=dict)
    stored: int | None = None

    def tell(self, event: Mapping[str, Any]) -> None:
        """One more event."""
        kind = str(event["event"])
        self.events[kind] = self.events.get(kind, 0) + 1
        self.last = {"event": kind, "phase": event.get("phase", self.last.get("phase"))}
        if kind == "action":
            self.action = dict(event)
        elif kind == "learned":
            self.stored = int(event["memory_images"])
        elif kind == "trial":
            self.trials.append(_trial(event))
        elif kind == "exam":
            self._examined(event)

    def _examined(self, event: Mapping[str, Any]) -> None:
        labels, images = tuple(event["classes"]), tuple(event["images"])
        hits = {name: tuple(event[f"hits_{name}"]) for name in ("fc", "ncm")}
        before = self.phases[-1].labels if self.phases else ()
        if len({len(labels), len(images), *map(len, hits.values())}) > 1 or labels[: len(before)] != before:
            raise UserError(f"the exam of phase {event['phase']} in the journal does not fit together")
        chances = self.action.get("distribution")
        self.confusion = event.get("confusion") or []
        self.phases.append(
            Phase(
                phase=int(event["phase"]),
                classes=len(labels),
                accuracy=float(event["accuracy"]),
                accuracy_fc=100 * sum(hits["fc"]) / max(1, sum(images)),
                accuracy_ncm=100 * sum(hits["ncm"]) / max(1, sum(images)),
                action={**self.action.get("action", {}), "classifier": str(event["classifier"])},
                stored=self.stored,
                labels=labels,
                arrived=labels[len(before) :],
                images=images,
                hits=hits[str(event["classifier"])],
                distribution=tuple(chances) if chances else None,
                reward=self.action.get("reward"),
            )
        )


def _trial(event: Mapping[str, Any]) -> Trial:
    plan = event["trial"]
    return Trial(
        phase=int(event["phase"]),
        action=event["action"],
        reward=float(event["reward"]),
        epochs=int(plan["epochs"]),
        full=bool(plan["full"]),
        diverged=bool(event["diverged"]),
        purpose=str(plan.get("purpose", "action")),
    )


def _told(path: Path) -> _Told:
    """What the journal at this path tells; nothing where there is none."""
    told = _Told()
    for event in store.read_journal(path, brief="epoch"):
        told.tell(event)
    return told


def _from_result(path: Path, name: str, file: Path, saved: Mapping[str, Any], machine: Mapping[str, Any]) -> Run:
    """A finished run: its result is the truth, its journal adds what it knows beyond it."""
    result = store.read_json(file)
    _check_result(path, result)
    told = _told(path / "journal.jsonl") if path.is_dir() else _Told()
    details = {phase.phase: phase for phase in told.phases}
    return _made(
        path,
        name,
        saved.get("recipe") or {key: result.get(key) for key in _RESULT_KEYS},
        saved,
        machine,
        told,
        title=str(result["recipe"]),
        result=result,
        phases=tuple(_joined(point, details.get(point["phase"])) for point in result["curve"]),
        space=result.get("space"),
        labels=_labels(result),
    )


def _check_result(path: Path, result: Mapping[str, Any]) -> None:
    """Refuse what is no result of a run, or lacks a figure that tables show."""
    curve, seconds = result.get("curve"), result.get("seconds")
    if not isinstance(curve, list) or not curve or not isinstance(seconds, Mapping):
        raise UserError(f"{path} holds no result of a run")
    parts = [result, seconds, *curve]
    names = [("average_accuracy", "last_accuracy", "average_forgetting"), ("train", "policy", "evaluate", "total")]
    names += [("phase", "classes", "accuracy", "accuracy_fc", "accuracy_ncm")] * len(curve)
    for part, needed in zip(parts, names, strict=True):
        for name in needed:
            found = part.get(name)
            if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
                raise UserError(f"{path} holds a result in which {name} is {found!r}, which is no number")
    if not all(isinstance(point.get("action"), Mapping) and "classifier" in point["action"] for point in curve):
        raise UserError(f"{path} holds a result that does not say which classifier counted")


def _labels(said: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(word for key, (word, _) in LABELS.items() if said.get(key))


#: What a result says of its recipe.
_RESULT_KEYS: Final = ("data", "method", "policy", "setting", "phases", "order", "memory", "epochs", "exam", "seed")


def _joined(point: Mapping[str, Any], told: Phase | None) -> Phase:
    """A point of the result's curve with the details of the journal."""
    stored = point.get("stored", point.get("stored_images"))
    told = told or Phase(int(point["phase"]), 0, 0.0, 0.0, 0.0, {})
    changes = {
        "classes": int(point["classes"]),
        "accuracy": float(point["accuracy"]),
        "accuracy_fc": float(point["accuracy_fc"]),
        "accuracy_ncm": float(point["accuracy_ncm"]),
        "action": point["action"],
        "stored": told.stored if stored is None else int(stored),
        "held": point.get("held_images") or None,
        "budget": point.get("budget_images"),
    }
    return Phase(**{**vars(told), **changes})


def _unfinished(path: Path, name: str, saved: Mapping[str, Any], machine: Mapping[str, Any]) -> Run:
    """A run that goes on, or was stopped."""
    told = _told(path / "journal.jsonl")
    memory = saved["recipe"].get("memory") or {}
    known = {"leak": saved.get("runner") == "audit", "knows_increment": memory.get("knows_increment")}
    return _made(
        path,
        name,
        saved["recipe"],
        saved,
        machine,
        told,
        title=str(saved["name"]),
        result=None,
        phases=tuple(told.phases),
        space=saved.get("space"),
        labels=_labels(known),
    )


def _made(
    path: Path,
    name: str,
    recipe: Mapping[str, Any],
    saved: Mapping[str, Any],
    machine: Mapping[str, Any],
    told: _Told,
    **more: Any,  # noqa: ANN401 - fields of Run
) -> Run:
    run = Run(
        path=path,
        name=name,
        recipe=recipe,
        machine=machine,
        trials=tuple(told.trials),
        confusion=tuple((int(a), int(b), int(n)) for a, b, n in told.confusion),
        class_names=tuple(saved.get("class_names") or ()),
        events=told.events,
        last_event=told.last,
        **more,
    )
    for needed in ("method", "setting", "seed", "phases", "policy"):
        if run.recipe.get(needed) is None:
            raise UserError(f"{path} does not say its {needed}")
    return run


def _machine(path: Path) -> Mapping[str, Any]:
    """What machine.json says; a report does without it."""
    try:
        return store.read_json(path)
    except (OSError, PoiseError):
        return {}


def _said(value: object) -> object:
    """A value without the keys that say nothing, which older folders do not have."""
    if not isinstance(value, Mapping):
        return value
    inner = {key: _said(each) for key, each in value.items()}
    return {key: each for key, each in inner.items() if each not in (None, {}, [])}


def by_configuration(runs: Sequence[Run], without: Sequence[str] = ()) -> dict[str, list[Run]]:
    """Runs that differ by seed only (or also in the keys `without`), in the order in which they were given."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.configuration(without), []).append(run)
    return groups


def one_per_seed(runs: Sequence[Run], value: Callable[[Run], float | None]) -> dict[int, float]:
    """The value of each seed's run, where it has one; of two runs of a seed, the first."""
    found: dict[int, float] = {}
    for run in runs:
        number = value(run)
        if number is not None:
            found.setdefault(run.seed, number)
    return dict(sorted(found.items()))
