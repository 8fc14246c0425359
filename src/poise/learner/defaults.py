"""Defaults that look at the data: what a user did not say is chosen when the first images arrive, and written down.

The rules were chosen on the tasks for choosing of `benchmarks/own_images.py` (see `paper/notes/own-images.md`).
Recipes say everything themselves; nothing here touches them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from poise.actions import AxisValue
from poise.data import FEW_IMAGES, Augmentation, ImageSet, batch_bounds, suitable_net
from poise.learner.judging import Judgement, Judging
from poise.learner.phase import Surroundings, is_given
from poise.learner.settings import Settings, only_environment
from poise.learner.views import Views
from poise.training import DefaultsChosen, Event, PhaseStarted
from poise.tuning import DEFAULT_POLICY, TrialSettings
from poise.words import counted

log = logging.getLogger(__name__)

FEWEST_STEPS: Final = 200  # of a phase: with fewer a network from scratch has hardly begun
#: The action where neither a method nor an axis is named: new classes come first, old ones are held by their outputs.
PLASTIC: Final[Mapping[str, AxisValue]] = {
    "feature_kd": 0.0,
    "logit_kd": 1.0,
    "margin": 0.0,
    "adjustment": 1.0,
    "old_rows": "trained",
    "classifier": "ncm",
}
#: What `online` tries on small data beside the default: one action that holds old features too, and moves slowly.
SMALL_SPACE: Final = {
    "feature_kd": (0.3,),
    "lr": (0.4,),  # as a multiple of the default
    "backbone_rate": (0.0, 0.01, 0.1),
    "ridge": (0.0, 1e4, 1e6, 1e8),
}
SMALL_TRIALS: Final = TrialSettings(environment="both", length=0.1, validation=10, even=False, classifier="trials")


class Chosen(NamedTuple):
    """The settings and the augmentation, and how they are told."""

    settings: Settings
    augmentation: Augmentation
    event: DefaultsChosen


def choose_defaults(settings: Settings, judging: Judging) -> Generator[Event, None, Chosen]:
    """What was left open in these settings, with what `suit` made of them; the trainings that judge are events."""
    suited, images = judging.settings, judging.images
    judged = yield from judging.judge()
    line = describe(suited, images, judged)
    log.info("%s", line)
    if not judging.left_alone:
        warn_of_few_steps(suited, settings, len(images))
    event = DefaultsChosen(0, line, _chosen_values(settings, suited, judged.augmentation))
    return Chosen(suited, judged.augmentation, event)


def suit(settings: Settings, images: ImageSet, around: Surroundings) -> Settings:
    """The settings with everything that can be read off the images; the augmentation is judged by training.

    A method that trains a given network slowly keeps the learning rate of its own. With as many images as the paper's
    data sets have, everything but the network is as in the paper's recipes.
    """
    open_keys = frozenset(settings.automatic)
    count, side = len(images), min(images.shape[1:])
    net = settings.net or (None if around.net is not None else suitable_net(side, count))
    schedule = settings.schedule
    if count > FEW_IMAGES and schedule.optimiser != "adamw":
        return replace(settings, net=net, automatic=())
    batch = suitable_batch(count) if "batch" in open_keys else schedule.batch
    adamw = schedule.optimiser == "adamw"
    values: dict[str, Any] = {
        "batch": batch,
        "epochs": suitable_epochs(count, batch, thorough=settings.kind.tunes),
        "decay": "cosine",
        "weight_decay": 0.01 if adamw else 5e-4,
    }
    chosen = replace(schedule, **{name: value for name, value in values.items() if name in open_keys})
    if "epochs" in open_keys:  # else every phase is as long as the user says
        chosen = replace(chosen, images=count)
    rate = 1e-3 if adamw else suitable_rate(batch)
    own = settings.made_method.default_action
    action = dict(PLASTIC) if "method" in open_keys else {}
    slow = "backbone_rate" in own and is_given(settings, around)
    action |= {} if slow else {"lr": rate}
    action = {axis: value for axis, value in action.items() if axis in own} | dict(settings.action)
    found = replace(
        settings,
        schedule=chosen,
        action=action,
        first_lr=settings.first_lr if slow or settings.first_lr is not None else rate,
        net=net,
        automatic=(),
    )
    return found if settings.policy != DEFAULT_POLICY else _trying_little(found, open_keys)


def _trying_little(settings: Settings, open_keys: Collection[str]) -> Settings:
    """The settings with what `online` is like on small data, where that was left open."""
    base, only = settings.default_action, only_environment(settings.made_method, settings.memory)
    environment = only or SMALL_TRIALS.environment
    scaled = {**SMALL_SPACE, "lr": tuple(round(share * base.lr, 6) for share in SMALL_SPACE["lr"])}
    unused = {axis for axis, words in settings.choices.items() if not words}
    space = {axis: tuple(values) for axis, values in scaled.items() if axis in base and axis not in unused}
    options = {"safe": 1.0, **settings.policy_options} if "policy_options" in open_keys else settings.policy_options
    return replace(
        settings,
        space=space if "space" in open_keys and settings.tune is None else settings.space,
        trials=SMALL_TRIALS.tried_once(environment) if "trials" in open_keys else settings.trials,
        policy_options=options,
    )


def suitable_batch(images: int) -> int:
    """Images per step for a first phase of so many."""
    return 32 if images < 5_000 else 64


def suitable_epochs(images: int, batch: int, *, thorough: bool) -> int:
    """Epochs of a phase of so many images: enough steps for few images, enough epochs for many.

    A phase of 800 images has 34 epochs and one of a quarter of them twice as many, within 30 and 80; a larger batch
    than suits them means more epochs, up to four times as many. Where a policy tunes, phases are twice as long: whoever
    waits for trials can wait for that.

    >>> suitable_epochs(200, 32, thorough=False), suitable_epochs(800, 32, thorough=True)
    (68, 68)
    """
    usual = min(80.0, max(30.0, 34 * math.sqrt(800 / images)))
    longer = min(4.0, max(1.0, batch / suitable_batch(images)))
    return round(usual * longer) * (2 if thorough else 1)


def suitable_rate(batch: int) -> float:
    """The learning rate of SGD for batches of this size: 0.05 for 32 images, 0.1 for 128.

    >>> suitable_rate(32), suitable_rate(128)
    (0.05, 0.1)
    """
    return round(min(0.1, 0.05 * math.sqrt(batch / 32)), 3)


def describe(settings: Settings, images: ImageSet, judged: Judgement) -> str:
    """What was chosen, in one line."""
    schedule, augmentation, (channels, height, width) = settings.schedule, judged.augmentation, images.shape
    steps = counted(len(batch_bounds(len(images), schedule.batch)), "step")
    epochs = counted(schedule.epochs, "epoch")
    moved = f"shifts of up to {counted(augmentation.pad, 'pixel')}" if augmentation.pad else "no shifts"
    mirrored = "mirrored" if augmentation.flip else "not mirrored"
    more = f", {augmentation.name}" if augmentation.name else ""
    return (
        f"for {len(images)} images of {width}×{height} pixels{' in colour' if channels == 3 else ''}: "
        f"net {settings.net or 'of your own'}, {epochs} of {steps} (batch {schedule.batch}), "
        f"{schedule.optimiser} at {settings.first_action.lr:g}, {moved}, {mirrored}{more} ({judged.reason})"
    )


def warn_of_few_steps(settings: Settings, given: Settings, images: int) -> None:
    """Say so where a choice of the user's own leaves too few steps for a network from scratch."""
    own = [name for name in ("epochs", "batch") if name not in given.automatic]
    if own and (steps := _too_few_steps(settings, images)):
        few = f"{steps} training steps for {images} images, too few for a network from scratch"
        _warn(settings, own, f"{few}; leave it out")


def warn_of_short_phase(learner: Views, begun: Event) -> None:
    """The same for a later phase, which has fewer images perhaps; one that is paced by them is long enough."""
    settings, phase = learner.settings, learner.phase_under_way
    if not isinstance(begun, PhaseStarted) or not begun.phase or settings.schedule.images is not None:
        return
    images = begun.new_images + begun.memory_images
    if phase is not None and not phase.is_frozen and (steps := _too_few_steps(settings, images)):
        few = f"{steps} training steps for the {images} images of phase {begun.phase}"
        _warn(settings, ["epochs"], f"{few}; begin a learner that leaves it out")


def _too_few_steps(settings: Settings, images: int) -> int:
    """The steps of a phase of so many images, if they are few and would be more if they were chosen; else 0."""
    batch = suitable_batch(images)
    usual = len(batch_bounds(images, batch)) * suitable_epochs(images, batch, thorough=settings.kind.tunes)
    steps = len(batch_bounds(images, settings.schedule.batch)) * settings.schedule.epochs
    return steps if steps < min(FEWEST_STEPS, usual) else 0


def _warn(settings: Settings, own: Sequence[str], few: str) -> None:
    values = " and ".join(f"{name}={getattr(settings.schedule, name)}" for name in own)
    verb = "make" if len(own) > 1 else "makes"
    log.warning("%s %s only %s, or use more epochs or a smaller batch", values, verb, few)


def _chosen_values(before: Settings, after: Settings, augmentation: Augmentation) -> dict[str, Any]:
    """The keys that were open, with their values now."""
    values = {**after.as_json(), **vars(after.schedule)}
    found = {name: values[name] for name in before.automatic if name in values}
    return {**found, "augmentation": augmentation.as_json()}
