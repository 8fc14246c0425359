"""Numbers as people read them, and texts of others as a terminal can show them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, Final

#: Characters that are not shown but do something: control characters other than tab and newline, marks that change the
#: direction of writing, and bytes of a file's name that are no UTF-8.
_ACTING: Final = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_IN_TEXTS: Final = re.compile(f"[{_ACTING}]")
_IN_LINES: Final = re.compile(f"[\t\n{_ACTING}]")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")  # keys that TOML takes without quotes


def duration(seconds: float) -> str:
    """A stretch of time in its largest sensible unit.

    >>> duration(12.3), duration(600), duration(9000)
    ('12 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def counted(count: int, thing: str) -> str:
    """A number with its noun, in the singular or plural: `1 image`, `3 classes`.

    >>> counted(1, "step"), counted(2, "step"), counted(2, "class")
    ('1 step', '2 steps', '2 classes')
    """
    return f"{count} {thing}{('es' if thing.endswith('s') else 's') * (count != 1)}"


def install_extra(name: str) -> str:
    """How to get an optional part of poise, which is not on PyPI: a package of that name there is somebody else's.

    >>> print(install_extra("ray"))
    in a clone of poise: pip install '.[ray]'
    """
    return f"in a clone of poise: pip install '.[{name}]'"


def printable(text: str) -> str:
    r"""The text with everything that a terminal would obey written out; lines and tabs stay.

    >>> print(printable("a\x1b[31mb"))
    a\x1b[31mb
    """
    return _IN_TEXTS.sub(_escape, text)


def one_line(text: str) -> str:
    r"""The text as a part of a line: like `printable`, and tabs and ends of lines are written out, too.

    >>> print(one_line("two\nlines"))
    two\x0alines
    """
    return _IN_LINES.sub(_escape, text)


def json_line(value: Any) -> str:  # noqa: ANN401 - whatever JSON can hold
    r"""A value as JSON in one line that any terminal can show, and that means the same; what is no number is null.

    >>> print(json_line({"label": "Größe\x9b", "probability": math.nan}))
    {"label": "Größe\u009b", "probability": null}
    """
    text = json.dumps(_without_nan(value), ensure_ascii=False, allow_nan=False)
    return _IN_TEXTS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _without_nan(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    return [_without_nan(each) for each in value] if isinstance(value, list | tuple) else value


def toml_value(value: object) -> str:
    """A value as it is written in a recipe or after `key=`.

    >>> print(toml_value({"lr": [0.1, 0.05], "classifier": "ncm", "safe": True}))
    {lr = [0.1, 0.05], classifier = "ncm", safe = true}
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        keys = {key: key if _BARE.fullmatch(key) else toml_value(key) for key in value}
        return "{" + ", ".join(f"{keys[key]} = {toml_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json_line(value) if isinstance(value, str) else str(value)  # JSON's escapes are TOML's, too


def one_line_each(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """A value from a file of somebody else's, with `one_line` of every text in it, keys included."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {one_line(key) if isinstance(key, str) else key: one_line_each(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [one_line_each(each) for each in value]
    return value


def file_word(text: str) -> str:
    """A text as a part of a file's name: nothing that leaves its folder, hides it, or means something in an address.

    What has to be changed gets a few digits of its hash, so that two texts never have the same word.

    >>> file_word("tiny-imagenet-100")
    'tiny-imagenet-100'
    >>> file_word("../../a b")
    'a b-d12089d8'
    """
    plain = re.sub(r"[^\w .+-]", "-", text).strip(" .-")
    if plain and plain == text and len(plain.encode()) <= 120:
        return text
    short = plain.encode()[:100].decode(errors="ignore")
    digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=4).hexdigest()
    return f"{short}-{digest}".strip("-")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # how Python holds a byte that is no UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
