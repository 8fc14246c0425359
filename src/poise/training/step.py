"""One training step, and how steps are run eagerly: the reference. As a captured graph: see `capture`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import starmap
from operator import itemgetter

import torch
from torch import Tensor, nn

from poise.actions import Action, is_weight
from poise.data import Draws, Feed
from poise.errors import UserError, shown
from poise.methods import Growth, Method, Stage
from poise.nets import FULL, Model, Output
from poise.training.context import PhaseContext
from poise.training.device import addressed_draws
from poise.training.optimiser import Optimiser
from poise.training.ranks import Reduction

log = logging.getLogger(__name__)


@dataclass
class Objective:
    """The loss of a stage: the sum of the method's terms, each with its weight.

    Attributes:
        method: as the action configures it.
        stage: with the temperature of its logits.
        growth: how many classes were known, and how many arrived.
        weights: of terms by their names; a term that has none counts as it is.
        prior: added to the logits of each class where they are compared with labels.
        class_values: what the method computed for each class.
    """

    method: Method
    stage: Stage
    growth: Growth
    weights: Mapping[str, Tensor | float]
    prior: Tensor | None = None
    class_values: Tensor | None = None

    def set_class_priors(self, action: Action, labels: Tensor, classes: int) -> None:
        """Set what depends on how many images of each class are trained on, in place where it was set before.

        The prior is τ · log(k / k_max): k of these images belong to the class, τ is the action's adjustment (Menon et
        al. 2021). The training accounts for the counts by itself then, and the logits without it do not prefer what
        came in numbers.
        """
        counts = torch.bincount(labels, minlength=classes)[:classes].clamp(min=1)
        prior = None
        if "adjustment" in action:
            prior = action.adjustment * torch.log(counts.to(FULL) / counts.max())
        values = self.method.class_values(self.stage, action, counts, self.growth)
        if self.prior is None or prior is None:
            self.prior = prior
        else:  # a captured step reads it where it is
            self.prior.copy_(prior)
        if self.class_values is None or values is None:
            self.class_values = values
        else:
            self.class_values.copy_(values)


def weighted_loss(
    objective: Objective, student: Output, teacher: Output | None, labels: Tensor, batch_labels: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch, or of a rank's part of one, and its terms before they are weighed."""
    student = student._replace(
        prior=objective.prior,
        temperature=objective.stage.temperature,
        class_values=objective.class_values,
        batch_labels=batch_labels,
    )
    terms = objective.method.terms(student, teacher, labels, objective.growth)
    check_terms(objective.method, terms)
    weights, weighted = objective.weights, list[Tensor]()
    for name, term in terms.items():
        weighted.append(weights[name] * term if name in weights else term)
    return torch.stack(weighted).sum(), terms


class Step:
    """Crop, flip, normalise; student and teacher; named terms; their weighted sum; backward, clamped or not; update.

    The weights of the terms and the learning rate live on the device, so that one captured step serves every
    action. Nothing in a step is random, reads a value back, or depends on one.

    On several ranks each has its part of the batch, and gradients, values and statistics are added up before the
    update: all ranks hold the same weights and statistics after it.
    """

    def __init__(
        self,
        context: PhaseContext,
        optimiser: Optimiser,
        model: Model,
        teacher: Model | None,
        action: Action,
        labels: Tensor,
        stage: Stage,
    ) -> None:
        self.context, self.model, self.teacher, self.stage, self.optimiser = context, model, teacher, stage, optimiser
        self.weights = dict[str, Tensor]()
        for name in filter(is_weight, action):
            self.weights[name] = torch.zeros((), dtype=FULL, device=context.backend.device)
        self.objective = Objective(context.method.configured_for(action), stage, context.growth, self.weights)
        self.weigh(action, labels)
        self.names: tuple[str, ...] = ()  # of the values that a step returns; known after the first step
        self._reduction = Reduction(context.backend.world)
        self._aside: torch.cuda.Stream | None = None  # where the teacher's short kernels run beside the student's
        if teacher is not None and context.backend.device.type == "cuda":
            self._aside = torch.cuda.Stream(context.backend.device)  # type: ignore[no-untyped-call]

    def weigh(self, action: Action, labels: Tensor) -> None:
        """Set the weights of the terms to this action's, in place: a captured step uses them from then on.

        `labels` are those of all images that are trained on.
        """
        for name, weight in self.weights.items():
            weight.fill_(float(action[name]))
        self.objective.set_class_priors(action, labels, self.model.head.classes)

    def __call__(self, pixels: Tensor, labels: Tensor, draws: Draws, batch_labels: Tensor, weight: float) -> Tensor:
        """Train on a batch of uint8 images; returns the loss and every term (see `names`).

        On several ranks they are a part of the batch, which has these `batch_labels`, and its means count with this
        `weight` in the sum.
        """
        images = self.context.preprocessing.training(pixels, draws).contiguous(memory_format=torch.channels_last)
        with self.context.backend.autocast, self._beside_each_other():
            with torch.no_grad(), torch.cuda.stream(self._aside):
                teacher = self.teacher(images) if self.teacher is not None else None
            student = self.model(images)
        total, terms = weighted_loss(self.objective, student, teacher, labels, batch_labels)
        if not self.names:
            check_loss(self.objective, terms, total)
        self.optimiser.zero_grad()
        (total if weight == 1 else weight * total).backward()  # type: ignore[no-untyped-call]
        values = torch.stack([total.detach(), *(term.detach() for term in terms.values())])
        trained = list(self.optimiser.state)
        values = self._reduction.add_up(values, weight, trained, self.model)
        if self.stage.clamp is not None:
            nn.utils.clip_grad_value_(trained, self.stage.clamp)
        self.optimiser.step()
        self.names = ("loss", *terms)
        if self._aside is not None and not torch.cuda.is_current_stream_capturing():
            # What the teacher returned is free now, for that stream, which torch may have given to another lane, too.
            self._aside.wait_stream(torch.cuda.current_stream(self._aside.device))
        return values

    @contextmanager
    def _beside_each_other(self) -> Iterator[None]:
        """Let the stream of the teacher begin when the images are there, and wait for it in the end."""
        if self._aside is None:
            yield
            return
        main = torch.cuda.current_stream(self._aside.device)
        self._aside.wait_stream(main)
        try:
            yield
        except BaseException:  # memory ran out: torch cannot end a capture of which a stream is left apart
            with suppress(RuntimeError):  # which would hide the reason
                main.wait_stream(self._aside)
            raise
        main.wait_stream(self._aside)


@dataclass
class Runner:
    """Runs the steps of a stage one after the other, wherever the images live: the reference."""

    step: Step
    feed: Feed
    bounds: list[tuple[int, int]]  # of the batches

    def restart(self, action: Action, feed: Feed, teacher: Model | None) -> None:
        """Begin again, with another action, other images and another teacher of these shapes, and no momentum.

        Everything is replaced in place, for a captured step keeps reading from where it was captured.
        """
        if feed is not self.feed:
            self.feed.load(feed)
        if teacher is not None and self.step.teacher is not None and teacher is not self.step.teacher:
            self.step.teacher.load_state_dict(teacher.state_dict())
        self.step.weigh(action, self.feed.labels)
        self.step.optimiser.forget()

    def epoch(self, order: Tensor, draws: Draws, noise: int) -> Iterator[Tensor]:
        """Run the steps of an epoch, yielding the values [1, names] of each.

        `noise` is the address of this epoch, for networks that draw random numbers themselves.
        """
        feed, parts = self.feed, list(starmap(self.step.context.backend.world.part_of, self.bounds))
        batches = feed.batches(order, list(map(itemgetter(0, 1), parts)), draws.crops(feed.store.shape[1:]))
        draws = draws.to(feed.device)
        for bounds, part, (pixels, labels) in zip(self.bounds, parts, batches, strict=True):
            whole, some = labels, draws.batch(part.start, part.stop)
            if part[:2] != bounds:
                whole = feed.labels.index_select(0, order[slice(*bounds)].to(feed.device))
            with addressed_draws(self.step.model, noise + part.start, feed.device):
                values = self.step(pixels, labels, some, whole, part.weight)
            yield values[None]


# What a method returns as its terms -----------------------------------------------------------------------------------


def check_terms(method: Method, terms: object) -> None:
    """Refuse what is no dictionary of losses. It looks at types and shapes alone, and waits for no device."""
    begin = f"method {method.name}: terms"
    if not isinstance(terms, Mapping) or not terms:
        raise UserError(f"{begin} returned {shown(terms)}; it must return a dictionary of losses, such as {{'ce': …}}")
    for name, term in terms.items():
        if not isinstance(name, str):
            raise UserError(f"{begin} returned a loss under {shown(name)}; its name must be text")
        if not isinstance(term, Tensor):
            raise UserError(f"{begin} returned {name}={shown(term)}; a term must be a tensor, computed from student")
        if term.ndim:
            why = "a term must be one number: take the mean over the batch"
            raise UserError(f"{begin} returned {name} of shape {list(term.shape)}; {why}")


def check_loss(objective: Objective, terms: Mapping[str, Tensor], total: Tensor) -> None:
    """Refuse a loss from which nothing can be learned, and warn of axes of an action that are the weight of no term.

    Misspelt ones are. A first phase lacks terms, as does one without new classes; and a method of several stages, or
    of a stage and its balancing, may have a term in one of them alone. Of poise's own methods it is known that every
    axis has its term.
    """
    method, growth = objective.method, objective.growth
    if not total.requires_grad:
        why = "compute one from student, without detach, item, argmax or no_grad"
        raise UserError(f"method {method.name}: no term ({', '.join(terms)}) has a gradient; {why}")
    balances = objective.stage.name == method.balancing.name
    if not (growth.old and growth.new) or balances or len(method.stages(growth)) > 1:
        return
    if type(method).__module__.partition(".")[0] != __name__.partition(".")[0]:
        for axis in sorted({*objective.weights} - {*terms}):
            _say_once(method.name, axis, ", ".join(terms))


@cache
def _say_once(method: str, axis: str, terms: str) -> None:
    why = f"its terms are {terms}; correct the name, or register_axis if it is a setting"
    log.warning("method %s: its action names '%s', which is no term and so changes nothing; %s", method, axis, why)
