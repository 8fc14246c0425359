"""What belongs to the machine and not to the result: hardware, versions of all code that numbers come from, resumes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import torch
from pydantic import BaseModel, PositiveInt

import poise
from poise import __version__, store
from poise.errors import reading
from poise.learner import Settings
from poise.nets.adapt import file_digest, is_named, named_modules
from poise.policies import POLICIES
from poise.training.device import Backend

log = logging.getLogger(__name__)

#: Packages that compute, draw, decode or store.
NUMERIC: Final = ("torch", "numpy", "scipy", "scikit-learn", "joblib", "threadpoolctl", "pillow", "safetensors")
#: Of `versions`, what changes with poise's source, which is compared itself.
SAID_BY_SOURCE: Final = ("poise", "poise_commit")
#: Among the versions, the digest of the file that makes a network of one's own.
OWN_NETWORK: Final = "the network"
#: With what the names of code of one's own begin, among the versions.
OWN: Final = ("method ", "policy ", OWN_NETWORK)


def say_changed_code(name: str) -> str:
    """A line for `machine.json`: a resume found code of one's own changed since the run began."""
    return f"the code of {name} was changed"


class Hardware(BaseModel):
    """The hardware that a run was computed on."""

    processor: str
    cores: int | None
    device: str
    gpu: str | None


class Machine(BaseModel):
    """The contents of `machine.json`."""

    command: list[str]
    folder: str
    hardware: Hardware
    ranks: PositiveInt
    versions: dict[str, str | None]
    libraries: list[dict[str, str | None]]
    threads: PositiveInt
    precision: str
    exact_resume: bool
    started: str
    finished: str | None
    resumes: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Machine:
        """The description that was written at this path."""
        with reading(path):
            return cls(**store.read_json(path))

    @property
    def threads_to_resume_with(self) -> int:
        """The number of threads that the run was started with, where that gives the same bytes.

        Where nothing could (on another processor, or on a GPU that is not deterministic), at most those of this
        process: more threads than cores are many times slower.
        """
        same = self.exact_resume and self.hardware.processor == _processor()
        return self.threads if same else min(self.threads, torch.get_num_threads())


def describe_machine(folder: Path, backend: Backend, code: Mapping[str, str | None]) -> Machine:
    """A description of this machine and this start; `code` has the versions of what the numbers come from."""
    from threadpoolctl import threadpool_info  # imported here because it looks through all loaded libraries

    told = ("internal_api", "version", "architecture")
    gpu = torch.cuda.get_device_name(backend.device) if backend.device.type == "cuda" else None
    return Machine(
        command=["poise", *sys.argv[1:]],
        folder=str(folder.resolve()),
        hardware=Hardware(processor=_processor(), cores=os.cpu_count(), device=str(backend.device), gpu=gpu),
        ranks=backend.world.size,
        versions=dict(code),
        libraries=[{name: each[name] for name in told if name in each} for each in threadpool_info()],
        threads=torch.get_num_threads(),
        precision=backend.precision,
        exact_resume=backend.device.type == "cpu" or backend.deterministic,
        started=now(),
        finished=None,
        resumes=[],
    )


def record_resume(path: Path, backend: Backend, code: Mapping[str, str | None]) -> None:
    """Add this resume to `machine.json`, and whether it continues bit for bit; what prevents that is said."""
    then, here = Machine.read(path), describe_machine(path, backend, code)
    pairs = {
        "device": (then.hardware.device.partition(":")[0], backend.device.type),
        "gpu": (then.hardware.gpu, here.hardware.gpu or then.hardware.gpu),
        "processor": (then.hardware.processor, here.hardware.processor),
        "precision": (then.precision, here.precision),
        "threads": (then.threads, here.threads),
        "ranks": (then.ranks, here.ranks),
    }
    pairs |= {name: (then.versions.get(name, new), new) for name, new in code.items() if name not in SAID_BY_SOURCE}
    differs = [
        say_changed_code(name) if name.startswith(OWN) else f"{name} {old} then, {new} now"
        for name, (old, new) in pairs.items()
        if old != new
    ]
    if differs:
        more = f"; {len(differs) - 1} more in {path}" if differs[1:] else ""
        line = "resumed under other conditions (%s%s): the numbers may differ from those without the stop"
        log.warning(line, differs[0], more)
    then.resumes.append(
        {
            "date": now(),
            "exact": then.exact_resume and not differs,
            "device": here.hardware.device,
            "gpu": here.hardware.gpu,
            "processor": here.hardware.processor,
            "precision": here.precision,
            **({"differs": differs} if differs else {}),
        }
    )
    store.write_json(path, then.model_dump())


def record_end(path: Path) -> None:
    """Write into `machine.json` that the run is finished now."""
    store.write_json(path, {**Machine.read(path).model_dump(), "finished": now()})


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


# Versions. Asked once: a process goes on with the code that it was started with, whatever happens to the files. -------


def versions(*modules: str) -> dict[str, str | None]:
    """Versions by the name of the package; besides, those that bring along these modules."""
    named = {name: _version(name) for name in NUMERIC}
    if torch.version.cuda is not None:
        cudnn: Any = torch.backends.cudnn
        named |= {"triton": _version("triton"), "cuda": torch.version.cuda, "cudnn": str(cudnn.version())}
    others = [top for top in (module.partition(".")[0] for module in modules) if top not in ("", poise.__name__)]
    homes = metadata.packages_distributions() if others else {}  # which reads what every package says of itself
    named |= {name: _version(name) for top in others for name in homes.get(top, ())}
    own = {"poise": __version__, "poise_commit": commit(), "poise_source": source_digest()}
    return {**own, "python": platform.python_version(), **named, "torch": torch.__version__}


def versions_of(settings: Settings) -> dict[str, str | None]:
    """Versions of all code that numbers come from under these settings; of the user's own code, digests.

    What was typed into a shell has no file, and is left out.
    """
    method, preset = type(settings.made_method), POLICIES.get(settings.policy)
    policy = preset.make if preset is not None else None
    while isinstance(policy, partial):
        policy = policy.func
    own = dict[str, str | None]()
    for name, made in ((f"method {settings.method}", method), (f"policy {settings.policy}", policy)):
        if isinstance(made, type | FunctionType) and (digest := _digest_own(made)):
            own[name] = digest
    modules = [method.__module__]
    if is_named(settings.net):
        modules += named_modules(settings.net)
        if (net := file_digest(settings.net)) is not None:
            own[OWN_NETWORK] = net
    return {**versions(*modules), **own}


def command_for(settings: Settings) -> str:
    """The command that knows the method and the policy of these settings; FILE.py registers those of one's own."""
    code, method = versions_of(settings), settings.method
    registered = f"policy {settings.policy}" in code or (f"method {method}" in code and not is_named(method))
    return "python FILE.py" if registered else "poise"


@cache
def _digest_own(made: type | FunctionType) -> str:
    """The digests of the files of a class and its bases, or of a function; those of poise and Python are left out."""
    parts = made.__mro__ if isinstance(made, type) else (made,)
    own = [part for part in parts if part.__module__.partition(".")[0] not in ("poise", *sys.stdlib_module_names)]
    files = dict.fromkeys(str(getattr(sys.modules.get(part.__module__), "__file__", None)) for part in own)
    found = [Path(file).read_bytes() for file in files if Path(file).is_file()]
    return " ".join(hashlib.blake2b(data, digest_size=16).hexdigest() for data in found)


@cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@cache
def commit() -> str | None:
    """The commit of poise's checkout, with `+changed` where files of it differ; that it was installed from; or None."""
    home = Path(poise.__file__).resolve().parent
    checkout = home.parent.parent
    # Asking git about a folder neither writes there nor runs what is configured there.
    words = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(checkout)]
    try:
        if (checkout / ".git").exists() and home == checkout / "src" / "poise":
            head = subprocess.run([*words, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
            same = subprocess.run([*words, "diff", "--quiet", "HEAD", "--", "src/poise"], check=False, timeout=10)
            return head.stdout.strip() + ("+changed" if same.returncode else "")
        installed: Any = json.loads(metadata.distribution("poise-cil").read_text("direct_url.json") or "{}")
        return str(installed["vcs_info"]["commit_id"])
    except (OSError, subprocess.SubprocessError, metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return None


@cache
def source_digest() -> str:
    """A digest of poise's own source files, by name and content: the same wherever the same code is installed."""
    home, digest = Path(poise.__file__).resolve().parent, hashlib.blake2b(digest_size=16)
    for file in sorted(home.rglob("*.py")):
        digest.update(f"{file.relative_to(home).as_posix()}\0".encode())
        digest.update(hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest()
