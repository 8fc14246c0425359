"""How many images a phase is planned to be trained on: its trials, and its own training."""

from __future__ import annotations

from poise.learner.settings import Settings
from poise.methods import Growth
from poise.policies import Planned
from poise.training import Progress
from poise.tuning import judging_epochs


def planned_work(settings: Settings, phase: int, growth: Growth, images: int, *, tunes: bool = True) -> list[Progress]:
    """The parts of a phase that trains on so many images, nothing of them done yet."""
    schedule, method, action = settings.schedule.paced(images), settings.made_method, settings.default_action
    plan = settings.tuner.plan(phase) if tunes else Planned()
    pace = schedule.epochs / settings.schedule.epochs
    trainings = settings.trials.trainings(growth.new) if phase else 1
    balancing = (method.balancing,) if action.balance == "finetune" and growth.old else ()
    stages = [schedule.apply_to(stage) for stage in (*method.stages(growth), *balancing)]
    judged = judging_epochs(settings.trials, action, phase, schedule.epochs)
    tuning = plan.epochs * pace * images * trainings + plan.steps * min(schedule.batch, images)
    words = f"{plan.trials} trials"
    parts = {
        "trials" if settings.kind.asks else settings.kind.name: tuning,
        "classifiers": 0 if plan.full or settings.memory.reserve else judged * images * trainings,
        "training": images * sum(stage.epochs(schedule.epochs) for stage in stages),
    }
    return [Progress(phase, part, 0, round(count), words) for part, count in parts.items() if count]
