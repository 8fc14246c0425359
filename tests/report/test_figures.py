"""Figures of known journals: the numbers behind them, and what their SVG shows on the page and in files."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure as Drawing

from poise import store
from poise.report import Figure, Study, gather, make_figures
from poise.report.draw import GREY, for_page
from poise.report.figures import gains_figure

from .conftest import Write

SINGLE = ("rewards", "classes", "matrix", "confusion")


@pytest.fixture
def many(pairs: Path) -> dict[str, Figure]:
    return {figure.name: figure for figure in make_figures(gather([pairs]))}


def painted(figure: Figure, panel: int = 0) -> Drawing:
    drawing = Drawing(layout="constrained")
    figure.panels[panel].paint(drawing)
    return drawing


def test_what_these_runs_can_fill_is_drawn(many: dict[str, Figure]) -> None:
    singles = {f"{name}-toy-{stream}" for name in SINGLE for stream in ("tfh-3", "tfs-3")}
    assert set(many) == {"accuracy-toy", *singles}
    for figure in many.values():
        assert figure.title
        assert figure.caption.endswith(".")
        assert {tuple(row) for row in figure.data} == {tuple(figure.data[0])}, "flat rows of the same keys"
    assert not make_figures(Study(()))


def test_accuracy_is_a_mean_over_seeds_with_a_band_from_three_on(many: dict[str, Figure]) -> None:
    figure = many["accuracy-toy"]
    found = [row for row in figure.data if (row["row"], row["setting"]) == ("lucir, fixed", "TFS 3")]
    assert [row["mean"] for row in found] == pytest.approx([100, 76, (31 + 90) / 1.5])
    assert [row["deviation"] for row in found] == pytest.approx([0, 1, 1 / 1.5])
    axes = [painted(figure, place).axes[0] for place in (0, 1)]
    bands = [sum("FillBetween" in type(each).__name__ for each in one.collections) for one in axes]
    assert bands == [2, 2], "of the rows in TFS, icarl has one seed"


def test_the_reward_of_every_trial_and_what_was_decided(many: dict[str, Figure]) -> None:
    found = [row for row in many["rewards-toy-tfs-3"].data if row["phase"] == 1]
    assert [row["reward"] for row in found] == pytest.approx([0.01, 0.11, 0.21, 0.31])
    assert [row["action"] for row in found if row["decided"]] == ["feature_kd=1 lr=0.1"]


def test_classes_and_confusion_are_in_the_order_of_arrival(many: dict[str, Figure]) -> None:
    found = [row for row in many["classes-toy-tfs-3"].data if row["row"] == "icarl, fixed"]
    assert [(row["name"], row["phase"], row["hits"]) for row in found] == [
        ("class 9", 0, 30),
        ("class 8", 1, 40),
        ("class 7", 2, 50),
    ]
    cells = [row for row in many["confusion-toy-tfs-3"].data if row["row"] == "icarl, fixed"]
    assert [(row["true"], row["predicted"], row["images"]) for row in cells] == [
        (0, 0, 30),
        (1, 1, 40),
        (2, 2, 50),
        (1, 0, 10),
    ]


def test_all_accuracy_matrices_share_one_scale(many: dict[str, Figure]) -> None:
    figures = [many["matrix-toy-tfs-3"], many["matrix-toy-tfh-3"]]
    assert all("from 50 % (palest) to 100 % (strongest)" in figure.caption for figure in figures)
    shades: dict[int, set[tuple[float, ...]]] = {}
    for figure in figures:
        for place, _ in enumerate(figure.panels):
            axes = painted(figure, place).axes[0]
            colours = np.asarray(axes.collections[0].get_facecolor())
            for text, colour in zip(axes.texts, colours, strict=True):
                shades.setdefault(int(text.get_text()), set()).add(tuple(colour[3:].round(2)))
    assert shades[100] == {(1.0,)}, "everywhere the strongest, whatever else a matrix holds"


def test_gains_are_coloured_only_where_they_are_certain(pairs: Path, write: Write) -> None:
    figure = gains_figure(gather([pairs]))
    assert figure is not None
    assert {row["row"]: row["verdict"] for row in figure.data} == {
        "lucir, online, TFH 3": "open",
        "lucir, online, TFS 3": "gain",
    }
    assert gains_figure(gather([write("alone")])) is None


def test_on_the_page_text_is_text_grey_is_the_themes_and_points_say_their_values(many: dict[str, Figure]) -> None:
    figure = many["accuracy-toy"]
    (first, second), texts = figure.svgs(), "accuracy in %"
    page = for_page(second)
    assert texts in page
    assert GREY not in page
    assert "var(--soft)" in page
    assert "<title>lucir, online, phase 1 (2 classes): 86.00 % (85.00 to 87.00, 3 seeds)</title>" in page
    assert not re.search(r"<a |xlink:href=\"(?!#)|<metadata|<\?xml", page)
    ids = [*re.findall(r' id="([^"]+)"', for_page(first) + page)]
    assert len(ids) == len(set(ids)), "several drawings stand in one page"
    root = ElementTree.fromstring(second)
    assert {each.tag.rpartition("}")[2] for each in root.iter()}.isdisjoint({"a", "script", "metadata"})


def test_the_same_data_give_the_same_bytes_and_no_setting_is_left_behind(many: dict[str, Figure]) -> None:
    before = dict(mpl.rcParams)
    for name in ("accuracy-toy", *(f"{name}-toy-tfs-3" for name in SINGLE)):
        assert many[name].svgs() == many[name].svgs()
    assert dict(mpl.rcParams) == before


def test_names_are_never_cut(write: Write) -> None:
    """Long labels of rows, titles and names of any script stay inside of a drawing as wide as a phone."""
    folder = write("größe 中")
    saved = store.read_json(folder / "recipe.json")
    names = ["Größe $x_1$", "犬", "</text><script>", "a & b", *(f"class {place}" for place in range(6))]
    store.write_json(folder / "recipe.json", {**saved, "class_names": names[::-1]})
    paths = [folder, write("other", options={"a_rather_long_name": [1, 2, 3], "another_long_name": "a long value"})]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for figure in make_figures(gather(paths)):
            for panel, svg in zip(figure.panels, figure.svgs(), strict=True):
                assert "<script" not in svg
                assert all(len(line) < 14 * panel.size[0] for line in re.findall(r">([^<]*)</text>", svg))
