"""Which augmentation fits: judged on images of the first phase that are held out for it."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from poise import draws
from poise.data import Augmentation, ImageSet, chunks, mirror, suitable_augmentation
from poise.learner.networks import build_model
from poise.learner.phase import Surroundings, first_preprocessing, is_given
from poise.learner.settings import Settings
from poise.learner.workload import stage_work
from poise.methods import Growth
from poise.nets import net_info
from poise.training import JudgingStep, Schedule, Situation, StepDone, Trainer

HELD_OUT: Final = 0.2  # of each class
FEWEST: Final = 8  # held-out images, below which nothing is judged
MOST_IMAGES: Final = 2_000  # of which the judging trainings see no more
TRAININGS: Final = 2  # one with shifts, one without
LENGTH: Final = 0.4  # of a judging training, as a share of the phase's; of its half, where it is doubled for tuning
MOST_COMPARED: Final = 1_000  # images that are compared with their mirror images
AT_ONCE: Final = 1 << 22  # bytes of them that are turned into floats together
HANDED: Final = 0.6  # share of images told from their mirror images, from which on mirroring is suspected to hurt
SURE: Final = 3.0  # standard errors
CLEARLY: Final = 2.0  # standard errors by which an augmentation must be worse to be left out


@dataclass(frozen=True)
class Judgement:
    """An augmentation, and the reason in a few words."""

    augmentation: Augmentation
    reason: str


@dataclass(frozen=True)
class Judging:
    """How the augmentation of a learner is found.

    Attributes:
        settings: of the learner, in which nothing is left open.
        images: of the first phase.
        around: what else the learner has.
        given: the augmentation that the user gave, if any.
    """

    settings: Settings
    images: ImageSet
    around: Surroundings
    given: Augmentation | None = None

    @cached_property
    def left_alone(self) -> bool:
        """Whether nothing of the network is ever trained."""
        return is_left_alone(self.settings, self.images, self.around)

    @cached_property
    def parts(self) -> tuple[ImageSet, ImageSet]:
        """The images that are trained on, and those that judge."""
        return split_for_judging(self.images, self.settings.seed)

    @cached_property
    def trains(self) -> bool:
        """Whether networks are trained to judge it: not where it is given, or where there are too few images."""
        if self.given is not None or self.left_alone:
            return False
        training, held = self.parts
        return len(held) >= FEWEST and len(set(training.labels.tolist())) >= 2

    @property
    def work(self) -> int:
        """The images that these trainings see."""
        if not self.trains:
            return 0
        training, _ = self.parts
        stages = self.settings.made_method.stages(_growth(training))
        seen = stage_work(stages, self._schedule.epochs, _growth(training), 0, len(training))
        return TRAININGS * round(sum(seen.values()))

    @property
    def _schedule(self) -> Schedule:
        schedule = self.settings.schedule
        doubled = self.settings.kind.tunes and schedule.images is not None  # not where the user says the epochs
        return schedule.lasting(max(1, LENGTH * schedule.epochs / (2 if doubled else 1)))

    def judge(self) -> Generator[JudgingStep, None, Judgement]:
        """Shifts unless images that are never shifted are learned better; mirroring unless left and right matter.

        Two networks are trained for two fifths of the phase (a fifth where the policy tunes, which trains twice as
        long) on four fifths of each class, one with shifts and one without; the fifth that is left judges them. Where
        the first one knows so many of them that no other could be surely better, the second is not trained. Left and
        right matter where a linear rule tells images from their mirror images, or where the network that was trained
        with shifts knows fewer held-out images once they are mirrored. Where the network is `left_alone`, nothing is
        shifted either, and only the linear rule is asked.
        """
        if self.given is not None:
            return Judgement(self.given, "as given")
        images = self.images
        suitable = suitable_augmentation(min(images.shape[1:]))
        shifted, plain = replace(suitable, flip=False), Augmentation(pad=0, flip=False)
        handed = told_from_mirror_image(images, self.settings.seed)
        flip = handed <= HANDED and not is_grey(images)
        if self.left_alone:
            return Judgement(replace(plain, flip=flip), "by their mirror images; nothing of the network is trained")
        if not self.trains:
            return Judgement(replace(suitable, flip=flip), "too few images to judge by")
        with_shifts, mirrored = yield from self._hits(shifted, 1)
        without = with_shifts
        if can_be_surely_beaten(with_shifts, CLEARLY):
            without, _ = yield from self._hits(plain, 2)
        pad = 0 if surely_better(without, with_shifts, CLEARLY) else suitable.pad
        flip = not is_handed(handed, len(images)) and not surely_better(with_shifts, mirrored, CLEARLY)
        held = len(self.parts[1])
        return Judgement(Augmentation(pad, flip, suitable.brightness), f"judged on {held} held-out images")

    def _hits(self, kind: Augmentation, number: int) -> Generator[JudgingStep, None, tuple[Tensor, Tensor]]:
        """Which held-out images a network that was trained with this augmentation knows; the same, mirrored."""
        _, held = self.parts
        trainer, planned = self._trainer(kind), self.work
        trained = planned // TRAININGS * (number - 1)
        for event in trainer.run():
            if isinstance(event, StepDone):
                trained += event.images
                yield JudgingStep(0, number, TRAININGS, trained, planned, event.images)
        extract = trainer.situation.evaluator.extract
        found = [
            extract(trainer.predictor, held, mirrored=mirrored).logits.argmax(dim=1).cpu() == held.labels
            for mirrored in (False, True)
        ]
        return found[0], found[1]

    def _trainer(self, kind: Augmentation) -> Trainer:
        """The training of a new network with this augmentation."""
        settings, (training, _) = self.settings, self.parts
        method = settings.made_method
        model = build_model(settings, training.shape, self.around.net)
        situation = Situation(
            model=model,
            method=method,
            growth=_growth(training),
            preprocessing=first_preprocessing(method, training, kind, net_info(model.backbone)),
            schedule=self._schedule,
            backend=self.around.backend,
            seed=settings.seed,
            phase=0,
        )
        feed = situation.feed(training.select(torch.empty(0, dtype=torch.long)), training)
        grown = situation.grow_model(training)
        return Trainer(situation, grown, None, settings.first_action, feed, address=("augmentation", kind.pad))


def _growth(training: ImageSet) -> Growth:
    return Growth(0, int(training.labels.max()) + 1)


def is_left_alone(settings: Settings, images: ImageSet, around: Surroundings) -> bool:
    """Whether nothing of the network is ever trained: frozen by the method from the start, or by the user."""
    given = is_given(settings, around)
    return settings.made_method.freezes(0, given=given) or (
        given and build_model(settings, images.shape, around.net).is_frozen
    )


def split_for_judging(images: ImageSet, seed: int) -> tuple[ImageSet, ImageSet]:
    """Most of the images of each class, and a fifth of each, at most so many in all as judging may cost."""
    generator = draws.generator(seed, "judged augmentation", 0)
    classes = sorted(set(images.labels.tolist()))
    most = max(5, MOST_IMAGES // len(classes))
    training, held = [], []
    for label in classes:
        members = np.flatnonzero(images.labels.numpy() == label)
        members = generator.permutation(members)[:most]
        count = int(HELD_OUT * len(members))
        held += members[:count].tolist()
        training += members[count:].tolist()
    return images.select(torch.tensor(sorted(training))), images.select(torch.tensor(sorted(held), dtype=torch.long))


def surely_better(one: Tensor, other: Tensor, errors: float) -> bool:
    """Whether one has more hits than the other on the same images, by more than so many standard errors.

    >>> surely_better(torch.tensor([1, 1, 1, 1, 1, 0]).bool(), torch.tensor([0, 0, 0, 1, 1, 0]).bool(), 1.0)
    True
    """
    difference = one.float() - other.float()
    return float(difference.sum()) > errors * math.sqrt(float((difference**2).sum()))


def can_be_surely_beaten(hits: Tensor, errors: float) -> bool:
    """Whether any other hits on the same images can be surely better than these; if any can, hits on all of them.

    >>> can_be_surely_beaten(torch.tensor([1, 1, 0]).bool(), 2.0), can_be_surely_beaten(torch.zeros(5).bool(), 2.0)
    (False, True)
    """
    return surely_better(torch.ones_like(hits), hits, errors)


def told_from_mirror_image(images: ImageSet, seed: int) -> float:
    """The share of images that a linear rule, fitted on others of them, tells from their mirror images.

    An image minus its mirror image changes its sign when mirrored, so a rule is a direction w; ridge regression of 1 on
    these differences finds it, in five folds. Photos stay near a half; digits and letters do not.
    """
    generator = draws.generator(seed, "mirror images", 0)
    picks = torch.from_numpy(generator.permutation(len(images))[:MOST_COMPARED])
    compared = images.store.select(picks)
    side = min(16, *images.shape[1:])
    pixels = torch.cat([_reduce(compared.part(*each), side) for each in chunks(compared, AT_ONCE)])
    differences = (pixels - mirror(pixels)).flatten(1)
    differences = differences / differences.norm(dim=1, keepdim=True).clamp(min=1e-9)
    kernel = differences @ differences.T
    folds, right = torch.arange(len(kernel)) % 5, 0
    for fold in range(5):
        inside, outside = (folds != fold).nonzero().flatten(), (folds == fold).nonzero().flatten()
        if not len(inside) or not len(outside):
            continue
        gram = kernel[inside][:, inside]
        weights = torch.linalg.solve(gram + torch.eye(len(inside), dtype=gram.dtype), torch.ones_like(gram[0]))
        right += int((kernel[outside][:, inside] @ weights > 0).sum())
    return right / max(len(kernel), 1)


def _reduce(pixels: Tensor, side: int) -> Tensor:
    """Images as grey squares of few pixels, float64 [n, side, side]."""
    return torch.nn.functional.adaptive_avg_pool2d(pixels.double().mean(dim=1, keepdim=True), side)[:, 0]


def is_grey(images: ImageSet) -> bool:
    """Whether the images have one channel, or three that are equal, as grey files have."""
    pieces = (images.store.part(start, stop) for start, stop in chunks(images.store))
    return all(bool((piece == piece[:, :1]).all()) for piece in pieces)


def is_handed(share: float, images: int) -> bool:
    """Whether so many images are told from their mirror images that it is no chance.

    >>> is_handed(0.9, 40), is_handed(0.55, 500), is_handed(0.7, 10)
    (True, False, False)
    """
    compared = min(images, MOST_COMPARED)
    return share > HANDED and share > 0.5 + SURE * 0.5 / math.sqrt(max(compared, 1))
