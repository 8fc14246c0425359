"""What is on record of the machine, and what is said where a run goes on under other conditions."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from poise import Learner, store
from poise.methods import METHODS
from poise.policies import POLICIES, PRESETS, Preset
from poise.runs import Plan, Run, RunFolder
from poise.runs.machine import NUMERIC, commit, describe_machine, source_digest, versions, versions_of
from poise.training import Backend, changed_switches, read_switches
from poise.training.events import Progress

Plans = Callable[..., Plan]


@pytest.fixture
def other_precision() -> Iterator[None]:
    """A program in which matrix products are computed in less precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


def test_it_names_the_commit_and_every_package_that_can_change_a_number(cpu: Backend, tmp_path: Path) -> None:
    machine = describe_machine(tmp_path, cpu, versions())
    known = machine["versions"]
    assert {"poise", "poise_commit", "poise_source", "python", *NUMERIC} <= known.keys()
    assert known["torch"] == torch.__version__
    assert {name: known[name] for name in ("numpy", "pillow")} == {
        name: metadata.version(name) for name in ("numpy", "pillow")
    }
    assert re.fullmatch("[0-9a-f]{32}", known["poise_source"])
    assert any(each["internal_api"] in ("openblas", "mkl") for each in machine["libraries"])
    assert machine["switches"] == read_switches(cpu)
    json.dumps(machine)


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
        digests.append(source_digest())
    assert digests[0] == digests[1] != digests[2]
    (tmp_path / "other" / "__init__.py").write_text("a = 3\n")
    assert source_digest() == digests[2], "the code that is loaded is that of the start"


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


def test_a_resume_under_another_precision_says_so(
    plan: Plans, tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    made = plan()
    opened = interrupted(made, tmp_path / "run")
    request.getfixturevalue("other_precision")
    resume = resumed(opened, made)
    assert resume["exact"] is False
    assert resume["differs"] == ["matmul_precision=ieee then, matmul_precision=bf16 now"]
    (said,) = [each.getMessage() for each in caplog.records if "other conditions" in each.getMessage()]
    assert "matmul_precision=ieee then, matmul_precision=bf16 now" in said


@pytest.mark.parametrize("older", [False, True])
def test_a_resume_on_another_device_says_so_first(
    older: bool, plan: Plans, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = plan()
    opened = interrupted(made, tmp_path / "run")
    machine = store.read_json(opened.machine)
    machine["hardware"].update(device="cuda:1", gpu="a GPU")
    machine["precision"] = "bf16"
    machine["switches"].update(device="cuda", precision="bf16")
    machine["versions"]["numpy"] = "0.0"
    if older:  # it did not count these among the switches
        del machine["switches"]["device"], machine["switches"]["precision"]
    store.write_json(opened.machine, machine)
    resume = resumed(opened, made)
    assert resume["exact"] is False
    assert (resume["device"], resume["gpu"], resume["precision"]) == ("cpu", None, "fp32")
    changed = "device=cuda, precision=bf16 then, device=cpu, precision=fp32 now"
    assert resume["differs"][0] == changed
    assert f"other conditions ({changed}; 1 more in {opened.machine})" in caplog.text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("numpy", r"numpy 0\.0 then, numpy .* now"),
        ("poise_source", r"poise with source 0\.0 then, poise with source [0-9a-f]{12} now"),
    ],
)
def test_a_resume_with_other_packages_says_so(name: str, line: str, plan: Plans, tmp_path: Path) -> None:
    made = plan()
    opened = interrupted(made, tmp_path / "run")
    machine = store.read_json(opened.machine)
    machine["versions"][name] = "0.0"
    store.write_json(opened.machine, machine)
    resume = resumed(opened, made)
    assert resume["exact"] is False
    assert re.fullmatch(line, resume["differs"][0])


OWN_CODE = """
from poise.methods import METHODS
from poise.policies import Fixed

class Mine(METHODS["lucir"]):
    name = "mine"

class MyPolicy(Fixed):
    pass
"""


def test_a_resume_with_other_code_of_ones_own_says_so(
    plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "my_code.py").write_text(OWN_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("my_code")
    monkeypatch.setitem(METHODS, "mine", module.Mine)
    monkeypatch.setitem(POLICIES, "my-policy", partial(module.MyPolicy))
    monkeypatch.setitem(PRESETS, "my-policy", Preset(tunes=False))
    words = "method=mine", "policy=my-policy"
    opened = interrupted(plan(*words), tmp_path / "run")
    shutil.copytree(opened.path, tmp_path / "again")
    (tmp_path / "my_code.py").write_text(f"{OWN_CODE}\n# another line")
    assert resumed(opened, plan(*words))["exact"] is True, "this process has the code of before"
    module = importlib.reload(module)
    monkeypatch.setitem(METHODS, "mine", module.Mine)
    monkeypatch.setitem(POLICIES, "my-policy", partial(module.MyPolicy))
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


def test_a_description_by_an_older_poise_is_no_difference(plan: Plans, tmp_path: Path) -> None:
    made = plan()
    opened = interrupted(made, tmp_path / "run")
    machine = store.read_json(opened.machine)
    machine["versions"] = {name: machine["versions"][name] for name in ("poise", "python", "torch", "numpy")}
    del machine["switches"], machine["libraries"]
    store.write_json(opened.machine, machine)
    assert resumed(opened, made)["exact"] is True


def test_a_learner_saved_in_the_middle_of_a_phase_says_so_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    images = torch.randint(0, 256, (24, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator())
    first = Learner(policy="fixed", net="small", epochs=1, batch=8, memory=4, device="cpu")
    first.partial_fit(images, torch.arange(24) % 2)
    for event in first.fitting(images, torch.arange(24) % 2 + 2):
        if isinstance(event, Progress) and event.done > 0:
            first.save(tmp_path / "model")
            break
    Learner.load(tmp_path / "model", device="cpu").partial_fit(images, torch.arange(24) % 2 + 2)
    assert "other switches" not in caplog.text
    request.getfixturevalue("other_precision")
    Learner.load(tmp_path / "model", device="cpu").partial_fit(images, torch.arange(24) % 2 + 2)
    assert "goes on under other switches (matmul_precision=ieee then, matmul_precision=bf16 now)" in caplog.text


def test_every_switch_is_compared(cpu: Backend) -> None:
    now = read_switches(cpu)
    assert changed_switches(now, cpu) is None
    assert changed_switches({}, cpu) is None
    for name, value in now.items():
        other = {**now, name: not value if isinstance(value, bool) else "other"}
        assert changed_switches(other, cpu) == f"{name}={other[name]} then, {name}={value} now"


def test_numbers_that_are_flushed_to_zero_are_noticed(cpu: Backend) -> None:
    assert read_switches(cpu)["flush_denormal"] is False
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        assert read_switches(cpu)["flush_denormal"] is True
    finally:
        torch.set_flush_denormal(False)
