"""What only lists or explains is there at once: torch, which takes seconds, is not loaded for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import poise

from .samples import pictures

# Runs a command and says afterwards what was loaded.
OBSERVED = """
import sys
from poise.cli import main
try:
    main()
finally:
    print("loaded", *{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""
SLOW = {"torch", "sklearn", "matplotlib", "safetensors"}


def loaded_by(*words: str) -> set[str]:
    """The packages that are loaded when a command has ended."""
    command = [sys.executable, "-c", OBSERVED, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("--help",),
        ("recipes", "digits/lucir", "--keys"),
        ("data", "remove", "pets"),
        ("rnu",),
        ("learn", "model"),
    ],
    ids=" ".join,
)
def test_it_answers_without_torch(words: tuple[str, ...]) -> None:
    found = loaded_by(*words)
    assert "poise" in found
    assert not found & SLOW


@pytest.mark.parametrize(("typed", "completed"), [("le", "learn"), ("run digits/lu", "digits/lucir")])
def test_shells_complete_commands_and_recipes_without_torch(typed: str, completed: str) -> None:
    asked = {"_POISE_COMPLETE": "complete_bash", "COMP_WORDS": f"poise {typed}", "COMP_CWORD": str(len(typed.split()))}
    command = [sys.executable, "-c", f"import sys\nsys.argv[0] = 'poise'{OBSERVED}"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [completed]
    assert not set(done.stderr.split()) & SLOW


def test_data_are_listed_without_torch_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(Path("data/pets"), "cat dog")
    monkeypatch.setenv("POISE_DATA", str(Path("data").resolve()))
    assert not loaded_by("data") & SLOW


def test_importing_poise_loads_nothing_that_was_not_asked_for() -> None:
    code = "import sys, poise; print(*sys.modules); poise.Learner; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = (set(line.split()) for line in done.stdout.splitlines())
    assert not before & {*SLOW, "numpy", "typer", "rich"}
    assert "torch" in after


def test_every_public_name_is_there_when_it_is_asked_for() -> None:
    assert {*poise.__all__} <= {*dir(poise)}
    for name in poise.__all__:
        assert getattr(poise, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Lerner'"):
        getattr(poise, "Lerner")  # noqa: B009 - as a user's typo would
    from poise import Learner, learner

    assert Learner is learner.Learner


def test_it_writes_in_the_encoding_of_any_terminal() -> None:
    """`recipes --keys` has a Greek letter."""
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(
        [sys.executable, "-m", "poise", "recipes", "--keys"], env=environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "\\u03c1" in done.stdout.decode("latin-1")


@pytest.mark.parametrize("package", ["torch", "pydantic"])
def test_a_package_that_is_missing_is_one_line(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from poise.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"poise: {package} is not installed for {sys.executable}; install it, or all that")
    assert done.stderr.count("\n") == 1
