"""A figure as a plain value: its panels, what is drawn in them, the words around them, and the numbers behind them.

Nothing here draws. A figure has two renderings, for print (`poise.report.figures.print`) and for the page
(`poise.report.page.svg`); both draw what is described here, with these words, colours, ranges and ticks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Value = float | int | str | None
Row = dict[str, Any]  # flat values, each a `Value`
Rows = list[Row]  # all with the same keys
Place = tuple[float, float]

GREY: Final = "#7d7d7d"  # about as far from white as from black
GOOD: Final = "#2a9d6f"
BAD: Final = "#d1495b"


@dataclass(frozen=True)
class Style:
    """How something looks: its colour, its dashes (in line widths; none: solid), its mark by matplotlib's name."""

    colour: str
    dash: tuple[float, ...] = ()
    mark: str = "o"
    hollow: bool = False


@dataclass(frozen=True)
class Mark:
    """A value: its place, its size in points, its opacity, and the text shown when the mouse is on it."""

    x: float
    y: float
    style: Style
    tip: str = ""
    size: float = 4.5
    strength: float = 1.0


@dataclass(frozen=True)
class Line:
    """A line through some places, its width in points; or an arrow that leads along them."""

    places: Sequence[Place]
    style: Style
    width: float = 1.8
    strength: float = 1.0
    arrow: bool = False


@dataclass(frozen=True)
class Band:
    """The range from low to high along x."""

    reaches: Sequence[tuple[float, float, float]]  # x, low, high
    colour: str


@dataclass(frozen=True)
class Ellipse:
    """An ellipse around a place, by its half-axes."""

    centre: Place
    reach: Place
    colour: str


@dataclass(frozen=True)
class Rule:
    """A vertical line, with a word above it."""

    x: float
    text: str = ""


@dataclass(frozen=True, eq=False)
class Heat:
    """A table of colours, stronger for higher values: row 0 is on top, NaN stays blank.

    `tips`, if given, has a text for each cell.
    """

    values: NDArray[np.float64]
    colour: str
    low: float
    high: float
    tips: Mapping[tuple[int, int], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """The label of a side, its range (reversed if the first end is the larger), and its ticks."""

    label: str = ""
    limits: Place = (0.0, 1.0)
    ticks: Mapping[float, str] = field(default_factory=dict)
    colour: str = GREY

    @classmethod
    def spanning(
        cls, label: str, values: Iterable[float], *, whole: bool = False, least: float = 0.0, count: int = 6
    ) -> Scale:
        """The range of the values with some room, at least `least`; about `count` ticks, at integers if `whole`."""
        known = [value for value in values if not math.isnan(value)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        room = max(0.05 * (high - low), (least - (high - low)) / 2) or max(0.5, 0.05 * abs(high))
        low, high = low - room, high + room
        ticks = [tick for tick in round_numbers(low, high, count) if not whole or tick == int(tick)]
        return cls(label, (low, high), {tick: f"{tick:g}".replace("-", "−") for tick in ticks})

    @classmethod
    def naming(
        cls, label: str, names: Sequence[str], *, most: int = 12, letters: int = 60, down: bool = False
    ) -> Scale:
        """A place for each name; if the names do not fit, some places are numbered instead."""
        fits = len(names) <= most and sum(map(len, names)) <= letters
        step = 1 if fits else math.ceil(len(names) / 10)
        ticks = {float(place): names[place] if fits else str(place) for place in range(0, len(names), step)}
        ends = -0.5, len(names) - 0.5
        return cls(label, ends[::-1] if down else ends, ticks)


@dataclass(frozen=True, eq=False)
class Panel:
    """One chart: two axes and what lies between them, from the back to the front; or a picture, uint8 [H, W, 3]."""

    title: str
    x: Scale
    y: Scale
    size: Place = (3.9, 2.8)  # in inches
    heat: Heat | None = None
    picture: NDArray[np.uint8] | None = None
    diagonal: bool = False
    rules: Sequence[Rule] = ()
    bands: Sequence[Band] = ()
    ellipses: Sequence[Ellipse] = ()
    lines: Sequence[Line] = ()
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure and the numbers it shows."""

    name: str  # a word for file names
    title: str  # what it is, in a few words
    caption: str  # what it shows, and what it was made from
    panels: Sequence[Panel]  # row by row
    data: Sequence[Mapping[str, Value]]  # everything that is drawn, as flat rows
    columns: int = 1  # panels per row in print
    legend: Mapping[str, Style] = field(default_factory=dict)  # what styles stand for, if no title says it

    def save(self, path: Path) -> None:
        """Write the printed form; the ending of the path (.png, .svg or .pdf) sets the format."""
        from poise.report.figures.print import save

        save(self, path)


def round_numbers(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers between two values.

    >>> round_numbers(0, 100), round_numbers(82.1, 84.3)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [82.5, 83.0, 83.5, 84.0])
    """
    rough = (high - low) / count
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(place * step, 10) for place in range(first, math.floor(high / step + 1e-9) + 1)]
