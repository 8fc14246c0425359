"""What a run would do: phases, trials and images, counted without training anything."""

from __future__ import annotations

from pathlib import Path

from poise.data import ImageSet
from poise.runs.plan import Plan, images_by_origin, read_start


def describe_plan(plan: Plan) -> str:
    """Phases with their trials, the default action, and the bytes of the images, as text."""
    recipe, stream = plan.recipe, plan.stream
    train, _ = plan.images()
    refuse_early(plan, train)
    learner, held = plan.new_learner(), plan.images_per_phase(train)
    lines = [
        *plan.notes,
        f"{plan.name}: {recipe.method} on {plan.source.name}, {recipe.setting}, {len(stream)} phases, "
        f"order {recipe.order}, exam {recipe.exam}, seed {recipe.seed}",
        f"network {learner.architecture}, {recipe.epochs} epochs a phase, batch {recipe.batch}, "
        f"device {learner.backend.device}, {learner.backend.precision}",
        f"policy {recipe.policy}, {learner.action_space}",
        f"default action {learner.settings.default_action}",
        *([f"phase 0 is that of {recipe.start}"] if recipe.start is not None else []),
        "",
        "phase  new classes  classes  new images  kept images  trials",
    ]
    seen = 0
    for phase, (group, (kept, new)) in enumerate(zip(stream, held, strict=True)):
        seen += len(group)
        # Of a tuner that is no policy these are rounds or episodes.
        trials = plan.settings.tuner.plan(phase).trials
        lines.append(f"{phase:5d}  {len(group):11d}  {seen:7d}  {new:10d}  {kept:11d}  {trials:>6}")
    largest = train.store.nbytes * max(kept + new for kept, new in held) // max(len(train), 1)
    where = "" if train.store.in_memory else ", which stay in the pack"
    lines += [
        "",
        f"memory  {_size(train.store.nbytes)} of images{where}, {_size(largest)} of them in the largest phase",
    ]
    return "\n".join(lines)


def refuse_early(plan: Plan, train: ImageSet, *, reads: bool = True) -> None:
    """Refuse a `start` that the run would refuse before it trains.

    That cannot be said where the images are not here, nor unless the run `reads` a phase 0 that is there already.
    """
    if reads and plan.recipe.start is not None and plan.source.is_here:
        read_start(Path(plan.recipe.start), plan.settings, plan.identity(), images_by_origin(train))


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
