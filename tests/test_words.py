"""Texts of others, as a terminal can show them."""

from __future__ import annotations

import json
import unicodedata

import pytest

from poise.words import json_line, one_line, one_line_each, printable

HOSTILE = [
    "\x1b[2J\x1b]0;title\x07",  # clears the screen, names the window
    "\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\",
    "\x9b31m",  # the same as ESC [ on some terminals
    "right\rwrong",  # overwrites its line
    "a\x08\x08\x08b",
    "\u202egnp.exe",  # right to left
    "\u2066hidden\u2069",
    "two\u2028lines",
    "\x00",
    "\x7f",
    "\udcff",  # a byte that is no UTF-8
    "\ud83d",  # half of a pair
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_acts_and_nothing_is_lost(text: str) -> None:
    shown = printable(f"a{text}b\n\tc")
    assert {unicodedata.category(char) for char in shown if char not in "\n\t"}.isdisjoint({"Cc", "Cf", "Cs", "Zl"})
    assert shown.startswith("a")
    assert shown.endswith("b\n\tc")
    assert shown != f"a{text}b\n\tc"
    shown.encode()


@pytest.mark.parametrize("text", HOSTILE)
def test_json_means_the_same(text: str) -> None:
    line = json_line({text: [text, 1.5, None]})
    assert json.loads(line) == {text: [text, 1.5, None]}
    assert printable(line) == line
    assert "\n" not in line


def test_ordinary_texts_stay() -> None:
    for text in ("Größe", "犬", "שלום", "مرحبا", "👩‍👩‍👧", "a\\b", "± 0.5 − 1", "naïve café"):
        assert printable(text) == one_line(text) == text
        assert json_line(text) == json.dumps(text, ensure_ascii=False)


def test_one_line_is_one_line() -> None:
    assert one_line("a\nb\tc\r\n") == "a\\x0ab\\x09c\\x0d\\x0a"
    assert one_line_each({"a\n": ["\t", 1, {"b": None}], "n": 2.5}) == {"a\\x0a": ["\\x09", 1, {"b": None}], "n": 2.5}
