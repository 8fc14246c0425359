"""The world: the processes (*ranks*) that train one model, each on its part of every batch. Usually there is one.

Every rank runs the same program on the same draws. What they exchange are sums over the batch (in the step), features
(each rank computes some), and what only the first rank knows. Weights and statistics are equal on all ranks after every
step, so any of them could write a checkpoint; rank 0 does. A world of one process exchanges nothing: every sum is its
own, and every value is what it was.
"""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _NormBase

from poise.errors import RankLost, UserError
from poise.nets import Model

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long a rank waits for the others: as long as rank 0 may take for an exam.
PATIENCE: Final = datetime.timedelta(hours=2)
#: A batch with fewer images per rank is not split: batch statistics of one image would mean nothing.
LEAST_PART: Final = 2


class Slice(NamedTuple):
    """A rank's part of a batch: from where to where in the order of the epoch, and what its means weigh in the sum."""

    start: int
    stop: int
    weight: float


class World:
    """All ranks, seen from one of them. Made without arguments, it is this process alone.

    Attributes:
        rank: which one this is; rank 0 writes and says what there is to say.
        local_rank: which one this is on its machine: the GPU with that number is its own.
        leads: whether this is the rank that writes.
        joined: whether torchrun started this process, perhaps as the only one.
        store: where ranks leave notes, also when they can exchange nothing any more.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, local_rank: int = 0, local_size: int = 1, store: Store | None = None
    ) -> None:
        self.rank, self.size, self.local_rank, self._local_size = rank, size, local_rank, local_size
        self.joined, self.leads = store is not None, rank == 0
        self.store: Store = HashStore() if store is None else store

    def __deepcopy__(self, memo: object) -> World:
        return self  # it belongs to the process

    def device(self, word: str) -> str:
        """The device of this rank, for what a user calls the device of the run."""
        if not self.joined:
            return word
        found = torch.cuda.device_count()
        if word == "auto":
            word = "cuda" if found else "cpu"
        if word.startswith("cuda:"):
            raise UserError(f"device={word}: every rank has a GPU of its own under torchrun; use device=cuda")
        if word == "cuda" and found < self._local_size:
            raise UserError(
                f"{self._local_size} ranks on this machine need as many GPUs, and there are {found}; "
                f"use {f'--nproc-per-node={found}' if found else 'device=cpu'}"
            )
        return f"cuda:{self.local_rank}" if word == "cuda" else word

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        """End all ranks with one rank's line where it is refused alone: the others notice only that it is gone."""
        try:
            yield
        except UserError as error:
            self.store.set(f"rank {self.rank}", str(error))
            raise
        except RankLost:
            for rank in range(self.size):
                if self.store.check([f"rank {rank}"]):
                    line = self.store.get(f"rank {rank}").decode()
                    raise UserError(f"rank {rank}: {line}") from None
            raise

    # The batch --------------------------------------------------------------------------------------------------

    def part_of(self, start: int, stop: int) -> Slice:
        """This rank's part of the batch `start` … `stop`: a stretch as long as the others', or one longer.

        A batch that is too small to be split is trained whole by every rank, and counts once: as rank 0 has it.
        """
        count = stop - start
        if count < LEAST_PART * self.size:
            return Slice(start, stop, float(self.leads))
        first, last = self.stretch(count, self.rank)
        return Slice(start + first, start + last, (last - first) / count)

    def stretch(self, count: int, rank: int) -> tuple[int, int]:
        """Which of `count` things, one after the other, are a rank's: from where up to where."""
        return rank * count // self.size, (rank + 1) * count // self.size

    # What is exchanged; `copy_from_rank_0_` and `complete_` only where ranks have joined ------------------------------

    @torch.no_grad()
    def copy_from_rank_0_(self, models: Iterable[Model]) -> None:
        """Take over the values of rank 0's models that a training may change, in place."""
        for model in models:
            for value in filter(Tensor.numel, model.changing().values()):
                held = value.detach().contiguous()
                with _exchanging():
                    dist.broadcast(held, 0)
                value.copy_(held)

    def complete_(self, rows: Tensor, size: int) -> None:
        """Fill in the rows that other ranks computed: of the pieces of `size` rows, each rank had its `stretch`."""
        for rank in range(self.size):
            first, last = self.stretch(-(-len(rows) // size), rank)
            if first < last:
                with _exchanging():
                    dist.broadcast(rows[first * size : last * size], rank)

    def broadcast(self, make: Callable[[], T]) -> T:
        """Make a value on rank 0 and hand it to the other ranks, which make nothing."""
        if not self.joined:
            return make()
        found: list[Any] = [make() if self.leads else None]
        with _exchanging():
            dist.broadcast_object_list(found, 0, device=torch.device("cpu"))
        result: T = found[0]
        return result

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order."""
        if not self.joined:
            return [value]
        found: list[Any] = [None] * self.size
        with _exchanging():
            dist.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Go on when all ranks have come here."""
        self.all_gather(None)

    def refuse_unlike(self, **said: object) -> None:
        """Refuse ranks that differ in one of these, by a line that names the first one that does."""
        everybody = self.all_gather(said)
        for rank, other in enumerate(everybody):
            for name, value in everybody[0].items():
                if other[name] != value:
                    raise UserError(
                        f"rank {rank} has another {name.replace('_', ' ')} than rank 0 ({other[name]}, not {value}); "
                        "give all ranks the same"
                    )


@dataclass
class Reduction:
    """The sums of a step over all ranks after its backward pass: one message for each number format.

    It keeps the memory for that, whose address captured steps hold.
    """

    world: World
    _kinds: list[tuple[torch.dtype, torch.Size]] = field(default_factory=list)
    _flat: dict[torch.dtype, Tensor] = field(default_factory=dict)
    _views: list[Tensor] = field(default_factory=list)

    @torch.no_grad()
    def add_up(self, values: Tensor, weight: float, trained: Sequence[Tensor], model: nn.Module) -> Tensor:
        """Turn what a part of a batch gave into what all of it gives; returns the step's values.

        Gradients of the trained parameters become their sums. Values, and the running statistics that a step of the
        model moves, in place, become means over ranks, each with the weight of its part.
        """
        if not self.world.joined:
            return values
        norms = [each for each in model.modules() if isinstance(each, _NormBase) and each.training]
        moved = (value for norm in norms for value in (norm.running_mean, norm.running_var))
        statistics = [value for value in moved if value is not None]
        graded = [each for each in trained if each.grad is not None]
        weighed = torch._foreach_mul([values, *statistics], weight)
        summed = self.sum([*weighed, *(each.grad for each in graded if each.grad is not None)])
        if statistics:
            torch._foreach_copy_(statistics, summed[1 : len(weighed)])
        for parameter, gradient in zip(graded, summed[len(weighed) :], strict=True):
            parameter.grad = gradient
        return summed[0].clone()

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums, in memory that the next call uses again."""
        if self._kinds != [(each.dtype, each.shape) for each in tensors]:
            self._prepare(tensors)
        torch._foreach_copy_(self._views, list(tensors))
        for flat in self._flat.values():
            with _exchanging():
                dist.all_reduce(flat)
        return self._views

    def _prepare(self, like: Sequence[Tensor]) -> None:
        self._kinds = [(each.dtype, each.shape) for each in like]
        formats = dict.fromkeys(each.dtype for each in like)
        sizes = {dtype: sum(each.numel() for each in like if each.dtype is dtype) for dtype in formats}
        self._flat = {dtype: torch.empty(size, dtype=dtype, device=like[0].device) for dtype, size in sizes.items()}
        self._views, used = [], dict.fromkeys(formats, 0)
        for each in like:
            strides = torch.empty_like(each).stride()  # dense, in the order in which the tensor lies
            self._views.append(self._flat[each.dtype].as_strided(each.shape, strides, used[each.dtype]))
            used[each.dtype] += each.numel()


@contextmanager
def _exchanging() -> Iterator[None]:
    """Whatever goes wrong while ranks exchange something, the reason is that one of them is gone."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ConnectionError) as error:
        log.debug("nothing could be exchanged: %s", error)
        raise RankLost("another rank has ended; the same command goes on from the last checkpoint") from error


ALONE: Final = World()
joined_worlds: list[World] = []  # at most one: it belongs to the process, as torch's own group does


def join_world() -> World:
    """Become one of the ranks that torchrun started; waits for the others."""
    store, rank, size = next(iter(rendezvous("env://", timeout=PATIENCE)))
    on_gpus = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
        store=PrefixStore("exchange", store),
        rank=rank,
        world_size=size,
        timeout=PATIENCE,
    )
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    joined_worlds[:] = [World(rank, size, local_rank, local_size, PrefixStore("notes", store))]
    return joined_worlds[0]


def current_world() -> World:
    """The world that this process has joined, or that of this process alone."""
    return joined_worlds[0] if joined_worlds else ALONE
