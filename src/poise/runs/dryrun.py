"""What a run would do: phases, trials, memory and disk, counted without training anything."""

from __future__ import annotations

from pathlib import Path

from poise.data import ImageSet
from poise.learner import Learner, build_model
from poise.runs.plan import Plan, images_by_origin, read_start


def describe_plan(plan: Plan) -> str:
    """Phases with their trials, the default action, and the sizes of images and networks, as text."""
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
    model = _model_bytes(learner, train.of_labels(stream.classes), len(stream))
    where = "" if train.store.in_memory else ", which stay in the pack"
    lines += [
        "",
        f"memory  {_size(train.store.nbytes)} of images{where}, {_size(largest)} of them in the largest phase; "
        f"{_size(8 * model)} for model, teacher and momentum",
        f"disk    about {_size(10 * model + 2**20)} (two checkpoints, two models, the journal)",
    ]
    return "\n".join(lines)


def refuse_early(plan: Plan, train: ImageSet, *, reads: bool = True) -> None:
    """Refuse what the run would refuse before it trains: a first phase of too few classes, or its `start`.

    The latter cannot be said where the images are not here, nor unless the run `reads` a phase 0 that is there already.
    """
    plan.settings.kind.check_first_phase(len(plan.stream[0]))
    if reads and plan.recipe.start is not None and plan.source.is_here:
        read_start(Path(plan.recipe.start), plan.settings, plan.identity(), images_by_origin(train))


def _model_bytes(learner: Learner, images: ImageSet, phases: int) -> int:
    """The size of the network after the last phase, and of its head, which for some methods is larger."""
    network = build_model(learner.settings, images.shape, grown=((1, 1),) * (phases - 1))
    some = images.first_of_each_label(1)
    phase = learner.phase_of(some, some.labels)
    head = phase.context.grow_model(phase.material.arrived).head
    return sum(value.nbytes for part in (network, head) for value in part.state_dict().values())


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
