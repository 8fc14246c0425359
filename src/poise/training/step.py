"""One training step, and how steps are run: eagerly (the reference) or as a captured graph (see `capture`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from poise.actions import Action, is_weight
from poise.data import Draws, Feed
from poise.methods import Stage
from poise.nets import FULL, Backbone, Model
from poise.training.noise import NOTHING, drawn_from, seeding
from poise.training.optimiser import Optimiser
from poise.training.ranks import Reduction, Share
from poise.training.situation import Situation
from poise.training.terms import check_gradient, check_terms, say_unmatched


class Step:
    """Crop, flip, normalise; student and teacher; named terms; their weighted sum; backward, clamped or not; update.

    The weights of the terms and the learning rate live on the device, so that one captured step serves every
    action. Nothing in a step is random, reads a value back, or depends on one.

    On several ranks each has its part of the batch, and gradients, values and statistics are added up before the
    update: all ranks hold the same weights and statistics after it.
    """

    def __init__(
        self,
        situation: Situation,
        optimiser: Optimiser,
        model: Model,
        teacher: Model | None,
        action: Action,
        labels: Tensor,
        stage: Stage,
    ) -> None:
        self.situation, self.model, self.teacher, self.stage = situation, model, teacher, stage
        self.method, self.optimiser = situation.method.configured_for(action), optimiser
        device = situation.backend.device
        self.weights = {name: torch.zeros((), dtype=FULL, device=device) for name in action if is_weight(name)}
        self.prior = torch.zeros(model.head.classes, dtype=FULL, device=device) if "adjustment" in action else None
        self.class_values: Tensor | None = None
        self.weigh(action, labels)
        self.names: tuple[str, ...] = ()  # of the values that a step returns; known after the first step
        self._reduction = Reduction(situation.backend.world)

    def weigh(self, action: Action, labels: Tensor) -> None:
        """Set the weights of the terms to this action's, in place: a captured step uses them from then on.

        `labels` are those of all images that are trained on.
        """
        for name, weight in self.weights.items():
            weight.fill_(action.weight(name))
        if self.prior is not None:
            self.prior.copy_(prior(action, labels, len(self.prior)))
        counts = class_counts(labels, self.model.head.classes)
        values = self.method.class_values(self.stage, action, counts, self.situation.growth)
        if values is not None and self.class_values is not None:
            self.class_values.copy_(values)
        else:
            self.class_values = values

    def __call__(self, pixels: Tensor, labels: Tensor, draws: Draws, share: Share) -> Tensor:
        """Train on a batch of uint8 images, or a rank's share of one; returns the loss and every term (see `names`)."""
        images = self.situation.preprocessing.training(pixels, draws).contiguous(memory_format=torch.channels_last)
        with self.situation.backend.autocast:
            student = self.model(images)
            with torch.no_grad():
                teacher = self.teacher(images) if self.teacher is not None else None
        student = student._replace(
            prior=self.prior,
            temperature=self.stage.temperature,
            class_values=self.class_values,
            batch_labels=share.labels,
        )
        terms = self.method.terms(student, teacher, labels, self.situation.growth)
        if not self.names:
            check_terms(self.method, terms)
        weighted = [self.weights[name] * term if name in self.weights else term for name, term in terms.items()]
        total = torch.stack(weighted).sum()
        if not self.names:
            check_gradient(self.method, terms, total)
            say_unmatched(self.method, self.weights, terms, self.situation.growth)
        self.optimiser.zero_grad()
        (total if share.weight == 1 else share.weight * total).backward()  # type: ignore[no-untyped-call]
        values = torch.stack([total.detach(), *(term.detach() for term in terms.values())])
        trained = [parameter for group in self.optimiser.param_groups for parameter in group["params"]]
        values = self._reduction.add_up(values, share.weight, trained, moving_statistics(self.model))
        if self.stage.clamp is not None:
            nn.utils.clip_grad_value_(trained, self.stage.clamp)
        self.optimiser.step()
        self.names = ("loss", *terms)
        return values

    def drawn_from(self, feed: Feed) -> frozenset[str]:
        """Which global generators student and teacher draw from, where they are networks of one's own."""
        return drawn_in_training(self.situation, self.model, self.teacher, feed)


def moving_statistics(model: Model) -> list[Tensor]:
    """The running statistics that a training step of this model moves."""
    norms = [each for each in model.modules() if isinstance(each, _NormBase) and each.training]
    found = [value for norm in norms for value in (norm.running_mean, norm.running_var)]
    return [value for value in found if value is not None]


def prior(action: Action, labels: Tensor, classes: int) -> Tensor:
    """What is added to the logits of each class where they are compared with labels: τ · log(k / k_max).

    k is how many of the images that are trained on belong to the class, τ the action's adjustment (Menon et al. 2021).
    The training accounts for the counts by itself then, and the logits without it do not prefer what came in numbers.
    """
    counts = class_counts(labels, classes).to(FULL)
    return action.adjustment * torch.log(counts / counts.max())


def class_counts(labels: Tensor, classes: int) -> Tensor:
    """How many of the images that are trained on belong to each class, at least 1."""
    return torch.bincount(labels, minlength=classes)[:classes].clamp(min=1)


class Runner(Protocol):
    """Runs the steps of an epoch, a few at a time."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a step's values, known after the first step."""

    def epoch(self, order: Tensor, draws: Draws, first: int, noise: int) -> Iterator[Tensor]:
        """Run the steps from `first` on; yields the values [steps, names] of each stretch of steps.

        `noise` is the address of this epoch, for networks that draw random numbers themselves.
        """


class EagerRunner:
    """The reference: one step after the other, wherever the images live."""

    def __init__(self, step: Step, feed: Feed, bounds: list[tuple[int, int]]) -> None:
        self._step, self._feed, self._bounds = step, feed, bounds
        self._drawn = step.drawn_from(feed)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a step's values."""
        return self._step.names

    def epoch(self, order: Tensor, draws: Draws, first: int, noise: int) -> Iterator[Tensor]:
        """Run the steps from `first` on, yielding after each."""
        world, crops = self._step.situation.backend.world, draws.crops(self._feed.shape[1:])
        draws, left = draws.to(self._feed.device), self._bounds[first:]
        parts = [world.part_of(*bounds) for bounds in left]
        batches = self._feed.batches(order, [(part.start, part.stop) for part in parts], crops)
        for whole, part, (pixels, labels) in zip(left, parts, batches, strict=True):
            share = Share(labels if part[:2] == whole else self._labels_of(order[slice(*whole)]), part.weight)
            with seeding(self._drawn, noise + part.start, self._feed.device):
                values = self._step(pixels, labels, draws.batch(part.start, part.stop), share)
            yield values[None]

    def _labels_of(self, picks: Tensor) -> Tensor:
        return self._feed.labels.index_select(0, picks.to(self._feed.device))


def drawn_in_training(situation: Situation, model: Model, teacher: Model | None, feed: Feed) -> frozenset[str]:
    """Which global generators a training of this model on these images draws from."""
    if isinstance(model.backbone, Backbone) and (teacher is None or isinstance(teacher.backbone, Backbone)):
        return NOTHING
    ends = torch.tensor([0, len(feed) - 1], device=feed.store.device)  # two, for batch statistics
    few = feed.gather(ends).to(situation.backend.device)
    images = situation.preprocessing.plain(few).contiguous(memory_format=torch.channels_last)
    with situation.backend.autocast:
        drawn = drawn_from(model, images, training=True)
        return drawn if teacher is None else drawn | drawn_from(teacher, images, training=False)
