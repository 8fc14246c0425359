"""Write the API page: every public name of poise's packages with one line each, taken from the docstrings.

    python tools/api_page.py docs/api.md

A test compares the page with what this writes, and fails where a public name has no docstring.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import itertools
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType

#: The packages, each with what a reader finds there.
PACKAGES = {
    "poise": "What most programs need.",
    "poise.methods": "Methods, and what a [method of your own](own-method.md) is made of.",
    "poise.policies": "Policies, and what a [policy of your own](own-method.md#a-policy) is made of.",
    "poise.nets": "Backbones, heads, and the model made of both.",
    "poise.data": "Images, streams, class orders, augmentation and memory.",
    "poise.data.sources": "Where images come from ([Data](data.md)).",
    "poise.ray": "Trials and cells on a cluster ([Many machines](scale.md)).",
}
HEAD = """\
# API

Every public name, with one line each. The pages for users say how they are used: [The learner](learner.md),
[Policies](policies.md), [Methods](methods.md), [Data](data.md). In Python, `help(poise.Learner)` says more.

This page is made from the docstrings by `make api`. What is not on it may change without notice.
"""
#: Public names that are neither described by a docstring nor by a comment `#:`.
PLAIN = {"__version__": "The version, as `poise --version` prints it."}


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="the file that is written")
    path: Path = parser.parse_args().page
    path.write_text(make_page(), encoding="utf-8")
    print(path)


def make_page() -> str:
    """The whole page."""
    sections = [HEAD]
    for name, about in PACKAGES.items():
        package = open_package(name)
        rows = [_row(_call(getattr(package, each), each), describe(package, each)) for each in package.__all__]
        sections.append(_section(f"## `{name}`", about, rows))
        if name == "poise":
            learner = package.Learner
            arguments = "Its arguments are in [The learner](learner.md)."
            sections.append(_section("### `Learner`", arguments, [_row(*each) for each in members(learner)]))
    return "\n".join(sections)


def open_package(name: str) -> ModuleType:
    """A package; where it loads its names as they are asked for, the module that has them."""
    package = importlib.import_module(name)
    if "__all__" in vars(package):
        return package
    imports = (node for node in ast.walk(ast.parse(inspect.getsource(package))) if isinstance(node, ast.ImportFrom))
    return importlib.import_module(next(node.module for node in imports if node.module and node.names[0].name == "*"))


def describe(package: ModuleType, name: str) -> str:
    """The first line of the docstring of a public name; of a constant, the comment `#:` above it."""
    value = inspect.unwrap(getattr(package, name))  # of a cached function, the function
    if name in PLAIN:
        return PLAIN[name]
    if inspect.isclass(value) or inspect.isfunction(value):
        return _first_line(value, f"{package.__name__}.{name}")
    module = _home(package, name)
    return _comment(inspect.getsource(module), name, f"{module.__name__}.{name}")


def members(kind: type) -> Iterator[tuple[str, str]]:
    """The public methods and attributes of a class, as they are called, in alphabetical order."""
    for name, value in sorted(inspect.getmembers(kind), key=lambda member: member[0]):
        if name.startswith("_") or name in getattr(kind, "__dataclass_fields__", {}):  # an argument
            continue
        if isinstance(value, property | cached_property) or "__doc__" in getattr(value, "__dict__", {}):
            yield name, _first_line(value, name)
        elif inspect.isroutine(value):
            yield _call(value, name), _first_line(value, name)
        else:
            home = next(each for each in kind.__mro__ if name in vars(each))
            yield name, _comment(inspect.getsource(home), name, f"{kind.__name__}.{name}")


def _comment(source: str, name: str, full: str) -> str:
    """The comment `#:` above the line that assigns a name."""
    lines = [line.strip() for line in source.splitlines()]
    for number, line in enumerate(lines):
        above = list(itertools.takewhile(lambda each: each.startswith("#: "), reversed(lines[:number])))
        if line.startswith((f"{name} = ", f"{name}: ")) and above:
            return " ".join(each.removeprefix("#: ") for each in reversed(above))
    raise SystemExit(f"{full} is public and not described: write a comment '#: …' above it")


def _home(package: ModuleType, name: str) -> ModuleType:
    """The module in which a name of a package is defined, by the imports of the package."""
    for node in ast.parse(inspect.getsource(package)).body:
        if isinstance(node, ast.ImportFrom) and node.module and name in {each.name for each in node.names}:
            return _home(importlib.import_module(node.module), name)
    return package


def _call(value: object, name: str) -> str:
    """A function with the names of its parameters, anything else by its name."""
    if not inspect.isroutine(value):
        return name
    words = []
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words += [parameter.name] if parameter.name not in ("self", "cls") else []
    return f"{name}({', '.join(words)})"


def _first_line(value: object, name: str) -> str:
    text = inspect.getdoc(value)
    if not text:
        raise SystemExit(f"{name} is public and has no docstring")
    return text.partition("\n\n")[0].replace("\n", " ")


def _row(name: str, about: str) -> str:
    escaped = about.replace("|", "\\|")
    return f"| `{name}` | {escaped} |"


def _section(heading: str, about: str, rows: list[str]) -> str:
    return "\n".join([heading, "", about, "", "| name | what it is |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    main()
