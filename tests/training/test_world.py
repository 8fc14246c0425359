"""Several ranks: parts of a batch, what is exchanged, and one run under torchrun, whatever happens to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from poise import Learner
from poise.data import ImageSet
from poise.errors import UserError
from poise.training.lanes import give_back
from poise.training.ranks import Reduction, World, join_world, joined_worlds

from .ranks import CASES, RUN

WORKER = Path(__file__).with_name("ranks.py")
PATIENCE = 300  # seconds for what takes a few


def seen_from(rank: int, size: int) -> World:
    """A world in which nothing is exchanged."""
    return World(rank, size, rank, size, HashStore())


# Parts of a batch -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(1, 300))
def test_ranks_share_out_every_image_of_a_batch_once_and_train_a_small_one_whole(size: int, count: int) -> None:
    parts = [seen_from(rank, size).part_of(5, 5 + count) for rank in range(size)]
    assert sum(part.weight for part in parts) == pytest.approx(1)
    if count < 2 * size:  # which then counts once
        assert {(part.start, part.stop) for part in parts} == {(5, 5 + count)}
        return
    assert [place for part in parts for place in range(part.start, part.stop)] == list(range(5, 5 + count))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert [part.weight for part in parts] == [each / count for each in sizes]


def test_ranks_on_a_machine_with_too_few_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, advice in ((0, "device=cpu"), (1, "--nproc-per-node=1")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda found=found: found)
        with pytest.raises(UserError, match=f"2 ranks on this machine need as many GPUs, and there are {found}.*"):
            seen_from(1, 2).device("cuda")
        with pytest.raises(UserError, match=advice):
            seen_from(1, 2).device("auto" if found else "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert seen_from(1, 2).device("auto") == seen_from(1, 2).device("cuda") == "cuda:1"
    assert seen_from(1, 2).device("cpu") == "cpu"
    with pytest.raises(UserError, match="a GPU of its own"):
        seen_from(1, 2).device("cuda:0")


# One rank, in this process --------------------------------------------------------------------------------------------


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world of this process alone, in which everything is exchanged with itself."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    yield join_world()
    give_back()  # captured steps, before what they exchange with
    joined_worlds.clear()
    torch.distributed.destroy_process_group()


def test_sums_keep_format_and_layout(one_rank: World) -> None:
    weights = torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    values = [weights, torch.randn(5, dtype=torch.float64), torch.randn(())]
    for found, value in zip(Reduction(one_rank).sum(values), values, strict=True):
        assert torch.equal(found, value)
        assert found.dtype == value.dtype
        assert found.stride() == value.stride()


def learned(images: ImageSet, more: ImageSet, device: str = "cpu") -> dict[str, torch.Tensor]:
    settings: dict[str, Any] = {"net": "small", "policy": "fixed", "epochs": 2, "batch": 8, "memory": 3}
    settings |= {"first_lr": 0.01, "action": {"lr": 0.01}, "precision": "fp32", "deterministic": device != "cpu"}
    learner = Learner("lucir", device=device, **settings)
    for each in (images, more):
        learner.partial_fit(each.pixels, each.labels)
    return learner.state().tensors(images=False)[0]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_one_rank_gives_the_bytes_of_one_process(
    device: str, make_images: Callable[..., ImageSet], request: pytest.FixtureRequest
) -> None:
    """On a GPU with NCCL's sum inside of the captured step."""
    images, more = make_images([0, 1] * 11), make_images([2, 3] * 9, seed=1)
    plain = learned(images, more, device)
    request.getfixturevalue("one_rank")
    alone = learned(images, more, device)
    assert {name: value.cpu().numpy().tobytes() for name, value in plain.items()} == {
        name: value.cpu().numpy().tobytes() for name, value in alone.items()
    }


# Two ranks, under torchrun --------------------------------------------------------------------------------------------


def torchrun(log: Path, *words: str | Path, restarts: int = 0) -> subprocess.Popen[bytes]:
    """Two ranks of this command, whose output goes to a file."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with log.open("wb") as out:
        return subprocess.Popen([*command, *map(str, words)], env=environment, stdout=out, stderr=out)


def said(log: Path) -> list[str]:
    """What poise itself said."""
    return [line for line in log.read_text().splitlines() if line.startswith("poise: ")]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left."""
    if not dist.is_gloo_available():
        pytest.skip("torch has no gloo: the tests with two ranks did not run")
    folder = tmp_path_factory.mktemp("ranks")
    process = torchrun(folder / "log", WORKER, folder)
    assert process.wait(PATIENCE) == 0, (folder / "log").read_text()
    return folder


@pytest.mark.torchrun
def test_every_method_is_trained_as_in_one_process(together: Path) -> None:
    """To within rounding without batch statistics; with those of each rank's part it is another training."""
    found = json.loads((together / "found.json").read_text())
    allowed = {"smooth": 1e-5, "normalised": 1.0}
    assert {name: value for name, value in found.items() if value > allowed[name.split()[-1]]} == {}
    assert len(found) == len(CASES)


def rank_of(process: subprocess.Popen[bytes], rank: int) -> int:
    """The process of a rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
            return int(child)
    raise AssertionError(f"no rank {rank} among {children}")


def wait_for(journal: Path, word: str, process: subprocess.Popen[bytes]) -> None:
    """Until the journal has this word."""
    end = time.monotonic() + PATIENCE
    while not journal.exists() or word not in journal.read_text():
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.torchrun
def test_stopped_killed_and_restarted_a_run_has_the_same_bytes(together: Path, tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    command = ("-m", "poise", "run", "digits/lucir", *RUN, "--out", folder, "--checkpoint-every", "0.1")
    process = torchrun(log, *command)
    wait_for(folder / "journal.jsonl", '"trial"', process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE)
    assert said(log) == ["poise: interrupted; the same command goes on"]
    assert not (folder / "result.json").exists()

    process = torchrun(log, *command, restarts=1)  # the same command, and torchrun repeats it
    wait_for(folder / "journal.jsonl", '"phase": 1, "stage"', process)
    os.kill(rank_of(process, 1), signal.SIGKILL)
    assert process.wait(PATIENCE) == 0, log.read_text()
    for name in ("journal.jsonl", "model.safetensors"):
        assert (folder / name).read_bytes() == (together / "whole" / name).read_bytes(), name
    results = [json.loads((each / "result.json").read_text()) for each in (folder, together / "whole")]
    for result in results:
        del result["seconds"], result["digest"]
    assert results[0] == results[1]
    assert results[0]["ranks"] == 2
    machine = json.loads((folder / "machine.json").read_text())
    assert machine["ranks"] == 2
    assert [resume["exact"] for resume in machine["resumes"]] == [True, True]


@pytest.mark.torchrun
def test_a_rank_that_fails_alone_ends_all_with_its_line(tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text(
        "import os\nfrom torch import nn\n\n\ndef make():\n"
        '    if os.environ["RANK"] == "1":\n        raise ValueError("no weights")\n'
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    log = tmp_path / "log"
    words = ("digits/lucir", *RUN, f"net={net}:make", "--out", tmp_path / "run")
    process = torchrun(log, "-m", "poise", "run", *words)
    assert process.wait(PATIENCE)
    assert said(log) == [f"poise: rank 1: net {net}:make could not be made (ValueError: no weights)"]
    assert log.read_text().count("exitcode  : 2") == 2
    assert not (tmp_path / "run" / "recipe.json").exists()


@pytest.mark.parametrize(("command", "rank"), [("sweep", "0"), ("sweep", "1"), ("learn", "0"), ("data", "0")])
def test_other_commands_are_refused_with_one_line_before_they_wait_for_others(command: str, rank: str) -> None:
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "none", "RANK": rank, "WORLD_SIZE": "2"}
    words = [sys.executable, "-m", "poise", command, "a", "b"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    line = f"poise: 'poise {command}' does not run under torchrun; start it without (run and resume do)\n"
    assert (done.returncode, done.stderr) == (2, line if rank == "0" else "")
