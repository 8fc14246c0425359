"""Every policy by its name: a composition of a plan, a belief, a way to decide, and wrappers around it.

A plan says which trials: a generator of batches for a phase, resumed once the belief has learned from the last batch.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from poise import draws
from poise.errors import UserError, check_number, check_whole, refuse_taken, shown, suggestion
from poise.policies.base import MOST_TRIALS, Array, Outcome, Policy, Setup, Wish
from poise.policies.beliefs import AdaHedge, Belief, Exp3, Informed, Scores
from poise.policies.wrappers import Every, Safe

Option = bool | int | float | str
Builder = Callable[..., Policy]
Batches = Iterator[Sequence[Wish]]

#: The policy that decides unless another one is named.
DEFAULT_POLICY = "online"
#: The word for no policy: the default action in every phase.
UNTUNED = "fixed"
#: The rules of `exp3`: the paper's equations, and its released code.
RULES: Final = ("printed", "released")
#: Options that wrap any policy, with values that theirs must be like.
WRAPPER_OPTIONS: Final[Mapping[str, Option]] = {"safe": 1.0, "every": 1}


class Composed(Policy):
    """A plan (which trials) × a belief (how weights move) × a way to decide (`best` or `sample`)."""

    def __init__(self, setup: Setup, belief: Belief, plan: Callable[[int], Batches], decision: str = "best") -> None:
        super().__init__(setup)
        self.belief, self.plan, self.decision = belief, plan, decision

    def start(self) -> None:
        """Start the plan again; the belief decides what it keeps."""
        self.belief.begin()
        self._batches = self.plan(self.phase)

    def propose(self) -> Sequence[Wish]:
        """The plan's next batch."""
        return next(self._batches, ())

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Hand the outcomes to the belief."""
        self.belief.learn(outcomes)

    def decide(self) -> int:
        """The best arm (the default, if it is among the best), or one drawn from the distribution."""
        if self.decision == "sample":
            generator = draws.generator(self.setup.seed, "policy decision", self.phase)
            return int(generator.choice(len(self.setup.space), p=self.distribution()))
        return self.belief.best()

    def distribution(self) -> Array | None:
        """The belief's."""
        return self.belief.distribution()


@dataclass(frozen=True)
class Preset:
    """What makes a policy of a `Setup` and its options, and what it brings along where the user says nothing else."""

    make: Builder
    space: str = "paper"
    trials: Mapping[str, int | float | str] = field(default_factory=dict)


#: Every policy over trials by its name; `register` adds one.
POLICIES: dict[str, Preset] = {}


def register(
    name: str, space: str = "paper", trials: Mapping[str, int | float | str] | None = None
) -> Callable[[Builder], Builder]:
    """Register a policy under a name: a callable that takes a `Setup`, and options by keyword with defaults."""

    def add(builder: Builder) -> Builder:
        refuse_taken("policy", name, POLICIES[name].make if name in POLICIES else None, builder)
        POLICIES[name] = Preset(builder, space, trials or {})
        return builder

    return add


# Policies, each after its plan ----------------------------------------------------------------------------------------


def every_arm(setup: Setup) -> Batches:
    """Full feedback: all arms on one split."""
    yield [Wish(arm, setup.short) for arm in range(len(setup.space))]


@register("grid")
def grid_policy(setup: Setup) -> Policy:
    """The best of all arms."""
    return Composed(setup, Scores(setup), lambda phase: every_arm(setup))


@register("hedge")
def hedge_policy(setup: Setup) -> Policy:
    """Full feedback with AdaHedge; decides on the leader over all phases."""
    return Composed(setup, AdaHedge(setup), lambda phase: every_arm(setup))


def some_arms(setup: Setup, phase: int, trials: int) -> Batches:
    """Arms drawn at random without replacement, all on one split."""
    generator = draws.generator(setup.seed, "policy arms", phase)
    chosen = generator.choice(len(setup.space), size=min(trials, len(setup.space)), replace=False)
    yield [Wish(arm, setup.short) for arm in sorted(chosen.tolist())]


@register("random")
def random_policy(setup: Setup, *, trials: int = 25) -> Policy:
    """The best of `trials` arms drawn at random; with `trials=0` one random arm, untried."""
    check_whole("trials", trials, 0, MOST_TRIALS)
    if trials == 0:
        return Composed(setup, Scores(setup), lambda phase: iter(()), "sample")
    return Composed(setup, Scores(setup), lambda phase: some_arms(setup, phase, trials))


def one_by_one(setup: Setup, phase: int, belief: Exp3, iterations: int) -> Batches:
    """Algorithm 1: in each iteration one arm drawn from the belief, on a fresh split."""
    for split in range(iterations):
        generator = draws.generator(setup.seed, "policy draw", phase, split)
        yield [Wish(belief.draw(generator), setup.short, split)]


@register("exp3")
def exp3_policy(setup: Setup, *, xi: float = 0.1, iterations: int = 25, rule: str = "printed") -> Policy:
    """Algorithm 1 with Eq. 8; the paper does not give ξ. `rule=released` is the rule of its code, which has no ξ."""
    check_whole("iterations", iterations, 1, MOST_TRIALS)
    check_number("xi", xi, positive=True)
    if rule not in RULES:
        raise UserError(f"unknown rule '{rule}'; {suggestion(rule, RULES)}")
    belief = Exp3(setup, xi, released=rule == "released")
    return Composed(setup, belief, lambda phase: one_by_one(setup, phase, belief, iterations), "sample")


def race(setup: Setup, belief: Scores, rungs: int, finalists: int) -> Batches:
    """Successive halving on one split, within each learning rate.

    Every arm trains until epoch ⌈M₁ / 2^(rungs − 1)⌉. Within each learning rate, the better half then trains until
    twice that epoch, and so on up to M₁. Short trainings favour small learning rates, so arms of different rates are
    not compared before the end. The default is never dropped. With `finalists`, that number of arms of each learning
    rate, and the default, then train for the full length M₂.
    """
    field: list[int] = list(range(len(setup.space)))
    # of a short schedule there are fewer: 1, 2, 3 for M₁ = 3
    lengths = sorted({-(-setup.short // 2**step) for step in range(min(rungs, setup.short.bit_length() + 1))})
    for epochs in lengths:
        yield [Wish(arm, epochs) for arm in field]
        if epochs != lengths[-1]:
            field = best_of_each_rate(setup, field, belief, None)
    if finalists:
        field = best_of_each_rate(setup, field, belief, finalists)
        yield [Wish(arm, setup.full, full=True) for arm in field]


def best_of_each_rate(setup: Setup, field: Iterable[int], belief: Scores, count: int | None) -> list[int]:
    """The best `count` arms (None: the better half) of each learning rate, and the default."""
    groups: dict[float, list[int]] = defaultdict(list)
    for arm in field:
        groups[setup.space.actions[arm].lr].append(arm)
    gains, kept = belief.values(), {setup.space.default}
    for group in groups.values():
        ranked = sorted(group, key=lambda arm: (-gains[arm], arm))
        kept.update(ranked[: count or -(-len(group) // 2)])
    return sorted(kept)


@register("race")
def race_policy(setup: Setup, *, rungs: int = 3, finalists: int = 0) -> Policy:
    """Successive halving within each learning rate, with optional finalists at full length."""
    check_whole("rungs", rungs, 1, MOST_TRIALS)
    check_whole("finalists", finalists, 0, MOST_TRIALS)
    belief = Scores(setup)
    return Composed(setup, belief, lambda phase: race(setup, belief, rungs, finalists))


def narrowing(setup: Setup, belief: Informed, fewest: int, again: int) -> Batches:
    """All arms in the first phase, then half as many from phase to phase, each trained for a whole short schedule.

    Those with the best gains so far stay, the default always, and at least `fewest` with it. In every `again`-th phase
    in which anything is tried, all arms are tried once more: what suits 20 old classes need not suit 80.
    """
    gains, own = belief.gains(), setup.space.default
    halvings = belief.phases % again
    count = max(fewest, -(-len(setup.space) // 2**halvings))
    best = sorted(range(len(setup.space)), key=lambda arm: (arm != own, -gains[arm], arm))
    yield [Wish(arm, setup.short) for arm in sorted(best[:count])]


@register(
    DEFAULT_POLICY,
    "online",
    {"environment": "both", "length": 0.3, "longest": 16, "validation": 30, "even": False, "classifier": "trials"},
)
def online_policy(setup: Setup, *, fewest: int = 4, again: int = 5) -> Policy:
    """The default: fewer arms from phase to phase, all of them again now and then, in its own space (see the docs)."""
    check_whole("fewest", fewest, 1, MOST_TRIALS)
    check_whole("again", again, 1, MOST_TRIALS)
    belief = Informed(setup)
    return Composed(setup, belief, lambda phase: narrowing(setup, belief, fewest, again))


# By name --------------------------------------------------------------------------------------------------------------


def make_policy(name: str, setup: Setup, options: Mapping[str, Option] | None = None) -> Policy:
    """The policy of that name with its options, and wrappers around it: `safe=1.0`, `every=2`.

    >>> from poise.actions import Action
    >>> from poise.actions import make_space
    >>> setup = Setup(make_space("paper", Action(logit_kd=0, feature_kd=1, lr=0.1)), short=16, full=160, seed=0)
    >>> policy = make_policy("grid", setup, {"safe": 1.0, "every": 2})
    >>> policy.begin(1)
    >>> len(policy.ask())
    50
    """
    resolved = resolved_options(name, options)
    own = {key: value for key, value in resolved.items() if key not in WRAPPER_OPTIONS}
    policy, period = POLICIES[name].make(setup, **own), resolved.get("every", 1)
    policy.name = name
    if "safe" in resolved:
        check_number("safe", resolved["safe"])
        policy = Safe(policy, float(resolved["safe"]))
    check_whole("every", period, 1)
    return Every(policy, int(period)) if period != 1 else policy


def resolved_options(name: str, options: Mapping[str, Option] | None = None) -> dict[str, Option]:
    """Every option of the named policy, as given or by default, and the wrappers that were given."""
    parameters = inspect.signature(POLICIES[name].make).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    known, given = {**defaults, **WRAPPER_OPTIONS}, dict(options or {})
    for key, value in given.items():
        if key not in known:
            raise UserError(f"policy {name} has no option '{key}'; {suggestion(key, known)}")
        wanted = (int, float) if isinstance(known[key], float) else type(known[key])
        if not isinstance(value, wanted) or isinstance(value, bool) is not isinstance(known[key], bool):
            raise UserError(f"policy {name}: {key}={shown(value)} must be like {known[key]!r}")
    return {**defaults, **given}
