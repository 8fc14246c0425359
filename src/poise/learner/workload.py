"""How much work a phase is expected to be: its trials, the judgement of classifiers, and its own training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from poise.data import ImageSet, Memory
from poise.learner.settings import Settings
from poise.methods import Growth, Stage
from poise.policies import Forecast
from poise.training import Workload
from poise.tuning import is_possible, judging_epochs


def planned_work(
    settings: Settings, phase: int, growth: Growth, kept: int, new: int, *, tunes: bool = True, validates: bool
) -> Workload:
    """The work of a phase that trains on so many kept and new images.

    There are no trials unless it `tunes`, and after phase 0 none at all, not even to judge classifiers, unless it
    `validates`: unless images can be held out of it.
    """
    images = kept + new
    schedule, method, action = settings.schedule.paced(images), settings.made_method, settings.default_action
    validates = validates or not phase
    expected = settings.tuner.forecast(phase) if tunes and validates else Forecast()
    trainings = settings.trials.trainings(growth.new) if phase else 1
    epoch = images * trainings
    judged = validates and not (expected.full or settings.memory.reserve)
    judging = judging_epochs(settings.trials, action, phase, schedule.epochs) if judged else 0
    balancing = (method.balancing,) if action.balance == "finetune" and growth.old else ()
    shaped = map(schedule.apply_to, (*method.stages(growth), *balancing))
    stages = stage_work(shaped, schedule.epochs, growth, kept, new)
    pace = schedule.epochs / settings.schedule.epochs
    tuning = pace * expected.epochs * epoch + expected.steps * min(schedule.batch, images)
    if balancing:
        least = settings.trials.least_balancing(schedule.apply_to(method.balancing).epochs(schedule.epochs))
        tuning += expected.trials * trainings * least * _balanced_images(growth, kept, new)
    return Workload(phase, expected.trials, expected.exact, tuning, float(judging * epoch), stages)


def can_validate(settings: Settings, old: int, kept: int, new: Sequence[int]) -> bool:
    """Whether images can be held out of a phase, so that actions can be tried in it.

    `kept` images of all `old` classes are shared evenly by them; of each new class so many arrive.
    """
    exemplars = [kept // old + (row < kept % old) for row in range(old)]
    reserved, fresh = ([min(settings.memory.reserve, count // 2) for count in sizes] for sizes in (exemplars, new))
    memory = Memory(_stand_ins(_less(exemplars, reserved)), _stand_ins(reserved))
    return is_possible(settings.trials, old, memory, _stand_ins(_less(new, fresh), old), _stand_ins(fresh, old))


def _less(sizes: Sequence[int], others: Sequence[int]) -> list[int]:
    return [size - other for size, other in zip(sizes, others, strict=True)]


def _stand_ins(sizes: Sequence[int], first: int = 0) -> ImageSet:
    """Images of which only the labels matter: so many of each class, or two if there are more."""
    counts = torch.tensor(sizes, dtype=torch.long).clamp(max=2)
    labels = torch.repeat_interleave(torch.arange(first, first + len(sizes)), counts)
    return ImageSet(torch.empty(len(labels), 1, 1, 1, dtype=torch.uint8), labels, torch.full_like(labels, -1))


def stage_work(stages: Iterable[Stage], epochs: int, growth: Growth, kept: int, new: int) -> dict[str, float]:
    """The images that each stage of a training sees; a balanced one as many of a new class as of an old one."""
    whole, balanced = kept + new, _balanced_images(growth, kept, new)
    found = dict[str, float]()
    for stage in stages:
        seen = sum(balanced if each.balanced else whole for each in (stage, stage.after) if each is not None)
        found[stage.name] = found.get(stage.name, 0.0) + float(stage.epochs(epochs) * seen)
    return found


def _balanced_images(growth: Growth, kept: int, new: int) -> float:
    """About how many images a balanced stage has."""
    whole = kept + new
    return min(whole, kept / growth.old * sum(growth)) if growth.old and kept else whole
