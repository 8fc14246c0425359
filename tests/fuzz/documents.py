"""What the fuzzer makes of documents and files: values replaced, removed or moved, bytes cut off or changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

_JUNK: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(
        [10**9, 2**63, -(2**63), 1e308, -1.5, "", "x", "5", "~nosuchuser", "\x1b[2J", [], {}, [[]], [1, "a"]]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.recursive(st.integers(0, 3), lambda inner: st.lists(inner, max_size=2), max_leaves=4),
)


def changed(document: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The document with one to three of its values replaced, removed, repeated or moved."""

    @st.composite
    def change(draw: st.DrawFn) -> dict[str, Any]:
        copied: Any = json.loads(json.dumps(document))
        for _ in range(draw(st.integers(1, 3))):
            _change_once(draw, copied)
        return dict(copied)

    return change()


def _change_once(draw: st.DrawFn, node: Any) -> None:
    while True:
        places: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not places:
            return
        place = draw(st.sampled_from(places))
        inner = node[place]
        if isinstance(inner, dict | list) and inner and draw(st.integers(0, 4)):
            node = inner
            continue
        what = draw(st.sampled_from(["replace", "replace", "replace", "remove", "wrap", "repeat"]))
        if what == "replace":
            node[place] = draw(_JUNK)
        elif what == "remove":
            del node[place]
        elif what == "wrap":
            node[place] = [inner]
        elif isinstance(node, list):
            node.append(inner)
        else:
            node[draw(st.text(max_size=3))] = inner
        return


def damaged(text: bytes) -> st.SearchStrategy[bytes]:
    """The bytes of a file, cut off or with some of them changed."""
    places = st.integers(0, max(len(text) - 1, 0))
    cut = places.map(lambda place: text[:place])
    flips = st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)

    def flip(changes: list[tuple[int, int]]) -> bytes:
        found = bytearray(text)
        for place, value in changes:
            found[place] = value
        return bytes(found)

    return st.one_of(cut, flips.map(flip), st.binary(max_size=200))
