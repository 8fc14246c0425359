"""How much work a phase is expected to be: its trials, the judgement of classifiers, and its own training."""

from __future__ import annotations

from collections.abc import Iterable

from poise.learner.settings import Settings
from poise.methods import Growth, Stage
from poise.policies import Forecast
from poise.training import Workload
from poise.tuning import judging_epochs


def planned_work(
    settings: Settings, phase: int, growth: Growth, kept: int, new: int, *, tunes: bool = True
) -> Workload:
    """The work of a phase that trains on so many kept and new images; without trials unless it `tunes`."""
    images = kept + new
    schedule, method, action = settings.schedule.paced(images), settings.made_method, settings.default_action
    expected = settings.tuner.forecast(phase) if tunes else Forecast()
    epoch = images * (settings.trials.trainings(growth.new) if phase else 1)
    judged = not (expected.full or settings.memory.reserve)
    judging = judging_epochs(settings.trials, action, phase, schedule.epochs) if judged else 0
    balancing = (method.balancing,) if action.balance == "finetune" and growth.old else ()
    shaped = map(schedule.shaped, (*method.stages(growth), *balancing))
    stages = stage_work(shaped, schedule.epochs, growth, kept, new)
    pace = schedule.epochs / settings.schedule.epochs
    tuning = pace * expected.epochs * epoch + expected.steps * min(schedule.batch, images)
    return Workload(phase, expected.trials, expected.exact, tuning, float(judging * epoch), stages)


def stage_work(stages: Iterable[Stage], epochs: int, growth: Growth, kept: int, new: int) -> dict[str, float]:
    """The images that each stage of a training sees; a balanced one as many of a new class as of an old one."""
    whole = kept + new
    balanced = min(whole, kept / growth.old * sum(growth)) if growth.old and kept else whole
    found = dict[str, float]()
    for stage in stages:
        seen = sum(balanced if each.balanced else whole for each in (stage, stage.after) if each is not None)
        found[stage.name] = found.get(stage.name, 0.0) + float(stage.epochs(epochs) * seen)
    return found
