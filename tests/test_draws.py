from __future__ import annotations

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
