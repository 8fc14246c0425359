"""What the plain values of a saved file may be: types, ranges and counts, checked before anything is made of them.

A checksum says that a file is as it was written. Whoever wrote it may have been another program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from poise.errors import Damaged, Malformed, PoiseError, kind_and_line, shown

#: Refuses a value that is not as it must be; the word says where it stands.
Check = Callable[[object, str], None]
#: Whole numbers beyond this are no counts of anything that fits into a computer.
LARGEST: Final = 2**53


@contextmanager
def contents_of(path: Path, todo: str = "restore it from a copy") -> Iterator[None]:
    """What is refused while these contents are read names the file, and says what to do."""
    try:
        yield
    except Malformed as error:
        raise Damaged(f"{path} {error}; {todo}") from error


@contextmanager
def fitting_together() -> Iterator[None]:
    """Around what is made of saved values: whatever goes wrong there, those do not fit together."""
    try:
        yield
    except Malformed:
        raise
    except Damaged as error:
        raise Malformed(f"is not as poise writes it: {error}") from error
    except (PoiseError, OSError):
        raise
    except Exception as error:
        raise Malformed(f"is not as poise writes it ({kind_and_line(error, 200)})") from error


def refuse(where: str, wanted: str, value: object) -> NoReturn:
    """Say what is wrong, in one line."""
    raise Malformed(f"is not as poise writes it: {where} must be {wanted}, not {shown(value, 60)}")


def check(fits: object, where: str, wanted: str, value: object) -> None:
    """Refuse a value unless it fits."""
    if not fits:
        refuse(where, wanted, value)


def anything(value: object, where: str) -> None:
    """Whatever JSON has."""


def whole(least: int = 0, most: int = LARGEST) -> Check:
    """A whole number in this range."""

    def checked(value: object, where: str) -> None:
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        check(fits, where, f"a whole number from {least} to {most}", value)

    return checked


def number(least: float = -math.inf, most: float = math.inf) -> Check:
    """A finite number in this range."""

    def checked(value: object, where: str) -> None:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
        limits = f" from {least:g} to {most:g}" if most < math.inf else f" of at least {least:g}" if least == 0 else ""
        check(fits and math.isfinite(_as_float(value)), where, f"a finite number{limits}", value)

    return checked


def _as_float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf


def text(value: object, where: str) -> None:
    """A word or a line."""
    check(isinstance(value, str), where, "a text", value)


def word(*known: str) -> Check:
    """One of these words."""
    return lambda value, where: check(
        isinstance(value, str) and value in known, where, f"one of {', '.join(known)}", value
    )


def truth(value: object, where: str) -> None:
    """True or false."""
    check(isinstance(value, bool), where, "true or false", value)


def scalar(value: object, where: str) -> None:
    """None, true or false, a finite number or a text."""
    plain = value is None or isinstance(value, str | int | float)
    check(plain and (isinstance(value, str) or math.isfinite(_as_float(value or 0))), where, "a plain value", value)


def maybe(inner: Check) -> Check:
    """None, or what the inner check accepts."""
    return lambda value, where: None if value is None else inner(value, where)


def either(wanted: str, *inner: Check) -> Check:
    """What one of the checks accepts."""

    def checked(value: object, where: str) -> None:
        for each in inner:
            try:
                return each(value, where)
            except Malformed:
                continue
        refuse(where, wanted, value)

    return checked


def listed(inner: Check, count: int | None = None) -> Check:
    """A list of such values, so many of them."""

    def checked(value: object, where: str) -> None:
        if not isinstance(value, list | tuple) or count not in (None, len(value)):
            refuse(where, "a list" if count is None else f"a list of {count}", value)
        for place, each in enumerate(value):
            inner(each, f"{where}[{place}]")

    return checked


def mapped(inner: Check, *needed: str) -> Check:
    """Words to such values; these words are among them."""

    def checked(value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            refuse(where, "a mapping", value)
        for key, each in value.items():
            inner(each, f"{where}.{key}")
        for key in needed:
            check(key in value, where, f"a mapping with {key}", value)

    return checked


def keyed(needed: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """A mapping with these keys, perhaps the optional ones, and perhaps others that a newer poise writes."""

    def checked(value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            refuse(where or "it", "a mapping", value)
        inside = f"{where}." if where else ""
        for key, inner in needed.items():
            if key not in value:
                raise Malformed(f"is not as poise writes it: {inside}{key} is missing")
            inner(value[key], f"{inside}{key}")
        for key, inner in (optional or {}).items():
            if key in value:
                inner(value[key], f"{inside}{key}")

    return checked
