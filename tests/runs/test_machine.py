"""What is on record of the machine, and what is said where a run goes on under other conditions."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from poise import store
from poise.methods import METHODS
from poise.policies import POLICIES, Preset
from poise.runs import Plan, Run, RunFolder
from poise.runs.machine import (
    NUMERIC,
    Machine,
    command_for,
    commit,
    describe_machine,
    source_digest,
    versions,
    versions_of,
)
from poise.training.device import Backend

Plans = Callable[..., Plan]


def test_it_names_the_commit_and_every_package_that_can_change_a_number(cpu: Backend, tmp_path: Path) -> None:
    machine = describe_machine(tmp_path, cpu, versions())
    known = machine.versions
    assert {"poise", "poise_commit", "poise_source", "python", *NUMERIC} <= known.keys()
    assert known["torch"] == torch.__version__
    assert {name: known[name] for name in ("numpy", "pillow")} == {
        name: metadata.version(name) for name in ("numpy", "pillow")
    }
    assert re.fullmatch("[0-9a-f]{32}", known["poise_source"] or "")
    assert any(each["internal_api"] in ("openblas", "mkl") for each in machine.libraries)
    store.write_json(tmp_path / "machine.json", machine.model_dump())
    assert Machine.read(tmp_path / "machine.json") == machine


def test_the_commit_is_that_of_the_checkout() -> None:
    root = Path(__file__).parents[2]
    asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=root)
    if asked.returncode or not (root / "src" / "poise").exists():
        pytest.skip("the tests do not run in a checkout")
    assert str(commit()).removesuffix("+changed") == asked.stdout.strip()


def test_the_digest_is_that_of_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    digests = []
    for place, code in (("one", "a = 1\n"), ("two", "a = 1\n"), ("other", "a = 2\n")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "__init__.py").write_text(code)
        monkeypatch.setattr("poise.__file__", str(tmp_path / place / "__init__.py"))
        digests.append(source_digest.__wrapped__())
    assert digests[0] == digests[1] != digests[2]


def test_packages_of_networks_are_named_too() -> None:
    assert "pytest" in versions("pytest")
    assert versions("no_such_module").keys() == versions().keys()


def interrupted(plan: Plan, folder: Path) -> RunFolder:
    opened = RunFolder(folder)
    Run(plan, opened, until=1).start()
    return opened


def resumed(opened: RunFolder, plan: Plan) -> dict[str, Any]:
    Run(plan, opened).resume()
    (resume,) = store.read_json(opened.machine)["resumes"]
    return dict(resume)


def test_a_resume_under_the_same_conditions_says_nothing(
    plan: Plans, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = plan()
    resume = resumed(interrupted(made, tmp_path / "run"), made)
    assert resume["exact"] is True
    assert "differs" not in resume
    machine = store.read_json(tmp_path / "run" / "machine.json")
    where = {**machine["hardware"], "precision": machine["precision"]}
    assert {name: resume[name] for name in ("device", "gpu", "processor", "precision")} == {
        name: where[name] for name in ("device", "gpu", "processor", "precision")
    }
    assert "other conditions" not in caplog.text


def test_a_resume_under_other_conditions_says_which(
    plan: Plans, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = plan()
    opened = interrupted(made, tmp_path / "run")
    machine = store.read_json(opened.machine)
    machine["hardware"].update(device="cuda:1", gpu="a GPU")
    machine["precision"] = "bf16"
    machine["versions"]["numpy"] = "0.0"
    machine["versions"]["poise_source"] = "0.0"
    store.write_json(opened.machine, machine)
    resume = resumed(opened, made)
    assert resume["exact"] is False
    assert (resume["device"], resume["gpu"], resume["precision"]) == ("cpu", None, "fp32")
    assert [line.split()[0] for line in resume["differs"]] == ["device", "precision", "poise_source", "numpy"]
    assert resume["differs"][-1] == f"numpy 0.0 then, {metadata.version('numpy')} now"
    assert f"other conditions (device cuda then, cpu now; 3 more in {opened.machine})" in caplog.text


@pytest.mark.parametrize(
    ("changed", "threads"),
    [
        ({}, 64),
        ({"exact_resume": False}, 1),
        ({"hardware": {"processor": "another one", "cores": 64, "device": "cpu", "gpu": None}}, 1),
    ],
    ids=["same-machine", "gpu", "other-processor"],
)
def test_no_more_threads_than_here_where_the_bytes_differ_anyway(
    changed: dict[str, Any], threads: int, reference: Path, tmp_path: Path
) -> None:
    """A run of a large GPU machine, resumed on a laptop, must not fill it with threads."""
    machine = store.read_json(reference / "machine.json")
    store.write_json(tmp_path / "machine.json", {**machine, "threads": 64, **changed})
    assert Machine.read(tmp_path / "machine.json").threads_to_resume_with == threads


OWN_CODE = """
from poise.methods import METHODS
from poise.policies import Policy

class Mine(METHODS["lucir"]):
    name = "mine"

class MyPolicy(Policy):
    def propose(self):
        return ()

    def learn(self, outcomes):
        pass

    def decide(self):
        return self.setup.space.default
"""


def test_a_resume_with_other_code_of_ones_own_says_so(
    plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "my_code.py").write_text(OWN_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("my_code")
    monkeypatch.setitem(METHODS, "mine", module.Mine)
    monkeypatch.setitem(POLICIES, "my-policy", Preset(partial(module.MyPolicy)))
    words = "method=mine", "policy=my-policy"
    commands = [command_for(plan(*given).settings) for given in (words[:1], words[1:], ())]
    assert commands == ["python FILE.py", "python FILE.py", "poise"]
    opened = interrupted(plan(*words), tmp_path / "run")
    shutil.copytree(opened.path, tmp_path / "again")
    (tmp_path / "my_code.py").write_text(f"{OWN_CODE}\n# another line")
    assert resumed(opened, plan(*words))["exact"] is True, "this process has the code of before"
    module = importlib.reload(module)
    monkeypatch.setitem(METHODS, "mine", module.Mine)
    monkeypatch.setitem(POLICIES, "my-policy", Preset(partial(module.MyPolicy)))
    resume = resumed(RunFolder(tmp_path / "again"), plan(*words))
    monkeypatch.delitem(sys.modules, "my_code")
    assert resume["exact"] is False
    assert resume["differs"] == ["the code of method mine was changed", "the code of policy my-policy was changed"]
    assert "other conditions (the code of method mine was changed; 1 more in " in caplog.text


def test_another_file_of_a_network_says_so(plan: Plans, tmp_path: Path) -> None:
    file = tmp_path / "my_net.py"
    file.write_text("from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(8))\n")
    settings = plan(f"net={file}:make").settings
    before = versions_of(settings)
    file.write_text(file.read_text() + "# another line")
    after = versions_of(settings)
    assert [name for name, version in after.items() if before[name] != version] == ["the network"]
    assert "the network" not in versions_of(plan().settings)
