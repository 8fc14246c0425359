"""Figures as they are printed: rendered with matplotlib, readable on light and on dark pages.

Backgrounds are transparent and text is a neutral grey. Matplotlib is imported only when something is drawn, its global
state is left unchanged, and the same figure gives the same bytes of SVG.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from poise import store
from poise.errors import UserError
from poise.report.figures.description import GREY, Figure, Mark, Panel, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure as Drawing

#: The formats a figure can be saved in.
ENDINGS: Final = (".png", ".svg", ".pdf")
#: Lines of a legend for which the panels of a figure have room; each further one makes it higher.
USUAL_LINES: Final = 4

_STYLE: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("text.color", *(f"axes.{part}color" for part in ("edge", "label", "title"))), GREY),
    **dict.fromkeys(("xtick.color", "ytick.color"), GREY),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "xtick.bottom", "ytick.left", "legend.frameon"), False),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 8),
    **dict.fromkeys(("figure.dpi", "savefig.dpi"), 110),  # text is as wide as the layout assumes
    "savefig.transparent": True,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "legend.handlelength": 3.0,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "text.parse_math": False,  # the name of a class may contain a dollar
    "svg.hashsalt": "poise",
    "svg.fonttype": "none",
    "figure.constrained_layout.w_pad": 0.1,
}


def save(figure: Figure, path: Path) -> None:
    """Write the figure; the ending of the path sets the format."""
    check_picture(path)
    with matplotlib_style():
        store.write_bytes(path, _encode(draw(figure), path.suffix.lower()))


def save_all(figure: Figure, folder: Path) -> None:
    """Write the figure with every ending, laid out once."""
    with matplotlib_style():
        drawing = draw(figure)
        settle(drawing)
        found = {ending: _encode(drawing, ending) for ending in ENDINGS}
    for ending, data in found.items():
        store.write_bytes(folder / f"{figure.name}{ending}", data, sync=False)


def check_picture(path: Path) -> None:
    """Refuse a file name whose ending is no known format, or at which nothing can be written."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"--out {path} must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UserError(f"the folder {folder} does not exist; make it first")
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; give the name of a file in it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"the folder {folder} cannot be written to; choose another --out")


@contextmanager
def matplotlib_style() -> Iterator[None]:
    """Matplotlib's settings for these figures, restored afterwards."""
    import matplotlib as mpl

    with mpl.rc_context(dict(_STYLE)), warnings.catch_warnings():  # type: ignore[arg-type, unused-ignore]
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)  # SVG shows it anyway
        yield


def draw(figure: Figure) -> Drawing:
    """The figure as a matplotlib figure; to be called inside `matplotlib_style`."""
    from matplotlib.figure import Figure as Drawing

    columns = min(figure.columns, len(figure.panels))
    rows = [figure.panels[start : start + columns] for start in range(0, len(figure.panels), columns)]
    width = figure.panels[0].size[0] * columns
    side_by_side = max(1, min(len(figure.legend), int(width // 1.9)))
    lines = math.ceil(len(figure.legend) / side_by_side)
    below = 0.3 * bool(lines) + 0.2 * max(0, lines - USUAL_LINES)
    heights = [max(panel.size[1] for panel in row) + below / len(rows) for row in rows]
    drawing = Drawing(figsize=(width, sum(heights)), layout="constrained")
    grid = drawing.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for place, axes in enumerate(grid.flat):
        if place < len(figure.panels):
            _draw_panel(axes, figure.panels[place])
            if figure.panels[place].picture is None:
                _leave_out_repeated_labels(axes, figure.panels, place, columns)
        else:
            axes.remove()
    if figure.legend:
        handles = [_legend_handle(style) for style in figure.legend.values()]
        drawing.legend(handles, list(figure.legend), loc="outside lower center", ncols=side_by_side)
    return drawing


def _leave_out_repeated_labels(axes: Axes, panels: Sequence[Panel], place: int, columns: int) -> None:
    """Drop x labels that the panel below repeats, and y labels that the panel on the left repeats."""
    below = panels[place + columns] if place + columns < len(panels) else None
    left = panels[place - 1] if place % columns else None
    if below is not None and below.x.label == panels[place].x.label:
        axes.set_xlabel("")
    if left is not None and left.y == panels[place].y:
        axes.set_ylabel("")


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, y=1, pad=14 if any(rule.text for rule in panel.rules) else 6)
    if panel.picture is not None:
        _draw_picture(axes, panel)
        return
    look: dict[str, Any]
    if panel.heat is None:
        axes.grid(axis="both" if panel.diagonal else "y", alpha=0.25, color=GREY, linewidth=0.6)
        axes.set_axisbelow(True)
    else:
        look = {"cmap": _ramp(panel.heat.colour), "vmin": panel.heat.low, "vmax": panel.heat.high}
        axes.imshow(panel.heat.values, aspect="auto", interpolation="nearest", **look)
    if panel.diagonal:
        axes.axline((sum(panel.x.limits) / 2,) * 2, slope=1, color=GREY, linestyle=":", linewidth=1, zorder=0)
    for rule in panel.rules:
        axes.axvline(rule.x, color=GREY, alpha=0.5, linewidth=0.8)
        axes.text(rule.x, 1.01, rule.text, transform=axes.get_xaxis_transform(), fontsize=7, va="bottom")
    _draw_shapes(axes, panel)
    for line in panel.lines:
        look = {"color": line.style.colour, "linestyle": _linestyle(line.style), "alpha": line.strength}
        if line.arrow:
            look |= {"arrowstyle": "-|>", "shrinkA": 6, "shrinkB": 6}
            axes.annotate("", line.places[-1], line.places[0], arrowprops=look)
        else:
            axes.plot(*zip(*line.places, strict=True), linewidth=line.width, **look)
    _draw_marks(axes, panel.marks)
    axes.set(xlabel=panel.x.label, ylabel=panel.y.label, xlim=panel.x.limits, ylim=panel.y.limits)
    small = 7 if len(panel.y.ticks) > 12 else 8
    axes.set_xticks(list(panel.x.ticks), list(panel.x.ticks.values()))
    axes.set_yticks(list(panel.y.ticks), list(panel.y.ticks.values()), fontsize=small)


def _draw_shapes(axes: Axes, panel: Panel) -> None:
    """What lies behind lines and marks."""
    from matplotlib.patches import Ellipse

    for band in panel.bands:
        x, low, high = zip(*band.reaches, strict=True)
        axes.fill_between(x, low, high, color=band.colour, alpha=0.16, linewidth=0)
    for each in panel.ellipses:
        width, height = (2 * half for half in each.reach)
        axes.add_patch(Ellipse(each.centre, width, height, facecolor=each.colour, alpha=0.13, linewidth=0))


def _draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Draw all marks of one shape at once: thousands of single ones would take long."""
    from matplotlib.colors import to_rgba

    kinds: dict[tuple[str, bool], list[Mark]] = {}
    for mark in marks:
        kinds.setdefault((mark.style.mark, mark.style.hollow), []).append(mark)
    for (shape, hollow), same in kinds.items():
        x, y, sizes = zip(*((mark.x, mark.y, mark.size**2) for mark in same), strict=True)
        colours = [to_rgba(mark.style.colour, mark.strength) for mark in same]
        drawn = axes.scatter(x, y, s=sizes, marker=shape, color=colours, linewidths=1.3 if hollow else 1.0, zorder=3)
        if hollow:
            drawn.set_facecolor("none")


def _draw_picture(axes: Axes, panel: Panel) -> None:
    assert panel.picture is not None
    axes.imshow(panel.picture)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.title.set_fontsize(8)
    axes.set_xlabel(panel.x.label, fontsize=8, color=panel.x.colour)
    axes.set_ylabel(panel.y.label, rotation=0, ha="right", va="center", labelpad=6)


def _legend_handle(style: Style) -> Any:  # noqa: ANN401 - a Line2D, which is imported only when something is drawn
    from matplotlib.lines import Line2D

    face = "none" if style.hollow else style.colour
    look: dict[str, Any] = {"color": style.colour, "linestyle": _linestyle(style), "marker": style.mark}
    return Line2D([], [], **look, linewidth=1.8, markersize=4.5, markerfacecolor=face)


def _linestyle(style: Style) -> str | tuple[float, tuple[float, ...]]:
    return (0, style.dash) if style.dash else "-"


def _ramp(colour: str) -> Colormap:
    """From nearly nothing to this colour: what is low looks like the page, light or dark."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    shade = to_rgb(colour)
    return LinearSegmentedColormap.from_list("ramp", [(*shade, 0.06), (*shade, 1.0)])


def settle(drawing: Drawing) -> None:
    """Fix the layout now: matplotlib would otherwise draw everything twice for every file and lay it out each time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    engine = drawing.get_layout_engine()
    if engine is None:
        return
    for axes in drawing.axes:
        for artist in (*axes.lines, *axes.collections, *axes.images, *axes.patches):
            artist.set_in_layout(False)  # the contents of a panel need no room around it
    engine.execute(drawing)
    drawing.set_layout_engine(None)
    renderer = FigureCanvasAgg(drawing).get_renderer()  # type: ignore[no-untyped-call, unused-ignore]
    for axes in drawing.axes:
        axes.get_tightbbox(renderer, bbox_extra_artists=[])  # puts labels where they belong in the panel's final place
        for axis in (axes.xaxis, axes.yaxis):
            at = axis.label.get_transform().transform(axis.label.get_position())
            axis.set_label_coords(*axes.transAxes.inverted().transform(at))


def _encode(drawing: Drawing, ending: str) -> bytes:
    """A drawing as a file of this kind, without the date in it."""
    metadata: Mapping[str, Mapping[str, str | None]] = {
        ".svg": {"Date": None, "Creator": "poise"},
        ".pdf": {"CreationDate": None},
    }
    buffer = io.BytesIO()
    drawing.savefig(buffer, format=ending[1:], metadata=dict(metadata.get(ending, {})))
    return buffer.getvalue()
