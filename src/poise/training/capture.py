"""The captured step: a CUDA graph that gathers its own batch and trains on it, replayed with no host work.

Where images stream from the host, the batch is put into a fixed place before each replay.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from poise.data import Draws, Feed
from poise.nets import Model
from poise.training.context import LocalPhase
from poise.training.step import Runner, Step

STRETCH = 32  # replays queued per stretch: enough to hide the host's work, few enough to stop soon
SCARCE = 0.25  # where less of the device's memory than this share is free, what torch keeps is returned to it first


class Warm(threading.local):
    """Steps whose kernels were already chosen and loaded; per thread, as cuDNN's choices are."""

    def __init__(self) -> None:
        self.steps: set[int] = set()


_WARM = Warm()


@contextmanager
def _searching(worthwhile: bool) -> Iterator[None]:
    """Let cuDNN time its kernels for a new size of batch, where the backend lets it and that is worthwhile.

    The last batch of an epoch, smaller or larger, has another size in every training and is a small part of it: its
    kernels are chosen by rule, which takes no time.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = before and worthwhile
    try:
        yield
    finally:
        cudnn.benchmark = before


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:  # noqa: ANN401
    """Record what is queued here as a graph.

    `torch.cuda.graph` would first wait for the work of all lanes and return all memory that torch keeps, at every
    capture. Here other lanes go on meanwhile, and memory is returned only where it is scarce.
    """
    free, total = torch.cuda.mem_get_info(stream.device)
    unused = torch.cuda.memory_reserved(stream.device) - torch.cuda.memory_allocated(stream.device)
    if free < max(SCARCE * total, unused):  # the graph needs a step's memory of its own, which torch may hold unused
        torch.cuda.empty_cache()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # which would hide that memory ran out
                graph.capture_end()
            raise
        graph.capture_end()


class CapturedRunner(Runner):
    """Replays of one captured step per batch size (the last batch of an epoch may have another).

    The epoch's order and draws lie in fixed buffers; a counter on the device says where the next batch starts
    and is advanced by the graph. Warming up and capturing do not change weights, statistics or momentum.
    """

    def __init__(self, step: Step, feed: Feed, bounds: list[tuple[int, int]]) -> None:
        super().__init__(step, feed, bounds)
        device, count = feed.device, len(feed)
        self._order = torch.arange(count, device=device)
        augmentation = step.context.preprocessing.augmentation
        self._draws = augmentation.neutral(count, feed.sizes if augmentation.resized else None).to(device)
        self._slot: Tensor | None = None  # where a step finds the pixels of a batch that comes from the host
        if not feed.resident:
            most = max(stop - start for start, stop in bounds)
            self._slot = torch.zeros(most, *feed.shape, dtype=feed.store.dtype, device=device)
        self._position = torch.zeros((), dtype=torch.long, device=device)
        self._row = torch.zeros((), dtype=torch.long, device=device)
        self._values = torch.empty(0)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def epoch(self, order: Tensor, draws: Draws, noise: int) -> Iterator[Tensor]:
        """Replay the steps of an epoch, yielding the values [steps, names] of each stretch of them.

        Networks that draw random numbers themselves, for which `noise` is, are never captured.
        """
        if not self._graphs:
            self._capture()
        self._order.copy_(order)
        self._draws.load(draws)
        self._position.zero_()
        self._row.zero_()
        own = [self.step.context.backend.world.part_of(*bounds)[:2] for bounds in self.bounds]
        crops = draws.crops(self.feed.shape[1:])
        batches = iter(()) if self._slot is None else self.feed.batches(order, own, crops)
        first = 0
        for done, (start, stop) in enumerate(self.bounds, start=1):
            if self._slot is not None:
                pixels, _ = next(batches)
                self._slot[: len(pixels)].copy_(pixels, non_blocking=True)  # behind the replay of the last one
            self._graphs[stop - start].replay()
            if done - first == STRETCH or done == len(self.bounds):
                yield self._values[first:done]
                first = done

    def _capture(self) -> None:
        """Capture a graph for every batch size, largest first, sharing one pool: they never run at the same time."""
        tensors = [*self.step.model.changing().values(), *self.step.optimiser.tensors()]
        before = [tensor.clone() for tensor in tensors]
        usual = self.bounds[0][1] - self.bounds[0][0]  # the size of all batches but the last one
        sizes = sorted({stop - start for start, stop in self.bounds}, reverse=True)
        side = torch.cuda.Stream(self.feed.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.feed.device))
        with torch.cuda.stream(side):
            for size in sizes:
                kind = self._kind(size)
                if kind not in _WARM.steps or size in (sizes[0], usual):
                    self._position.zero_()
                    with _searching(size == usual):
                        found = self._train_batch(size)
                _WARM.steps.add(kind)
        self._values = torch.zeros(len(self.bounds), len(found), dtype=torch.float32, device=self.feed.device)
        pool, graphs = torch.cuda.graph_pool_handle(), dict[int, torch.cuda.CUDAGraph]()
        for size in sizes:
            self.step.optimiser.zero_grad()
            graph = torch.cuda.CUDAGraph()
            with _searching(size == usual), _recording(graph, pool, side):
                self._values.index_copy_(0, self._row[None], self._train_batch(size)[None])
                self._row += 1
            graphs[size] = graph
        torch.cuda.current_stream(self.feed.device).wait_stream(side)
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
        self._graphs = graphs  # all of them, or none

    def _kind(self, size: int) -> int:
        """A key of everything that determines the kernels of a step: they cannot be chosen during a capture."""
        step, backend = self.step, self.step.context.backend
        shapes = tuple(
            (name, tuple(value.shape))
            for model in (step.model, step.teacher)
            if model is not None
            for name, value in model.state_dict().items()
        )
        trained = tuple(parameter.requires_grad for parameter in step.model.parameters())
        modes = step.model.backbone.training, backend.precision, backend.deterministic
        where = self.feed.device, self.feed.shape
        layers = repr(step.model), repr(step.teacher)  # strides and the like
        others = step.context.preprocessing.augmentation, type(step.objective.method), step.context.growth
        return hash((size, shapes, layers, trained, modes, where, *others))

    def _train_batch(self, size: int) -> Tensor:
        start, stop, weight = self.step.context.backend.world.part_of(0, size)
        window = self._position + torch.arange(size, device=self.feed.device)
        picks = self._order.index_select(0, window)
        labels = self.feed.labels.index_select(0, picks)
        own = window[start:stop]
        draws = self._draws.changed(lambda values: values.index_select(0, own))
        if self._slot is not None:
            pixels = self._slot[: stop - start]
        else:
            pixels = self.feed.gather(picks[start:stop], draws.crops(self.feed.shape[1:]))
        values = self.step(pixels, labels[start:stop], draws, labels, weight)
        self._position += size
        return values


# What is kept for the next training -----------------------------------------------------------------------------------


@dataclass
class StepCache:
    """Networks, images and runners that captured steps of one shape refer to, kept by a lane for later trainings.

    The actions of these trainings may differ in numbers that a step reads and in nothing else (`Action.step_key`).

    Attributes:
        model: the phase's own.
        teacher: the last phase's.
        feed: what is trained on.
        begun: the local phase that the present training starts from, if it is one of a trial.
        students: what the method made besides, by name.
        runners: by the number of the stage, and whether they train it or what comes after each of its epochs.
    """

    model: Model
    teacher: Model | None
    feed: Feed
    begun: LocalPhase | None = None
    students: dict[str, Model] = field(default_factory=dict)
    runners: dict[tuple[int, str], Runner] = field(default_factory=dict)

    def load(self, begun: LocalPhase) -> None:
        """Take over what another training starts from, in place."""
        self.begun = begun
        self.feed.load(begun.feed)
        if self.teacher is not None and begun.teacher is not None:
            self.teacher.load_state_dict(begun.teacher.state_dict())
        self.model.load_changing(begun.model.changing())
        if begun.follows:  # what others left is frozen in it, and not the same for all of them
            self.model.load_fresh(begun.model)
