"""Runs as rows of a table (what was compared) and columns (how classes arrived)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from poise.report.runs import CHANCE, POLICY, STREAM, Run, by_configuration, one_per_seed


@dataclass(frozen=True, order=True)
class Stream:
    """A column: a data set's classes in one setting."""

    phases: int
    setting: str
    groups: str = ""

    @classmethod
    def of(cls, run: Run) -> Stream:
        """How the classes of a run arrive."""
        return cls(run.stream, run.setting, json.dumps(run.recipe.get("groups")) if run.setting == "groups" else "")

    def __str__(self) -> str:
        return f"groups {self.groups.replace(' ', '')}" if self.groups else f"{self.setting.upper()} {self.phases}"


@dataclass(frozen=True)
class Row:
    """Everything that was chosen but the stream and the seed, with the runs of it."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """One of them: method, data, policy and exam are the same in all."""
        return self.runs[0]

    @cached_property
    def cells(self) -> dict[Stream, list[Run]]:
        """Its runs by column."""
        found: dict[Stream, list[Run]] = {}
        for run in self.runs:
            found.setdefault(Stream.of(run), []).append(run)
        return found

    def averages(self, stream: Stream) -> dict[int, float]:
        """Average accuracy by seed, of finished runs."""
        return one_per_seed(self.cells.get(stream, []), lambda run: run.average)

    def baseline_key(self) -> str:
        """What the row shares with the one whose hyperparameters nobody chose."""
        return self.first.configuration((*STREAM, *POLICY))


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """The rows, each with a label unlike the others', baselines before what is compared with them."""
    groups = by_configuration(runs, STREAM)
    labels = _labels({key: group[0] for key, group in groups.items()})
    rows = [Row(labels[key], tuple(group)) for key, group in groups.items()]
    return sorted(rows, key=lambda row: (row.first.data, row.first.exam, row.first.method, not row.first.fixed))


def baselines(rows: Sequence[Row]) -> dict[str, Row]:
    """The row of each row's baseline, by its label; none for a baseline itself."""
    fixed = {row.baseline_key(): row for row in rows if row.first.fixed}
    return {row.label: fixed[row.baseline_key()] for row in rows if not row.first.fixed and row.baseline_key() in fixed}


def _labels(firsts: Mapping[str, Run]) -> dict[str, str]:
    """`lucir, online`, and where several rows would be called so, what sets them apart."""
    alike: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for key, run in firsts.items():
        plain = f"{run.method}, {run.policy_label}"
        alike.setdefault((plain, _home(run)), {})[key] = dict(_flat(run.recipe))
    labels = {}
    for (plain, _), group in alike.items():
        names = sorted({name for keys in group.values() for name in keys})
        known = {name: {json.dumps(keys[name]) for keys in group.values() if name in keys} for name in names}
        for key, keys in group.items():
            apart = [name for name in names if len(known[name]) > 1 and name in keys]
            labels[key] = ", ".join([plain, *(f"{name}={_short(keys[name])}" for name in apart)])
    several = len({_home(run) for run in firsts.values()}) > 1
    named = {key: f"{label} · {_home(firsts[key])}" if several else label for key, label in labels.items()}
    return _told_apart(named)


def _told_apart(labels: Mapping[str, str]) -> dict[str, str]:
    """Numbers behind labels that are still the same, as those of a folder and of a bare result may be."""
    count: dict[str, int] = {}
    found = {}
    for key, label in labels.items():
        count[label] = count.get(label, 0) + 1
        found[key] = label if count[label] == 1 else f"{label} ({count[label]})"
    return found


def _home(run: Run) -> str:
    return run.data if run.exam == "test" else f"{run.data}, {run.exam} exam"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if prefix or name not in (*CHANCE, *STREAM, "policy", "method", "data", "exam"):
            if isinstance(value, Mapping):
                yield from _flat(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", value


def _short(value: object) -> str:
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value).replace(" ", "")
