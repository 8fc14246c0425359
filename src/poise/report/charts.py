"""Charts as SVG text that the page carries along: they take its colours, print, and answer the mouse.

Every mark that has a value carries it in words in `data-tip`; the page's script shows the one nearest to the mouse.
Colours are classes (`c0` … `c7`), so that light, dark and paper each have their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from poise.report.series import PLANE_SPAN

COLOURS = 8
WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 12, 40


@dataclass(frozen=True)
class Point:
    """A value, its spread where there is one, and its words."""

    x: float
    y: float
    tip: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points with one name and colour. Styles: `line`, `faint` (a thin line without dots) and `dots`."""

    label: str
    points: tuple[Point, ...]
    colour: int = 0
    style: str = "line"


@dataclass(frozen=True)
class Frame:
    """From values to places on the sheet."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT

    def across(self, value: float) -> float:
        """Where a value of x lies."""
        return self.left + (value - self.x[0]) / (self.x[1] - self.x[0]) * (self.width - self.left - RIGHT)

    def down(self, value: float) -> float:
        """Where a value of y lies."""
        return self.height - BOTTOM - (value - self.y[0]) / (self.y[1] - self.y[0]) * (self.height - TOP - BOTTOM)


def line_chart(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    y_range: tuple[float, float] | None = None,
    whole_x: bool = True,
    name: str = "",
    small: bool = False,
) -> str:
    """Lines over x with bands of their spread, and a legend where there are several names.

    A `small` one is drawn on less space, so that its letters are as large as those of the others.
    """
    xs = [point.x for each in series for point in each.points]
    ys = [value for each in series for point in each.points for value in (point.low, point.y, point.high)]
    width, height = (WIDTH * 3 // 5, HEIGHT * 3 // 5) if small else (WIDTH, HEIGHT)
    down = y_range or _widened([value for value in ys if value is not None], 0.06)
    frame = Frame(_widened(xs), down, width, height)
    marks = [_grid(frame, x_label, y_label, whole_x)]
    marks += [_band(each, frame) for each in series] + [_line(each, frame) for each in series]
    return _sheet(frame, marks, name or y_label) + _legend({each.label: each.colour for each in series})


@dataclass(frozen=True)
class Mark:
    """A point in a plane with how far its 95 % interval reaches in both directions, where it has one."""

    label: str
    x: float
    y: float
    reach: tuple[float, float] | None
    colour: int
    hollow: bool
    tip: str

    def corners(self) -> list[tuple[float, float]]:
        """What must be on the sheet."""
        dx, dy = self.reach or (0.0, 0.0)
        return [(self.x - dx, self.y - dy), (self.x + dx, self.y + dy)]


def plane_chart(marks: Sequence[Mark], arrows: Sequence[tuple[str, str]], x_label: str, y_label: str) -> str:
    """One mark per name, an ellipse around it where its reach is known, and arrows between some of them."""
    corners = [corner for mark in marks for corner in mark.corners()]
    across, down = (_widened([corner[side] for corner in corners], 0.08, PLANE_SPAN) for side in (0, 1))
    frame = Frame(across, down, height=WIDTH * 3 // 4)
    drawn = [_grid(frame, x_label, y_label, whole_x=False), *(_ellipse(mark, frame) for mark in marks)]
    places = {mark.label: (_at(frame.across(mark.x)), _at(frame.down(mark.y))) for mark in marks}
    for (x1, y1), (x2, y2) in ((places[start], places[end]) for start, end in arrows):
        drawn.append(f'<line class="arrow" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')
    for mark in marks:
        place = frame.across(mark.x), frame.down(mark.y)
        drawn.append(_dot(*place, mark.tip, mark.colour, 5, hollow=mark.hollow))
    return _sheet(frame, drawn, f"{y_label} against {x_label}") + _legend({mark.label: mark.colour for mark in marks})


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[int, int], float],
    marked: Mapping[int, int],
    x_label: str,
    what: str,
) -> str:
    """A cell per row and column, darker for more; `marked` says which row of a column is outlined."""
    high, low = max(values.values(), default=1.0), min(values.values(), default=0.0)
    side, left, top = max(9, min(22, 420 // max(1, len(columns)))), 8 * max(map(len, rows), default=0) * 3 // 4 + 10, 8
    marks = []
    for (row, column), value in values.items():
        depth = 0.08 + 0.92 * (value - low) / (high - low) if high > low else 0.5
        tip = escape(f"{x_label} {columns[column]}, {rows[row]}: {what} {value:.3f}")
        box = f'x="{left + column * side}" y="{top + row * 14}" width="{side - 1}" height="13"'
        marks.append(f'<rect class="heat" {box} fill-opacity="{depth:.2f}" data-tip="{tip}"/>')
    marks += [
        f'<rect class="chosen" x="{left + column * side}" y="{top + row * 14}" width="{side - 1}" height="13"/>'
        for column, row in marked.items()
    ]
    marks += [
        f'<text class="tick end" x="{left - 4}" y="{top + row * 14 + 10}">{escape(name)}</text>'
        for row, name in enumerate(rows)
    ]
    bottom = top + len(rows) * 14 + 12
    step = max(1, len(columns) // 12)
    marks += [
        f'<text class="tick mid" x="{left + column * side + side / 2}" y="{bottom}">{escape(columns[column])}</text>'
        for column in range(0, len(columns), step)
    ]
    marks.append(
        f'<text class="axis mid" x="{left + len(columns) * side / 2}" y="{bottom + 16}">{escape(x_label)}</text>'
    )
    width, height = max(left + len(columns) * side + 8, 160), bottom + 24
    return _svg(width, height, marks, what)


@dataclass(frozen=True)
class Interval:
    """A row of a forest plot: a mean difference, its interval where it has one, and every seed's."""

    label: str
    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]
    tone: str
    words: str


def forest_chart(rows: Sequence[Interval], x_label: str) -> str:
    """Differences with their intervals around a line at zero."""
    numbers = [
        0.0,
        *(number for row in rows for number in (row.mean, row.low, row.high, *row.values) if number is not None),
    ]
    left = min(330, 7 * max(len(row.label) for row in rows) + 14)
    frame = Frame(_widened(numbers, 0.06), (0, 1), width=left + 500, height=24 * len(rows) + TOP + BOTTOM, left=left)
    bottom = frame.height - BOTTOM
    zero = _at(frame.across(0))
    marks = [
        f'<line class="grid" x1="{_at(frame.across(tick))}" x2="{_at(frame.across(tick))}" y1="{TOP}" y2="{bottom}"/>'
        f'<text class="tick mid" x="{_at(frame.across(tick))}" y="{bottom + 14}">{_number(tick)}</text>'
        for tick in ticks(*frame.x, 6)
    ]
    marks.append(f'<line class="zero" x1="{zero}" x2="{zero}" y1="{TOP}" y2="{bottom}"/>')
    middle = _at(frame.across(sum(frame.x) / 2))
    marks.append(f'<text class="axis mid" x="{middle}" y="{frame.height - 6}">{escape(x_label)}</text>')
    for place, row in enumerate(rows):
        y = TOP + 24 * place + 12
        marks.append(f'<text class="tick end strong" x="{left - 8}" y="{y + 4}">{escape(row.label)}</text>')
        if row.low is not None and row.high is not None:
            ends = f'x1="{_at(frame.across(row.low))}" x2="{_at(frame.across(row.high))}" y1="{y}" y2="{y}"'
            marks.append(f'<line class="reach {row.tone}" {ends}/>')
        marks += [f'<circle class="seed" cx="{_at(frame.across(value))}" cy="{y}" r="2.5"/>' for value in row.values]
        mean = f'cx="{_at(frame.across(row.mean))}" cy="{y}" r="5"'
        marks.append(f'<circle class="mean {row.tone}" {mean} data-tip="{escape(row.words)}"/>')
    return _svg(frame.width, frame.height, marks, x_label)


def bar_chart(bars: Sequence[tuple[str, float, int]], x_label: str, y_label: str) -> str:
    """Thin bars of percentages with their words; the number picks the colour."""
    width = max(WIDTH, min(1000, 7 * len(bars) + LEFT + RIGHT))
    frame = Frame((0, max(1, len(bars))), (0, 100), width=width, height=200)
    marks = [_grid(frame, x_label, y_label, whole_x=True)]
    for place, (tip, value, colour) in enumerate(bars):
        x, top, wide = frame.across(place), frame.down(value), frame.across(1) - frame.across(0) - 1
        box = f'x="{_at(x + 0.5)}" y="{_at(top)}" width="{_at(wide)}" height="{_at(frame.down(0) - top)}"'
        marks.append(f'<rect class="bar c{colour % COLOURS}" {box} data-tip="{escape(tip)}"/>')
    return _sheet(frame, marks, y_label)


# ----------------------------------------------------------------------------------------------------------------------


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two values.

    >>> ticks(0, 100), ticks(82.1, 84.3)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [82.5, 83.0, 83.5, 84.0])
    """
    rough = (high - low) / count
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(place * step, 10) for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _widened(values: Sequence[float], share: float = 0.0, least: float = 0.0) -> tuple[float, float]:
    """The range of the values, with some room, and as long as `least`."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low < least:
        return (low + high - least) / 2, (low + high + least) / 2
    room = (high - low) * share or (0.0 if high > low else max(0.5, abs(high) * 0.05))
    return low - room, high + room


def _grid(frame: Frame, x_label: str, y_label: str, whole_x: bool) -> str:
    bottom = frame.height - BOTTOM
    marks = []
    for tick in ticks(*frame.y):
        y = _at(frame.down(tick))
        marks.append(f'<line class="grid" x1="{frame.left}" x2="{frame.width - RIGHT}" y1="{y}" y2="{y}"/>')
        marks.append(
            f'<text class="tick end" x="{frame.left - 6}" y="{_at(frame.down(tick) + 4)}">{_number(tick)}</text>'
        )
    for tick in ticks(*frame.x, 8):
        if not whole_x or tick == int(tick):
            marks.append(
                f'<text class="tick mid" x="{_at(frame.across(tick))}" y="{bottom + 15}">{_number(tick)}</text>'
            )
    middle = (frame.left + frame.width - RIGHT) / 2
    marks.append(f'<text class="axis mid" x="{middle}" y="{frame.height - 6}">{escape(x_label)}</text>')
    half = (TOP + bottom) / 2
    marks.append(f'<text class="axis mid" transform="rotate(-90 12 {half})" x="12" y="{half}">{escape(y_label)}</text>')
    return "".join(marks)


def _band(series: Series, frame: Frame) -> str:
    known = [
        (point.x, point.low, point.high) for point in series.points if point.low is not None and point.high is not None
    ]
    if all(low == high for _, low, high in known):
        return ""
    there = [f"{_at(frame.across(x))},{_at(frame.down(high))}" for x, _, high in known]
    back = [f"{_at(frame.across(x))},{_at(frame.down(low))}" for x, low, _ in reversed(known)]
    return f'<polygon class="band c{series.colour % COLOURS}" points="{" ".join([*there, *back])}"/>'


def _line(series: Series, frame: Frame) -> str:
    places = [(frame.across(point.x), frame.down(point.y), point.tip) for point in series.points]
    path = " ".join(f"{_at(x)},{_at(y)}" for x, y, _ in places)
    dashed = " dashed" if series.colour >= COLOURS else ""
    colour = f"c{series.colour % COLOURS}{dashed}"
    drawn = f'<polyline class="line {series.style} {colour}" points="{path}"/>' if series.style != "dots" else ""
    radius = {"line": 3, "faint": 0, "dots": 2.5}[series.style]
    dots = "".join(_dot(x, y, tip, series.colour, radius) for x, y, tip in places) if radius else ""
    return f"<g>{drawn}{dots}</g>"


def _dot(x: float, y: float, tip: str, colour: int, radius: float, hollow: bool = False) -> str:
    style = f"dot c{colour % COLOURS}{' hollow' if hollow else ''}"
    return f'<circle class="{style}" cx="{_at(x)}" cy="{_at(y)}" r="{radius:g}" data-tip="{escape(tip)}"/>'


def _ellipse(mark: Mark, frame: Frame) -> str:
    if mark.reach is None:
        return ""
    x, y = frame.across(mark.x), frame.down(mark.y)
    rx, ry = frame.across(mark.x + mark.reach[0]) - x, y - frame.down(mark.y + mark.reach[1])
    size = f'cx="{_at(x)}" cy="{_at(y)}" rx="{_at(rx)}" ry="{_at(ry)}"'
    return f'<ellipse class="band c{mark.colour % COLOURS}" {size}/>'


def _legend(names: Mapping[str, int]) -> str:
    if len(names) < 2:
        return ""
    items = "".join(
        f'<li><span class="key c{colour % COLOURS}{" dashed" if colour >= COLOURS else ""}"></span>{escape(name)}</li>'
        for name, colour in names.items()
    )
    return f'<ul class="legend">{items}</ul>'


def _sheet(frame: Frame, marks: Sequence[str], label: str) -> str:
    return _svg(frame.width, frame.height, marks, label, "chart fill")


def _svg(width: float, height: float, marks: Sequence[str], label: str, style: str = "chart") -> str:
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'<svg class="{style}" role="img" aria-label="{escape(label)}" {size}>{"".join(marks)}</svg>'


def _at(value: float) -> str:
    return f"{value:.1f}"


def _number(value: float) -> str:
    return f"{value:g}"
