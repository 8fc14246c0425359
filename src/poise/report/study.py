"""What is compared, worked out once: runs grouped into rows, each with its label, its look and its baseline.

Every table and figure of a report is made from one `Study`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from poise.policies import DEFAULT_POLICY
from poise.report.statistics import Spread, paired_difference, spread
from poise.runs.record import (
    AUGMENTATIONS,
    AUTO,
    LABELS,
    POLICY_KEYS,
    STREAM_KEYS,
    UNVERIFIED,
    RunRecord,
    UnreadPath,
)
from poise.settings import ALL_IMAGES

#: The label of a row whose memory cannot be compared with a plain one without a word.
MORE_HELD: Final = LABELS["more_after_phase_0"][0]
#: The labels of rows that cannot be compared with others without a word: all tables explain them.
EXPLAINED: Final = (MORE_HELD, *AUGMENTATIONS.values())
#: The word for runs that are not counted, because another run has the same keys, stream and seed.
REPEATED: Final = "not counted"

#: Keys that do not distinguish rows of a table: columns, and what every label or heading says.
_SAID_ELSEWHERE: Final = (*STREAM_KEYS, "policy", "method", "data", "exam", "labels")
#: Keys that differ between methods because they are different methods.
_OF_A_METHOD: Final = ("method", "options", "action", "policy", *POLICY_KEYS, *STREAM_KEYS, "data", "exam", "labels")
_LONGEST: Final = 40  # characters of a list in a label

#: One colour per method, readable on light and on dark pages; other methods take the colours left over.
METHOD_COLOURS: Final[Mapping[str, str]] = {
    "lucir": "#3a7fc1",
    "icarl": "#d2672f",
    "lwf": "#2f9e77",
    "podnet": "#9a6fc0",
    "aanets": "#bf9422",
    "aanets+rmm": "#cc5a8f",
    "der": "#5f7d8c",
    "foster": "#8a9a2b",
}
_OTHER_COLOURS: Final = ("#5aa9c9", "#a0764f", "#7c9a3d", "#8585d1", "#c76e6e", "#6b8f8a")
_MARKS: Final = "osD^vPX*"
_OWN_DASH: Final = (3.5, 2.0)
_POLICY_DASHES: Final = ((), (6.0, 2.0, 1.0, 2.0), (1.0, 1.5), (5.0, 1.0, 1.0, 1.0, 1.0, 1.0))


@dataclass(frozen=True)
class Style:
    """How a row is drawn: its colour, its dashes (in line widths; none: solid), its mark by matplotlib's name.

    Dashed lines and hollow marks are a method's own hyperparameters, solid lines and filled marks a policy's.
    """

    colour: str
    dash: tuple[float, ...] = ()
    mark: str = "o"
    hollow: bool = False


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
        """An explanation of the stream for a reader who meets its name for the first time.

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


@dataclass(frozen=True, eq=False)
class Row:
    """Everything that was chosen but the stream and the seed, and its runs: a row of a table, a curve of a figure."""

    label: str  # unique among the rows of its data set and exam
    full_label: str  # unique in the study
    where: str  # the data set and the exam in words
    runs: tuple[RunRecord, ...]
    style: Style

    @cached_property
    def first(self) -> RunRecord:
        """One of the runs: method, data, policy and exam are the same in all."""
        return self.runs[0]

    @cached_property
    def identity(self) -> dict[str, str]:
        """The columns that identify the row in a file."""
        run = self.first
        return {
            **{"data": run.data, "exam": run.exam, "method": run.method},
            **{"policy": run.policy_label, "row": self.full_label},
        }

    @cached_property
    def by_stream(self) -> dict[StreamKind, list[RunRecord]]:
        """By how classes arrived, a run for each seed: of several the first that is finished, or the first."""
        chosen: dict[tuple[StreamKind, int], RunRecord] = {}
        for run in self.runs:
            place = StreamKind.of(run), run.seed
            if place not in chosen or (run.finished and not chosen[place].finished):
                chosen[place] = run
        found: dict[StreamKind, list[RunRecord]] = {}
        for (stream, _), run in chosen.items():
            found.setdefault(stream, []).append(run)
        return dict(sorted(found.items()))

    @cached_property
    def repeated(self) -> list[RunRecord]:
        """The runs that are not counted, because another one has their stream and seed."""
        kept = {id(run) for runs in self.by_stream.values() for run in runs}
        return [run for run in self.runs if id(run) not in kept]

    def finished(self, stream: StreamKind) -> dict[int, RunRecord]:
        """Finished runs of a stream by seed."""
        ordered = sorted(self.by_stream.get(stream, ()), key=lambda run: run.seed)
        return {run.seed: run for run in ordered if run.finished}

    def averages(self, stream: StreamKind) -> dict[int, float]:
        """Average accuracy of finished runs by seed."""
        return {seed: run.average for seed, run in self.finished(stream).items() if run.average is not None}

    def partner(self, run: RunRecord) -> RunRecord | None:
        """The finished run of this row with the stream and seed of another row's run, if possible with its phase 0."""
        place = StreamKind.of(run), run.seed
        alike = [each for each in self.runs if each.finished and (StreamKind.of(each), each.seed) == place]
        same = [each for each in alike if each.phase_0 is not None and each.phase_0 == run.phase_0]
        return next(iter([*same, *alike]), None)


@dataclass(frozen=True)
class Comparison:
    """A row beside its baseline, or beside the row that all are compared with, in one stream."""

    row: Row
    stream: StreamKind
    own: dict[int, float]  # average accuracies by seed, of the seeds that both have
    theirs: dict[int, float]
    moved: dict[int, float]  # by seed, what the baseline would have gained with the classifiers that the row used

    @cached_property
    def difference(self) -> Spread:
        """The gain in average accuracy, paired by seed."""
        found = paired_difference(self.own, self.theirs)
        assert found is not None, "a comparison has a common seed"
        return found

    @cached_property
    def by_classifier(self) -> Spread | None:
        """The part of the gain that the choice of the classifier brings, where it is known for every seed."""
        return spread([*self.moved.values()]) if self.moved and len(self.moved) == len(self.own) else None


@dataclass(frozen=True)
class Ranking:
    """Rows that learned the same stream, the best first; those that an exam helped are among them."""

    where: str
    stream: StreamKind
    rows: tuple[Row, ...]

    @cached_property
    def leaders(self) -> tuple[Row, Row] | None:
        """The two best that no exam helped and that saw the same before; None if no two of them share a seed."""
        first, *others = [row for row in self.rows if not row.first.informed] or self.rows
        alike = [row for row in others if _pretrained(row) == _pretrained(first) and not row.first.informed]
        second = next((row for row in alike if self.difference(first, row)), None)
        return (first, second) if second else None

    @cached_property
    def apart(self) -> dict[str, list[str]]:
        """Every training key in which rows differ, with its values; what a row keeps that keeps all, its label says."""
        known = [_training_keys(row.first) for row in self.rows]
        kept = [keys for keys in known if keys.get("memory.rule") != ALL_IMAGES]
        apart = dict[str, list[str]]()
        for rows, of_memory in ((known, False), (kept, True)):
            for key in _differing(rows):
                if key.startswith("memory.") == of_memory:
                    apart[key] = [*dict.fromkeys(_short(keys.get(key)) for keys in rows)]
        return dict(sorted(apart.items()))

    @cached_property
    def names(self) -> dict[str, str]:
        """By its label, what each row is called beside the others: with every training key in which they differ."""
        found = {}
        for label, keys in ((row.label, _training_keys(row.first)) for row in self.rows):
            words = [f"{key}={_short(keys[key])}" for key in self.apart if keys.get(key) is not None]
            found[label] = ", ".join([label, *(word for word in words if word not in label.split(", "))])
        return found

    def difference(self, one: Row, other: Row) -> Spread | None:
        """The difference of two rows, paired by seed."""
        return paired_difference(one.averages(self.stream), other.averages(self.stream))

    def mean(self, row: Row) -> float:
        """Average accuracy, mean over seeds."""
        return spread([*row.averages(self.stream).values()]).mean


@dataclass(frozen=True)
class Study:
    """Runs, and everything that tables and figures share about them.

    Attributes:
        runs: those that could be read.
        unread: paths that could not, each with the reason.
        against: the label of a row that all others are compared with; None: a policy with its method's own
            hyperparameters.
    """

    runs: tuple[RunRecord, ...]
    unread: tuple[UnreadPath, ...] = ()
    against: str | None = None

    @cached_property
    def reference(self) -> str:
        """The row that others are compared with, in words."""
        return "the same method's own hyperparameters" if self.against is None else f"the row '{self.against}'"

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every row, a data set and exam after the other, baselines before the rows compared with them."""
        groups: dict[str, list[RunRecord]] = {}
        for run in self.runs:
            groups.setdefault(_configuration(run, STREAM_KEYS), []).append(run)
        ordered = sorted(
            groups.values(), key=lambda group: (group[0].data, group[0].exam, group[0].method, not group[0].fixed)
        )
        places: dict[str, list[list[RunRecord]]] = {}
        for group in ordered:
            places.setdefault(group[0].where, []).append(group)
        methods = sorted({run.method for run in self.runs})
        strangers = [name for name in methods if name not in METHOD_COLOURS]
        spare = dict(zip(strangers, itertools.cycle(_OTHER_COLOURS)))
        colours = {name: METHOD_COLOURS.get(name) or spare[name] for name in methods}
        found: list[Row] = []
        for where, inside in places.items():
            labels = _labels([group[0] for group in inside])
            styles = _styles([group[0] for group in inside], colours)
            for group, label, style in zip(inside, labels, styles, strict=True):
                full = f"{label} · {where}" if len(places) > 1 else label
                found.append(Row(label, full, where, tuple(group), style))
        return tuple(found)

    @cached_property
    def by_exam(self) -> dict[str, list[Row]]:
        """The rows by their data set and exam, in words."""
        return {where: list(rows) for where, rows in itertools.groupby(self.rows, lambda row: row.where)}

    @cached_property
    def baselines(self) -> dict[str, Row]:
        """Each row's baseline by the row's full label; baselines themselves have none.

        A row that chooses nothing but the classifier has a baseline too: the same with the method's own classifier.
        """
        choosing = [row for row in self.rows if row.first.judged or not row.first.fixed]
        fixed = {_baseline_key(row.first): row for row in self.rows if row not in choosing}
        return {row.full_label: fixed[key] for row in choosing if (key := _baseline_key(row.first)) in fixed}

    @cached_property
    def comparisons(self) -> dict[tuple[str, StreamKind], Comparison]:
        """Every row that is compared, in every stream in which both share a seed, by its full label and stream."""
        found = {}
        named = {row.where: row for row in self.rows if row.label == self.against}
        for row in self.rows:
            base = self.baselines.get(row.full_label) if self.against is None else named.get(row.where)
            for stream in row.by_stream if base and base is not row else ():
                assert base is not None
                pairs = {seed: (run, base.partner(run)) for seed, run in row.finished(stream).items()}
                both = {seed: (run, own) for seed, (run, own) in pairs.items() if own is not None}
                if both:
                    found[row.full_label, stream] = Comparison(
                        row,
                        stream,
                        {seed: run.average or 0.0 for seed, (run, _) in both.items()},
                        {seed: own.average or 0.0 for seed, (_, own) in both.items()},
                        {
                            seed: moved
                            for seed, pair in both.items()
                            if row.first.method == base.first.method and (moved := _moved(*pair)) is not None
                        },
                    )
        return found

    @cached_property
    def rankings(self) -> list[Ranking]:
        """Streams in which at least two rows can be ranked that are not compared with a baseline of their own.

        These are methods with their own hyperparameters, and policies whose method was not run without them; rows with
        different augmentations are ranked apart.
        """
        groups: dict[tuple[str, StreamKind, str], list[Row]] = {}
        for row in self.rows:
            for stream in row.by_stream if row.full_label not in self.baselines else ():
                if row.averages(stream):
                    groups.setdefault((row.where, stream, row.first.augmentation or ""), []).append(row)
        found = []
        for (where, stream, _), rows in sorted(groups.items()):
            mean = Ranking(where, stream, ()).mean
            ranking = Ranking(where, stream, tuple(sorted(rows, key=mean, reverse=True)))
            found += [ranking] if ranking.leaders is not None else []
        return found

    @cached_property
    def differences(self) -> list[str]:
        """Where ranked rows were trained with other keys, in which, with their values: a line for each ranking."""
        found = []
        for ranking in self.rankings:
            if ranking.apart:
                words = "; ".join(f"{key} ({', '.join(values)})" for key, values in ranking.apart.items())
                found.append(f"{ranking.where}, {ranking.stream}: the ranked rows also differ in {words}")
        return found

    def remarks(self, words: Iterable[str] | None = None) -> list[str]:
        """Explanations of the labels of the runs, or of those among `words`, and of what is not counted."""
        found = remarks(self.runs, words)
        repeated = [run for row in self.rows for run in row.repeated]
        if repeated and (words is None or REPEATED in words):
            found.append(f"{REPEATED}: another run has the same keys, stream and seed ({_names(repeated, 8)})")
        return found

    @cached_property
    def by_stream(self) -> list[tuple[Row, StreamKind, list[RunRecord]]]:
        """Every row with each of its streams and the runs there."""
        return [(row, stream, runs) for row in self.rows for stream, runs in row.by_stream.items()]


def remarks(runs: Sequence[RunRecord], words: Iterable[str] | None = None) -> list[str]:
    """Explanations of the labels of these runs, or of those among `words`: a line each."""
    wanted = None if words is None else set(words)
    marks = {mark for run in runs for mark in run.labels if wanted is None or mark in wanted}
    lines = {word: line for word, line in LABELS.values() if word in marks}
    if MORE_HELD in lines and (counts := [*dict.fromkeys(filter(None, map(_held_after_phase_0, runs)))]):
        lines[MORE_HELD] += f" ({'; '.join(counts)})"
    unverified = [run for run in runs if run.finished and not run.verified]
    if unverified and (wanted is None or UNVERIFIED in wanted):
        lines[UNVERIFIED] = f"{UNVERIFIED}: no digest by which a change could be seen ({_names(unverified, 4)})"
    return [*lines.values()]


def distinguish(runs: Sequence[RunRecord]) -> list[str]:
    """For each run its policy, and the keys in which it differs from others of its method and policy."""
    firsts = {_configuration(run, STREAM_KEYS): run for run in runs}
    words = dict(zip(firsts, _keys_apart([*firsts.values()]), strict=True))
    return [", ".join([run.policy_label, *words[_configuration(run, STREAM_KEYS)]]) for run in runs]


# Grouping -------------------------------------------------------------------------------------------------------------


def _configuration(run: RunRecord, without: Sequence[str]) -> str:
    """Everything that was chosen but these keys, as one comparable word."""
    kept = {key: value for key, value in run.flat_recipe.items() if key.partition(".")[0] not in without}
    return json.dumps(kept, sort_keys=True)


def _baseline_key(run: RunRecord) -> str:
    """The key that a row shares with its baseline, whose hyperparameters and classifier are the method's own."""
    policy = (*STREAM_KEYS, *POLICY_KEYS, "policy_source", "labels")
    kept = {key: value for key, value in run.flat_recipe.items() if key.partition(".")[0] not in policy}
    if kept.get("action.classifier") == AUTO:
        del kept["action.classifier"]
    return json.dumps(kept, sort_keys=True)


def _moved(run: RunRecord, base: RunRecord) -> float | None:
    """The baseline's accuracy with the classifiers that a run used, phase by phase.

    Both classifiers are examined after every phase, so no further run is needed: the baseline's networks stay as they
    are and only the classifier that counts changes. The rest of a gain comes from how the networks were trained.
    """
    if len(base.phases) != len(run.phases) or not run.phases:
        return None
    pairs = zip(run.phases, base.phases, strict=True)
    return sum(own.accuracy_by(chosen.classifier) - own.accuracy for chosen, own in pairs) / len(run.phases)


def _pretrained(row: Row) -> object:
    """The data that the network of a row was pretrained on; None if it started from nothing."""
    return (row.first.result or {}).get("pretrained_on")


def _training_keys(run: RunRecord) -> dict[str, Any]:
    """The keys of a run, batch and every other, but those that say which method, policy, stream or data it is."""
    return {key: value for key, value in run.flat_recipe.items() if key.partition(".")[0] not in _OF_A_METHOD}


def _differing(known: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys that have several values. A bare result does not know all of its recipe: what it lacks is no value."""
    each = list(known)
    values = {
        key: {json.dumps(keys.get(key)) for keys in each if key in keys or "batch" in keys}
        for key in {key for keys in each for key in keys}
    }
    return {key for key, found in values.items() if len(found) > 1}


# Labels and styles ----------------------------------------------------------------------------------------------------


def _labels(firsts: Sequence[RunRecord]) -> list[str]:
    """`lucir, online`; where several rows would share that label, also the keys in which they differ."""
    count: dict[str, int] = {}
    found = []
    for run, words in zip(firsts, _keys_apart(firsts), strict=True):
        label = ", ".join([run.method, run.policy_label, *words])
        count[label] = count.get(label, 0) + 1
        # Still equal labels get numbers, as those of a folder and of a bare result may be.
        found.append(label if count[label] == 1 else f"{label} ({count[label]})")
    return found


def _keys_apart(firsts: Sequence[RunRecord]) -> list[list[str]]:
    """For each run the keys, with their values, in which it differs from others of its method, policy and data.

    Besides, those with which its `start` was trained otherwise.
    """
    chosen = [
        {key: value for key, value in run.flat_recipe.items() if key.partition(".")[0] not in _SAID_ELSEWHERE}
        for run in firsts
    ]
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for run, keys in zip(firsts, chosen, strict=True):
        groups.setdefault((run.method, run.policy_label, run.where), []).append(keys)
    apart = {place: _differing(group) for place, group in groups.items()}
    return [
        [
            f"{key}={_short(keys[key])}"
            for key in sorted(keys)
            if key in apart[run.method, run.policy_label, run.where] or key.startswith("start.")
        ]
        for run, keys in zip(firsts, chosen, strict=True)
    ]


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


def _styles(firsts: Sequence[RunRecord], colours: Mapping[str, str]) -> list[Style]:
    """Colours by method, lines and marks by policy; rows that share both take the next free mark."""
    labels = sorted({run.policy_label for run in firsts if not run.fixed}, key=lambda word: word != DEFAULT_POLICY)
    found: list[Style] = []
    for run in firsts:
        colour, place = colours[run.method], 0 if run.fixed else labels.index(run.policy_label)
        taken = {style.mark for style in found if style.colour == colour and style.hollow == run.fixed}
        marks = [*_MARKS[place % len(_MARKS) :], *_MARKS[: place % len(_MARKS)]]
        mark = next((mark for mark in marks if mark not in taken), marks[0])
        dash = _OWN_DASH if run.fixed else _POLICY_DASHES[place % len(_POLICY_DASHES)]
        found.append(Style(colour, dash, mark, run.fixed))
    return found


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
