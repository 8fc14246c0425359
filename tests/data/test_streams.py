from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.data.streams import Stream, class_order, make_stream
from poise.errors import UserError

HUNDRED = class_order(1993, 100)


@pytest.mark.parametrize(
    ("setting", "phases", "sizes"),
    [
        ("tfh", 5, [50] + [10] * 5),
        ("tfh", 25, [50] + [2] * 25),
        ("tfh", 50, [50] + [1] * 50),
        ("tfs", 5, [20] * 5),
        ("tfs", 25, [4] * 25),
        ("tfs", 1, [100]),
    ],
)
def test_the_settings_of_the_paper(setting: str, phases: int, sizes: list[int]) -> None:
    stream = make_stream(setting, order=HUNDRED, phases=phases)
    assert [len(group) for group in stream] == sizes
    assert stream.classes == HUNDRED
    assert stream.setting == setting


def test_a_stream_is_an_immutable_sequence() -> None:
    stream = make_stream("tfs", order=[3, 1, 0, 2], phases=2)
    assert len(stream) == 2
    assert list(stream) == [(3, 1), (0, 2)]
    assert stream[0] == (3, 1)
    assert stream[-1] == (0, 2)
    assert stream[:1] == ((3, 1),)
    assert (0, 2) in stream
    assert stream == make_stream("tfs", order=[3, 1, 0, 2], phases=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stream.setting = "tfh"  # type: ignore[misc]
    with pytest.raises(IndexError):
        stream[2]


def test_group_sizes_may_be_uneven_and_leave_classes_out() -> None:
    assert make_stream("groups", order=HUNDRED, groups=[2, 2]).groups == ((68, 56), (78, 8))
    assert make_stream("groups", order=[4, 3, 2, 1, 0], groups=[1, 3, 1]).groups == ((4,), (3, 2, 1), (0,))


def test_groups_of_class_indices_are_taken_as_they_are() -> None:
    assert make_stream("groups", order=HUNDRED, groups=[[5, 1], [99]]).groups == ((5, 1), (99,))
    assert make_stream("groups", order=HUNDRED, groups=[[5, 1], [99]], phases=2).classes == (5, 1, 99)


@given(st.integers(2, 60).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.integers(1, n))))
def test_even_settings_divide_all_classes_or_say_what_would(case: tuple[list[int], int]) -> None:
    order, phases = case
    for setting, even in (("tfh", len(order) // 2), ("tfs", len(order))):
        if even % phases or (setting == "tfh" and len(order) % 2):
            with pytest.raises(UserError, match="use"):
                make_stream(setting, order=order, phases=phases)
        else:
            stream = make_stream(setting, order=order, phases=phases)
            assert stream.classes == tuple(order)
            assert len(stream) == phases + (setting == "tfh")
            assert len({len(group) for group in stream.groups[1:]}) <= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"setting": "tfh", "phases": 7},
            "tfh splits 50 classes .* phases=7 does not divide; use one of 1, 2, 5, 10, 25, 50",
        ),
        ({"setting": "tfs", "phases": 3}, "tfs splits 100 classes .* use one of 1, 2, 4, 5, 10, 20, 25, 50, 100"),
        ({"setting": "tfs", "phases": 0}, "phases=0"),
        ({"setting": "tfs", "phases": -5}, "phases=-5"),
        ({"setting": "tfs", "phases": 2.5}, r"phases=2\.5"),
        ({"setting": "tfs", "phases": True}, "phases=True"),
        ({"setting": "tfs"}, "needs phases"),
        ({"setting": "tsf", "phases": 5}, "did you mean"),
        ({"setting": "tfs", "groups": [2, 2]}, "use setting=groups"),
        ({"setting": "groups"}, "needs groups"),
        ({"setting": "groups", "groups": []}, "needs groups"),
        ({"setting": "groups", "groups": [2, 0]}, "a group of 0 classes"),
        ({"setting": "groups", "groups": [2, -1]}, "a group of -1 classes"),
        ({"setting": "groups", "groups": [60, 50]}, "add up to 110 classes, there are 100"),
        ({"setting": "groups", "groups": [1]}, "1 class in all"),
        ({"setting": "groups", "groups": [[1, 2], []]}, "group 1 of the stream has no class"),
        ({"setting": "groups", "groups": [[1, 2], [2]]}, "class 2 is in the stream more than once"),
        ({"setting": "groups", "groups": [[1, 100]]}, "class 100, which is not there; use classes 0 to 99"),
        ({"setting": "groups", "groups": [[1, 2], 3]}, "all sizes or all lists"),
        ({"setting": "groups", "groups": ["ab", "cd"]}, "all sizes or all lists"),
        ({"setting": "groups", "groups": [2.0, 2.0]}, "all sizes or all lists"),
        ({"setting": "groups", "groups": [2, 2], "phases": 5}, "phases=5, but there are 2 groups"),
        ({"setting": "tfh", "phases": 1, "order": range(7)}, "even number of classes, there are 7"),
        ({"setting": "tfs", "phases": 1, "order": [0]}, "at least 2 classes"),
    ],
)
def test_what_does_not_add_up_is_refused_in_one_line(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        make_stream(**{"order": HUNDRED, **arguments})
    assert "\n" not in str(caught.value)


def test_a_stream_made_by_hand_is_checked_too() -> None:
    with pytest.raises(UserError, match="more than once"):
        Stream("groups", ((0, 1), (1,)))
