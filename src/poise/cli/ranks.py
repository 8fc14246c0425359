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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

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
def joined_world() -> Iterator[World]:
    """The world of this command. All ranks that torchrun started leave it together; `end` ends them."""
    from poise.training import ALONE, join_world

    if not is_launched():
        yield ALONE
        return
    _warn_of_restarts()
    world = join_world()
    yield world
    world.wait()  # until rank 0 is done, too: torchrun ends all ranks where one fails


def _warn_of_restarts() -> None:
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if restarts != "0" and os.environ.get(_SHARED) != "1" and not is_silent():
        print(f"poise: set {_SHARED}=1 for torchrun: without it, its restarts can hang", file=sys.stderr)  # noqa: T201


def end(code: int) -> NoReturn:
    """Leave this process; one that has joined others leaves torch's threads as they are, which may not like to end."""
    if _joined_worlds():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def fail(line: str, code: int, say: Callable[[str], None], *, lost: bool = False) -> NoReturn:
    """End with this exit code; of all ranks, one says something. `lost`: because another rank has ended."""
    worlds = _joined_worlds()
    if not worlds:
        if not is_silent():
            say(line)
        elif code:  # a mistake in the command: rank 0 says it, and torchrun then ends this rank
            signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
            time.sleep(PATIENCE)
        end(code)
    world = worlds[0]
    for number in (signal.SIGTERM, signal.SIGINT):  # torchrun, which ends those that are left
        signal.signal(number, signal.SIG_IGN)
    line = line if lost or world.leads else f"rank {world.rank}: {line}"
    try:
        if not lost:
            world.store.set(_note(world.rank), json.dumps([line, code]))
        code = (_speak if world.leads else _listen)(world, line, code, say, lost=lost)
    except RuntimeError:  # notes are left with rank 0, or with torchrun: it is gone
        if world.rank == 1:
            say(line)
    end(code)


def leave_note(line: str) -> None:
    """Tell the other ranks why this one ends, by an error of poise's own."""
    for world in _joined_worlds():
        world.store.set(_note(world.rank), json.dumps([f"rank {world.rank}: {line}", 1]))


def _speak(world: World, line: str, code: int, say: Callable[[str], None], *, lost: bool) -> int:
    """Rank 0 says its line, or that of the rank that failed; the others are told so before it ends."""
    if lost and (found := _found_note(world)) is not None:
        line, code = found
    _say_first(world, line, say)
    world.store.set("said", str(code))
    _let_go()
    for _ in _glances(1.0 if lost else PATIENCE):
        if world.store.add("heard", 0) >= world.size - 1:
            break
    return code


def _listen(world: World, line: str, code: int, say: Callable[[str], None], *, lost: bool) -> int:
    """Say nothing where rank 0 says it."""
    _let_go()
    for _ in _glances():
        if world.store.check(["said"]):
            said = int(world.store.get("said"))
            world.store.add("heard", 1)
            return said if lost else code
    _say_first(world, line, say)
    return code


def _say_first(world: World, line: str, say: Callable[[str], None]) -> None:
    if world.store.add("speakers", 1) == 1:
        say(line)


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


def _joined_worlds() -> list[World]:
    """The world that this process has joined, if any; nothing is imported for the answer."""
    module = sys.modules.get("poise.training.ranks")
    return [*module.joined_worlds] if module is not None else []


def _let_go() -> None:
    """Let others notice that this rank exchanges nothing any more; work on a GPU would be waited for."""
    import torch

    if not torch.cuda.is_available():
        import torch.distributed

        torch.distributed.destroy_process_group()
