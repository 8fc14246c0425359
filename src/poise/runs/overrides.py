"""Overrides: `key=value` as a command line gives it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any, Final

from poise.errors import UserError, check_plain, shown
from poise.settings import takes, takes_only_text

_MOST_PARTS: Final = 4  # parts of a key with dots between


def parse_override(text: str) -> tuple[list[str], Any]:
    """`memory.total=2000` → (["memory", "total"], 2000); values as in TOML, a bare word is a string.

    For a key that takes only text, a number, a date and true or false are strings, too, as they were typed.
    """
    key, found, value = text.partition("=")
    if not found or not key.strip() or not value.strip():
        raise UserError(f"{shown(text)} is not key=value, e.g. setting=tfs")
    if len(text.splitlines()) > 1 or any(character < " " for character in text):
        raise UserError(f"{shown(text)} must be one key=value, on one line")
    if len(key.split()) > 1:
        raise UserError(
            f"{shown(text)} is more than one key=value; give each as a word of its own, the recipe before it"
        )
    path = key.strip().split(".")
    if len(path) > _MOST_PARTS:
        raise UserError(f"there is no key {shown(key.strip())}; a key has at most {_MOST_PARTS} parts")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError as error:
        parsed = value.strip()
        if parsed[0] in "[{" and takes(".".join(path), "list", "table"):
            raise UserError(
                f"the value of '{'.'.join(path)}' is not TOML: {shown(parsed)}; close every bracket and put each word "
                """in quotation marks, e.g. tune='["kd","lr"]' in a shell"""
            ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise UserError(f"the value of '{'.'.join(path)}' is too long or nested too deep: {shown(value)}") from error
    if takes_only_text(".".join(path)) and not isinstance(parsed, str | list | dict):
        parsed = value.strip()  # a folder that is called 2024, or by a date
    check_plain(".".join(path), parsed)
    return path, parsed


def parse_once(overrides: Sequence[str]) -> dict[str, Any]:
    """The values of a command line's overrides by their keys; what is given twice is refused."""
    found: dict[str, Any] = {}
    for path, value in map(parse_override, overrides):
        key = ".".join(path)
        if key in found:
            raise UserError(f"{key} is given twice, as {shown(found[key])} and {shown(value)}; give it once")
        for other, before in found.items():
            if contradict(other, before, key, value):
                raise UserError(f"{other} and {key} are both given, and one would undo the other; give one of them")
        found[key] = value
    return found


def in_order(overrides: Sequence[str]) -> list[str]:
    """The overrides, a whole table such as `memory=20` before keys of it, which then add to it; no two contradict."""
    return sorted(overrides, key=lambda text: text.partition("=")[0].count("."))


def contradict(one: str, value: object, other: str, another: object) -> bool:
    """Whether one of two overrides would undo the other: a table and a key of it, or two sizes of the memory."""
    if {one, other} == {"memory.per_class", "memory.total"}:
        return True
    for whole, size, key in ((one, value, other), (other, another, one)):
        if key.startswith(f"{whole}."):
            short = whole == "memory" and isinstance(
                size, int
            )  # for memory.per_class, beside which there are other keys
            return not short or key in ("memory.per_class", "memory.total")
    return False


def set_key(values: dict[str, Any], path: list[str], value: object) -> None:
    """Set the key at this path of nested tables, in place."""
    name, rest = path[0], path[1:]
    if not rest:
        values[name] = value
        return
    inner = values.get(name, {})
    inner = {"per_class": inner} if name == "memory" and isinstance(inner, int) else inner
    inner = dict(inner) if isinstance(inner, dict) else {}
    if name == "memory" and rest[0] in ("per_class", "total"):
        inner.pop("per_class", None)
        inner.pop("total", None)
    set_key(inner, rest, value)
    values[name] = inner
