"""What all figures share: their data beside the drawing, and a look that is readable on light and on dark pages.

Backgrounds are transparent and text is a neutral grey. Matplotlib is imported only when something is drawn, its global
state stays as it was, and the same data give the same bytes of SVG.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from poise import store
from poise.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure as Drawing

Row = Mapping[str, str | int | float | bool | None]  # of a figure's data

#: What a figure can be saved as.
ENDINGS: Final = (".png", ".svg", ".pdf")
GREY: Final = "#7d7d7d"  # about as far from white as from black
GOOD: Final = "#2a9d6f"
BAD: Final = "#d1495b"
#: One colour per method, wherever it is drawn; others take what is left.
METHOD_COLOURS: Final[Mapping[str, str]] = {
    "lucir": "#3a7fc1",
    "icarl": "#d2672f",
    "lwf": "#2f9e77",
    "podnet": "#9a6fc0",
    "aanets": "#bf9422",
    "aanets+rmm": "#cc5a8f",
}
OTHER_COLOURS: Final = ("#5aa9c9", "#a0764f", "#7c9a3d", "#8585d1", "#c76e6e", "#6b8f8a")

_STYLE: Final[Mapping[str, Any]] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.transparent": True,
    "text.color": GREY,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "lines.linewidth": 1.8,
    "text.parse_math": False,  # a class may have a dollar in its name
    "svg.hashsalt": "poise",
    "svg.fonttype": "none",
    "figure.dpi": 110,  # as it is saved: text is as wide as the layout takes it to be
    "savefig.dpi": 110,
    "figure.constrained_layout.w_pad": 0.1,
}


@dataclass(frozen=True)
class Figure:
    """A figure and the data it shows.

    Attributes:
        name: a word for file names.
        title: what it is, in a few words.
        caption: what one sees, and what it was made of.
        data: flat rows, everything that is drawn and nothing else.
        drawn: draws the data.
    """

    name: str
    title: str
    caption: str
    data: Sequence[Row]
    drawn: Callable[[], Drawing] = field(repr=False, compare=False)

    def draw(self) -> Drawing:
        """The drawing, apart from matplotlib's global state."""
        with styled():
            return self.drawn()

    def svg(self) -> bytes:
        """The drawing as SVG; the same data give the same bytes."""
        with styled():
            return _bytes(self.drawn(), ".svg")

    def save(self, path: Path) -> None:
        """Write the drawing; the ending of the path says as what."""
        check_picture(path)
        with styled():
            store.write_bytes(path, _bytes(self.drawn(), path.suffix.lower()))

    def save_all(self, folder: Path) -> bytes:
        """Write the drawing with every ending, laid out once; returns the SVG."""
        with styled():
            drawing = self.drawn()
            settle(drawing)
            found = {ending: _bytes(drawing, ending) for ending in ENDINGS}
        for ending, data in found.items():
            (folder / f"{self.name}{ending}").write_bytes(data)
        return found[".svg"]


def settle(drawing: Drawing) -> None:
    """Lay out now and for good: matplotlib would draw everything twice for every file, and look for room each time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    engine = drawing.get_layout_engine()
    if engine is None:
        return
    for axes in drawing.axes:
        for artist in (*axes.lines, *axes.collections, *axes.images, *axes.patches):
            artist.set_in_layout(False)  # what lies in a panel needs no room around it
    engine.execute(drawing)
    drawing.set_layout_engine(None)
    renderer = FigureCanvasAgg(drawing).get_renderer()  # type: ignore[no-untyped-call, unused-ignore]
    for axes in drawing.axes:
        axes.get_tightbbox(renderer, bbox_extra_artists=[])  # puts labels where they belong in the panel's final place
        for axis in (axes.xaxis, axes.yaxis):
            at = axis.label.get_transform().transform(axis.label.get_position())
            axis.set_label_coords(*axes.transAxes.inverted().transform(at))


def _bytes(drawing: Drawing, ending: str) -> bytes:
    """A drawing as a file of this kind, without the date in it."""
    metadata: Mapping[str, Mapping[str, str | None]] = {
        ".svg": {"Date": None, "Creator": "poise"},
        ".pdf": {"CreationDate": None},
    }
    buffer = io.BytesIO()
    drawing.savefig(buffer, format=ending[1:], metadata=dict(metadata.get(ending, {})))
    return buffer.getvalue()


def check_picture(path: Path) -> None:
    """Refuse a file name that does not say what kind of picture it is."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"--out {path} must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder {path.absolute().parent} does not exist; make it first")


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's settings as these figures want them, and as they were afterwards."""
    import matplotlib as mpl

    with mpl.rc_context(dict(_STYLE)), warnings.catch_warnings():  # type: ignore[arg-type, unused-ignore]
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)  # SVG shows it all the same
        yield


def panels(rows: int, columns: int, width: float, heights: float | Sequence[float]) -> tuple[Drawing, list[list[Axes]]]:
    """An empty drawing with a grid of panels of this size in inches (heights of all rows, or of each one)."""
    from matplotlib.figure import Figure as Drawing

    each = [heights] * rows if isinstance(heights, float | int) else list(heights)
    drawing = Drawing(figsize=(width * columns, sum(each)), layout="constrained")
    grid = drawing.subplots(rows, columns, squeeze=False, height_ratios=each)
    return drawing, [list(row) for row in grid]


def ramp(colour: str) -> Colormap:
    """From nearly nothing to this colour: what is low looks like the page, light or dark."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    shade = to_rgb(colour)
    return LinearSegmentedColormap.from_list("ramp", [(*shade, 0.06), (*shade, 1.0)])


def method_colours(methods: Sequence[str]) -> dict[str, str]:
    """A colour for each method: its own, or one that none of the others has."""
    strangers = sorted(set(methods) - METHOD_COLOURS.keys())
    spare = {name: OTHER_COLOURS[index % len(OTHER_COLOURS)] for index, name in enumerate(strangers)}
    return {name: METHOD_COLOURS.get(name) or spare[name] for name in methods}
