from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise import actions
from poise.actions import Action, Axis, AxisValue, is_weight, make_space, register_axis
from poise.errors import UserError

WEIGHTS = st.floats(0, 1e6)
CHOICES = st.fixed_dictionaries(
    {"lr": st.floats(1e-6, 10), "classifier": st.sampled_from(["fc", "ncm", "auto"])},
    optional={"feature_kd": WEIGHTS, "logit_kd": WEIGHTS, "old_rows": st.sampled_from(["frozen", "trained"])},
)


@given(CHOICES)
def test_actions_compare_by_value_whatever_the_order(axes: dict[str, AxisValue]) -> None:
    one, other = Action(**axes), Action(**dict(reversed(axes.items())))
    assert one == other == dict(axes)
    assert hash(one) == hash(other)
    assert str(one) == str(other)
    assert list(one) == sorted(axes)
    assert eval(repr(one)) == one


def test_weights_settings_and_changes() -> None:
    action = Action(lr=0.2, balance="align", feature_kd=0.5, logit_kd=0)
    assert [action.weight(term) for term in ("ce", "feature_kd", "logit_kd")] == [1.0, 0.5, 0.0]
    found = [getattr(action, name) for name in ("lr", "balance", "old_rows", "epochs", "allocation")]
    assert found == [0.2, "align", "trained", None, None]
    assert [is_weight(name) for name in ("lr", "classifier", "feature_kd", "margin")] == [False, False, True, True]
    assert action.replace(lr=0.05) == Action(lr=0.05, balance="align", feature_kd=0.5, logit_kd=0)
    assert action.lr == 0.2
    assert Action(lr=1, margin=0) == Action(lr=1.0, margin=0.0)
    assert str(Action(lr=1, classifier="fc")) == "classifier=fc lr=1"
    with pytest.raises(UserError, match="unknown action axis 'feature_dk'; did you mean 'feature_kd'"):
        action.replace(feature_dk=1.0)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"lr": 0}, "lr=0 must be a number above 0"),
        ({"feature_kd": float("nan")}, "must be a number"),
        ({"feature_kd": -1}, "feature_kd=-1 must be a number of at least 0"),
        ({"feature_kd": True}, "must be a number"),
        ({"classifier": "nmc"}, "did you mean 'ncm'?"),
        ({"classifier": 1.0}, "known: auto, fc, ncm"),
        ({"old_rows": "freeze"}, "did you mean 'frozen'?"),
        ({"allocation": 1.5}, "at most 1"),
    ],
)
def test_what_is_not_an_action_is_refused_in_one_line(axes: dict[str, AxisValue], words: str) -> None:
    with pytest.raises(UserError) as caught:
        Action(**axes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# Settings and axes of one's own -------------------------------------------------------------------------------------


@pytest.fixture
def own_axis(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Axis]:
    """Registers an axis for one test."""

    def registered(name: str, **more: Any) -> Axis:
        monkeypatch.setattr(actions, "AXES", dict(actions.AXES))  # so that it is forgotten afterwards
        return register_axis(Axis(name, **more))

    return registered


@pytest.mark.parametrize("name", ["lr", "feature_kd", "sharpness"])
def test_an_axis_is_not_registered_under_the_name_of_another(name: str, own_axis: Callable[..., Axis]) -> None:
    own_axis("sharpness", default=1.0)
    own_axis("sharpness", default=1.0)  # a file that is imported again
    with pytest.raises(UserError, match=f"^the axis '{name}' is known already; give yours its own name$"):
        own_axis(name, default=2.0)


def test_a_captured_step_serves_actions_that_differ_in_rates_and_weights_only() -> None:
    action = Action(lr=0.1, feature_kd=1, old_rows="frozen", balance="none", classifier="fc", epochs=20, allocation=0.5)
    same = action.replace(lr=0.01, feature_kd=0, classifier="ncm", epochs=5, allocation=0, old_rows="trained")
    assert action.step_key == same.step_key == (1.0, "none")
    assert action.replace(balance="finetune").step_key != action.step_key


def test_an_axis_of_ones_own_that_changes_the_step_is_part_of_its_key(own_axis: Callable[..., Axis]) -> None:
    action = Action(lr=0.1, margin=1)
    before = action.step_key
    own_axis("optimiser", default="sgd", words=("sgd", "adam"), changes_step=True)
    own_axis("temperature", default=2.0, positive=True)
    assert action.step_key != before
    assert action.step_key == Action(lr=0.1, margin=1, optimiser="sgd").step_key
    assert action.step_key != Action(lr=0.1, margin=1, optimiser="adam").step_key
    assert action.step_key == Action(lr=0.1, margin=1, temperature=4.0).step_key


def test_an_axis_of_ones_own_is_checked_and_tuned_like_the_others(own_axis: Callable[..., Axis]) -> None:
    own_axis("optimiser", default="sgd", words=("sgd", "adam"), changes_step=True)
    own_axis("share", most=1, kind="lr")
    assert not is_weight("optimiser")
    with pytest.raises(UserError, match=r"^action optimiser='adm'; did you mean 'adam'\?$"):
        Action(optimiser="adm")
    with pytest.raises(UserError, match=r"^action share=2 must be a number of at least 0 and at most 1$"):
        Action(share=2)
    base = Action(lr=0.1, optimiser="sgd", share=0.5)
    make_space({"optimiser": ["sgd", "adam"], "share": [0.25, 0.5], "lr": [0.1, 0.05]}, base)
    assert list(make_space({"optimiser": ["adam"], "share": [0, 1]}, base, tune=["lr"]).axes) == ["share"]
