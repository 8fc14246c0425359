"""Figures as values, and their one rendering: SVG by matplotlib, in the page and as files.

On the page, text is text in the page's font, its colour follows the light or dark theme, and a point says its value in
a `<title>`. Matplotlib is imported only when something is drawn, its global state is left unchanged, and the same
figure gives the same bytes.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from poise import store
from poise.errors import UserError
from poise.report.study import Style
from poise.report.tables import Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

GREY: Final = "#7d7d7d"  # about as far from white as from black: readable on both; the page has its own colour for it
GOOD: Final = "#2a9d6f"
BAD: Final = "#d1495b"
INK: Final = "#303031"  # of words on colours; the page has its own colour for it
#: The formats a figure can be saved in.
ENDINGS: Final = (".png", ".svg", ".pdf")

_TIP: Final = "tip:"  # before a text that is shown when the mouse is on a point
_LETTERS: Final = 14  # of a title or a legend in an inch
_STYLE: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("text.color", *(f"axes.{part}color" for part in ("edge", "label", "title"))), GREY),
    **dict.fromkeys(("xtick.color", "ytick.color"), GREY),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "xtick.bottom", "ytick.left", "legend.frameon"), False),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize", "axes.labelsize"), 9),
    **dict.fromkeys(("figure.dpi", "savefig.dpi"), 110),
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.handlelength": 2.6,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "text.parse_math": False,  # the name of a class may contain a dollar
    "svg.fonttype": "none",
}


@dataclass(frozen=True, eq=False)
class Panel:
    """One drawing: what paints it, its size in inches, and what its lines and marks stand for."""

    paint: Callable[[Drawing], None]
    size: tuple[float, float] = (4.1, 2.9)
    legend: Mapping[str, Style] = field(default_factory=dict)
    title: str = ""


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure and the numbers it shows."""

    name: str  # a word for file names
    title: str  # what it is, in a few words
    caption: str  # what it shows, and what it was made from
    panels: Sequence[Panel]
    data: Sequence[Mapping[str, Value]]  # everything that is drawn, as flat rows

    def svgs(self) -> list[str]:
        """Each panel as SVG, for a file of its own; `for_page` makes it a part of the page."""
        return [_encode(panel, f"{self.name} {place}", ".svg").decode() for place, panel in enumerate(self.panels)]

    def save(self, path: Path) -> None:
        """Write the only panel; the ending of the path (.png, .svg or .pdf) sets the format."""
        check_picture(path)
        (panel,) = self.panels
        store.write_bytes(path, _encode(panel, self.name, path.suffix.lower()))


def check_picture(path: Path) -> None:
    """Refuse a file name whose ending is no known format, or where no file can be."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"--out {path} must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UserError(f"the folder {folder} does not exist; make it first")
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; give the name of a file in it")


# From a panel to SVG --------------------------------------------------------------------------------------------------


def _encode(panel: Panel, name: str, ending: str) -> bytes:
    """A panel as a file of this kind, without the date in it. The name keeps its SVG's ids apart from others."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Drawing
    from matplotlib.lines import Line2D

    style: dict[Any, Any] = {**_STYLE, "svg.hashsalt": name}
    with rc_context(style), warnings.catch_warnings():  # matplotlib's settings are as before afterwards
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)  # SVG shows it anyway
        wide, high = panel.size
        labels = [textwrap.fill(label, int(wide * _LETTERS) - 8) for label in panel.legend]
        columns = 2 if len(labels) > 1 and max(map(len, labels)) < wide * _LETTERS / 2 - 8 else 1
        lines = sum(label.count("\n") + 1 for label in labels) / columns
        title = textwrap.fill(panel.title, int(wide * _LETTERS))
        high += 0.19 * math.ceil(lines) + 0.17 * title.count("\n")
        drawing = Drawing(figsize=(wide, high), layout="constrained")
        panel.paint(drawing)
        if title:
            drawing.suptitle(title, x=0.01, ha="left", fontsize=10)
        if lines:
            handles = []
            for look in panel.legend.values():
                dashes: Any = (0, look.dash) if look.dash else "-"
                face = "none" if look.hollow else look.colour
                marks: dict[str, Any] = {"marker": look.mark, "markersize": 4.5, "markerfacecolor": face}
                handles.append(Line2D([], [], color=look.colour, linestyle=dashes, linewidth=1.8, **marks))
            drawing.legend(handles, labels, loc="outside lower left", ncols=columns)
        for axes in drawing.axes:  # what lies inside of the axes needs no room around them
            for artist in (*axes.lines, *axes.collections, *axes.images, *axes.patches):
                artist.set_in_layout(False)
        buffer = io.BytesIO()
        undated = {".svg": ("Date", "Creator", "Format", "Type"), ".pdf": ("CreationDate",)}
        metadata: dict[str, Any] = dict.fromkeys(undated.get(ending, ()))
        drawing.savefig(buffer, format=ending[1:], metadata=metadata)
    return _with_titles(buffer.getvalue().decode()).encode() if ending == ".svg" else buffer.getvalue()


def for_page(svg: str) -> str:
    """An SVG as a part of an HTML page: grey is the page's own grey, and nothing in it can act."""
    body = re.sub(r"<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    tag, rest = body.split(">", 1)
    (box,) = re.findall(r'viewBox="([^"]*)"', tag)
    width, height = (round(float(side) * 4 / 3) for side in box.split()[2:])
    sized = f'<svg class="chart" role="img" viewBox="{box}" width="{width}" height="{height}">{rest}'
    return sized.replace(GREY, "var(--soft)").replace(INK, "var(--ink)")


def _with_titles(svg: str) -> str:
    """An SVG of matplotlib's, whose links around points, the only words it can put there, become titles."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    used = {*re.findall(r'(?:href="|url\()#([^")]+)', svg)}
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
    tip = rf'<a xlink:href="{_TIP}([^"]*)"[^>]*>'
    svg = re.sub(tip, lambda found: f"<g><title>{escape(unquote(found[1]))}</title>", svg)
    return svg.replace("</a>", "</g>")


# Painting -------------------------------------------------------------------------------------------------------------


def plain_axes(drawing: Drawing, x: str = "", y: str = "") -> Axes:
    """The axes of a chart, with faint lines at the ticks of y."""
    axes = drawing.add_subplot()
    axes.grid(axis="y", alpha=0.25, color=GREY, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set(xlabel=x, ylabel=y)
    return axes


def paint_line(axes: Axes, places: Sequence[tuple[float, float]], style: Style, width: float = 1.8) -> None:
    """A line through some places."""
    x, y = zip(*places, strict=True)
    axes.plot(x, y, color=style.colour, linestyle=(0, style.dash) if style.dash else "-", linewidth=width)


def paint_points(
    axes: Axes,
    places: Sequence[tuple[float, float]],
    style: Style,
    tips: Sequence[str] = (),
    size: float = 4.5,
    strengths: Sequence[float] = (),
) -> None:
    """Points of one size, each with the text that it shows under the mouse and its opacity."""
    from matplotlib.colors import to_rgba

    if not places:
        return
    x, y = zip(*places, strict=True)
    colours = [to_rgba(style.colour, each) for each in strengths or [1.0] * len(places)]
    width = 1.3 if style.hollow else 1.0
    drawn = axes.scatter(x, y, s=size**2, marker=style.mark, color=colours, linewidths=width, zorder=3)
    if style.hollow:
        drawn.set_facecolor("none")
    drawn.set_urls([_TIP + quote(tip) for tip in tips])


def paint_cells(axes: Axes, values: Any, colour: str, limits: tuple[float, float], tips: Mapping[Any, str]) -> None:  # noqa: ANN401 - an array
    """A table of colours, stronger for higher values, row 0 on top; NaN stays blank."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb

    shade, norm = to_rgb(colour), Normalize(*limits)
    ramp = LinearSegmentedColormap.from_list("ramp", [(*shade, 0.06), (*shade, 1.0)])  # pale is like the page
    high, wide = values.shape
    if tips:
        corners = [[(x - 0.5, y - 0.5), (x + 0.5, y - 0.5), (x + 0.5, y + 0.5), (x - 0.5, y + 0.5)] for y, x in tips]
        cells = PolyCollection(corners, facecolors=[ramp(norm(values[place])) for place in tips], linewidths=0)
        cells.set_urls([_TIP + quote(tip) for tip in tips.values()])
        axes.add_collection(cells)
    else:
        axes.imshow(values, cmap=ramp, norm=norm, aspect="auto", interpolation="nearest")
    axes.set(xlim=(-0.5, wide - 0.5), ylim=(high - 0.5, -0.5))


def name_ticks(axes: Axes, side: str, names: Sequence[str], most: int = 12, letters: int = 44) -> None:
    """A tick for each name; if the names do not fit, some places are numbered instead."""
    fits = len(names) <= most and sum(map(len, names)) <= letters
    places = range(0, len(names), 1 if fits else math.ceil(len(names) / 10))
    words = [names[place] if fits else str(place) for place in places]
    (axes.set_xticks if side == "x" else axes.set_yticks)(list(places), words)
