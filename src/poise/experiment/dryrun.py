"""What a run would do and cost, estimated from a short measurement."""

from __future__ import annotations

import time
from dataclasses import replace

from poise.data import ImageSet
from poise.experiment.plan import Plan
from poise.learner import Learner, build_model
from poise.policies import UNTUNED
from poise.training import StepDone
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
    kind = plan.settings.kind
    unknown = [f"policy  what {recipe.policy} itself takes is not in this estimate"]
    for group, (kept, new), work in zip(stream, plan.planned(train), plan.work(train), strict=True):
        seen += len(group)
        lines.append(f"{work.phase:5d}  {len(group):11d}  {int(seen):7d}  {new:10d}  {kept:11d}")
        each = (TEACHER_COST * model / first if work.phase else 1) / rate  # seconds for an image
        seconds += each * sum(work.stages.values())
        tried += each * (work.tuning * kind.asks + work.judging)
    lines += [
        "",
        f"time    about {duration(seconds)} of training at {rate:,.0f} images/s (measured here, without a teacher)",
        *([f"policy  about {duration(tried)} of trials on top, at the same rate"] if tried else []),
        *([] if kind.asks or not kind.tunes else unknown),
        f"memory  {_size(train.pixels.nbytes)} of images, {_size(8 * model)} for model, teacher and momentum",
        f"disk    about {_size(10 * model + 2**20)} (two checkpoints, two models, the journal)",
    ]
    return "\n".join(lines)


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
