"""How long a phase will take, said before anything of it is learned: from a few steps that are timed and thrown away.

What is measured here is told and never saved: the same run gives the same bytes, however fast the machine is.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch

from poise.data import ImageSet, Memory, Preprocessing, suitable_augmentation
from poise.errors import Diverged
from poise.learner.arrival import Arrival, receive
from poise.learner.phase import Phase, Surroundings, is_given
from poise.learner.room import refuse_too_large
from poise.learner.settings import Settings
from poise.learner.state import Knowledge
from poise.learner.views import Views
from poise.learner.workload import can_validate, planned_work
from poise.methods import Growth
from poise.training import Evaluator, StepDone, TimeExpected, Workload, give_back
from poise.words import duration

log = logging.getLogger(__name__)

SECONDS: Final = 0.4  # for which steps are timed,
STEPS: Final = 20  # but no more than so many
STEP_PIXELS: Final = 2**18  # of the images of a step that is timed on a CPU, at most
BATCHES: Final = 2  # of images that these steps are made with
STEP_COST: Final = 3  # of a step, in passes forward: one forward, and two for the way back
TEACHER_COST: Final = (STEP_COST + 1) / STEP_COST  # a teacher adds one


@dataclass(frozen=True)
class Speed:
    """Seconds for an image: to train on it, and to compute its features where that is done once for all."""

    training: float
    features: float = 0.0

    @property
    def rate(self) -> float:
        """Images trained on in a second; 0 if nothing is trained."""
        return 1 / self.training if self.training else 0.0

    @property
    def looking(self) -> float:
        """Seconds for the features of an image, and of its mirror image: measured, or a third of a step for each."""
        return self.features or 2 * self.training / STEP_COST


def expect_time(
    settings: Settings, knowledge: Knowledge, arrival: Arrival, around: Surroundings, work: Workload
) -> TimeExpected:
    """About how long a phase of so much work will take here, and a later one like the first."""
    speed = measure_speed(settings, knowledge, arrival, around)
    looking = speed.features * (len(arrival.images) + len(knowledge.memory or ()))
    judging, trials, training = (speed.training * each for each in (work.preparing, work.choosing, work.training))
    whole = looking + judging + trials + training
    parts = _parts({"to judge the augmentation": judging, "for trials": trials})
    line = f"phase {arrival.phase} takes about {_about(whole)}{parts}"
    if arrival.phase == 0:
        later = later_phase(settings, arrival)
        tried, trained = (speed.training * TEACHER_COST * each for each in (later.choosing, later.training))
        if is_computed(settings, 1, given=is_given(settings, around)):
            tried, trained = 0.0, speed.looking * len(arrival.images)
        elif speed.features:
            trained += looking
        line += f"; a later phase of as many images about {_about(tried + trained)}"
        line += _parts({"for trials": tried})
    log.info("%s", line)
    return TimeExpected(arrival.phase, line, whole, speed.rate)


def _parts(parts: dict[str, float]) -> str:
    words = [f"{_about(seconds)} of it {purpose}" for purpose, seconds in parts.items() if seconds]
    return "".join(f", {each}" for each in words)


def _about(seconds: float) -> str:
    return duration(max(1.0, seconds))


def later_phase(settings: Settings, arrival: Arrival) -> Workload:
    """The work of a second phase with as many classes and images as the first."""
    sizes = torch.bincount(arrival.images.labels).tolist()
    kept, new = settings.memory.images_per_phase([sizes, sizes])[1]
    validates = can_validate(settings, len(sizes), kept, sizes)
    return planned_work(settings, 1, Growth(len(sizes), len(sizes)), kept, new, validates=validates)


def is_computed(settings: Settings, phase: int, *, given: bool) -> bool:
    """Whether a phase trains nothing: the method freezes the network and computes its head from features."""
    method = settings.made_method
    stages = method.stages(Growth(1 if phase else 0, 1))
    return method.freezes(phase, given=given) and all(stage.trains == "backbone" for stage in stages)


def measure_speed(
    settings: Settings,
    knowledge: Knowledge,
    arrival: Arrival,
    around: Surroundings,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Speed:
    """How fast a phase is trained here, from a few real steps on some of its images. Nothing remains of them."""
    phase = _small_phase(settings, knowledge, arrival, around)
    speed = Speed(_time_steps(phase, seconds, clock), _time_features(phase, clock))
    del phase
    if around.backend.device.type == "cuda":
        give_back()
    return speed


def speed_of(learner: Views, images: ImageSet, seconds: float) -> Speed:
    """How fast this learner would learn these images, labelled by their classes."""
    with learner.backend.active():
        arrival = receive(images, images.labels, learner.settings, learner.knowledge)
        return measure_speed(learner.settings, learner.knowledge, arrival, learner._around, seconds=seconds)


def try_step(learner: Views, images: ImageSet) -> None:
    """Train one step on a few of these images and throw it away: a network that the method cannot use is refused."""
    settings, knowledge, some = learner.settings, learner.knowledge, images.first_of_each_label(1)
    with learner.backend.active():
        arrival = receive(some, some.labels, settings, knowledge)
        phase = _small_phase(settings, knowledge, arrival, learner._around)
        next(phase.make_trainer(phase.usual_action).run(), None)


def _small_phase(settings: Settings, knowledge: Knowledge, arrival: Arrival, around: Surroundings) -> Phase:
    """The phase with a few of its images and of the memory; preprocessed somehow, where nothing was measured yet."""
    batch = settings.schedule.batch
    if around.backend.device.type == "cpu":  # a step on many large images would take minutes
        batch = min(batch, max(2, STEP_PIXELS // math.prod(arrival.images.shape[1:])))
        settings = replace(settings, schedule=replace(settings.schedule, batch=batch))
        refuse_too_large(settings, arrival, around, len(knowledge.memory or ()))
    images = BATCHES * batch
    some, known = _take_some(arrival.images, images), _with_less_memory(knowledge, images)
    if known.preprocessing is None:
        augmentation = around.augmentation or suitable_augmentation(min(some.shape[1:]))
        known = replace(known, preprocessing=Preprocessing.measured(some.store, augmentation))
    alone = replace(around, backend=around.backend.alone)  # ranks would not stop at the same step
    return Phase(settings, known, replace(arrival, images=some, count=len(some)), alone)


def _take_some(images: ImageSet, count: int) -> ImageSet:
    """About so many images, as many of each class."""
    classes = len(set(images.labels.tolist()))
    return images.first_of_each_label(max(1, count // max(classes, 1)))


def _with_less_memory(knowledge: Knowledge, count: int) -> Knowledge:
    """The same with about so many images in memory, and no reserve."""
    return replace(
        knowledge, memory=Memory.of(_take_some(knowledge.memory.exemplars, count)) if knowledge.memory else None
    )


def _time_steps(phase: Phase, seconds: float, clock: Callable[[], float]) -> float:
    """Seconds for an image of the phase's own training; the first step, which prepares much, is left out."""
    wait = phase.situation.backend.synchronise
    marks = [(clock(), 0)]
    try:
        for event in phase.make_trainer(phase.usual_action).run():
            if not isinstance(event, StepDone):
                continue
            if len(marks) == 1:
                wait()
            marks.append((clock(), event.images))
            if len(marks) > STEPS * seconds / SECONDS or marks[-1][0] - marks[1][0] > seconds:
                break
    except Diverged:
        log.debug("the steps that were timed diverged")
    wait()
    done = clock()
    marks = marks[1:] if len(marks) > 2 else marks
    images = sum(count for _, count in marks[1:])
    return (done - marks[0][0]) / images if images else 0.0


def _time_features(phase: Phase, clock: Callable[[], float]) -> float:
    """Seconds for the features of an image, and of its mirror image, where they are computed once in a phase."""
    network, images = phase.material.whole, phase.stored
    if network is None:
        return 0.0
    evaluator = Evaluator(phase.preprocessing, phase.situation.backend)
    started = clock()
    evaluator.extract(network, images)
    evaluator.backend.synchronise()
    return (1 + phase.preprocessing.augmentation.flip) * (clock() - started) / len(images)
