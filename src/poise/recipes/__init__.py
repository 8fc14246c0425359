"""The shipped recipes, one TOML file for each row of the paper and each example; and the text of any recipe.

What a recipe means is said in `poise.runs`. There is no torch here, so that `poise recipes` answers at once.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Final

from poise.errors import UserError, suggestion
from poise.store import expand_user

_HOME: Final = Path(__file__).parent
#: The shipped recipes, by their names.
RECIPES: Final = dict(
    sorted((path.relative_to(_HOME).with_suffix("").as_posix(), path) for path in _HOME.rglob("*.toml"))
)
#: The one that is run if none is named.
DEFAULT_RECIPE: Final = "digits/lucir"

#: The keys of a sweep file, none of which is a recipe's.
SWEEP_KEYS: Final = ("recipe", "cell", "set", "grid")

#: Where to find the names of the shipped recipes, for error lines.
LIST_RECIPES: Final = "see 'poise recipes' for the shipped ones"


def recipe_text(name: str) -> str:
    """The text of a shipped recipe or of a TOML file."""
    if name in RECIPES:
        return RECIPES[name].read_text(encoding="utf-8")
    if Path(name).suffix == ".toml":
        return read_toml(expand_user(name), "recipe file", LIST_RECIPES)
    raise UserError(_explain_unknown(name))


def _explain_unknown(name: str) -> str:
    """Advice for a word that is no recipe: it may be a part of a name, or a path."""
    parts = [each for each in RECIPES if name.lower() in each.split("/")]
    if explained := _explain_path(name, is_word=bool(parts)):
        return explained
    if parts:
        return f"unknown recipe '{name}'; did you mean one of {', '.join(parts)}?"
    nearest = suggestion(name, RECIPES)
    return f"unknown recipe '{name}'; {nearest if nearest.startswith('did') else LIST_RECIPES}"


def _explain_path(name: str, *, is_word: bool) -> str | None:
    """Advice for a path that is no recipe file; None where there is none, or for a folder beside a known word."""
    found = {path: _kind(Path(path)) for path in (name, f"{name}.toml", f"{name}/recipe.json") if "\0" not in path}
    if found.get(f"{name}.toml") == "a plain file":
        return f"unknown recipe '{name}'; did you mean the file '{name}.toml'?"
    if found.get(name) == "a plain file":
        return f"unknown recipe '{name}'; the name of a recipe file must end in .toml"
    if found.get(f"{name}/recipe.json") == "a plain file":
        return f"{name} is a run folder, not a recipe; continue it with 'poise resume {name}'"
    if found.get(name) == "a folder" and not is_word:
        return (
            f"{name} is a folder, not a recipe; for folders of images, one for each class: poise run folder data={name}"
        )
    return None


def read_recipe(name: str) -> dict[str, Any]:
    """The values of a shipped recipe or of a TOML file; a sweep file is refused."""
    values = parse_toml(recipe_text(name), name)
    if values.keys() & {*SWEEP_KEYS}:
        raise UserError(f"{name} is a sweep file, not a recipe; run it with 'poise sweep {name}'")
    return values


def parse_toml(text: str, name: str, kind: str = "recipe") -> dict[str, Any]:
    """The values in the text of a recipe, or of another kind of file; a syntax error is one line that names it."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{kind} {name} is not TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{kind} {name} has a number that is too long, or is nested too deep") from error


def _kind(path: Path) -> str:
    return "a folder" if path.is_dir() else "a plain file" if path.is_file() else "nothing"


def read_toml(path: Path, kind: str, advice: str) -> str:
    """The text of a recipe file or a sweep file that somebody wrote, without the byte order mark that editors add.

    What cannot be read is refused in a line that ends with the advice.
    """
    try:
        return path.read_text(encoding="utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"{kind} {path} is not in UTF-8; save it in that encoding") from error
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "no path is written so"
        raise UserError(f"{kind} {path} cannot be read ({reason}); {advice}") from error
