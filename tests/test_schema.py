"""What saved values may be: refused in one line that says where, or accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from poise.errors import Damaged, Malformed, UserError
from poise.schema import (
    Check,
    contents_of,
    either,
    fitting_together,
    keyed,
    listed,
    mapped,
    maybe,
    number,
    scalar,
    text,
    truth,
    whole,
    word,
)


@pytest.mark.parametrize(
    ("check", "fits", "not_those"),
    [
        (whole(1, 9), [1, 9], [0, 10, True, 1.0, "1", None, 10**5000]),
        (number(0, 1), [0, 0.5, 1], [-0.1, 1.1, True, "x", float("nan"), float("inf"), 10**400]),
        (number(), [-3.5, 10**300], [10**400, float("nan")]),
        (text, ["", "a"], [None, 3, []]),
        (word("fc", "ncm"), ["fc"], ["fx", None, ["fc"]]),
        (truth, [True, False], [0, 1, "true"]),
        (scalar, [None, True, 3, 0.5, "x"], [[], {}, float("inf"), 10**400]),
        (maybe(text), [None, "x"], [3]),
        (either("a text or a list", text, listed(whole())), ["x", [1]], [3, ["x"]]),
        (listed(whole(), 2), [[1, 2], (0, 0)], [[1], [1, 2, 3], [1, "x"], "ab", {}]),
        (mapped(whole(), "fc"), [{"fc": 1}, {"fc": 1, "x": 2}], [{}, {"fc": "x"}, [1]]),
        (keyed({"a": whole()}, {"b": text}), [{"a": 1}, {"a": 1, "b": "x", "c": []}], [{}, {"a": 1, "b": 2}, None]),
    ],
)
def test_what_fits_passes_and_everything_else_is_one_line(
    check: Check, fits: list[object], not_those: list[object]
) -> None:
    for value in fits:
        check(value, "here")
    for value in not_those:
        with pytest.raises(Malformed, match=r"^is not as poise writes it: (here|a|b)[^\n]{0,250}$"):
            check(value, "here")


def test_the_place_is_named() -> None:
    inner = keyed({"trial": keyed({"epochs": whole(1)})})
    with pytest.raises(Malformed, match=r"history\[1\]\.trial\.epochs must be a whole number from 1 .*, not 'x'$"):
        listed(inner)([{"trial": {"epochs": 3}}, {"trial": {"epochs": "x"}}], "history")


def test_the_file_is_named_and_what_to_do(tmp_path: Path) -> None:
    said = rf"^{tmp_path} is not as poise writes it: a must .*; restore it from a copy$"
    with pytest.raises(Damaged, match=said), contents_of(tmp_path):
        whole()("x", "a")


def test_what_goes_wrong_while_something_is_made_is_about_the_contents() -> None:
    with pytest.raises(Malformed, match=r"^is not as poise writes it \(KeyError: 'x'\)$"), fitting_together():
        _ = {"a": 1}["x"]
    with pytest.raises(UserError, match="a mistake"), fitting_together():
        raise UserError("a mistake")
