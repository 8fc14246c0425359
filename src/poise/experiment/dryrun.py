"""What a run would do and cost, estimated from a short measurement."""

from __future__ import annotations

import time
from dataclasses import replace

from poise.data import ImageSet
from poise.experiment.run import Plan
from poise.learner import Learner, build_model
from poise.policies import UNTUNED, Outcome
from poise.training import StepDone
from poise.tuning import PolicyTuner
from poise.words import duration

MEASURED_SECONDS = 3.0
TEACHER_COST = 4 / 3  # a step costs forward + backward (3 parts); a teacher adds a forward


def describe_plan(plan: Plan) -> str:
    """Phases, action, and estimates of time, memory and disk, as text."""
    recipe, stream = plan.recipe, plan.stream
    train, _ = plan.images()
    learner = plan.new_learner()
    plain = replace(plan, recipe=recipe.changed(policy=UNTUNED, policy_options={}))
    rate = _images_per_second(plain.new_learner(), train.of_labels(stream[0]))
    lines = [
        *plan.source.notes,
        f"{plan.name}: {recipe.method} on {plan.source.name}, {recipe.setting}, {len(stream)} phases, "
        f"order {recipe.order}, exam {recipe.exam}, seed {recipe.seed}",
        f"network {learner.architecture}, {recipe.epochs} epochs a phase, batch {recipe.batch}, "
        f"device {learner.backend.device}, {learner.backend.precision}",
        f"policy {recipe.policy}, {learner.space}",
        f"default action {learner.space.actions[learner.space.default]}",
        "",
        "phase  new classes  classes  new images  kept images",
    ]
    seen = seconds = tried = 0.0
    first, model = _model_bytes(learner, train.shape)
    trial_epochs, kind = _trial_epochs(plan), plan.settings.kind
    unknown = [f"policy  what {recipe.policy} itself takes is not in this estimate"]
    for phase, (group, (kept, new)) in enumerate(zip(stream, plan.planned(train), strict=True)):
        seen += len(group)
        lines.append(f"{phase:5d}  {len(group):11d}  {int(seen):7d}  {new:10d}  {kept:11d}")
        epoch = (new + kept) / rate * (TEACHER_COST * model / first if phase else 1)
        seconds += epoch * recipe.epochs
        tried += epoch * trial_epochs * (_environments(plan, len(group)) if phase else 0)
    lines += [
        "",
        f"time    about {duration(seconds)} of training at {rate:,.0f} images/s (measured here, without a teacher)",
        *([f"policy  about {duration(tried)} of trials on top, at the same rate"] if tried else []),
        *([] if kind.asks or not kind.tunes else unknown),
        f"memory  {_size(train.pixels.nbytes)} of images, {_size(8 * model)} for model, teacher and momentum",
        f"disk    about {_size(10 * model + 2**20)} (two checkpoints, two models, the journal)",
    ]
    return "\n".join(lines)


def _trial_epochs(plan: Plan) -> int:
    """Epochs of training that the trials of a phase take if all rewards are equal."""
    settings, recipe = plan.settings, plan.recipe
    epochs, longest = 0, dict[int | None, int]()
    if isinstance(settings.tuner, PolicyTuner):
        policy = settings.tuner.policy_after(())
        policy.begin(1)
        while asked := policy.ask():
            for trial in asked:
                epochs += trial.epochs - longest.get(trial.continues, 0)
                longest[trial.id] = trial.epochs
            policy.tell([Outcome(trial, 0.5, (0.5, 0.5)) for trial in asked])
    judged = settings.default_action.classifier == "auto" and not recipe.memory.reserve
    return epochs + (recipe.epochs if judged else 0)


def _environments(plan: Plan, new_classes: int) -> int:
    """The number of environments an action is tried on when `new_classes` classes arrive."""
    settings = plan.settings.trials
    return 2 if settings.environment == "both" and new_classes > 1 else 1 + settings.horizon


def _images_per_second(learner: Learner, arrived: ImageSet) -> float:
    marks = [(time.monotonic(), 0)]  # when each step was done, and its number of images
    told = len(arrived) if learner.settings.memory.knows_increment else None
    for event in learner.fitting(arrived.pixels, arrived.labels, next_images=told):
        if isinstance(event, StepDone):
            marks.append((time.monotonic(), event.images))
        if marks[-1][0] - marks[min(1, len(marks) - 1)][0] > MEASURED_SECONDS:
            break
    marks = marks[1:] if len(marks) > 2 else marks  # the first step is a warm-up, unless it is the only one
    return sum(images for _, images in marks[1:]) / max(marks[-1][0] - marks[0][0], 1e-6)


def _model_bytes(learner: Learner, shape: tuple[int, int, int]) -> tuple[int, int]:
    """The size of the network in the first phase and later; the time of a step is assumed proportional to it."""
    grown: list[tuple[tuple[int, int], ...]] = [(), ((1, 1),)]
    first, later = (build_model(learner.settings, shape, grown=each).state_dict().values() for each in grown)
    return sum(value.nbytes for value in first), sum(value.nbytes for value in later)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
