"""Bilevel tuning (Table 3, row 7): hypergradients of the continuous hyperparameters through a short training.

Franceschi et al. (ICML 2018). With h the tuned hyperparameters and θ_T(h) the model after T steps of SGD on the
local training part,

    min over h of L_valid(θ_T(h)),    dL_valid/dh = ∂L_valid/∂θ_T · dθ_T/dh,

where dθ_T/dh comes from differentiating the T steps themselves in reverse. This is not a policy over a grid: it walks
through continuous values. What it cannot see is what every short horizon hides: the learning
rate is held at its start, later stages of a method are not unrolled, and T steps prefer what pays soon.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from poise import draws
from poise.actions import Action, is_weight
from poise.data import Draws
from poise.nets import BatchNorm, Model, Output
from poise.policies import Planned
from poise.settings import Keys, Rate, key
from poise.training.context import PhaseContext
from poise.training.device import addressed_draws
from poise.training.evaluate import BATCH
from poise.training.events import Event, Progress
from poise.training.step import Objective, weighted_loss
from poise.tuning.environments import Environment, draw_local
from poise.tuning.results import HyperStep
from poise.tuning.search import OTHERS, Choice, Few, Task, Tuner, TunerKind

log = logging.getLogger(__name__)

LARGEST_WEIGHT: Final = 20.0
RATES: Final = (1e-4, 1.0)  # the learning rates that are never left

_UNTUNED: Final = ("ce", "margin")  # terms that distil nothing
_DECAYS: Final = (0.9, 0.999)  # of Adam's moments
_EPSILON: Final = 1e-8

T = TypeVar("T")
State = dict[str, Tensor]
Watched = Generator[Progress, None, T]  # work that says how far it has come


class BilevelOptions(Keys):
    """The options of `bilevel`: how much is spent on a phase."""

    prefix = "policy_options."

    rounds: Few = key(10, "outer updates, each from a new unrolled training on other batches")
    steps: Few = key(10, "inner steps of SGD that are differentiated; time and memory grow in proportion")
    rate: Rate = key(0.2, "size of an outer step (Adam's) in the logarithm of the hyperparameters")


def tuned_axes(action: Action) -> tuple[str, ...]:
    """The axes that hypergradients can move: the weights of distillation terms, and the learning rate.

    >>> tuned_axes(Action(lr=0.1, classifier="fc", feature_kd=1.0, margin=1.0))
    ('feature_kd', 'lr')
    """
    return tuple(axis for axis in action if axis == "lr" or (is_weight(axis) and axis not in _UNTUNED))


class BilevelTuner(Tuner):
    """Hypergradients round by round; the last round holds the action."""

    def choose(self, task: Task) -> Generator[Event, None, Choice]:
        """Continue after the rounds that are done. Where nothing can be held out to validate on, the default stays."""
        environment = draw_local(task.trials.inputs, 0)
        if environment is None:
            log.warning("phase %d has nothing to validate on; its action is not tuned", task.phase)
        else:
            done = [entry for entry in task.history if isinstance(entry, HyperStep)]
            problem = InnerProblem(task.trials.inputs.context, environment, self.default)
            yield from self.note(task, hyper_steps(problem, self.default, BilevelOptions(**self.options), done))
        steps = [entry for entry in task.history if isinstance(entry, HyperStep)]
        return Choice(steps[-1].action if steps else self.default)

    def plan(self, phase: int) -> Planned:
        """The expected cost of a phase: at most the given number of rounds."""
        options = BilevelOptions(**self.options)
        return Planned(options.rounds, steps=options.rounds * options.steps) if phase else Planned()


OTHERS["bilevel"] = TunerKind(
    "bilevel",
    make=BilevelTuner,
    resolve=lambda given: BilevelOptions(**given).as_json(),
    space=None,
    needs_old_images=True,
)


def hyper_steps(
    problem: InnerProblem, action: Action, options: BilevelOptions, done: Sequence[HyperStep] = ()
) -> Iterator[HyperStep | Progress]:
    """Tune the action round by round, after the rounds that are done; the last step holds the chosen one.

    After every step of a round's training it says how far it has come.

    Adam moves u = log(1 + w) for a weight w and v = log(lr): relative steps where values are large, while a weight of 0
    moves by absolute ones, so that it can both be reached and be left. Weights stay in [0, 20], learning rates in
    [1e-4, 1]; an action from outside is first moved to the nearest value inside. A loss or gradient that is not a
    number ends the search at the last action of which they were numbers.
    """
    adam, proven = _Adam(options.rate), action
    current = action.replace(**{axis: _clamp(axis, float(action[axis])) for axis in tuned_axes(action)})
    for number in range(options.rounds):
        if number < len(done):
            loss, gradient = done[number].loss, done[number].gradient
        else:
            loss, gradient = yield from problem.hypergradient(current, options.steps, number)
        tried = HyperStep(problem.phase, number, proven, loss, gradient)
        if tried.finite:
            proven, current = current, adam.update(current, gradient)
            tried = replace(tried, action=current)
        if number >= len(done):
            yield tried
        if not tried.finite:
            return


# The inner problem ----------------------------------------------------------------------------------------------------


class InnerProblem:
    """The training of a phase on an environment as a differentiable function of its hyperparameters.

    The steps are the Trainer's (SGD with momentum and weight decay, augmentation, batch norm on the batch, old head
    rows frozen where the action says so), always in full precision, from the model grown with the new images. Each
    trains on a batch that is drawn at the address (seed, "bilevel", phase, round, step).

    The validation loss is the cross-entropy on the validation part, every class with the same weight, in eval mode:
    with the running statistics as the unrolled steps left them. These depend on the hyperparameters too and are part of
    the derivative.
    """

    def __init__(self, context: PhaseContext, environment: Environment, action: Action) -> None:
        self.phase = context.phase
        self._context = replace(context, backend=replace(context.backend, precision="fp32"))
        with self._context.backend.active():
            self._teacher = self._context.teacher()
            self._model = _with_differentiable_norms(copy.deepcopy(self._context.grow_model(environment.new)))
            self._feed = self._context.feed(environment.kept, environment.new)
        self._model.train_only("all", old_rows=context.trains_old_rows(action))
        self._valid = environment.valid.to(context.backend.device)
        self._stage = context.method.stages(context.growth)[0]
        self._trained = [name for name, parameter in self._model.named_parameters() if parameter.requires_grad]

    def hypergradient(self, action: Action, steps: int, number: int) -> Watched[tuple[float, dict[str, float]]]:
        """The loss at this action, and ∂L/∂θ_T carried back through the steps to the hyperparameters."""
        like = self._model.head.new
        hyper = {axis: like.new_tensor(float(action[axis])).requires_grad_() for axis in tuned_axes(action)}
        state = yield from self.unroll(action, hyper, steps, number)
        with self._context.backend.active():  # whose precision is not that of the phase
            loss, at_end = self._validate(state)
            found = torch.autograd.grad(
                [state[name] for name in at_end],
                list(hyper.values()),
                list(at_end.values()),
                allow_unused=True,  # the first phase has no distillation terms
                materialize_grads=True,
            )
        return loss, {axis: float(value) for axis, value in zip(hyper, found, strict=True)}

    def unroll(self, action: Action, hyper: Mapping[str, Tensor], steps: int, number: int) -> Watched[State]:
        """Parameters and running statistics after the steps, as functions of the hyperparameters."""
        context, model, schedule, clamp = self._context, self._model.train(), self._context.schedule, self._stage.clamp
        weights = {name: hyper.get(name, action.weight(name)) for name in action if is_weight(name)}
        objective = Objective(context.method.configured_for(action), self._stage, context.growth, weights)
        objective.set_class_priors(action, self._feed.labels, model.head.classes)
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        rate, velocity = hyper.get("lr", action.lr), State()
        for step in range(steps):
            with context.backend.active():
                state, loss = self._loss(state, objective, number, step)
                parameters = [state[name] for name in self._trained]
                gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
                for name, gradient in zip(self._trained, gradients, strict=True):
                    if gradient is not None:
                        slope = gradient if clamp is None else gradient.clamp(-clamp, clamp)
                        push = slope + schedule.weight_decay * state[name]
                        velocity[name] = schedule.momentum * velocity[name] + push if name in velocity else push
                        state[name] = state[name] - rate * velocity[name]
            done = (number * steps + step + 1) * min(schedule.batch, len(self._feed))
            yield Progress(context.phase, "bilevel", done, 0, f"round {number + 1}")
        return state

    def _loss(self, state: State, objective: Objective, number: int, step: int) -> tuple[State, Tensor]:
        """The state with its statistics moved on by this step, and the step's loss."""
        pixels, labels, choices = self.batch(number, step)
        images = self._context.preprocessing.training(pixels, choices).contiguous(memory_format=torch.channels_last)
        # A copy of the buffers: this step writes its statistics into it, and a network may change them in place.
        state = {**state, **{name: state[name].clone() for name, _ in self._model.named_buffers()}}
        noise = draws.key(self._context.seed, "bilevel noise", self._context.phase, number, step)
        with addressed_draws(self._model, noise, self._feed.device):
            student = functional_call(self._model, state, (images,))  # writes the statistics into `state`
        with torch.no_grad():
            teacher = self._teacher(images) if self._teacher is not None else None
        return state, weighted_loss(objective, student, teacher, labels, labels)[0]

    def batch(self, number: int, step: int) -> tuple[Tensor, Tensor, Draws]:
        """Pixels, labels and augmentation of one step."""
        context = self._context
        generator = draws.generator(context.seed, "bilevel", context.phase, number, step)
        count = min(context.schedule.batch, len(self._feed))
        order = torch.from_numpy(generator.choice(len(self._feed), size=count, replace=False))
        choices = self._feed.draw(context.preprocessing.augmentation, order, generator)
        crops = choices.crops(self._feed.shape[1:])
        pixels, labels = next(self._feed.batches(order, [(0, count)], crops))
        return pixels, labels, choices.to(self._feed.device)

    def _validate(self, state: State) -> tuple[float, State]:
        """L_valid and its gradient by everything in the state that depends on the training, in batches."""
        self._model.eval()
        values = {name: value.detach() for name, value in state.items()}
        moved = [name for name, value in state.items() if value.grad_fn is not None]
        for name in moved:
            values[name].requires_grad_()
        loss = 0.0
        truth, counts = self._valid.labels, torch.bincount(self._valid.labels)
        weights = (1 / ((counts > 0).sum() * counts[truth].double())).to(self._model.head.new.dtype)
        for first in range(0, len(weights), BATCH):
            part = slice(first, first + BATCH)
            pixels = self._context.preprocessing.plain(self._valid.store.part(part.start, part.stop))
            images = pixels.contiguous(memory_format=torch.channels_last)
            output: Output = functional_call(self._model, values, (images,))
            losses = nn.functional.cross_entropy(output.logits, truth[part], reduction="none")
            total = (weights[part] * losses).sum()
            total.backward()  # type: ignore[no-untyped-call]
            loss += float(total.detach())
        found = {name: values[name].grad for name in moved}
        return loss, {name: gradient for name, gradient in found.items() if gradient is not None}


def _with_differentiable_norms(model: Model) -> Model:
    """The model with batch norms that do the same arithmetic, but whose running statistics stay in the graph.

    torch's own treats them as constants, and a hypergradient without them is a wrong one. The modules stay what they
    are, for a network of one's own may treat its norms by their type.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.forward = partial(_normalise_batch, module)  # type: ignore[method-assign]
        if isinstance(module, BatchNorm):
            module.fuses = False
    return model


def _normalise_batch(norm: _BatchNorm, x: Tensor) -> Tensor:
    """Batch norm: (x − μ) / √(σ² + ε) · weight + bias, by the batch's μ and σ² when training, else the running ones."""
    mean, variance = norm.running_mean, norm.running_var
    if norm.training or mean is None or variance is None:
        variance, mean = torch.var_mean(x, (0, *range(2, x.ndim)), correction=0)
        if norm.training and norm.track_running_stats:
            _track(norm, mean, variance, x.numel() // x.shape[1])
    shape = (1, -1, *(1,) * (x.ndim - 2))
    scale = torch.rsqrt(variance + norm.eps)
    y = (x - mean.view(shape)) * (scale if norm.weight is None else scale * norm.weight).view(shape)
    return y if norm.bias is None else y + norm.bias.view(shape)


def _track(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """Running statistics move towards the batch's, the variance without its bias."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    share = 1.0
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked = norm.num_batches_tracked + 1
        share = 1 / float(norm.num_batches_tracked)
    if norm.momentum is not None:
        share = norm.momentum
    norm.running_mean = norm.running_mean + share * (mean - norm.running_mean)
    norm.running_var = norm.running_var + share * (variance * (count / max(count - 1, 1)) - norm.running_var)


# The outer problem ----------------------------------------------------------------------------------------------------


class _Adam:
    """Adam (Kingma and Ba, 2015) on the logarithms of an action's tuned axes."""

    def __init__(self, rate: float) -> None:
        self._rate, self._updates = rate, 0
        self._moments: dict[str, tuple[float, float]] = {}

    def update(self, action: Action, gradient: Mapping[str, float]) -> Action:
        """The action one step down the gradient."""
        self._updates += 1
        moved = dict[str, float]()
        for axis, derivative in gradient.items():
            value = float(action[axis])
            if axis == "lr":  # u = log λ
                found = math.exp(math.log(value) - self._step(axis, value * derivative))
            else:  # u = log(1 + w)
                found = math.expm1(math.log1p(value) - self._step(axis, (1 + value) * derivative))
            moved[axis] = _clamp(axis, found)
        return action.replace(**moved)

    def _step(self, axis: str, derivative: float) -> float:
        first, second = _DECAYS
        mean, square = self._moments.get(axis, (0.0, 0.0))
        mean, square = first * mean + (1 - first) * derivative, second * square + (1 - second) * derivative**2
        self._moments[axis] = mean, square
        mean, size = mean / (1 - first**self._updates), math.sqrt(square / (1 - second**self._updates))
        return self._rate * mean / (size + _EPSILON)


def _clamp(axis: str, value: float) -> float:
    low, high = RATES if axis == "lr" else (0.0, LARGEST_WEIGHT)
    return min(max(value, low), high)
