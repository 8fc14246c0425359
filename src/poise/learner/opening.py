"""What comes before a phase: how long it will take is said and, in the first one, what was left open is chosen."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from poise.data import Augmentation, ImageSet, Memory
from poise.learner.arrival import Arrival
from poise.learner.defaults import Chosen, choose_defaults, suit
from poise.learner.judging import Judging
from poise.learner.phase import Surroundings
from poise.learner.room import refuse_too_large
from poise.learner.settings import Settings
from poise.learner.state import Knowledge
from poise.learner.timing import expect_time
from poise.learner.views import Views
from poise.learner.workload import planned_work
from poise.training import Event, Outlook, Workload
from poise.tuning import is_possible


def open_phase(
    settings: Settings,
    knowledge: Knowledge,
    arrival: Arrival,
    around: Surroundings,
    outlook: Outlook,
    *,
    forecast: bool,
) -> Generator[Event, None, Chosen | None]:
    """Choose what was left open, if anything was; meanwhile `outlook` says how much work is to come.

    With a `forecast`, about how long the phase will take is said first. Before that, what has no room in memory is
    refused.
    """
    opens = bool(settings.automatic) and arrival.phase == 0
    suited = suit(settings, arrival.images, around) if opens else settings
    refuse_too_large(suited, arrival, around, len(knowledge.memory or ()))
    if not opens and not forecast:
        return None
    judging = Judging(suited, arrival.images, around, _given_augmentation(knowledge, around))
    outlook.work = replace(_work(suited, knowledge, arrival), preparing=judging.work if opens else 0)
    try:
        if forecast:
            yield expect_time(suited, knowledge, arrival, around, outlook.work)
        return (yield from choose_defaults(settings, judging)) if opens else None
    finally:
        outlook.work = None


def judging_work(learner: Views, images: ImageSet) -> int:
    """How many images the trainings that judge the augmentation would see, of a learner that has learned nothing."""
    given = _given_augmentation(learner.knowledge, learner._around)
    return Judging(learner.settings, images, learner._around, given).work


def _given_augmentation(knowledge: Knowledge, around: Surroundings) -> Augmentation | None:
    """The augmentation that the user gave, if any."""
    return knowledge.preprocessing.augmentation if knowledge.preprocessing is not None else around.augmentation


def _work(settings: Settings, knowledge: Knowledge, arrival: Arrival) -> Workload:
    memory, new, old = knowledge.memory or Memory.empty(arrival.images.shape), arrival.images, arrival.growth.old
    validates = arrival.phase == 0 or is_possible(settings.trials, old, memory, new, Memory.of(new).reserve)
    images, tunes = (len(memory.exemplars), len(new)), arrival.action is None
    return planned_work(settings, arrival.phase, arrival.growth, *images, tunes=tunes, validates=validates)
