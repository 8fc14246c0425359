"""What comes before a phase: in the first one, what was left open is chosen."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from poise.learner.arrival import Arrival
from poise.learner.defaults import Chosen, choose_defaults, suit
from poise.learner.judging import Judging
from poise.learner.phase import Surroundings
from poise.learner.settings import Settings
from poise.learner.state import Knowledge
from poise.learner.workload import planned_work
from poise.training import Event, Outlook, Workload


def open_phase(
    settings: Settings, knowledge: Knowledge, arrival: Arrival, around: Surroundings, outlook: Outlook
) -> Generator[Event, None, Chosen | None]:
    """Choose what was left open, if anything was; meanwhile `outlook` says how much work is to come."""
    if not settings.automatic or arrival.phase:
        return None
    suited = suit(settings, arrival.images, around)
    known = knowledge.preprocessing
    judging = Judging(suited, arrival.images, around, known.augmentation if known is not None else around.augmentation)
    outlook.work = replace(_work(suited, knowledge, arrival), preparing=judging.work)
    try:
        return (yield from choose_defaults(settings, judging))
    finally:
        outlook.work = None


def _work(settings: Settings, knowledge: Knowledge, arrival: Arrival) -> Workload:
    kept = len(knowledge.memory.exemplars) if knowledge.memory is not None else 0
    tunes = arrival.action is None
    return planned_work(settings, arrival.phase, arrival.growth, kept, len(arrival.images), tunes=tunes)
