from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.actions import Action, AxisValue
from poise.errors import UserError

WEIGHTS = st.floats(0, 1e6)
AXES = st.fixed_dictionaries(
    {"lr": st.floats(1e-6, 10), "classifier": st.sampled_from(["fc", "ncm", "auto"])},
    optional={"feature_kd": WEIGHTS, "logit_kd": WEIGHTS, "old_rows": st.sampled_from(["frozen", "trained"])},
)


@given(AXES)
def test_actions_compare_by_value_whatever_the_order(axes: dict[str, AxisValue]) -> None:
    one, other = Action(**axes), Action(**dict(reversed(axes.items())))
    assert one == other == dict(axes)
    assert hash(one) == hash(other)
    assert str(one) == str(other)
    assert list(one) == sorted(axes)
    assert eval(repr(one)) == one


def test_a_term_without_an_axis_weighs_one() -> None:
    action = Action(feature_kd=0.5, logit_kd=0)
    assert [action.weight(term) for term in ("ce", "feature_kd", "logit_kd")] == [1.0, 0.5, 0.0]


def test_whole_numbers_and_floats_are_the_same_action() -> None:
    assert Action(lr=1, margin=0) == Action(lr=1.0, margin=0.0)
    assert str(Action(lr=1, classifier="fc")) == "classifier=fc lr=1"


def test_replace_changes_only_what_is_named() -> None:
    action = Action(lr=0.1, classifier="fc", feature_kd=1.0)
    assert action.replace(lr=0.05) == Action(lr=0.05, classifier="fc", feature_kd=1.0)
    assert action.lr == 0.1


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"lr": 0}, "lr=0 must be above 0"),
        ({"lr": float("inf")}, "finite"),
        ({"feature_kd": float("nan")}, "finite"),
        ({"feature_kd": -1}, "feature_kd=-1 must be at least 0"),
        ({"feature_kd": True}, "must be a number"),
        ({"feature_kd": "high"}, "must be a number"),
        ({"classifier": "nmc"}, "did you mean 'ncm'?"),
        ({"classifier": 1.0}, "known: auto, fc, ncm"),
        ({"old_rows": "freeze"}, "did you mean 'frozen'?"),
    ],
)
def test_what_is_not_an_action_is_refused_in_one_line(axes: dict[str, AxisValue], words: str) -> None:
    with pytest.raises(UserError) as caught:
        Action(**axes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_axis_gets_the_nearest_word() -> None:
    with pytest.raises(UserError, match="unknown action axis 'feature_dk'; did you mean 'feature_kd'"):
        Action(feature_kd=1.0).replace(feature_dk=1.0)
