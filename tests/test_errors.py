"""Numbers and words that nobody can work with: refused in one line that can always be printed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.errors import (
    LARGEST_NUMBER,
    BadImages,
    UserError,
    check_flag,
    check_number,
    check_whole,
    shown,
    suggestion,
)


def test_bad_images_can_be_sent_to_another_process() -> None:
    error = BadImages({"a.png": UserError("image a.png is empty"), "b.png": UserError("image b.png is a broken link")})
    found = pickle.loads(pickle.dumps(error))
    assert (str(found), list(found.faults)) == (str(error), ["a.png", "b.png"])


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    )
)
def test_every_value_is_shown_on_one_short_line(value: object) -> None:
    text = shown(value)
    assert "\n" not in text
    assert 0 < len(text) <= 80


@pytest.mark.parametrize(
    "value",
    [10**5000, -(10**5000), [10**5000], nested(100_000), {"a": 10**6000}],
    ids=["long", "negative", "inside", "deep", "in a table"],
)
def test_what_python_cannot_print_is_shown_all_the_same(value: object) -> None:
    assert len(shown(value)) <= 80
    with pytest.raises(UserError):
        check_whole("seed", value, 0)
    with pytest.raises(UserError):
        check_number("rate", value)
    assert suggestion(value, ["a", "b"]) == "known: a, b"


def test_numbers_have_a_kind_and_two_ends() -> None:
    check_whole("count", 5, 5, 10)
    check_number("share", 0.5, below=1)
    check_number("weight", LARGEST_NUMBER)
    check_flag("flag", True)
    for value in (True, False, "5", 5.0, None, 4, 11):
        with pytest.raises(UserError, match="count="):
            check_whole("count", value, 5, 10)
    for other in (True, "0.5", None, -0.1, 1.0, float("nan"), float("inf"), 1e39, 10**400):
        with pytest.raises(UserError, match="share="):
            check_number("share", other, below=1)
    for word in (1, 0, "true", None):
        with pytest.raises(UserError, match="must be true or false"):
            check_flag("flag", word)


def test_sklearn_is_not_loaded_for_the_error_of_a_learner_that_has_learned_nothing() -> None:
    program = (
        "import sys; from poise.errors import NotLearned, not_learned; error = not_learned();"
        "assert type(error) is NotLearned and 'sklearn' not in sys.modules;"
        "from sklearn.exceptions import NotFittedError; assert isinstance(not_learned(), NotFittedError)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
