"""Figures as the page shows them: SVG that follows its light or dark theme, prints, and reacts to the mouse.

Every mark that has a value carries it in words in `data-tip`; the page's script shows the one nearest to the mouse.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from poise.report.figures.description import GREY, Heat, Line, Mark, Panel, Scale, Style

INCH = 118  # pixels per inch: a panel is about as large on the page as in print
LETTER = 6.2  # width of a letter of a tick in pixels
RIGHT, TOP, BOTTOM = 14, 12, 40
#: Marks other than circles, by matplotlib's names: corners, how deep the sides go in between, and rotation.
CORNERS = {
    **{"s": (4, 0.71, math.pi / 4), "D": (4, 0.71, 0.0), "^": (3, 0.5, 0.0), "v": (3, 0.5, math.pi)},
    **{"P": (4, 0.4, 0.0), "X": (4, 0.4, math.pi / 4), "x": (4, 0.2, math.pi / 4), "*": (5, 0.4, 0.0)},
}


@dataclass(frozen=True)
class Frame:
    """From values to places on the sheet."""

    x: Scale
    y: Scale
    width: float
    height: float
    left: float
    top: float

    def across(self, value: float) -> float:
        """Where a value of x lies."""
        low, high = self.x.limits
        return self.left + (value - low) / (high - low) * (self.width - self.left - RIGHT)

    def down(self, value: float) -> float:
        """Where a value of y lies."""
        low, high = self.y.limits
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    @property
    def bottom(self) -> float:
        """Where the panel ends and its ticks begin."""
        return self.height - BOTTOM

    def at(self, x: float, y: float) -> str:
        """A place as SVG writes it."""
        return f"{self.across(x):.1f},{self.down(y):.1f}"


def panel_html(panel: Panel) -> str:
    """A panel with its heading."""
    heading = escape(panel.title.replace("\n", " · "))
    caption = f"<figcaption>{heading}</figcaption>" if heading else ""
    return f'<figure class="panel">{caption}{_picture(panel) if panel.picture is not None else _chart(panel)}</figure>'


def legend_html(legend: Mapping[str, Style]) -> str:
    """What the lines and marks stand for; nothing where there is one kind only."""
    if len(legend) < 2:
        return ""
    items = []
    for label, style in legend.items():
        frame = Frame(Scale(), Scale(), 36 + RIGHT, BOTTOM + 12, 0, 0)
        key = _line(Line([(0, 0.5), (1, 0.5)], style), frame) + _mark(Mark(0.5, 0.5, style), frame)
        items.append(f'<li><svg class="key" width="36" height="12">{key}</svg>{escape(label)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _chart(panel: Panel) -> str:
    words = max(map(len, panel.y.ticks.values()), default=0)
    left = max(30.0, LETTER * words + 10) + (16 if panel.y.label else 0)
    top = TOP + (12 if any(rule.text for rule in panel.rules) else 0)
    frame = Frame(panel.x, panel.y, panel.size[0] * INCH, panel.size[1] * INCH, left, top)
    parts = [_heat(panel.heat, frame)] if panel.heat else [_grid(frame)]
    parts += [_axes(frame)]
    if panel.diagonal:
        (x_low, x_high), (y_low, y_high) = panel.x.limits, panel.y.limits
        low, high = max(x_low, y_low), min(x_high, y_high)
        if low < high:
            parts.append(f'<polyline class="diagonal" points="{frame.at(low, low)} {frame.at(high, high)}"/>')
    for rule in panel.rules:
        x = f"{frame.across(rule.x):.1f}"
        parts.append(f'<line class="rule" x1="{x}" x2="{x}" y1="{frame.top}" y2="{frame.bottom}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{frame.top - 3}">{escape(rule.text)}</text>' if rule.text else "")
    parts += _shapes(panel, frame)
    parts += [_line(line, frame) for line in panel.lines] + [_mark(mark, frame) for mark in panel.marks]
    size = f'viewBox="0 0 {frame.width:g} {frame.height:g}" width="{frame.width:g}" height="{frame.height:g}"'
    label = escape(" against ".join(word for word in (panel.y.label, panel.x.label) if word))
    return f'<svg class="chart" role="img" aria-label="{label}" {size}>{"".join(parts)}</svg>'


def _grid(frame: Frame) -> str:
    heights = [f"{frame.down(tick):.1f}" for tick in frame.y.ticks]
    ends = f'x1="{frame.left:.1f}" x2="{frame.width - RIGHT}"'
    return "".join(f'<line class="grid" {ends} y1="{y}" y2="{y}"/>' for y in heights)


def _axes(frame: Frame) -> str:
    """Ticks and labels of both axes."""
    marks = [
        f'<text class="tick end" x="{frame.left - 6:.1f}" y="{frame.down(tick) + 4:.1f}">{escape(word)}</text>'
        for tick, word in frame.y.ticks.items()
    ]
    marks += [
        f'<text class="tick mid" x="{frame.across(tick):.1f}" y="{frame.bottom + 15}">{escape(word)}</text>'
        for tick, word in frame.x.ticks.items()
    ]
    middle, half = (frame.left + frame.width - RIGHT) / 2, (frame.top + frame.bottom) / 2
    if frame.x.label:
        marks.append(f'<text class="axis mid" x="{middle}" y="{frame.height - 6}">{escape(frame.x.label)}</text>')
    if frame.y.label:
        turned = f'transform="rotate(-90 12 {half})" x="12" y="{half}"'
        marks.append(f'<text class="axis mid" {turned}>{escape(frame.y.label)}</text>')
    return "".join(marks)


def _shapes(panel: Panel, frame: Frame) -> list[str]:
    """What lies behind lines and marks."""
    parts = []
    for band in panel.bands:
        there = [frame.at(x, high) for x, _, high in band.reaches]
        back = [frame.at(x, low) for x, low, _ in reversed(band.reaches)]
        parts.append(f'<polygon class="band" color="{band.colour}" points="{" ".join([*there, *back])}"/>')
    for each in panel.ellipses:
        x, y = (frame.across(each.centre[0]), frame.down(each.centre[1]))
        rx, ry = frame.across(each.centre[0] + each.reach[0]) - x, y - frame.down(each.centre[1] + each.reach[1])
        size = f'cx="{x:.1f}" cy="{y:.1f}" rx="{rx:.1f}" ry="{ry:.1f}"'
        parts.append(f'<ellipse class="band" color="{each.colour}" {size}/>')
    return parts


def _line(line: Line, frame: Frame) -> str:
    points = " ".join(frame.at(*place) for place in line.places)
    dash = " ".join(f"{line.width * part:g}" for part in line.style.dash)
    look = f'stroke-width="{line.width:g}"' + (f' stroke-dasharray="{dash}"' if dash else "")
    look += f' opacity="{line.strength:g}"' if line.strength < 1 else ""
    points += _arrow_head(line, frame) if line.arrow else ""
    return f'<polyline class="line" color="{line.style.colour}" {look} points="{points}"/>'


def _arrow_head(line: Line, frame: Frame) -> str:
    """The points of an arrow's head, a little before the end of the line, where there is a mark."""
    (x1, y1), (x2, y2) = ((frame.across(x), frame.down(y)) for x, y in line.places[-2:])
    angle = math.atan2(y2 - y1, x2 - x1)
    tip = x2 - 7 * math.cos(angle), y2 - 7 * math.sin(angle)
    ends = [(tip[0] + 7 * math.cos(angle + turn), tip[1] + 7 * math.sin(angle + turn)) for turn in (2.7, -2.7)]
    return "".join(f" {x:.1f},{y:.1f}" for x, y in (tip, ends[0], tip, ends[1]))


def _mark(mark: Mark, frame: Frame) -> str:
    x, y, radius = frame.across(mark.x), frame.down(mark.y), 0.66 * mark.size
    look = f'class="mark{" hollow" if mark.style.hollow else ""}" color="{mark.style.colour}"'
    look += f' opacity="{mark.strength:.2g}"' if mark.strength < 1 else ""
    look += f' data-tip="{escape(mark.tip)}"' if mark.tip else ""
    if mark.style.mark == "o":
        return f'<circle {look} cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'
    points = " ".join(f"{x + radius * dx:.1f},{y + radius * dy:.1f}" for dx, dy in _corners(mark.style.mark))
    return f'<polygon {look} points="{points}"/>'


# Cells and pictures ---------------------------------------------------------------------------------------------------


def _heat(heat: Heat, frame: Frame) -> str:
    """A rectangle for each cell if cells have tips; otherwise one picture, which is lighter."""
    wide, high = frame.across(1) - frame.across(0), frame.down(1) - frame.down(0)
    shares = (heat.values - heat.low) / ((heat.high - heat.low) or 1.0)
    opacities = np.nan_to_num(0.06 + 0.94 * np.clip(shares, 0, 1))
    if not heat.tips:
        rows, columns = heat.values.shape
        box = f'x="{frame.across(-0.5):.1f}" y="{frame.down(-0.5):.1f}"'
        box += f' width="{columns * wide:.1f}" height="{rows * high:.1f}" preserveAspectRatio="none"'
        return f'<image class="cells" {box} href="{_tint(opacities, heat.colour)}"/>'
    cells = [
        f'<rect x="{frame.across(column - 0.5):.1f}" y="{frame.down(row - 0.5):.1f}"'
        f' fill-opacity="{opacities[row, column]:.2f}" data-tip="{escape(tip)}" {size}/>'
        for size in (f'width="{max(1.0, wide - 1):.1f}" height="{max(1.0, high - 1):.1f}"',)
        for (row, column), tip in heat.tips.items()
    ]
    return f'<g class="heat" color="{heat.colour}">{"".join(cells)}</g>'


def _tint(opacities: NDArray[np.float64], colour: str) -> str:
    """A picture in one colour with these opacities."""
    from PIL import Image

    image = Image.fromarray(np.round(255 * opacities).astype(np.uint8), "L")
    image.putpalette(bytes.fromhex(colour.removeprefix("#")) * 256)
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True, transparency=bytes(range(256)))
    return _data_address(out.getvalue(), "image/png")


def _picture(panel: Panel) -> str:
    """An image with its words on the left and below."""
    from PIL import Image

    out = io.BytesIO()
    assert panel.picture is not None
    Image.fromarray(panel.picture).save(out, "JPEG", quality=90)
    words = escape(panel.x.label or panel.y.label.replace("\n", ", "))
    colour = "" if panel.x.colour == GREY else f' style="color:{panel.x.colour}"'
    return f'<img alt="{words}" src="{_data_address(out.getvalue(), "image/jpeg")}"><small{colour}>{words}</small>'


def _data_address(content: bytes, kind: str) -> str:
    """Bytes as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _corners(mark: str) -> list[tuple[float, float]]:
    """The corners around the origin, as multiples of the mark's radius."""
    count, depth, turn = CORNERS[mark]
    steps = [(step * math.pi / count + turn, 1.25 * (depth if step % 2 else 1.0)) for step in range(2 * count)]
    return [(reach * math.sin(angle), -reach * math.cos(angle)) for angle, reach in steps]
