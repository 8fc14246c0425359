"""Figures of known journals, compared by their data and by what they promise: no spread without three seeds."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import FillBetweenPolyCollection, PathCollection
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Ellipse
from numpy.typing import NDArray

from poise import store
from poise.report import Figure
from poise.report.charts import WIDTH, Mark, plane_chart
from poise.report.drawing import METHOD_COLOURS, method_colours, panels, settle, styled
from poise.report.figures import figures
from poise.report.runs import read_runs

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
    journal, curve = store.Journal(folder / "journal.jsonl"), []
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


def drawn(folders: Sequence[Path]) -> dict[str, Figure]:
    runs, broken = read_runs(folders)
    assert not broken
    found = figures(runs)
    assert len({figure.name for figure in found}) == len(found)
    return {figure.name: figure for figure in found}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    """Own hyperparameters and a policy in both settings: three seeds of one method, two of the other."""
    folder = tmp_path_factory.mktemp("many")
    kinds = itertools.product(("tfh", "tfs"), (("lucir", "fixed", 3), ("lucir", "online", 3), ("icarl", "fixed", 2)))
    return drawn(
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


def rows(figure: Figure, **wanted: object) -> list[dict[str, Any]]:
    return [dict(row) for row in figure.data if all(row[key] == value for key, value in wanted.items())]


def test_what_these_runs_can_fill_is_drawn(many: dict[str, Figure]) -> None:
    single = ("chances", "rewards", "classes", "confusion")
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
    return [sum(isinstance(each, kind) for each in axes.collections) for axes in figure.draw().axes]


def test_bands_are_drawn_for_three_seeds_and_not_for_two(many: dict[str, Figure]) -> None:
    assert bands(many["accuracy-shapes"]) == [2, 2]  # of the three rows, icarl has two seeds
    assert bands(many["forgetting-shapes"]) == [2, 2]


def test_the_plane_has_the_seeds_their_means_and_ellipses(many: dict[str, Figure]) -> None:
    figure = many["plane-shapes"]
    averages = [np.mean([100 * (18 - x) / 20, 100 * (28 - x) / 40, 100 * (40 - x) / 60]) for x in range(5)]
    found = rows(figure, row="lucir, online")
    assert [row["tfs"] for row in found] == pytest.approx(averages[:3])
    assert [row["tfh"] for row in found] == pytest.approx(averages[0:5:2])
    (axes,) = figure.draw().axes
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
    (plane,) = [each for each in figures(read_runs([tmp_path])[0]) if each.name.startswith("plane")]
    (axes,) = plane.draw().axes
    for low, high in (axes.get_xlim(), axes.get_ylim()):
        assert high - low >= 4
    marks = [Mark(name, x, 70.0, None, 0, False, name) for name, x in (("a", 80.0), ("b", 80.1))]
    places = [float(x) for x in re.findall(r'<circle[^>]* cx="([\d.]+)"', plane_chart(marks, [], "TFS", "TFH"))]
    assert 0 < abs(places[0] - places[1]) < WIDTH / 20


def test_values_are_raw_and_smoothed(many: dict[str, Figure]) -> None:
    figure = many["values-shapes"]
    found = {axis: rows(figure, setting="TFH 3", axis=axis) for axis in ("logit_kd", "lr", "classifier")}
    assert len(figure.data) == 2 * sum(map(len, found.values()))
    assert [(row["phase"], row["value"]) for row in found["logit_kd"]] == [(1, 1.0), (2, 0.0)]
    assert [row["smoothed"] for row in found["logit_kd"]] == pytest.approx([1.0, 0.8])
    assert [row["value"] for row in found["lr"]] == pytest.approx([0.1, 0.1])
    assert [row["value"] for row in found["classifier"]] == [0.0, 1.0]
    panels = figure.draw().axes
    assert [axes.get_ylabel() for axes in panels[::2]] == ["β", "λ", "δ"]
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
        (panel,) = figure.draw().axes
        assert panel.get_title().splitlines()[1] == words
        np.testing.assert_allclose(shown(panel), np.array(expected))
        rings = next(each for each in panel.collections if isinstance(each, PathCollection))
        np.testing.assert_array_equal(rings.get_offsets(), [[0, 2], [1, 0]])
        assert panel.get_yticklabels()[0].get_text() == "β 0  λ 0.1"


def test_the_reward_of_every_trial(many: dict[str, Figure]) -> None:
    figure = many["rewards-shapes-tfs-3"]
    assert [row["trial"] for row in figure.data] == list(range(1, 13))
    assert [row["reward"] for row in figure.data] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.9, 0.7] * 2)
    (axes,) = figure.draw().axes
    sizes = [len(np.asarray(each.get_offsets())) for each in axes.collections if isinstance(each, PathCollection)]
    assert sizes == [10, 2]  # ten of actions, two of a classifier


def test_classes_and_confusion_are_in_the_order_of_arrival(many: dict[str, Figure]) -> None:
    found = rows(many["classes-shapes-tfs-3"], row="lucir, fixed")
    assert [row["name"] for row in found] == [f"shape {label}" for label in (3, 1, 0, 5, 4, 2)]
    assert [row["phase"] for row in found] == [0, 0, 1, 1, 2, 2]
    assert [row["accuracy"] for row in found] == pytest.approx([50, 70, 30, 60, 100, 90])  # of seed 0
    figure = many["confusion-shapes-tfs-3"]
    panel = figure.draw().axes[0]
    expected = np.diag(np.array([1.0, 0.7, 0.3, 0.6, 1.0, 0.9]))
    expected[1:, 0] = 1 - np.diag(expected)[1:]
    np.testing.assert_allclose(shown(panel), expected)
    assert [text.get_text() for text in panel.get_yticklabels()][:2] == ["shape 3", "shape 1"]


@pytest.mark.parametrize("name", ["plane-shapes", "chances-shapes-tfh-3", "confusion-shapes-tfs-3"])
def test_the_same_data_give_the_same_bytes(many: dict[str, Figure], name: str) -> None:
    before = dict(mpl.rcParams)
    figure = many[name]
    first = figure.svg()
    assert first == figure.svg()
    assert b"<dc:date>" not in first
    assert b"lucir, online" in first  # text stays text
    assert dict(mpl.rcParams) == before


def test_one_unfinished_run_is_drawn_as_far_as_it_came(tmp_path: Path) -> None:
    found = drawn([write_run(tmp_path / "one", finished=False)])
    assert set(found) == {"accuracy-shapes", "classes-shapes-tfs-3", "confusion-shapes-tfs-3"}
    assert bands(found["accuracy-shapes"]) == [0]
    assert not figures([])


def test_results_without_a_journal_are_drawn_too() -> None:
    """A result knows what was decided, and nothing of the trials or of classes that were mistaken for others."""
    files = sorted((ROOT / "results" / "cifar100").glob("*.json"))
    fixed = drawn([file for file in files if "-fixed-" in file.name])
    assert set(fixed) == {"accuracy-cifar100", "plane-cifar100"}
    chances = {f"chances-cifar100-{setting}-5" for setting in ("tfh", "tfs")}
    found = drawn(files)
    assert set(found) == {*fixed, "values-cifar100", *chances}
    for name, figure in {**fixed, **found}.items():
        with styled():
            (*_, axes) = figure.drawn().axes
        assert ("what was decided" in axes.get_title()) is (name in chances)


def test_a_method_has_one_colour_and_strangers_have_others() -> None:
    found = method_colours(["mine", "lucir", "yours"])
    assert found["lucir"] == METHOD_COLOURS["lucir"]
    assert len(set(found.values())) == 3
    assert method_colours(["lucir"]) == {"lucir": found["lucir"]}


def test_labels_keep_clear_of_what_stands_at_the_ticks_in_every_file(many: dict[str, Figure]) -> None:
    with styled():
        drawing = many["confusion-shapes-tfh-3"].drawn()
        settle(drawing)
    renderer = FigureCanvasAgg(drawing).get_renderer()  # type: ignore[no-untyped-call, unused-ignore]
    for axes in drawing.axes[:-1]:
        for axis in (axes.xaxis, axes.yaxis):
            label = axis.label.get_window_extent(renderer)
            ticks = [tick.get_window_extent(renderer) for tick in axis.get_ticklabels() if tick.get_text()]
            assert ticks
            assert not any(label.overlaps(tick) for tick in ticks)
            assert drawing.bbox.containsx(label.x0)
            assert drawing.bbox.containsy(label.y0)


def test_names_with_dollars_and_of_other_scripts_are_drawn(tmp_path: Path) -> None:
    def drawn() -> Drawing:
        drawing, ((axes,),) = panels(1, 1, 2.0, 2.0)
        axes.set_title("$\\nonsense{ 犬 $")
        return drawing

    figure = Figure("odd", "", "", [], drawn)
    assert "犬" in figure.save_all(tmp_path).decode()
