from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from poise.actions import Action
from poise.data import ImageSet
from poise.methods import AANets, Growth, Lucir, LwF, Method, PODNet, Stage, make_method
from poise.nets import Model, Output
from poise.training.context import PhaseContext
from poise.training.device import Backend, make_backend
from poise.training.optimiser import Optimiser
from poise.training.step import Step
from poise.tuning.bilevel import BilevelOptions, InnerProblem, _Adam, hyper_steps
from poise.tuning.environments import Environment
from poise.tuning.results import HyperStep

from .learners import ended, phase_context

GROWTH = Growth(old=2, new=1)
SHORT = BilevelOptions(rounds=3, steps=4)
OWN = Lucir.default_action.replace(logit_kd=0.5)


class Smooth(nn.Module):
    """A backbone without kinks: a ReLU makes the trained weights jump where an activation changes its sign."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.Tanh()),
            *(nn.Conv2d(6, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8, momentum=None), nn.Tanh()),
            *(nn.Flatten(), nn.Dropout(dropout), nn.Linear(32, 8), nn.BatchNorm1d(8, affine=False)),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


class Doubled(PhaseContext):
    """A context whose models are in double precision."""

    def grow_model(self, new: ImageSet) -> Model:
        return super().grow_model(new).double()

    def teacher(self) -> Model | None:
        return self.model.teacher(torch.float64)


def smooth_net(dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Smooth(dropout)


@pytest.fixture
def context(cpu: Backend) -> PhaseContext:
    return phase_context(make_method("lucir"), cpu, net=smooth_net(), width=8)


@pytest.fixture(scope="module")
def parts(bright: Callable[..., ImageSet]) -> Environment:
    """Kept, new and validation images of three classes."""
    generator = torch.Generator().manual_seed(3)
    valid = ImageSet.joined([bright(generator, label, count, 0) for label, count in enumerate((3, 4, 8))])
    kept = ImageSet.joined([bright(generator, label, 6, 0) for label in (0, 1)])
    return Environment(kept, bright(generator, 2, 30, 0), valid)


def hypergradient(
    context: PhaseContext, parts: Environment, action: Action = OWN, steps: int = SHORT.steps, number: int = 0
) -> tuple[float, dict[str, float]]:
    return ended(InnerProblem(context, parts, action).hypergradient(action, steps, number))


def rounds(
    context: PhaseContext, parts: Environment, action: Action = OWN, options: BilevelOptions = SHORT
) -> Iterator[HyperStep]:
    going = hyper_steps(InnerProblem(context, parts, action), action, options)
    return (step for step in going if isinstance(step, HyperStep))


def difference(loss: Callable[[Action], float], action: Action, axis: str, width: float) -> float:
    """The central finite difference along one axis."""
    value = float(action[axis])
    above, below = (loss(action.replace(**{axis: value + by})) for by in (width, -width))
    return (above - below) / (2 * width)


@pytest.mark.parametrize(
    ("name", "old_rows", "adjustment"),
    [("lucir", "frozen", 0.0), ("lucir", "trained", 1.0), ("icarl", "trained", 0.0), ("icarl", "trained", 1.0)],
)
def test_the_hypergradient_is_the_finite_difference(
    name: str,
    old_rows: str,
    adjustment: float,
    cpu: Backend,
    parts: Environment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tensor, "float", Tensor.double)  # networks and images in double precision throughout
    method = make_method(name)
    context = phase_context(method, cpu, net=smooth_net().double(), width=8, kind=Doubled)
    context.model.double()
    action = method.default_action.replace(lr=0.1, logit_kd=0.7, old_rows=old_rows, adjustment=adjustment)
    _, gradient = hypergradient(context, parts, action, number=1)
    assert set(gradient) == {"logit_kd", "lr"} | ({"feature_kd"} if name == "lucir" else set())
    for axis, value in gradient.items():
        expected = difference(lambda near: hypergradient(context, parts, near, number=1)[0], action, axis, 1e-5)
        assert value == pytest.approx(expected, rel=1e-6), axis
        assert abs(value) > 1e-4


class Clamped(Lucir):
    """Clamps all but the smallest gradients."""

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        return (Stage(clamp=1e-3),)


@pytest.mark.parametrize(
    ("method", "adjustment"),
    [(Lucir(), 0.0), (Lucir(), 1.0), (LwF(), 1.0), (PODNet(), 0.0), (AANets(), 1.0), (Clamped(), 0.0)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_unrolled_training_is_the_trainers(
    method: Method, adjustment: float, cpu: Backend, parts: Environment
) -> None:
    context = phase_context(method, cpu)
    action, steps = method.default_action.replace(adjustment=adjustment, lr=0.02), 4  # a large one amplifies rounding
    problem = InnerProblem(context, parts, action)
    model = context.grow_model(parts.new).train()
    model.train_only("all", old_rows=action.old_rows == "trained")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = Optimiser(trained, context.schedule, action.lr, cpu.device)
    clamp = method.stages(GROWTH)[0].clamp
    labels = context.feed(parts.kept, parts.new).labels
    step = Step(context, optimiser, model, context.teacher(), action, labels, Stage(clamp=clamp))
    for number in range(steps):
        pixels, batch, choices = problem.batch(0, number)
        step(pixels, batch, choices, batch, 1.0)
    state = ended(problem.unroll(action, {}, steps, 0))
    for key, value in model.state_dict().items():
        torch.testing.assert_close(state[key].detach(), value, rtol=1e-3, atol=1e-4)
    logits, labels = context.evaluator.extract(model, parts.valid.pixels).logits, parts.valid.labels
    by_class = [nn.functional.cross_entropy(logits[labels == label], labels[labels == label]) for label in range(3)]
    loss, _ = hypergradient(context, parts, action, steps)
    assert loss == pytest.approx(float(torch.stack(by_class).mean()), rel=1e-4)
    other, _ = hypergradient(context, parts, action.replace(adjustment=1.0 - adjustment), steps)
    assert other != pytest.approx(loss, rel=1e-5), "new classes have five times as many images as old ones"


def test_a_far_too_small_learning_rate_grows_and_the_loss_falls(context: PhaseContext, parts: Environment) -> None:
    steps = list(rounds(context, parts, OWN.replace(lr=1e-3), BilevelOptions(rounds=12, steps=6, rate=0.4)))
    rates = [step.action.lr for step in steps]
    assert rates == sorted(rates)
    assert rates[-1] > 0.02
    assert steps[-1].loss < steps[0].loss - 0.05
    assert [step.round for step in steps] == list(range(12))


def test_the_same_bytes_twice_and_nothing_else_moved(cpu: Backend, parts: Environment) -> None:
    context = phase_context(make_method("lucir"), cpu, net=smooth_net(dropout=0.3), width=8)
    before = copy.deepcopy(context.model.state_dict())
    found: list[list[HyperStep]] = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            generator = torch.get_rng_state()
            found.append(list(rounds(context, parts)))
            assert torch.equal(generator, torch.get_rng_state())
    assert found[0] == found[1]
    assert list(rounds(replace(context, seed=1), parts)) != found[0]
    assert all(torch.equal(before[name], value) for name, value in context.model.state_dict().items())
    assert not context.model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in context.model.parameters())


def test_it_is_done_in_full_precision_whatever_the_backend(context: PhaseContext, parts: Environment) -> None:
    coarse = replace(context, backend=make_backend("cpu", "bf16", deterministic=False))
    assert hypergradient(coarse, parts) == hypergradient(context, parts)


def test_without_a_teacher_only_the_learning_rate_moves(cpu: Backend, parts: Environment) -> None:
    context = replace(phase_context(make_method("lucir"), cpu, net=smooth_net(), width=8), growth=Growth(0, 3))
    context.model.head.old = nn.Parameter(torch.empty(0, 8))
    context.model.head.new = nn.Parameter(torch.empty(0, 8))
    action = OWN.replace(old_rows="trained")
    decided = list(rounds(context, parts, action))[-1]
    assert {axis for axis, value in decided.gradient.items() if value} == {"lr"}
    assert decided.action.lr != action.lr
    assert decided.action.weight("feature_kd") == pytest.approx(action.weight("feature_kd"))


def test_weights_leave_and_reach_zero_and_nothing_leaves_its_limits() -> None:
    action = Action(feature_kd=0, logit_kd=0.1, lr=0.5, margin=1)
    moved = _Adam(rate=0.2).update(action, {"feature_kd": -1e-3, "logit_kd": 5.0, "lr": -1.0})
    assert moved["feature_kd"] == pytest.approx(math.expm1(0.2), rel=1e-4)
    assert moved["logit_kd"] == 0
    assert moved["lr"] == pytest.approx(0.5 * math.exp(0.2))
    far = _Adam(rate=100.0)
    assert far.update(action, {"feature_kd": -1.0, "lr": 1.0}) == action.replace(feature_kd=20, lr=1e-4)
    assert far.update(action, {"lr": -1e9}).lr == 1


class Breaking(Lucir):
    """A loss that is no number from some step on."""

    def __init__(self, healthy: int) -> None:
        super().__init__()
        self.left = healthy

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        self.left -= 1
        terms = super().terms(student, teacher, labels, growth)
        return terms if self.left >= 0 else {**terms, "ce": terms["ce"] * math.inf}


@pytest.mark.parametrize(("healthy_rounds", "kept_from"), [(0, None), (1, None), (2, 0)])
def test_what_is_no_number_ends_the_search_at_the_last_good_action(
    healthy_rounds: int, kept_from: int | None, context: PhaseContext, parts: Environment
) -> None:
    breaking = replace(context, method=Breaking(healthy_rounds * SHORT.steps))
    steps = list(rounds(breaking, parts))
    assert [step.finite for step in steps] == [True] * healthy_rounds + [False]
    assert steps[-1].action == (OWN if kept_from is None else steps[kept_from].action)
