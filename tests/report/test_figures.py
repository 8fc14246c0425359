"""Figures of known journals, compared by their data and by what they promise: no spread without three seeds."""

from __future__ import annotations

import base64
import html
import io
import itertools
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import FillBetweenPolyCollection, PathCollection
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Ellipse
from numpy.typing import NDArray
from PIL import Image

from poise import store
from poise.journal import Journal
from poise.report import Figure, describe_figures, gather
from poise.report.figures import gains_figure, method_colours
from poise.report.figures.description import GOOD, GREY, Panel, Scale
from poise.report.figures.print import draw, matplotlib_style, save_all, settle
from poise.report.figures.styles import METHOD_COLOURS
from poise.report.page.svg import legend_html, panel_html
from poise.report.reading import read_runs

ROOT = Path(__file__).parents[2]
GRID = {"logit_kd": [0.0, 1.0], "lr": [0.1, 0.05]}
#: Three phases of two classes in the order 3, 1 | 0, 5 | 4, 2; ten exam images of each. Hits of each exam.
GROUPS = [[3, 1], [0, 5], [4, 2]]
HITS = [[10, 8], [6, 6, 9, 7], [5, 7, 3, 6, 10, 9]]


def write_run(
    folder: Path,
    *,
    method: str = "lucir",
    policy: str = "fixed",
    setting: str = "tfs",
    seed: int = 0,
    extra: int = 0,
    distribution: bool = False,
    finished: bool = True,
) -> Path:
    """The folder of a run that never ran; `extra` hits of the first class in every exam tell runs apart."""
    folder.mkdir()
    recipe = {
        "data": "shapes", "method": method, "policy": policy, "setting": setting, "phases": 3, "order": 1, "seed": seed,
        "exam": "test", "epochs": 9,
    }  # fmt: skip
    tuned = policy != "fixed"
    space = {"axes": GRID, "actions": 4, "default": {}} if tuned else None
    names = [f"shape {label}" for label in range(6)]
    store.write_json(
        folder / "recipe.json",
        {"name": "shapes/x", "recipe": recipe, "fingerprint": "f", "class_names": names, "space": space},
    )
    journal, curve = Journal(folder / "journal.jsonl"), []
    for phase, known in enumerate(HITS):
        hits = [known[0] - extra, *known[1:]]
        classes = [label for group in GROUPS[: phase + 1] for label in group]
        action = {"logit_kd": float(phase % 2), "lr": 0.1, "classifier": "ncm" if phase == 2 else "fc"}
        if tuned and phase:
            for event in trials(phase):
                journal.append(event)
        chances = [0.1, 0.2, 0.3, 0.4] if distribution and phase else None
        journal.append({"event": "action", "phase": phase, "policy": policy, "action": action, "distribution": chances})
        accuracy = 100 * sum(hits) / (10 * len(hits))
        journal.append(
            {
                "event": "exam", "phase": phase, "classifier": action["classifier"], "classes": classes,
                "images": [10] * len(classes), "hits_fc": hits, "hits_ncm": hits, "accuracy": accuracy,
                "confusion": [[label, label, count] for label, count in zip(classes, hits, strict=True)]
                + [[label, classes[0], 10 - count] for label, count in zip(classes[1:], hits[1:], strict=True)],
            }
        )  # fmt: skip
        curve.append(
            {"phase": phase, "classes": len(classes), "accuracy": accuracy, "accuracy_fc": accuracy,
             "accuracy_ncm": accuracy, "stored_images": 4, "action": action}
        )  # fmt: skip
    journal.close()
    if finished:
        average = float(np.mean([point["accuracy"] for point in curve]))
        store.write_json(
            folder / "result.json",
            {
                **recipe, "recipe": "shapes/x", "space": space, "average_accuracy": average, "last_accuracy": 0.0,
                "average_forgetting": 0.0, "curve": curve,
                "seconds": {"train": 1.0, "policy": 0.0, "evaluate": 0.0, "total": 1.0},
            },
        )  # fmt: skip
    return folder


def trials(phase: int) -> list[dict[str, Any]]:
    """Four short trials with rewards 0.2 to 0.5, the first again and longer with 0.9, and one of a classifier."""
    actions = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    plans: list[tuple[dict[str, Any], float, dict[str, Any]]] = [
        (action, 0.1 * place, {"epochs": 2, "full": False}) for place, action in enumerate(actions, start=2)
    ]
    plans.append((actions[0], 0.9, {"epochs": 4, "full": False}))
    plans.append((actions[0], 0.7, {"epochs": 9, "full": True, "purpose": "classifier"}))
    return [
        {"event": "trial", "phase": phase, "trial": plan, "action": {**action, "classifier": "auto"}, "reward": reward,
         "diverged": False, "classifier": "fc", "record": {}}
        for action, reward, plan in plans
    ]  # fmt: skip


def described(folders: Sequence[Path]) -> dict[str, Figure]:
    runs, broken = read_runs(folders)
    assert not broken
    found = describe_figures(runs)
    assert len({figure.name for figure in found}) == len(found)
    return {figure.name: figure for figure in found}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    """Own hyperparameters and a policy in both settings: three seeds of one method, two of the other."""
    folder = tmp_path_factory.mktemp("many")
    kinds = itertools.product(("tfh", "tfs"), (("lucir", "fixed", 3), ("lucir", "online", 3), ("icarl", "fixed", 2)))
    return described(
        [
            write_run(
                folder / f"{method}-{policy}-{setting}-{seed}",
                method=method,
                policy=policy,
                setting=setting,
                seed=seed,
                extra=seed * (1 + (setting == "tfh")),
                distribution=setting == "tfh",
            )
            for setting, (method, policy, seeds) in kinds
            for seed in range(seeds)
        ]
    )


def printed(figure: Figure) -> Drawing:
    with matplotlib_style():
        return draw(figure)


def rows(figure: Figure, **wanted: object) -> list[dict[str, Any]]:
    return [dict(row) for row in figure.data if all(row[key] == value for key, value in wanted.items())]


def test_what_these_runs_can_fill_is_drawn(many: dict[str, Figure]) -> None:
    single = ("chances", "rewards", "classes", "matrix", "confusion")
    assert set(many) == {f"{name}-shapes" for name in ("accuracy", "plane", "values", "forgetting")} | {
        f"{name}-shapes-{stream}" for name in single for stream in ("tfh-3", "tfs-3")
    }
    for figure in many.values():
        assert figure.data
        assert figure.title
        assert figure.caption.endswith(".")
        assert {tuple(row) for row in figure.data} == {tuple(figure.data[0])}, "flat rows of the same keys"


def test_accuracy_after_each_phase(many: dict[str, Figure]) -> None:
    found = rows(many["accuracy-shapes"], row="lucir, fixed", setting="TFS 3")
    # 18 of 20, 28 of 40 and 40 of 60 images, less one image per seed: 0, 1 and 2.
    assert [row["mean"] for row in found] == pytest.approx([100 * 17 / 20, 100 * 27 / 40, 100 * 39 / 60])
    assert [row["deviation"] for row in found] == pytest.approx([100 / 20, 100 / 40, 100 / 60])
    assert [(row["classes"], row["seeds"]) for row in found] == [(2, 3), (4, 3), (6, 3)]


def bands(figure: Figure) -> list[int]:
    """How many bands each panel of a drawing has."""
    kind = FillBetweenPolyCollection
    return [sum(isinstance(each, kind) for each in axes.collections) for axes in printed(figure).axes]


def test_bands_are_drawn_for_three_seeds_and_not_for_two(many: dict[str, Figure]) -> None:
    assert bands(many["accuracy-shapes"]) == [2, 2]  # of the three rows, icarl has two seeds
    assert bands(many["forgetting-shapes"]) == [2, 2]


def test_the_plane_has_the_seeds_their_means_and_ellipses(many: dict[str, Figure]) -> None:
    figure = many["plane-shapes"]
    averages = [np.mean([100 * (18 - x) / 20, 100 * (28 - x) / 40, 100 * (40 - x) / 60]) for x in range(5)]
    found = rows(figure, row="lucir, online")
    assert [row["tfs"] for row in found] == pytest.approx(averages[:3])
    assert [row["tfh"] for row in found] == pytest.approx(averages[0:5:2])
    (axes,) = printed(figure).axes
    ellipses = [patch for patch in axes.patches if isinstance(patch, Ellipse)]
    assert len(ellipses) == 2
    step = averages[0] - averages[1]
    half = 4.302653 * step / math.sqrt(3)  # the 97.5 % quantile of t with two degrees of freedom
    for ellipse in ellipses:
        assert ellipse.center == pytest.approx((averages[1], averages[2]))
        assert (ellipse.width, ellipse.height) == pytest.approx((2 * half, 4 * half))


def test_a_tenth_of_a_point_looks_small_in_the_plane(tmp_path: Path) -> None:
    for setting in ("tfs", "tfh"):
        write_run(tmp_path / setting, setting=setting)
    (plane,) = [each for each in describe_figures(read_runs([tmp_path])[0]) if each.name.startswith("plane")]
    (axes,) = printed(plane).axes
    for low, high in (axes.get_xlim(), axes.get_ylim()):
        assert high - low >= 4
    close = Scale.spanning("", [80.0, 80.1], least=4.0)
    assert close.limits == pytest.approx((78.05, 82.05))


def test_values_are_raw_and_smoothed(many: dict[str, Figure]) -> None:
    figure = many["values-shapes"]
    found = {axis: rows(figure, setting="TFH 3", axis=axis) for axis in ("logit_kd", "lr", "classifier")}
    assert len(figure.data) == 2 * sum(map(len, found.values()))
    assert [(row["phase"], row["value"]) for row in found["logit_kd"]] == [(1, 1.0), (2, 0.0)]
    assert [row["smoothed"] for row in found["logit_kd"]] == pytest.approx([1.0, 0.8])
    assert [row["value"] for row in found["lr"]] == pytest.approx([0.1, 0.1])
    assert [row["value"] for row in found["classifier"]] == [0.0, 1.0]
    panels = printed(figure).axes
    assert [axes.get_title() for axes in panels[::2]] == ["β · TFH 3", "λ · TFH 3", "δ · TFH 3"]
    assert [text.get_text() for text in panels[-1].get_yticklabels()] == ["FC", "NCM"]


def test_forgetting_by_the_phase_in_which_classes_arrived(many: dict[str, Figure]) -> None:
    found = rows(many["forgetting-shapes"], row="icarl, fixed", setting="TFS 3")
    # Phase 0: best of 18 and 12 of 20, then 12; phase 1: 16, then 9. The second seed has one hit less in both.
    assert [row["best"] for row in found] == pytest.approx([(90 + 85) / 2, 80])
    assert [row["final"] for row in found] == pytest.approx([(60 + 55) / 2, 45])
    assert [row["forgetting"] for row in found] == pytest.approx([30, 35])


def shown(axes: Axes) -> NDArray[np.float64]:
    """The values of a heat map."""
    return np.asarray(axes.images[0].get_array(), dtype=np.float64)


def test_the_policy_over_its_actions(many: dict[str, Figure]) -> None:
    known, unknown = many["chances-shapes-tfh-3"], many["chances-shapes-tfs-3"]
    assert [row["probability"] for row in rows(known, phase=1)] == [0.1, 0.2, 0.3, 0.4]
    assert [row["probability"] for row in rows(unknown, phase=1)] == [None] * 4
    assert [row["reward"] for row in rows(unknown, phase=2)] == pytest.approx([0.9, 0.3, 0.4, 0.5])
    assert [row["place"] for row in known.data if row["decided"]] == [2, 0]  # logit_kd=1 lr=0.1, then 0 and 0.1
    for figure, words, expected in (
        (known, "probability, palest 0.00, strongest 0.40", [[0.1] * 2, [0.2] * 2, [0.3] * 2, [0.4] * 2]),
        (unknown, "mean reward, palest 0.30, strongest 0.90", [[0.9] * 2, [0.3] * 2, [0.4] * 2, [0.5] * 2]),
    ):
        (panel,) = printed(figure).axes
        assert panel.get_title().splitlines()[1] == words
        np.testing.assert_allclose(shown(panel), np.array(expected))
        rings = next(each for each in panel.collections if isinstance(each, PathCollection))
        np.testing.assert_array_equal(rings.get_offsets(), [[0, 2], [1, 0]])
        assert panel.get_yticklabels()[0].get_text() == "β 0  λ 0.1"


def test_the_reward_of_every_trial(many: dict[str, Figure]) -> None:
    figure = many["rewards-shapes-tfs-3"]
    assert [row["trial"] for row in figure.data] == list(range(1, 13))
    assert [row["reward"] for row in figure.data] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.9, 0.7] * 2)
    (axes,) = printed(figure).axes
    sizes = [len(np.asarray(each.get_offsets())) for each in axes.collections if isinstance(each, PathCollection)]
    assert sizes == [10, 2]  # ten of actions, two of a classifier


def test_classes_and_confusion_are_in_the_order_of_arrival(many: dict[str, Figure]) -> None:
    found = rows(many["classes-shapes-tfs-3"], row="lucir, fixed")
    assert [row["name"] for row in found] == [f"shape {label}" for label in (3, 1, 0, 5, 4, 2)]
    assert [row["phase"] for row in found] == [0, 0, 1, 1, 2, 2]
    assert [row["accuracy"] for row in found] == pytest.approx([50, 70, 30, 60, 100, 90])  # of seed 0
    figure = many["confusion-shapes-tfs-3"]
    panel = printed(figure).axes[0]
    expected = np.diag(np.array([1.0, 0.7, 0.3, 0.6, 1.0, 0.9]))
    expected[1:, 0] = 1 - np.diag(expected)[1:]
    np.testing.assert_allclose(shown(panel), expected)
    assert [text.get_text() for text in panel.get_yticklabels()][:2] == ["shape 3", "shape 1"]


def test_the_accuracy_matrix_has_exams_as_rows_and_phases_as_columns(many: dict[str, Figure]) -> None:
    figure = many["matrix-shapes-tfs-3"]
    found = rows(figure, row="icarl, fixed")
    assert [(row["exam"], row["phase"]) for row in found] == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert [row["accuracy"] for row in found] == pytest.approx([90, 60, 80, 60, 45, 95])  # of seed 0
    panel = printed(figure).axes[0]
    assert np.isnan(shown(panel)[0, 1:]).all(), "classes that are still to come are blank"
    np.testing.assert_allclose(shown(panel)[2], [60, 45, 95])


@pytest.mark.parametrize("name", ["plane-shapes", "chances-shapes-tfh-3", "confusion-shapes-tfs-3"])
def test_the_same_data_give_the_same_bytes(many: dict[str, Figure], name: str, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    many[name].save(first)
    many[name].save(second)
    assert first.read_bytes() == second.read_bytes()
    assert b"<dc:date>" not in first.read_bytes()
    assert b"lucir, online" in first.read_bytes()  # text stays text
    assert dict(mpl.rcParams) == before


# One description, two renderings --------------------------------------------------------------------------------------


def colours_in_print(figure: Figure) -> set[str]:
    found = set()
    for axes in printed(figure).axes:
        artists: list[Any] = [*axes.lines, *axes.collections, *axes.patches]
        for artist in artists:
            each = artist.get_color() if hasattr(artist, "get_color") else artist.get_facecolor()
            edges = artist.get_edgecolor() if isinstance(artist, PathCollection) else each
            found |= {to_hex(colour) for colour in (*to_rgba_array(each), *to_rgba_array(edges))}
        found |= {to_hex(image.get_cmap()(1.0)) for image in axes.images}
    return found - {GREY}


def colours_on_the_page(figure: Figure) -> set[str]:
    text = "".join(map(panel_html, figure.panels))
    found = set(re.findall(r'color="(#[0-9a-f]{6})"', text))
    for picture in re.findall(r'href="data:image/png;base64,([^"]+)"', text):
        palette = Image.open(io.BytesIO(base64.b64decode(picture))).getpalette() or []
        found |= {"#" + bytes(palette[:3]).hex()}
    return found - {GREY}


def test_colours_are_the_same_on_the_page_and_in_print(many: dict[str, Figure], gains: Figure) -> None:
    for figure in (*many.values(), gains):
        assert colours_on_the_page(figure) == colours_in_print(figure), figure.name
        for style in figure.legend.values():
            assert f'color="{style.colour}"' in legend_html(figure.legend) or len(figure.legend) < 2
    curves = many["accuracy-shapes"]
    assert colours_on_the_page(curves) == {METHOD_COLOURS["lucir"], METHOD_COLOURS["icarl"]}
    assert colours_on_the_page(many["confusion-shapes-tfs-3"]) == {METHOD_COLOURS["lucir"], METHOD_COLOURS["icarl"]}


def test_words_are_the_same_on_the_page_and_in_print(many: dict[str, Figure], gains: Figure) -> None:
    for figure in (*many.values(), gains):
        for axes, panel in zip(printed(figure).axes, figure.panels, strict=True):
            shown = html.unescape(panel_html(panel))
            words = [text.get_text() for text in (*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts)]
            words += [*axes.get_title().splitlines(), axes.get_xlabel(), axes.get_ylabel()]
            assert [word for word in words if word not in shown] == [], figure.name


def test_the_page_shows_every_figure_with_its_title_and_caption(tmp_path: Path) -> None:
    for policy in ("fixed", "online"):
        for setting in ("tfs", "tfh"):
            write_run(tmp_path / f"{policy}-{setting}", policy=policy, setting=setting)
    report = gather([tmp_path])
    text = html.unescape(report.write(tmp_path / "out", printed=True).read_text(encoding="utf-8"))
    found = describe_figures(report.runs)
    assert len(found) == 4 + 2 * 5
    for figure in found:
        assert text.count(f"<h3>{figure.title}</h3>") == 1
        assert figure.caption in text
        files = {path.suffix for path in (tmp_path / "out" / "figures").glob(f"{figure.name}.*")}
        assert files == {".svg", ".pdf", ".png", ".csv"}


@pytest.fixture(scope="module")
def gains(tmp_path_factory: pytest.TempPathFactory) -> Figure:
    """A policy that gains in every seed."""
    folder = tmp_path_factory.mktemp("gains")
    for seed in range(3):
        write_run(folder / f"fixed-{seed}", seed=seed, extra=4 + seed)
        write_run(folder / f"online-{seed}", seed=seed, extra=seed // 2, policy="online")
    found = gains_figure(read_runs([folder])[0])
    assert found is not None
    return found


def test_gains_are_coloured_only_where_they_are_certain(gains: Figure, tmp_path: Path) -> None:
    assert colours_in_print(gains) == {GOOD}
    write_run(tmp_path / "fixed")
    write_run(tmp_path / "online", policy="online")
    one_seed = gains_figure(read_runs([tmp_path])[0])
    assert one_seed is not None
    assert colours_in_print(one_seed) == set()
    assert gains_figure(read_runs([tmp_path / "fixed"])[0]) is None


def test_one_unfinished_run_is_drawn_as_far_as_it_came(tmp_path: Path) -> None:
    found = described([write_run(tmp_path / "one", finished=False)])
    assert set(found) == {
        "accuracy-shapes",
        *(f"{name}-shapes-tfs-3" for name in ("classes", "matrix", "confusion")),
    }
    assert bands(found["accuracy-shapes"]) == [0]
    assert not describe_figures([])


def test_a_method_has_one_colour_and_strangers_have_others(tmp_path: Path) -> None:
    for method in ("mine", "lucir", "yours"):
        write_run(tmp_path / method, method=method)
    found = method_colours(read_runs([tmp_path])[0])
    assert found["lucir"] == METHOD_COLOURS["lucir"]
    assert len(set(found.values())) == 3
    assert method_colours(read_runs([tmp_path / "lucir"])[0]) == {"lucir": found["lucir"]}


def test_labels_keep_clear_of_what_stands_at_the_ticks_in_every_file(many: dict[str, Figure]) -> None:
    with matplotlib_style():
        drawing = draw(many["confusion-shapes-tfh-3"])
        settle(drawing)
    renderer = FigureCanvasAgg(drawing).get_renderer()  # type: ignore[no-untyped-call, unused-ignore]
    for axes in drawing.axes:
        for axis in (axes.xaxis, axes.yaxis):
            label = axis.label.get_window_extent(renderer)
            ticks = [tick.get_window_extent(renderer) for tick in axis.get_ticklabels() if tick.get_text()]
            assert ticks
            assert not any(label.overlaps(tick) for tick in ticks)
            assert drawing.bbox.containsx(label.x0)
            assert drawing.bbox.containsy(label.y0)


def test_a_long_legend_leaves_the_panels_their_room(many: dict[str, Figure]) -> None:
    figure = many["accuracy-shapes"]
    style = next(iter(figure.legend.values()))
    long = replace(figure, legend={f"row {number}": style for number in range(80)})
    with matplotlib_style(), warnings.catch_warnings():
        warnings.simplefilter("error")
        drawings = [draw(each) for each in (figure, long)]
        for drawing in drawings:
            settle(drawing)
    few, many_lines = ([axes.get_window_extent().height for axes in drawing.axes] for drawing in drawings)
    assert min(many_lines) > 0.8 * min(few)


def test_names_with_dollars_and_of_other_scripts_are_drawn(tmp_path: Path) -> None:
    panel = Panel("$\\nonsense{ 犬 $", Scale(), Scale())
    save_all(Figure("odd", "", "", [panel], []), tmp_path)
    assert "犬" in (tmp_path / "odd.svg").read_text(encoding="utf-8")
