"""What a run would do: phases, trials, memory and disk, counted without training anything."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from poise.data import ImageSet, fits, free_on
from poise.data.stores import free_memory
from poise.learner import Learner, build_model
from poise.runs.plan import Plan, images_by_origin, read_start


def describe_plan(plan: Plan) -> str:
    """Phases with their trials, the default action, and estimates of memory and disk, as text."""
    recipe, stream = plan.recipe, plan.stream
    train, _ = plan.images()
    refuse_early(plan, train)
    learner = plan.new_learner()
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
    for phase, (group, (kept, new)) in enumerate(zip(stream, plan.images_per_phase(train), strict=True)):
        seen += len(group)
        lines.append(f"{phase:5d}  {len(group):11d}  {seen:7d}  {new:10d}  {kept:11d}  {_trials(plan, phase):>6}")
    last = _networks(learner, train.shape, len(stream))[-1]
    model = last.trained + last.frozen + _head_bytes(learner, train.of_labels(stream.classes))
    lines += [
        "",
        _where_images_live(plan, learner, train),
        _memory_line(train, 8 * model),
        f"disk    about {_size(10 * model + 2**20)} (two checkpoints, two models, the journal)",
    ]
    return "\n".join(lines)


def _trials(plan: Plan, phase: int) -> str:
    """How many trials (of a tuner that is no policy: rounds or episodes) there will be in this phase."""
    return str(plan.settings.tuner.plan(phase).trials)


def _memory_line(train: ImageSet, model: int) -> str:
    """What a run needs of it; images of a pack are not in it."""
    images, needed = f"{_size(train.store.nbytes)} of images", f"{_size(model)} for model, teacher and momentum"
    return f"memory  {images}, {needed}" if train.store.in_memory else f"memory  {needed}; {images} stay in the pack"


def _where_images_live(plan: Plan, learner: Learner, train: ImageSet) -> str:
    """Whether the images of the largest phase stay on the device, by what is free at this moment."""
    device, counts = learner.backend.device, [kept + new for kept, new in plan.images_per_phase(train)]
    needed = train.store.nbytes * max(counts) // max(len(train), 1)
    phase = f"images  {_size(needed)} in the largest phase"
    if train.store.in_memory and device.type == "cpu":
        return f"{phase}, in memory"
    if device.type == "cpu":
        return f"{phase}, streamed from the pack ({_size(free_memory())} of memory are free)"
    room = _size(free_on(device))
    if fits(needed, device):
        return f"{phase}, resident on {device} ({room} are free there)"
    origin = "memory" if train.store.in_memory else "the pack"
    return f"{phase}, streamed from {origin} to {device} ({room} are free there, of which images may take half)"


def refuse_early(plan: Plan, train: ImageSet, *, reads: bool = True) -> None:
    """Refuse what the run would refuse before it trains: a first phase of too few classes, or its `start`.

    The latter cannot be said where the images are not here, nor unless the run `reads` a phase 0 that is there already.
    """
    plan.settings.kind.check_first_phase(len(plan.stream[0]))
    if reads and plan.recipe.start is not None and plan.source.is_here:
        read_start(Path(plan.recipe.start), plan.settings, plan.identity(), images_by_origin(train))


def _head_bytes(learner: Learner, images: ImageSet) -> int:
    """The size of the head once it knows all classes; of some methods it is larger than the network."""
    some = images.first_of_each_label(1)
    phase = learner.phase_of(some, some.labels)
    grown = phase.context.grow_model(phase.material.arrived)
    return sum(value.nbytes for value in grown.head.state_dict().values())


class _Network(NamedTuple):
    """The bytes of a network, and those of networks beside it that earlier phases have frozen."""

    trained: int
    frozen: int


def _networks(learner: Learner, shape: tuple[int, int, int], phases: int) -> list[_Network]:
    """The network in each phase; from the third one on it is assumed to grow as from the second to the third."""
    found, given = list[_Network](), 0  # what the user's own network keeps frozen is no network beside it
    for count in range(min(phases, 3)):
        model = build_model(learner.settings, shape, grown=((1, 1),) * count)
        whole = sum(value.nbytes for value in model.state_dict().values())
        still = whole - sum(value.nbytes for value in model.changing().values())
        given = given if count else still
        found.append(_Network(whole - still + given, still - given))
    while len(found) < phases:
        found.append(_Network(*(2 * last - before for last, before in zip(found[-1], found[-2], strict=True))))
    return found


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
