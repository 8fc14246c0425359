"""What may be compared with what: a policy with the same method without it, and configurations with each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from poise.report.reading import (
    Configuration,
    RunRecord,
    StreamKind,
    baselines,
    by_exam,
    configurations,
    name_conditions,
)
from poise.report.statistics import Spread, paired_difference, spread


@dataclass(frozen=True)
class Comparison:
    """A configuration that chooses something against the same method's own hyperparameters, in one stream."""

    row: Configuration
    stream: StreamKind
    difference: Spread  # of the average accuracies, paired by seed
    by_classifier: Spread | None  # the part of it that the choice of the classifier brings, over the same seeds


def comparisons(runs: Sequence[RunRecord]) -> list[Comparison]:
    """Every row that has a baseline and was not helped by an exam, in every stream in which both share a seed."""
    rows = configurations(runs)
    against = baselines(rows)
    found = []
    for row in rows:
        for stream in sorted(row.by_stream) if row.label in against and not row.first.informed else ():
            base = against[row.label]
            difference = paired_difference(row.averages(stream), base.averages(stream))
            if difference is not None:
                parts = [*classifier_parts(row, base, stream).values()]
                by_classifier = spread(parts) if len(parts) == difference.count else None
                found.append(Comparison(row, stream, difference, by_classifier))
    return found


def classifier_parts(row: Configuration, base: Configuration, stream: StreamKind) -> dict[int, float]:
    """By seed, what the baseline would have gained with the classifiers that the row used, phase by phase.

    Both classifiers are examined after every phase, so no further run is needed: the baseline's networks stay as they
    are and only the classifier that counts changes. The rest of a row's gain comes from how its networks were trained.
    """
    found = {}
    others = _by_seed(base, stream)
    for seed, run in _by_seed(row, stream).items():
        if seed in others and len(others[seed].phases) == len(run.phases):
            pairs = list(zip(run.phases, others[seed].phases, strict=True))
            moved = [own.accuracy_by(chosen.classifier) - own.accuracy for chosen, own in pairs]
            found[seed] = sum(moved) / len(moved)
    return found


def _by_seed(row: Configuration, stream: StreamKind) -> dict[int, RunRecord]:
    """Finished runs by seed."""
    found = {run.seed: run for run in row.by_stream.get(stream, ()) if run.finished and run.phases}
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Ranking:
    """Configurations that learned the same stream, the best first; those that an exam helped are among them."""

    where: str  # the data set and exam
    stream: StreamKind
    rows: tuple[Configuration, ...]

    @property
    def leaders(self) -> tuple[Configuration, Configuration] | None:
        """The two best that no exam helped and that saw the same before; None if no two of them share a seed."""
        first, *others = [row for row in self.rows if not row.first.informed] or self.rows
        alike = [row for row in others if _seen_before(row) == _seen_before(first)]
        second = next((row for row in alike if not row.first.informed and self.difference(first, row)), None)
        return (first, second) if second else None

    @property
    def names(self) -> dict[str, str]:
        """By its label, what each configuration is called beside the others: with the conditions that differ."""
        found = zip(self.rows, name_conditions(self.rows), strict=True)
        return {row.label: ", ".join([row.label, *words]) for row, words in found}

    def difference(self, one: Configuration, other: Configuration) -> Spread | None:
        """The difference of two configurations, paired by seed."""
        return paired_difference(one.averages(self.stream), other.averages(self.stream))

    def mean(self, row: Configuration) -> float:
        """Average accuracy, mean over seeds."""
        return spread([*row.averages(self.stream).values()]).mean


def _seen_before(row: Configuration) -> object:
    """What the network of a configuration was pretrained on; None if it started from nothing."""
    return (row.first.result or {}).get("pretrained_on")


def rankings(runs: Sequence[RunRecord]) -> list[Ranking]:
    """Streams in which at least two configurations can be ranked that are not compared with a baseline of their own.

    These are methods with their own hyperparameters, and policies whose method was not run without them; runs with
    different augmentations are ranked apart.
    """
    return [ranking for ranking in _rankings(runs) if ranking.leaders is not None]


def _rankings(runs: Sequence[RunRecord]) -> Iterator[Ranking]:
    for where, inside in by_exam(runs).items():
        rows = configurations(inside)
        against = baselines(rows)
        free = [row for row in rows if row.label not in against]
        kinds = sorted({row.first.augmentation or "" for row in free})
        for stream, kind in product(sorted({stream for row in free for stream in row.by_stream}), kinds):
            there = [row for row in free if row.averages(stream) and (row.first.augmentation or "") == kind]
            if there:
                mean = Ranking(where, stream, tuple(there)).mean
                yield Ranking(where, stream, tuple(sorted(there, key=mean, reverse=True)))
