"""Every policy by its name: a composition of a plan, a belief, a way to decide, and wrappers around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic

from poise import draws
from poise.errors import UserError, check_size, check_whole, shown, suggestion
from poise.policies.base import Array, Outcome, Policy, Setup, Wish
from poise.policies.beliefs import AdaHedge, Exp3, Informed, Scores
from poise.policies.plans import B, TrialPlan, every_arm, narrowing, one_by_one, race, some_arms
from poise.policies.wrappers import Every, Safe

Option = bool | int | float | str
Builder = Callable[..., Policy]

#: The policy that decides unless another one is named.
DEFAULT_POLICY = "online"
#: The most of anything that a policy counts: trials, rounds, rungs.
MOST_TRIALS: Final = 10_000
#: The word for no policy: the default action in every phase.
UNTUNED = "fixed"
#: The rules of `exp3`: the paper's equations, and its released code.
RULES: Final = ("printed", "released")
#: Options that wrap any policy, with values that theirs must be like.
WRAPPER_OPTIONS: Final[Mapping[str, Option]] = {"safe": 1.0, "every": 1}


class Composed(Policy, Generic[B]):
    """A plan (which trials) × a belief (how weights move) × a way to decide (`best` or `sample`)."""

    def __init__(self, setup: Setup, plan: TrialPlan[B], belief: B, decision: str = "best") -> None:
        super().__init__(setup)
        self.plan, self.belief, self.decision = plan, belief, decision
        self._batches: Iterator[Sequence[Wish]] = iter(())

    def start(self) -> None:
        """Start the plan again; the belief decides what it keeps."""
        self.belief.begin()
        self._batches = self.plan(self.setup, self.phase, self.belief)

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


#: Every policy over trials by its name, with what makes it; `register` adds one.
POLICIES: dict[str, Builder] = {}


@dataclass(frozen=True)
class Preset:
    """The defaults of a policy, which the user may override.

    Attributes:
        space: the actions it chooses from.
        trials: trial settings that differ from the general defaults.
    """

    space: str = "paper"
    trials: Mapping[str, int | float | str] = field(default_factory=dict)


#: By the name of a policy, what it brings along: its space and its trials.
PRESETS: dict[str, Preset] = {}


def register(name: str, preset: Preset = Preset()) -> Callable[[Builder], Builder]:  # noqa: B008 - a frozen value
    """Register a policy under a name: a callable that takes a `Setup`, and options by keyword with defaults."""

    def add(builder: Builder) -> Builder:
        POLICIES[name], PRESETS[name] = builder, preset
        return builder

    return add


@register("random")
def random_policy(setup: Setup, *, trials: int = 25) -> Policy:
    """The best of `trials` arms drawn at random; with `trials=0` one random arm, untried."""
    check_whole("trials", trials, 0, MOST_TRIALS)
    plan = some_arms(trials) if trials else every_arm(0)
    return Composed(setup, plan, Scores(setup), "best" if trials else "sample")


@register("grid")
def grid_policy(setup: Setup, *, rounds: int = 1) -> Policy:
    """The best of all arms."""
    check_whole("rounds", rounds, 1, MOST_TRIALS)
    return Composed(setup, every_arm(rounds), Scores(setup))


@register("exp3")
def exp3_policy(
    setup: Setup, *, xi: float = 0.1, iterations: int = 25, centred: bool = False, rule: str = "printed"
) -> Policy:
    """Algorithm 1 with Eq. 8; the paper does not give ξ. `rule=released` is the rule of its code, which has no ξ."""
    check_whole("iterations", iterations, 1, MOST_TRIALS)
    _require(xi > 0, f"xi={xi} must be above 0")
    _require(rule in RULES, f"unknown rule '{rule}'; {suggestion(rule, RULES)}")
    return Composed(
        setup, one_by_one(iterations), Exp3(setup, xi, centred=centred, released=rule == "released"), "sample"
    )


@register("hedge")
def hedge_policy(setup: Setup, *, rounds: int = 1) -> Policy:
    """Full feedback with AdaHedge; decides on the leader over all phases."""
    check_whole("rounds", rounds, 1, MOST_TRIALS)
    return Composed(setup, every_arm(rounds), AdaHedge(setup))


@register("race")
def race_policy(setup: Setup, *, rungs: int = 3, finalists: int = 0) -> Policy:
    """Successive halving within each learning rate, with optional finalists at full length."""
    check_whole("rungs", rungs, 1, MOST_TRIALS)
    check_whole("finalists", finalists, 0, MOST_TRIALS)
    return Composed(setup, race(rungs, finalists), Scores(setup))


@register(
    DEFAULT_POLICY,
    Preset(
        "online",
        {"environment": "both", "length": 0.3, "longest": 16, "validation": 30, "even": False, "classifier": "trials"},
    ),
)
def online_policy(
    setup: Setup,
    *,
    fewest: int = 4,
    again: int = 5,
    carry: float = 0.8,
    handicap: float = 0.03,
    head_start: float = 0.05,
) -> Policy:
    """The default: fewer arms from phase to phase, all of them again now and then, in its own space (see the docs)."""
    check_whole("fewest", fewest, 1, MOST_TRIALS)
    check_whole("again", again, 1, MOST_TRIALS)
    _require(0 <= carry <= 1, f"carry={carry} must be between 0 and 1")
    for name, value in (("handicap", handicap), ("head_start", head_start)):
        _require(-1 <= value <= 1, f"{name}={value} must be a share of right guesses, e.g. 0.05 for five points")
    return Composed(setup, narrowing(fewest, again), Informed(setup, carry, handicap, head_start))


def make_policy(name: str, setup: Setup, options: Mapping[str, Option] | None = None) -> Policy:
    """The policy of that name with its options, and wrappers around it: `safe=1.0`, `every=2`.

    >>> from poise.actions import Action
    >>> from poise.spaces import make_space
    >>> setup = Setup(make_space("paper", Action(logit_kd=0, feature_kd=1, lr=0.1)), short=16, full=160, seed=0)
    >>> policy = make_policy("grid", setup, {"safe": 1.0, "every": 2})
    >>> policy.begin(1)
    >>> len(policy.ask())
    50
    """
    resolved = resolved_options(name, options)
    own = {key: value for key, value in resolved.items() if key not in WRAPPER_OPTIONS}
    policy = POLICIES[name](setup, **own)
    policy.description = {"name": name, **own}
    if "safe" in resolved:
        z = float(resolved["safe"])
        _require(z >= 0, f"safe={z:g} must be a number of standard errors, e.g. safe=1.0")
        policy = Safe(policy, z)
    period = resolved.get("every", 1)
    check_whole("every", period, 1)
    return Every(policy, int(period)) if period != 1 else policy


def resolved_options(name: str, options: Mapping[str, Option] | None = None) -> dict[str, Option]:
    """Every option of the named policy, as given or by default, and the wrappers that were given."""
    if name not in POLICIES:
        raise UserError(f"unknown policy '{name}'; {suggestion(name, POLICIES)}")
    parameters = inspect.signature(POLICIES[name]).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    known, given = {**defaults, **WRAPPER_OPTIONS}, dict(options or {})
    for key, value in given.items():
        if key not in known:
            raise UserError(f"policy {name} has no option '{key}'; {suggestion(key, known)}")
        wanted = (int, float) if isinstance(known[key], float) else type(known[key])
        if not isinstance(value, wanted) or isinstance(value, bool) is not isinstance(known[key], bool):
            raise UserError(f"policy {name}: {key}={shown(value)} must be like {known[key]!r}")
        if isinstance(value, float):
            check_size(f"policy {name}: {key}", value)
    return {**defaults, **given}


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)
