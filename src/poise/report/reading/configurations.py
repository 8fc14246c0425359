"""What was compared: runs grouped by everything that was chosen (rows) and by how classes arrived (columns)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from poise.report.reading.runs import AUTO, LABELS, MORE_HELD, REPEATED, UNVERIFIED, RunRecord
from poise.runfolder import CHANCE_KEYS, POLICY_KEYS, STREAM_KEYS
from poise.settings import flat_keys

#: Keys that do not distinguish rows of a table: chance, columns, and what every label or heading says.
_ALIKE = (*CHANCE_KEYS, *STREAM_KEYS, "policy", "method", "data", "exam")
#: Keys that say under which conditions methods were compared.
_CONDITIONS = (
    *("epochs", "net", "order", "images_per_class", "memory.per_class", "memory.total", "memory.reserve"),
    *("precision", "ranks", "net_source"),
)
#: Letters of a list in a label.
_LONGEST = 40
#: Before keys with which the phase 0 that a run started from was trained otherwise: they are said of every such row.
_START = "start."


@dataclass(frozen=True, order=True)
class StreamKind:
    """How classes arrive: a setting and its number of phases. A column of a table."""

    phases: int
    setting: str
    groups: str = ""

    @classmethod
    def of(cls, run: RunRecord) -> StreamKind:
        """How the classes of a run arrive."""
        return cls(run.stream, run.setting, json.dumps(run.recipe.get("groups")) if run.setting == "groups" else "")

    @property
    def meaning(self) -> str:
        """What its name says, for a reader who meets it for the first time.

        >>> StreamKind(5, "tfs").meaning
        'training from scratch, the classes arrive in 5 equal phases'
        """
        if self.setting == "tfh":
            return f"training from half, half of the classes arrive first and the others in {self.phases} phases"
        if self.setting == "tfs":
            return f"training from scratch, the classes arrive in {self.phases} equal phases"
        return "so many new classes arrive in each phase"

    def __str__(self) -> str:
        return f"groups {self.groups.replace(' ', '')}" if self.groups else f"{self.setting.upper()} {self.phases}"


@dataclass(frozen=True)
class Configuration:
    """Everything that was chosen except the stream and the seed, and its runs. A row of a table."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        """One of the runs: method, data, policy and exam are the same in all."""
        return self.runs[0]

    @cached_property
    def by_stream(self) -> dict[StreamKind, list[RunRecord]]:
        """Its runs by how classes arrived."""
        found: dict[StreamKind, list[RunRecord]] = {}
        for run in self.runs:
            found.setdefault(StreamKind.of(run), []).append(run)
        return found

    @property
    def phases_0(self) -> frozenset[tuple[StreamKind, int, str]]:
        """What the phases 0 of its runs are recognised by, with stream and seed, where that is known."""
        return frozenset((StreamKind.of(run), run.seed, run.phase_0) for run in self.runs if run.phase_0 is not None)

    @property
    def identity(self) -> dict[str, str]:
        """What identifies it, as columns of a file."""
        run = self.first
        return {
            **{"data": run.data, "exam": run.exam, "method": run.method},
            **{"policy": run.policy_label, "row": self.label},
        }

    @property
    def label_without_method(self) -> str:
        """Its label without the method and the data set, where those stand elsewhere."""
        return self.label.removeprefix(f"{self.first.method}, ").split(" · ")[0]

    def averages(self, stream: StreamKind) -> dict[int, float]:
        """Average accuracy of finished runs by seed."""
        found = {run.seed: run.average for run in self.by_stream.get(stream, ()) if run.average is not None}
        return dict(sorted(found.items()))

    def baseline_key(self) -> str:
        """What the row has in common with its baseline, whose hyperparameters and classifier are the method's own."""
        action = self.first.recipe.get("action") or {}
        own = {name: value for name, value in action.items() if (name, value) != ("classifier", AUTO)}
        first = replace(self.first, recipe={**self.first.recipe, "action": own})
        return first.configuration((*STREAM_KEYS, *POLICY_KEYS))


def configurations(runs: Sequence[RunRecord]) -> list[Configuration]:
    """The configurations of these runs, each with a unique label, baselines before the rows compared with them.

    Of several runs with one seed and stream, a configuration has the first that is finished; `remarks` names the
    others.
    """
    groups: dict[str, list[RunRecord]] = {}
    apart: set[str] = set()
    for key, alike in _by_configuration(runs).items():
        first, *others = _by_phase_0(alike)
        more = {f"{key} {number}": group for number, group in enumerate(others)}
        groups |= {key: first, **more}
        apart |= {*more}
    labels = _labels({key: group[0] for key, group in groups.items()}, apart)
    rows = [Configuration(labels[key], tuple(_one_run_per_seed(group))) for key, group in groups.items()]
    return sorted(rows, key=lambda row: (row.first.data, row.first.exam, row.first.method, not row.first.fixed))


def _by_configuration(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(run.configuration(STREAM_KEYS), []).append(run)
    return found


def _by_phase_0(alike: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Runs of one configuration, those apart that have the seed of another one and are known to have another phase 0.

    Runs that trained their phase 0 themselves come first.
    """
    rows: list[dict[tuple[StreamKind, int], RunRecord]] = [{}]
    found: list[list[RunRecord]] = [[]]
    for run in sorted(alike, key=lambda run: run.starts_elsewhere):
        place = StreamKind.of(run), run.seed
        number = next(
            (n for n, row in enumerate(rows) if place not in row or run.may_share_phase_0(row[place])), len(rows)
        )
        if number == len(rows):
            rows.append({})
            found.append([])
        rows[number].setdefault(place, run)
        found[number].append(run)
    order = {id(run): place for place, run in enumerate(alike)}
    return [sorted(group, key=lambda run: order[id(run)]) for group in found]


def _one_run_per_seed(group: Sequence[RunRecord]) -> list[RunRecord]:
    """Of several runs with one stream and seed, the first that is finished, or the first."""
    chosen: dict[tuple[StreamKind, int], RunRecord] = {}
    for run in group:
        place = StreamKind.of(run), run.seed
        if place not in chosen or (run.finished and not chosen[place].finished):
            chosen[place] = run
    return [run for run in group if chosen[StreamKind.of(run), run.seed] is run]


def _repeated_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Those that no configuration has, because another run has their seed there."""
    groups = [group for alike in _by_configuration(runs).values() for group in _by_phase_0(alike)]
    kept = {id(run) for group in groups for run in _one_run_per_seed(group)}
    return [run for run in runs if id(run) not in kept]


def distinguish(runs: Sequence[RunRecord]) -> list[str]:
    """For each run its policy, and the keys in which it differs from others of the same method and policy."""
    words = _keys_apart({run.configuration(STREAM_KEYS): run for run in runs})
    return [", ".join([run.policy_label, *words[run.configuration(STREAM_KEYS)]]) for run in runs]


def name_conditions(rows: Sequence[Configuration]) -> list[list[str]]:
    """For each of these rows, whatever their methods, the keys in which training, memory or data differ among them.

    What its label says already is left out, and so is what is not known.
    """
    known = [_conditions(row.first) for row in rows]
    values = {name: {json.dumps(keys[name]) for keys in known if name in keys} for name in _CONDITIONS}
    found = []
    for row, keys in zip(rows, known, strict=True):
        words = [
            f"{name}={_short(value)}" for name, value in keys.items() if len(values[name]) > 1 and value is not None
        ]
        found.append([word for word in words if word not in row.label.split(", ")])
    return found


def _conditions(run: RunRecord) -> dict[str, Any]:
    flat = dict(flat_keys(run.recipe)) | run.computed
    return {name: flat[name] for name in _CONDITIONS if name in flat}


def by_exam(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs by their data set and exam, in words."""
    groups: dict[str, list[RunRecord]] = {}
    for run in sorted(runs, key=lambda run: (run.data, run.exam)):
        groups.setdefault(run.where, []).append(run)
    return groups


def remarks(runs: Sequence[RunRecord], words: Sequence[str] | None = None) -> list[str]:
    """What the labels of these runs mean, or those of them that are among `words`: a line each."""
    marks = {mark for run in runs for mark in run.labels if words is None or mark in words}
    lines = {word: line for word, line in LABELS.values() if word in marks}
    if MORE_HELD in lines and (counts := [*dict.fromkeys(filter(None, map(_held_after_phase_0, runs)))]):
        lines[MORE_HELD] += f" ({'; '.join(counts)})"
    if words is None or REPEATED in words:
        lines |= _not_counted(_repeated_runs(runs))
    if words is None or UNVERIFIED in words:
        lines |= _without_digest([run for run in runs if run.finished and not run.verified])
    return [*lines.values()]


def _without_digest(runs: Sequence[RunRecord], named: int = 4) -> dict[str, str]:
    """What is to be known of results whose digest is missing, if there are any."""
    if not runs:
        return {}
    names = _names(runs, named)
    what = "the result has" if len(runs) == 1 else f"{len(runs)} results have"
    return {
        UNVERIFIED: f"{UNVERIFIED}: {what} no digest by which a change could be seen; 'poise digest' adds it ({names})"
    }


def _not_counted(runs: Sequence[RunRecord], named: int = 8) -> dict[str, str]:
    """Which runs are left out of tables and figures over seeds, if there are any."""
    if not runs:
        return {}
    return {REPEATED: f"{REPEATED}: another run has the same keys, stream and seed ({_names(runs, named)})"}


def _names(runs: Sequence[RunRecord], most: int) -> str:
    return ", ".join([run.name or run.path.name for run in runs[:most]] + ["…"] * (len(runs) > most))


def _held_after_phase_0(run: RunRecord) -> str | None:
    """How many images of each class RMM's memory held between phase 0 and phase 1; None where it is as usual."""
    stored = run.phases[0].stored if MORE_HELD in run.labels and run.phases else None
    if stored is None:
        return None
    classes, memory = run.phases[0].classes, run.recipe["memory"]
    plain = memory.get("per_class") or (memory.get("total") or 0) // classes
    words = f"{run.method}, {run.setting} {run.stream}: {stored / classes:.0f} of each class"
    return f"{words} instead of {plain}" if plain else words


def baselines(rows: Sequence[Configuration]) -> dict[str, Configuration]:
    """Each row's baseline by the row's label; baselines themselves have none.

    A row that chooses nothing but the classifier has a baseline too: the same row with the method's own classifier.
    Of several baselines it is the one that has the same phase 0 for the most seeds.
    """
    choosing = [row for row in rows if row.first.judged or not row.first.fixed]
    fixed: dict[str, list[Configuration]] = {}
    for row in rows:
        if row not in choosing:
            fixed.setdefault(row.baseline_key(), []).append(row)
    return {
        row.label: max(fixed[row.baseline_key()], key=lambda base: len(base.phases_0 & row.phases_0))
        for row in choosing
        if row.baseline_key() in fixed
    }


def _labels(firsts: Mapping[str, RunRecord], apart: Collection[str]) -> dict[str, str]:
    """`lucir, online`; where several rows would share that label, also the keys in which they differ.

    Those `apart` differ from another one in nothing but their phase 0.
    """
    words = {
        key: [*found, *(["another phase 0"] if key in apart else [])] for key, found in _keys_apart(firsts).items()
    }
    labels = {key: ", ".join([run.method, run.policy_label, *words[key]]) for key, run in firsts.items()}
    several = len({run.where for run in firsts.values()}) > 1
    named = {key: f"{label} · {firsts[key].where}" if several else label for key, label in labels.items()}
    return _with_numbers(named)


def _keys_apart(firsts: Mapping[str, RunRecord]) -> dict[str, list[str]]:
    """For each configuration: the keys, with their values, in which it differs from others of its method and policy.

    Besides, those with which its `start` was trained otherwise.
    """
    alike: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for key, run in firsts.items():
        alike.setdefault((run.method, run.policy_label, run.where), {})[key] = {
            name: value for name, value in flat_keys(_chosen_keys(run)) if value != {}
        }
    found: dict[str, list[str]] = {}
    for group in alike.values():
        names = sorted({name for keys in group.values() for name in keys})
        known = {name: {json.dumps(keys.get(name)) for keys in group.values()} for name in names}
        for key, keys in group.items():
            found[key] = [
                f"{name}={_short(keys[name])}"
                for name in names
                if name in keys and (len(known[name]) > 1 or name.startswith(_START))
            ]
    return found


def _chosen_keys(run: RunRecord) -> dict[str, Any]:
    """The keys in which a row may differ from others of its method and policy."""
    kept = {name: value for name, value in run.recipe.items() if name not in _ALIKE}
    return {**kept, "start": run.other_start, **run.computed}


def _with_numbers(labels: Mapping[str, str]) -> dict[str, str]:
    """Append numbers to labels that are still equal, as those of a folder and of a bare result may be."""
    count: dict[str, int] = {}
    found = {}
    for key, label in labels.items():
        count[label] = count.get(label, 0) + 1
        found[key] = label if count[label] == 1 else f"{label} ({count[label]})"
    return found


def _short(value: object) -> str:
    """A value in a label; of a long list, such as a class order, the beginning.

    >>> _short([*range(100)])
    '[0,1,2,3,… 100 in all]'
    """
    if value is None or isinstance(value, str):
        return "–" if value is None else value
    text = json.dumps(value).replace(" ", "")
    if isinstance(value, list) and len(text) > _LONGEST:
        return f"{json.dumps(value[:4]).replace(' ', '')[: _LONGEST - 1].removesuffix(']')},… {len(value)} in all]"
    return text
