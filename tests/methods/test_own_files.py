"""Methods that a word FILE.py:NAME names: what cannot be one is refused in one line, and no name is taken twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from poise.errors import UserError
from poise.methods import METHODS, base, make_method

FILE = """
from poise.methods import LwF, Method, register

class Loud(LwF):
    pass

class Bare(Method):
    name = "bare"

@register
class Good(LwF):
    name = "good"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the file; what is registered is forgotten afterwards."""
    monkeypatch.setattr(base, "METHODS", dict(METHODS))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "other.py").write_text(FILE)
    return tmp_path


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("mine.py:Loud", r"^the method 'lwf' is registered already by .*replay\.py:LwF; give yours its own name$"),
        ("other.py:Good", r"^method other.py:Good: the method 'good' is registered already by .*mine\.py:Good; give"),
        ("mine.py:Bare", "^method Bare lacks a name or terms; see"),
        ("mine.py:God", r"has no class 'God'; did you mean 'Good'\?$"),
        ("mine.py:Nothing", "has no class 'Nothing'; known: Bare, Good, Loud$"),
        ("nix.py:Good", r"^method nix.py:Good: nix.py cannot be read \(No such file or directory\); restore it$"),
        ("mine.py", "^method mine.py names no class of this file; write mine.py:CLASS$"),
    ],
)
def test_what_is_no_method_of_its_own_is_refused_in_one_line(word: str, line: str, folder: Path) -> None:
    assert make_method("mine.py:Good").name == "good"
    with pytest.raises(UserError, match=rf"^[^\n]*({line})[^\n]*$"):
        make_method(word)
    assert make_method("lwf").__module__.startswith("poise.")


def test_a_file_that_was_changed_is_registered_again(folder: Path) -> None:
    before = type(make_method("mine.py:Good"))
    (folder / "mine.py").write_text(f"{FILE}\n# another line")
    del base.METHODS["mine.py:Good"]
    assert type(make_method("mine.py:Good")) is base.METHODS["good"] is not before
