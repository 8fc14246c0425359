from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from poise import draws

PARTS = st.one_of(st.integers(), st.text(alphabet="ab12-:", max_size=3))
ADDRESSES = st.tuples(st.integers(0, 5), st.text(alphabet="ab12-:", max_size=3), st.lists(PARTS, max_size=3))


def test_an_address_gives_the_same_numbers_in_every_version() -> None:
    # Written down once: changing them silently would change every published number.
    assert draws.key(1993, "epoch", 2, "main", 7) == 234065379008870596232355016497063193626
    assert draws.generator(1993, "epoch", 2, "main", 7).integers(0, 1000, 5).tolist() == [960, 420, 884, 412, 465]


@given(ADDRESSES, ADDRESSES)
def test_other_addresses_have_other_keys(
    one: tuple[int, str, list[int | str]], other: tuple[int, str, list[int | str]]
) -> None:
    same = draws.key(one[0], one[1], *one[2]) == draws.key(other[0], other[1], *other[2])
    assert same == (one == other)


def test_a_number_and_its_text_are_different_addresses() -> None:
    assert draws.key(0, "epoch", 1) != draws.key(0, "epoch", "1")
    assert draws.key(0, "a", "b", "c") != draws.key(0, "a", "b") != draws.key(0, "ab")


def test_a_draw_does_not_depend_on_draws_elsewhere() -> None:
    alone = draws.generator(0, "here", 3).random(4)
    draws.generator(0, "there", 3).random(1000)
    np.testing.assert_array_equal(draws.generator(0, "here", 3).random(4), alone)


def test_global_generators_are_left_alone() -> None:
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002
    draws.generator(0, "here").random(100)
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[1])
