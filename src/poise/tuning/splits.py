"""Splits: this round's draw of each environment, and the local phase that every trial on it starts with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from poise import draws
from poise.data import ImageSet, Memory
from poise.methods import Growth
from poise.training import LocalPhase
from poise.tuning.attempt import TrialInputs, TrialSettings
from poise.tuning.environment import Environment, local_environment, look_ahead


@dataclass(frozen=True)
class Split:
    """One draw of an environment, and the local phase that every trial on it starts with."""

    environment: Environment
    first: LocalPhase

    @property
    def trained(self) -> int:
        """How many images are trained on."""
        return len(self.first.feed) + len(self.environment.later or ())


def draw_splits(inputs: TrialInputs, number: int) -> list[Split]:
    """The splits of a round; in a look-ahead the first half of the new classes stands for all of them."""
    splits = []
    for environment in draw_environments(inputs, number):
        situation = inputs.situation
        if environment.later is not None:
            old = situation.growth.old
            arrived = {label for label in environment.new.labels.tolist() if label >= old}
            situation = replace(situation, growth=Growth(old, len(arrived), situation.growth))
        images = environment.kept, environment.new
        splits.append(Split(environment, LocalPhase.of(situation, *images, inputs.settings.balance_length or 0.0)))
    return splits


def draw_environments(inputs: TrialInputs, number: int) -> list[Environment]:
    """This round's draw of each environment; where no look-ahead is possible, of the local one alone."""
    wanted = inputs.settings.environment
    found = [_draw_ahead(inputs, number)] if wanted != "local" else []
    if wanted != "lookahead" or found == [None]:
        found.insert(0, draw_local(inputs, number))
    return [environment for environment in found if environment is not None]


def is_possible(settings: TrialSettings, old: int, memory: Memory, new: ImageSet, reserve: ImageSet) -> bool:
    """Whether a round would have an environment, so that actions can be tried at all.

    That depends on which classes have one image and which have more, so that a few of each are looked at.
    """
    memory = Memory(*(part.first_of_each_label(2) for part in (memory.exemplars, memory.reserve)))
    new, reserve, generator = new.first_of_each_label(2), reserve.first_of_each_label(1), np.random.default_rng(0)
    if settings.environment != "local" and look_ahead(memory, new, reserve, old, generator) is not None:
        return True
    return bool(len(memory) or not old) and local_environment(memory, new, reserve, generator) is not None


def draw_local(inputs: TrialInputs, number: int) -> Environment | None:
    """This round's draw of the local environment; None where it could only reward forgetting or stability."""
    if inputs.situation.growth.old and not len(inputs.memory):  # it would only reward forgetting
        return None
    generator = draws.generator(inputs.situation.seed, "environment", inputs.situation.phase, number)
    count, even = inputs.settings.validation, inputs.settings.even
    return local_environment(inputs.memory, inputs.new, inputs.reserve, generator, count, even=even)


def _draw_ahead(inputs: TrialInputs, number: int) -> Environment | None:
    old = inputs.situation.growth.old
    generator = draws.generator(inputs.situation.seed, "look-ahead", inputs.situation.phase, number)
    return look_ahead(inputs.memory, inputs.new, inputs.reserve, old, generator, inputs.settings.validation)
