"""A small phase on a CPU that actions can be tried in: two old classes, one new one, each a bright stripe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from poise.data import ImageSet, Memory
from poise.methods import make_method
from poise.settings import TrialSettings
from poise.training.context import PhaseContext
from poise.training.device import Backend
from poise.tuning.environments import TrialInputs
from poise.tuning.trials import Trials

from .learners import phase_context


@pytest.fixture
def context(cpu: Backend) -> PhaseContext:
    """A second phase of 40 epochs."""
    return phase_context(make_method("lucir"), cpu)


@pytest.fixture(scope="session")
def bright() -> Callable[[torch.Generator, int, int, int], ImageSet]:
    """Images with a bright stripe where the label says: three upright ones, then three across."""

    def made(generator: torch.Generator, label: int, count: int, first: int) -> ImageSet:
        noise = torch.randint(0, 60, (count, 1, 8, 8), generator=generator)
        stripe = slice(2 * (label % 3), 2 * (label % 3) + 3)
        noise[(..., stripe) if label < 3 else (..., stripe, slice(None))] += 180
        return ImageSet(noise.to(torch.uint8), torch.full((count,), label), torch.arange(first, first + count))

    return made


@pytest.fixture
def make_trials(context: PhaseContext, bright: Callable[..., ImageSet]) -> Callable[..., Trials]:
    """Trials of one new class; keywords are those of `TrialSettings`."""
    generator = torch.Generator().manual_seed(3)
    kept = ImageSet.joined([bright(generator, 0, 6, 0), bright(generator, 1, 6, 10)])
    none = kept.select(torch.empty(0, dtype=torch.long))
    new = bright(generator, 2, 40, 20)

    def made(context: PhaseContext = context, *, executor: Any = None, witness: Any = None, **settings: Any) -> Trials:
        sizes: dict[str, Any] = {"arrived": len(new), "planned": context.schedule.epochs}
        inputs = TrialInputs(context, Memory(kept, none), new, none, 6, TrialSettings(**settings), **sizes)
        return Trials(inputs, executor=executor, witness=witness)

    return made
