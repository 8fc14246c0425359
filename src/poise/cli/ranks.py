"""Commands under torchrun: which ones there are, and how ranks end together with one line.

A mistake that all ranks make is said by rank 0. A rank that fails alone leaves a note for the others, which end with
the same exit code as soon as they notice; rank 0 says it for the rank, which says it itself if rank 0 cannot. Torch is
imported by whoever joins.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from poise.errors import UserError

if TYPE_CHECKING:
    from poise.training import World

COMMANDS: Final = ("run", "resume")
PATIENCE: Final = 5.0  # seconds in which a rank waits for what another has to say
_GLANCE: Final = 0.05  # seconds between two looks
_SHARED: Final = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # a switch of torchrun, without which its restarts can hang


def is_launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def is_silent() -> bool:
    """Whether another rank says what there is to say."""
    return is_launched() and os.environ["RANK"] != "0"


def refuse_other_commands(name: str | None) -> None:
    """Refuse what does not run on several ranks."""
    if is_launched() and name is not None and name not in COMMANDS:
        raise UserError(f"'poise {name}' does not run under torchrun; start it without (run and resume do)")


@contextmanager
def joined() -> Iterator[World | None]:
    """The world of a command that torchrun started, else None. Where it fails, `last_words` ends it."""
    if not is_launched():
        yield None
        return
    from poise.training import join_world, leave_world

    _warn_of_restarts()
    yield join_world()
    leave_world()


def _warn_of_restarts() -> None:
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if restarts != "0" and os.environ.get(_SHARED) != "1" and not is_silent():
        print(f"poise: set {_SHARED}=1 for torchrun: without it, its restarts can hang", file=sys.stderr)  # noqa: T201


def last_words(line: str, code: int, *, lost: bool) -> tuple[str | None, int]:
    """What this process says at its end, and its exit code: of all ranks, one says something.

    `lost`: it ends because another rank has ended.
    """
    world = _present_world()
    if world is None:
        if is_silent():  # a mistake in the command: rank 0 will say it, and torchrun end this rank
            signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
            time.sleep(PATIENCE)
        return (None if is_silent() else line), code
    for number in (signal.SIGTERM, signal.SIGINT):  # torchrun, which ends those that are left
        signal.signal(number, signal.SIG_IGN)
    line = line if lost or world.leads else f"rank {world.rank}: {line}"
    with suppress(RuntimeError):  # notes are left with rank 0, or with torchrun
        if not lost:
            world.store.set(_note(world.rank), json.dumps([line, code]))
        _let_go()
        return _speak(world, line, code, lost=lost) if world.leads else _listen(world, line, code, lost=lost)
    return (line if world.rank <= 1 else None), code  # rank 0 is gone: the next one speaks


def _speak(world: World, line: str, code: int, *, lost: bool) -> tuple[str, int]:
    """Rank 0 says its line, or that of the rank that failed; the others are told so before it ends."""
    if lost and (found := _found_note(world)) is not None:
        line, code = found
    world.store.set("said", str(code))
    for _ in _glances(1.0 if lost else PATIENCE):
        if world.store.add("heard", 0) >= world.size - 1:
            break
    return line, code


def _listen(world: World, line: str, code: int, *, lost: bool) -> tuple[str | None, int]:
    """Nothing, once rank 0 has said it."""
    for _ in _glances():
        if world.store.check(["said"]):
            said = int(world.store.get("said"))
            world.store.add("heard", 1)
            return None, said if lost else code
    return (line if world.store.add("speakers", 1) == 1 else None), code


def _found_note(world: World) -> tuple[str, int] | None:
    for _ in _glances():
        for rank in range(world.size):
            if world.store.check([_note(rank)]):
                line, code = json.loads(world.store.get(_note(rank)))
                return str(line), int(code)
    return None


def _glances(seconds: float = PATIENCE) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(_GLANCE)


def _note(rank: int) -> str:
    return f"failed {rank}"


def _present_world() -> World | None:
    """The world that this process has joined; nothing is imported for the answer."""
    module = sys.modules.get("poise.training.world")
    return module.current_world() if module is not None else None


def _let_go() -> None:
    """Let others notice that this rank exchanges nothing any more; work on a GPU would be waited for."""
    import torch

    if not torch.cuda.is_available():
        from poise.training import leave_world

        leave_world()
