"""One training step, and how steps are run: eagerly (the reference) or as a captured graph (see `capture`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from poise.training.situation import Situation
from poise.training.terms import check_gradient, check_terms, say_unmatched
from poise.training.world import Reduction, Share, World


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
        self._world: World | None = situation.backend.world
        self._reduction: Reduction | None = None

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

    def __call__(self, pixels: Tensor, labels: Tensor, draws: Draws, share: Share | None = None) -> Tensor:
        """Train on one batch of uint8 images; returns the loss and every term, in the order of `names`.

        With a `share`, this is a rank's part of the batch.
        """
        images = self.situation.preprocessing.training(pixels, draws).contiguous(memory_format=torch.channels_last)
        with self.situation.backend.autocast:
            student = self.model(images)
            with torch.no_grad():
                teacher = self.teacher(images) if self.teacher is not None else None
        student = student._replace(prior=self.prior, temperature=self.stage.temperature, class_values=self.class_values)
        if share is not None:
            student = student._replace(batch_labels=share.labels)
        terms = self.method.terms(student, teacher, labels, self.situation.growth)
        if not self.names:
            check_terms(self.method, terms)
        weighted = [self.weights[name] * term if name in self.weights else term for name, term in terms.items()]
        total = torch.stack(weighted).sum()
        if not self.names:
            check_gradient(self.method, terms, total)
            say_unmatched(self.method, self.weights, terms, self.situation.growth)
        self.optimiser.zero_grad()
        (total if share is None else share.weight * total).backward()  # type: ignore[no-untyped-call]
        values = torch.stack([total.detach(), *(term.detach() for term in terms.values())])
        if share is not None:
            values = self._add_up(values, share)
        if self.stage.clamp is not None:
            trained = [parameter for group in self.optimiser.param_groups for parameter in group["params"]]
            nn.utils.clip_grad_value_(trained, self.stage.clamp)
        self.optimiser.step()
        self.names = ("loss", *terms)
        return values

    @torch.no_grad()
    def _add_up(self, values: Tensor, share: Share) -> Tensor:
        """Gradients, and means of values and of moving statistics, over all ranks; the values are returned."""
        assert self._world is not None
        trained = [each for group in self.optimiser.param_groups for each in group["params"] if each.grad is not None]
        statistics = moving_statistics(self.model)
        weighed = torch._foreach_mul([values, *statistics], share.weight)
        parts: Sequence[Tensor] = [*weighed, *(each.grad for each in trained)]
        if self._reduction is None or not self._reduction.fits(parts):
            self._reduction = Reduction(self._world, parts)
        summed = self._reduction.sum(parts)
        if statistics:
            torch._foreach_copy_(statistics, summed[1 : len(weighed)])
        for parameter, gradient in zip(trained, summed[len(weighed) :], strict=True):
            parameter.grad = gradient
        return summed[0].clone()

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
        own = left if world is None else [world.part_of(start, stop)[:2] for start, stop in left]
        batches = self._feed.batches(order, own, crops)
        for whole, (start, stop), (pixels, labels) in zip(left, own, batches, strict=True):
            share = None if world is None else self._share(world, order, whole)
            with seeding(self._drawn, noise + start, self._feed.device):
                values = self._step(pixels, labels, draws.batch(start, stop), share)
            yield values[None]

    def _share(self, world: World, order: Tensor, batch: tuple[int, int]) -> Share:
        picks = order[slice(*batch)].to(self._feed.device)
        return Share(self._feed.labels.index_select(0, picks), world.part_of(*batch).weight)


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
