from __future__ import annotations

import json

import pytest

from poise.actions import SPACES, Action, AxisValue, Named, make_space
from poise.errors import UserError
from poise.methods import METHODS, make_method

LUCIR = Action(logit_kd=0, feature_kd=1, margin=1, lr=0.1, classifier="fc", old_rows="frozen")
PODNET = Action(logit_kd=0, feature_kd=0, pod=1, lr=0.1, classifier="fc", old_rows="frozen")
ICARL = Action(logit_kd=1, lr=0.1, classifier="ncm", old_rows="trained")


@pytest.mark.parametrize(("name", "count"), [("paper", 50), ("joint", 100), ("wide", 120)])
def test_the_named_spaces_have_the_sizes_of_the_paper(name: str, count: int) -> None:
    space = make_space(name, LUCIR)
    assert len(space) == len(set(space.actions)) == count
    assert space.actions[space.default] == LUCIR
    assert all(set(action) == set(LUCIR) for action in space.actions)


def test_the_paper_s_space_has_every_distillation_weight_of_the_method() -> None:
    paper = make_space("paper", PODNET)
    assert (len(paper), paper.actions[paper.default]) == (150, PODNET)
    assert str(paper) == (
        "paper: logit_kd {0, 0.1, 0.5, 1, 10} × feature_kd {0, 0.1, 0.5, 1, 10} × pod {0, 0.1, 1} × lr {0.1, 0.05}: "
        "150 actions"
    )
    assert set(make_space("paper", PODNET, ["kd"]).axes) == {"logit_kd", "feature_kd", "pod"}
    assert {action["pod"] for action in make_space("online", PODNET).actions} == {0.1, 1}


STABLE: dict[str, list[float | str]] = {"logit_kd": [0, 1], "feature_kd": [0.5, 1.0], "lr": [0.1]}
PLASTIC: dict[str, list[float | str]] = {"logit_kd": [1], "feature_kd": [0], "lr": [0.1, 0.05]}


def test_several_grids_are_one_space_with_no_action_twice() -> None:
    space = make_space([STABLE, PLASTIC], LUCIR)
    assert [(a["logit_kd"], a["feature_kd"], a.lr) for a in space.actions] == [
        *[(0, 0.5, 0.1), (0, 1, 0.1), (1, 0.5, 0.1), (1, 1, 0.1)],
        *[(1, 0, 0.1), (1, 0, 0.05)],
    ]
    assert not space.is_product
    assert space.axes == {"logit_kd": (0, 1), "feature_kd": (0.5, 1, 0), "lr": (0.1, 0.05)}
    assert str(space).startswith("grid: logit_kd {0, 1} × feature_kd {0.5, 1} × lr {0.1} + logit_kd {1} × ")
    assert len(make_space([STABLE, STABLE], LUCIR)) == 4
    assert make_space([STABLE, STABLE], LUCIR).is_product, "the second adds nothing"
    assert make_space([STABLE], LUCIR).actions == make_space(STABLE, LUCIR).actions
    found = json.loads(json.dumps(space.as_json()))
    assert [Action(**{**LUCIR, **arm}) for arm in found["arms"]] == list(space.actions)
    assert len(found["grids"]) == 2
    assert "arms" not in make_space(STABLE, LUCIR).as_json()


def test_a_named_grid_of_words_that_mean_nothing_is_left_out() -> None:
    grids = Named("mine", ({"lr": (0.05,)}, {"balance": ("align",), "lr": (0.2,)}), favourite={"lr": 0.05})
    own = Action(**{**LUCIR, "balance": "none"})
    space = make_space(grids, own, choices={"balance": ("none", "finetune")})
    assert {action.lr for action in space.actions} == {0.05, own.lr}
    assert space.favourite == space.actions.index(own.replace(lr=0.05))
    assert len(make_space(grids, own)) == 3
    assert make_space(Named("mine", ({"lr": (0.2,)},), favourite={"lr": 0.5}), own).favourite is None


def test_an_axis_the_method_does_not_have_is_left_out_of_a_named_space_and_refused_elsewhere() -> None:
    assert [len(make_space(name, ICARL)) for name in ("paper", "joint")] == [10, 20]
    assert list(make_space("wide", ICARL).axes) == ["logit_kd", "lr"]
    with pytest.raises(UserError, match=r"'feature_kd'.*known: classifier, logit_kd"):
        make_space({"feature_kd": [0, 1]}, ICARL)


def test_a_grid_of_ones_own_is_the_product_in_the_order_given() -> None:
    space = make_space({"lr": [0.1, 0.05], "feature_kd": [1, 3]}, LUCIR)
    assert [(action.lr, action["feature_kd"]) for action in space.actions] == [(0.1, 1), (0.1, 3), (0.05, 1), (0.05, 3)]
    assert str(space) == "grid: lr {0.1, 0.05} × feature_kd {1, 3}: 4 actions"


def test_a_default_off_the_grid_is_one_more_arm_and_an_empty_grid_leaves_only_it() -> None:
    base = LUCIR.replace(feature_kd=3)
    space = make_space("paper", base)
    assert (len(space), space.default, space.actions[50]) == (51, 50, base)
    assert str(space).endswith("51 actions (the default among them, off the grid)")
    space = make_space({}, LUCIR)
    assert (space.actions, space.default, len(space.axes)) == ((LUCIR,), 0, 0)


@pytest.mark.parametrize(
    ("tune", "count", "tuned"),
    [
        (["kd"], 25, {"logit_kd", "feature_kd"}),
        (["lr"], 2, {"lr"}),
        (["kd", "classifier"], 50, {"logit_kd", "feature_kd", "classifier"}),
        (["kd", "classifier", "lr"], 100, {"logit_kd", "feature_kd", "classifier", "lr"}),
        ([], 1, set()),
    ],
)
def test_the_ablation_switch_tunes_only_some_kinds(tune: list[str], count: int, tuned: set[str]) -> None:
    space = make_space("joint", LUCIR, tune)
    assert len(space) == count
    assert set(space.axes) == tuned
    for name in set(LUCIR) - tuned:
        assert {action[name] for action in space.actions} == {LUCIR[name]}


@pytest.mark.parametrize(
    ("space", "tune", "message"),
    [
        ("papr", None, "did you mean 'paper'"),
        ("paper", ["classifer"], "did you mean 'classifier'"),
        ({"lr": []}, None, "needs values"),
        ({"lr": [0.1, 0.1]}, None, "each once"),
        ({"lr": [0.1, 0]}, None, "above 0"),
        ({"classifier": ["fc", "nmc"]}, None, "did you mean 'ncm'"),
        ({"logit_kb": [0, 1]}, ["lr"], "did you mean 'logit_kd'"),
    ],
)
def test_mistakes_are_one_line_with_what_to_do(
    space: str | dict[str, list[AxisValue]], tune: list[str] | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_space(space, LUCIR, tune)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_has_every_named_space(method: str) -> None:
    for name in SPACES:
        space = make_space(name, make_method(method).default_action)
        assert 2 <= len(space) <= 400
        assert space.actions[space.default] == make_method(method).default_action
