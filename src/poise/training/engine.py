"""What trains one stage of a training."""

from __future__ import annotations

from dataclasses import dataclass

from poise.actions import Action
from poise.data import Feed
from poise.training.optimiser import Optimiser, forget
from poise.training.step import Runner, Step


@dataclass
class Engine:
    """What trains one stage. It is kept for the next action, so that a captured step serves all of them."""

    feed: Feed
    bounds: list[tuple[int, int]]
    optimiser: Optimiser
    step: Step
    runner: Runner

    def restart(self, action: Action) -> None:
        """Begin again with this action and no momentum."""
        self.step.weigh(action, self.feed.labels)
        forget(self.optimiser)
