"""Defaults that look at the data: what a user did not say is chosen when the first images arrive, and written down.

The rules were chosen on the tasks for choosing of `benchmarks/own_images.py` (see `paper/notes/own-images.md`).
Recipes say everything themselves; nothing here touches them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from poise import draws
from poise.actions import AxisValue
from poise.data import (
    FEW_IMAGES,
    Augmentation,
    ImageSet,
    batch_bounds,
    chunks,
    suitable_augmentation,
    suitable_net,
)
from poise.learner.networks import build_model
from poise.learner.phase import Phase, first_preprocessing
from poise.learner.settings import KEYS, Runtime, Settings, is_given
from poise.methods import Growth
from poise.nets import net_info
from poise.policies import DEFAULT_POLICY, UNTUNED
from poise.training.context import PhaseContext
from poise.training.events import DefaultsChosen, Event, PhaseStarted, Progress
from poise.training.trainer import Trainer
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
#: Where the first images are photos: features of a network that was trained on ImageNet, and a head of sums over them.
PHOTO_NET: Final = "efficientnet-lite0"
PHOTO_METHOD: Final = "ranpac"
PHOTO_SIDE: Final = 48  # pixels, from which on images in colour count as photos

HELD_OUT: Final = 0.2  # of each class, to judge the augmentation by
FEWEST_HELD_OUT: Final = 8  # images, below which nothing is judged
MOST_IMAGES: Final = 2_000  # that take part in judging
JUDGING_LENGTH: Final = 0.4  # of a judging training, as a share of a phase
CLEARLY: Final = 2.0  # standard errors by which mirroring must be worse to be left out


def choose_defaults(
    settings: Settings, images: ImageSet, runtime: Runtime, given: Augmentation | None
) -> Generator[Event, None, tuple[Settings, Augmentation, DefaultsChosen]]:
    """Settings in which nothing is left open, the augmentation, and the event that tells both.

    They are chosen for the first images; an augmentation that is `given` is not judged.
    """
    suited = fill_in_defaults(settings, images, runtime)
    if given is not None:
        augmentation, reason = given, "as given"
    else:
        augmentation, reason = yield from judge_augmentation(suited, images, runtime)
    line = describe(suited, images, augmentation, reason)
    nothing_named = settings.net is None and runtime.net is None and "method" in settings.automatic
    if nothing_named and suited.method != PHOTO_METHOD and min(images.shape[1:]) >= PHOTO_SIDE:  # they are grey
        line += f"; grey photos are learned better with net={PHOTO_NET} and method={PHOTO_METHOD}"
    log.info("%s", line)
    if not backbone_is_frozen(suited, images, runtime):
        own = [f"{name}={getattr(suited, name)}" for name in ("epochs", "batch") if name not in settings.automatic]
        _warn_of_few_steps(suited, own, len(images), "{} images, too few for a network from scratch; leave it out")
    values = suited.as_json()
    chosen = {name: values[name] for name in settings.automatic if name in values}
    return suited, augmentation, DefaultsChosen(0, line, {**chosen, "augmentation": augmentation.as_json()})


def fill_in_defaults(settings: Settings, images: ImageSet, runtime: Runtime) -> Settings:
    """The settings with everything that can be read off the images; the augmentation is judged by training.

    A method that trains a given network slowly keeps the learning rate of its own. With as many images as the paper's
    data sets have, everything but the network is as in the paper's recipes.
    """
    open_keys = frozenset(settings.automatic)
    settings = _choose_what_learns(settings, images, runtime)
    count, side = len(images), min(images.shape[1:])
    net = settings.net or (None if runtime.net is not None else suitable_net(side, count))
    schedule = settings.schedule
    if count > FEW_IMAGES and schedule.optimiser != "adamw":
        return settings.replace(net=net, automatic=())
    batch = suitable_batch(count) if "batch" in open_keys else schedule.batch
    adamw = schedule.optimiser == "adamw"
    values: dict[str, Any] = {
        "batch": batch,
        "epochs": suitable_epochs(count, batch),
        "decay": "cosine",
        "weight_decay": 0.01 if adamw else 5e-4,
    }
    chosen = {name: value for name, value in values.items() if name in open_keys}
    if "epochs" in open_keys:  # else every phase is as long as the user says
        chosen["images"] = count
    rate = 1e-3 if adamw else suitable_rate(batch)
    own = settings.made_method.default_action
    action = dict(PLASTIC) if "method" in open_keys and settings.method != PHOTO_METHOD else {}
    slow = "backbone_rate" in own and is_given(settings, runtime)
    action |= {} if slow else {"lr": rate}
    action = {axis: value for axis, value in action.items() if axis in own} | dict(settings.action)
    return settings.replace(
        **chosen,
        action=action,
        first_lr=settings.first_lr if slow or settings.first_lr is not None else rate,
        net=net,
        automatic=(),
    )


def _choose_what_learns(settings: Settings, images: ImageSet, runtime: Runtime) -> Settings:
    """Network and method for photos, and the policy, where the user named none of them.

    A policy tunes where it was shown to gain: on as many images as the paper's data sets have. Who says what a policy
    is to try wants one.
    """
    open_keys, chosen = frozenset(settings.automatic), dict[str, Any]()
    if {"policy", "space", "trials", "policy_options"} <= open_keys and settings.tune is None:
        chosen["policy"] = DEFAULT_POLICY if len(images) > FEW_IMAGES else UNTUNED
    its_own = runtime.net is None and settings.net in (None, PHOTO_NET)
    large = min(images.shape[1:]) >= PHOTO_SIDE
    if "method" in open_keys and its_own and large and not is_grey(images):
        chosen |= {"method": PHOTO_METHOD, "net": PHOTO_NET}
    if not chosen:
        return settings
    said = {name: value for name, value in dict(settings).items() if name in KEYS and name not in open_keys}
    again = Settings.resolve(**{**said, **chosen})
    return again.replace(automatic=tuple(name for name in settings.automatic if name not in chosen))


def suitable_batch(images: int) -> int:
    """Images per step for a first phase with this number of images."""
    return 32 if images < 5_000 else 64


def suitable_epochs(images: int, batch: int) -> int:
    """Epochs of a phase with this number of images: enough steps for few images, enough epochs for many.

    A phase of 800 images has 34 epochs and one of a quarter of them twice as many, within 30 and 80; a larger batch
    than suits them means more epochs, up to four times as many.

    >>> suitable_epochs(200, 32), suitable_epochs(800, 32)
    (68, 34)
    """
    usual = min(80.0, max(30.0, 34 * math.sqrt(800 / images)))
    longer = min(4.0, max(1.0, batch / suitable_batch(images)))
    return round(usual * longer)


def suitable_rate(batch: int) -> float:
    """The learning rate of SGD for batches of this size: 0.05 for 32 images, 0.1 for 128.

    >>> suitable_rate(32), suitable_rate(128)
    (0.05, 0.1)
    """
    return round(min(0.1, 0.05 * math.sqrt(batch / 32)), 3)


# The augmentation -------------------------------------------------------------------------------------------------


def judge_augmentation(
    settings: Settings, images: ImageSet, runtime: Runtime
) -> Generator[Event, None, tuple[Augmentation, str]]:
    """Whether images are shifted and mirrored in training, and the reason in a few words.

    Shifts never lost on the development tasks, so all images are shifted. Grey ones, which may be text, are not
    mirrored. Images in colour are, unless a network knows surely fewer of the held-out fifth once they are mirrored: it
    is trained on the other four fifths of each class, for two fifths of an untuned phase.
    """
    suitable = suitable_augmentation(min(images.shape[1:]))
    if settings.made_method.freezes(0, given=is_given(settings, runtime)):
        return Augmentation(pad=0, flip=False), "nothing is trained"
    grey = is_grey(images)
    if backbone_is_frozen(settings, images, runtime):
        return Augmentation(pad=0, flip=not grey), "nothing of the network is trained"
    if grey:
        return replace(suitable, flip=False), "as suits grey images"
    training, held = split_for_judging(images, settings.seed)
    if len(held) < FEWEST_HELD_OUT or len(set(training.labels.tolist())) < 2:
        return suitable, "too few images to judge by"
    trainer = _judging_trainer(settings, training, runtime, replace(suitable, flip=False))
    for _ in trainer.run():
        yield Progress(0, "augmentation", trainer.done, trainer.planned, "judging whether to mirror")
    plain, mirrored = (
        trainer.context.evaluator.extract(trainer.model, held, mirrored=side).logits.argmax(dim=1).cpu() == held.labels
        for side in (False, True)
    )
    return replace(suitable, flip=not surely_better(plain, mirrored)), f"judged on {len(held)} held-out images"


def _judging_trainer(settings: Settings, images: ImageSet, runtime: Runtime, kind: Augmentation) -> Trainer:
    """The training of a new network with this augmentation."""
    method, schedule = settings.made_method, settings.schedule
    model = build_model(settings, images.shape, runtime.net)
    context = PhaseContext(
        model=model,
        method=method,
        growth=Growth(0, int(images.labels.max()) + 1),
        preprocessing=first_preprocessing(method, images, kind, net_info(model.backbone)),
        schedule=schedule.with_epochs(max(1, JUDGING_LENGTH * schedule.epochs)),
        backend=runtime.backend,
        seed=settings.seed,
        phase=0,
    )
    feed = context.feed(images.select(torch.empty(0, dtype=torch.long)), images)
    grown = context.grow_model(images)
    action = settings.first_action(given=is_given(settings, runtime))
    return Trainer(context, grown, None, action, feed, address=("augmentation", kind.pad))


def backbone_is_frozen(settings: Settings, images: ImageSet, runtime: Runtime) -> bool:
    """Whether nothing of the network is ever trained: frozen by the method from the start, or by the user."""
    given = is_given(settings, runtime)
    return settings.made_method.freezes(0, given=given) or (
        given and build_model(settings, images.shape, runtime.net).is_frozen
    )


def split_for_judging(images: ImageSet, seed: int) -> tuple[ImageSet, ImageSet]:
    """Most of the images of each class, and a fifth of each; at most `MOST_IMAGES` in all."""
    generator = draws.generator(seed, "judged augmentation", 0)
    classes = sorted(set(images.labels.tolist()))
    most = max(5, MOST_IMAGES // len(classes))
    training: list[int] = []
    held: list[int] = []
    for label in classes:
        members = generator.permutation(np.flatnonzero(images.labels.numpy() == label))[:most]
        count = int(HELD_OUT * len(members))
        held += members[:count].tolist()
        training += members[count:].tolist()
    return images.select(torch.tensor(sorted(training))), images.select(torch.tensor(sorted(held), dtype=torch.long))


def surely_better(one: Tensor, other: Tensor, errors: float = CLEARLY) -> bool:
    """Whether one has more hits than the other on the same images, by more than a number of standard errors.

    >>> surely_better(torch.tensor([1, 1, 1, 1, 1, 0]).bool(), torch.tensor([0, 0, 0, 1, 1, 0]).bool(), 1.0)
    True
    """
    difference = one.float() - other.float()
    return float(difference.sum()) > errors * math.sqrt(float((difference**2).sum()))


def is_grey(images: ImageSet) -> bool:
    """Whether the images have one channel, or three that are equal, as grey files have."""
    pieces = (images.store.part(start, stop) for start, stop in chunks(images.store))
    return all(bool((piece == piece[:, :1]).all()) for piece in pieces)


# In words ---------------------------------------------------------------------------------------------------------


def describe(settings: Settings, images: ImageSet, augmentation: Augmentation, reason: str) -> str:
    """One line that says which defaults were chosen."""
    schedule, (_, height, width) = settings.schedule, images.shape
    seen = f"for {len(images)} images of {width}×{height} pixels: "
    if settings.method == PHOTO_METHOD and settings.net == PHOTO_NET:
        return (
            f"{seen}photos, so net {settings.net} (trained on ImageNet-1k, frozen) and method {settings.method}; "
            "nothing is trained, and no kept image is needed (memory=0)"
        )
    steps = counted(len(batch_bounds(len(images), schedule.batch)), "step")
    epochs = counted(schedule.epochs, "epoch")
    moved = f"shifts of up to {counted(augmentation.pad, 'pixel')}" if augmentation.pad else "no shifts"
    mirrored = "mirrored" if augmentation.flip else "not mirrored"
    more = f", {augmentation.name}" if augmentation.name else ""
    return (
        f"{seen}net {settings.net or 'of your own'}, {epochs} of {steps} (batch {schedule.batch}), "
        f"{schedule.optimiser} at {settings.first_action().lr:g}, {moved}, {mirrored}{more} ({reason})"
    )


def warn_of_short_phase(settings: Settings, phase: Phase | None, begun: Event) -> None:
    """Warn where a later phase has too few steps; one that is paced by its images is long enough."""
    if isinstance(begun, PhaseStarted) and begun.phase and settings.images is None and phase and not phase.is_frozen:
        where = f"the {{}} images of phase {begun.phase}; begin a learner that leaves it out"
        _warn_of_few_steps(settings, [f"epochs={settings.epochs}"], begun.new_images + begun.memory_images, where)


def _warn_of_few_steps(settings: Settings, own: Sequence[str], images: int, where: str) -> None:
    """Say so where values of the user's `own` leave a phase few steps, and it would have more if they were chosen."""
    batch = suitable_batch(images)
    usual = suitable_epochs(images, batch) * len(batch_bounds(images, batch))
    steps = len(batch_bounds(images, settings.batch)) * settings.epochs
    if own and steps < min(FEWEST_STEPS, usual):
        makes = " and ".join(own) + (" make" if len(own) > 1 else " makes")
        few = f"{counted(steps, 'training step')} for {where.format(images)}"
        log.warning("%s only %s, or use more epochs or a smaller batch", makes, few)
