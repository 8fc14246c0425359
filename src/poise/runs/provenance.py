"""Which code makes the numbers: poise itself, and every package that can change one."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import torch

import poise
from poise import __version__
from poise.learner import Settings
from poise.nets import file_digest, named_modules
from poise.policies import POLICIES
from poise.runfolder import OWN_NETWORK

#: Packages that compute, draw, decode or store.
NUMERIC: Final = ("torch", "numpy", "scipy", "scikit-learn", "joblib", "threadpoolctl", "pillow", "safetensors")
#: Of `versions`, what changes with poise's source, which is compared itself.
SAID_BY_SOURCE: Final = ("poise", "poise_commit")
#: Names with which those of a GPU begin.
_ON_GPU: Final = ("nvidia-", "triton", "pytorch-triton")


def versions(*modules: str) -> dict[str, str | None]:
    """Versions by the name of the package; besides, those that bring along these modules."""
    named = {name: _version(name) for name in NUMERIC}
    if torch.version.cuda is not None:
        named |= {each.name: each.version for each in metadata.distributions() if each.name.lower().startswith(_ON_GPU)}
        cudnn: Any = torch.backends.cudnn
        named |= {"cuda": torch.version.cuda, "cudnn": str(cudnn.version())}
    others = [top for top in (module.partition(".")[0] for module in modules) if top not in ("", poise.__name__)]
    homes = metadata.packages_distributions() if others else {}  # which reads what every package says of itself
    for top in others:
        named |= {name: _version(name) for name in homes.get(top, ())}
    return {
        "poise": __version__,
        "poise_commit": commit(),
        "poise_source": source_digest(),
        "python": platform.python_version(),
        **named,
        "torch": torch.__version__,
    }


def versions_of(settings: Settings) -> dict[str, str | None]:
    """Versions of all code that numbers come from under these settings; of the user's own code, digests."""
    made = {
        f"method {settings.method}": type(settings.made_method),
        f"policy {settings.policy}": POLICIES.get(settings.policy),
    }
    net = file_digest(settings.net)
    modules = (*named_modules(settings.net), type(settings.made_method).__module__)
    return {**versions(*modules), **own_sources(made), **({OWN_NETWORK: net} if net is not None else {})}


def libraries() -> list[dict[str, str | None]]:
    """The libraries for linear algebra and threads that are loaded, with their versions and kernels."""
    from threadpoolctl import threadpool_info  # imported here because it looks through all loaded libraries

    told = ("internal_api", "version", "architecture")
    return [{name: each[name] for name in told if name in each} for each in threadpool_info()]


def commit() -> str | None:
    """Of poise: that of its checkout, with `+changed` where files of it differ; that it was installed from; or None."""
    return _commit_of(_home())


def source_digest() -> str:
    """Of poise's own source files, by name and content: the same wherever the same code is installed."""
    return _digest_of(_home())


def own_sources(made: Mapping[str, object]) -> dict[str, str]:
    """By name, a digest of the files that each of these classes or functions comes from; poise's own are left out.

    What was typed into a shell has no file, and is left out too.
    """
    found = {name: _without_partial(each) for name, each in made.items()}
    digests = {name: _digest_own(each) for name, each in found.items() if isinstance(each, type | FunctionType)}
    return {name: digest for name, digest in digests.items() if digest}


def _without_partial(made: object) -> object:
    """The class or function that `functools.partial` was given."""
    while isinstance(made, partial):
        made = made.func
    return made


def _own_files(made: type | FunctionType) -> list[Path]:
    """The files of a class and its bases, or of a function, that belong neither to poise nor to Python."""
    found = dict[Path, None]()
    for part in made.__mro__ if isinstance(made, type) else (made,):
        top = str(part.__module__).partition(".")[0]
        if top in (poise.__name__, *sys.stdlib_module_names):
            continue
        try:
            path = Path(inspect.getsourcefile(part) or "")
        except (TypeError, OSError):  # typed into a shell
            continue
        if path.is_file():
            found[path] = None
    return list(found)


def _home() -> Path:
    return Path(poise.__file__).resolve().parent


# Asked once: a process goes on with the code that it was started with, whatever happens to the files.


@cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@cache
def _commit_of(home: Path) -> str | None:
    checkout = home.parent.parent
    if (checkout / ".git").exists() and home == checkout / "src" / "poise":
        found = _git(checkout, "rev-parse", "HEAD")
        if found is not None and found.returncode == 0:
            same = _git(checkout, "diff", "--quiet", "HEAD", "--", "src/poise")
            return found.stdout.strip() + ("" if same is not None and same.returncode == 0 else "+changed")
    try:
        installed: Any = json.loads(metadata.distribution("poise").read_text("direct_url.json") or "{}")
        return str(installed["vcs_info"]["commit_id"])
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return None


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str] | None:
    """Ask git about a folder; it neither writes there nor runs what is configured there."""
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10, env=quiet)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _digest_of_file(path: str | Path) -> str:
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()


@cache
def _digest_own(made: type | FunctionType) -> str:
    return " ".join(map(_digest_of_file, _own_files(made)))


@cache
def _digest_of(home: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(home.rglob("*.py")):
        digest.update(f"{file.relative_to(home).as_posix()}\0".encode())
        digest.update(hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest()
