"""Tiny runs on the digits, and what is compared between two of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise.experiment import Plan, Run, RunFolder, load_recipe, make_plan

TINY = ("groups=[2,1,1]", "epochs=1", "batch=64")


@pytest.fixture
def plan() -> Callable[..., Plan]:
    """The plan of a tiny run with some keys changed."""

    def made(*words: str, name: str = "digits/lucir") -> Plan:
        return make_plan(name, load_recipe(name, [*TINY, *words]))

    return made


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    Run(make_plan("digits/lucir", load_recipe("digits/lucir", TINY)), RunFolder(folder)).start()
    return folder


@pytest.fixture
def outcome() -> Callable[[Path], tuple[dict[str, Any], bytes, bytes]]:
    """What two equal runs have in common: result.json but for seconds, journal and weights."""

    def read(folder: Path) -> tuple[dict[str, Any], bytes, bytes]:
        result = json.loads((folder / "result.json").read_bytes())
        del result["seconds"]
        return result, (folder / "journal.jsonl").read_bytes(), (folder / "model.safetensors").read_bytes()

    return read
