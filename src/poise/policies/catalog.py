"""Every policy by its name: a composition of a plan, a belief, a way to decide, and wrappers around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from poise import draws
from poise.errors import UserError, check_size, check_whole, shown, suggestion
from poise.policies.base import Array, Fixed, Outcome, Policy, Setup, Wish
from poise.policies.beliefs import AdaHedge, Exp3, Informed, Paired, Scores
from poise.policies.plans import B, TrialPlan, best_guesses, every_arm, narrowing, one_by_one, race, some_arms
from poise.policies.surrogate import KERNELS, Surrogate
from poise.policies.wrappers import Every, Safe
from poise.spaces import FIRST_ONLINE

Option = bool | int | float | str
Builder = Callable[..., Policy]

DECISIONS = ("best", "sample")
#: The policy that decides unless another one is named.
DEFAULT_POLICY = "online"
#: The most of anything that a policy counts: trials, rounds, rungs.
MOST_TRIALS: Final = 10_000
#: The most actions of a smooth model of all of them, whose cost grows with their cube.
MOST_MODELLED: Final = 1_000
#: The policy that chooses nothing.
UNTUNED = "fixed"
#: Options that wrap any policy.
WRAPPER_OPTIONS = ("safe", "safe_plain", "every")


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
        tunes: whether it tries anything at all.
    """

    space: str = "paper"
    trials: Mapping[str, int | float | str] = field(default_factory=dict)
    tunes: bool = True


#: By the name of a policy, what it brings along: its space, its trials, and whether it tunes.
PRESETS: dict[str, Preset] = {}


def register(name: str, preset: Preset = Preset()) -> Callable[[Builder], Builder]:  # noqa: B008 - a frozen value
    """Register a policy under a name: a callable that takes a `Setup`, and options by keyword with defaults."""

    def add(builder: Builder) -> Builder:
        POLICIES[name], PRESETS[name] = builder, preset
        return builder

    return add


register(UNTUNED, Preset(tunes=False))(Fixed)


@register("random")
def random_policy(setup: Setup, *, trials: int = 25, carry: float = 0.0) -> Policy:
    """The best of `trials` arms drawn at random; with `trials=0` one random arm, untried."""
    check_whole("trials", trials, 0, MOST_TRIALS)
    _share("carry", carry)
    plan = some_arms(trials) if trials else every_arm(0)
    return Composed(setup, plan, Scores(setup, carry), "best" if trials else "sample")


@register("grid")
def grid_policy(setup: Setup, *, rounds: int = 1, carry: float = 0.0) -> Policy:
    """The best of all arms; `carry=1` accumulates gains over phases."""
    _positive(rounds=rounds)
    _share("carry", carry)
    return Composed(setup, every_arm(rounds), Scores(setup, carry))


@register("exp3")
def exp3_policy(
    setup: Setup,
    *,
    xi: float = 0.1,
    iterations: int = 25,
    mixing: float = 0.0,
    reset: bool = False,
    centred: bool = False,
    rule: str = "printed",
) -> Policy:
    """Algorithm 1 with Eq. 8; the paper does not give ξ. `rule=released` is the rule of its code, which has no ξ."""
    _positive(iterations=iterations)
    _share("mixing", mixing)
    _require(xi > 0, f"xi={xi} must be above 0")
    _choice("rule", rule, ("printed", "released"))
    belief = Exp3(setup, xi, mixing, reset=reset, centred=centred, released=rule == "released")
    return Composed(setup, one_by_one(iterations), belief, "sample")


@register("hedge")
def hedge_policy(setup: Setup, *, rounds: int = 1, reset: bool = False, decide: str = "best") -> Policy:
    """Full feedback with AdaHedge; `decide` is `best` (the leader over all phases) or `sample`."""
    _positive(rounds=rounds)
    _choice("decide", decide, DECISIONS)
    return Composed(setup, every_arm(rounds), AdaHedge(setup, reset=reset), decide)


@register("race")
def race_policy(
    setup: Setup, *, rungs: int = 3, finalists: int = 0, carry: float = 0.0, handicap: float = 0.0
) -> Policy:
    """Successive halving within each learning rate, with optional finalists at full length."""
    _positive(rungs=rungs)
    check_whole("finalists", finalists, 0, MOST_TRIALS)
    _share("carry", carry)
    return Composed(setup, race(rungs, finalists), Scores(setup, carry, handicap))


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
    paired: bool = False,
    stay: float = 0.0,
) -> Policy:
    """The default: fewer arms from phase to phase, all of them again now and then, in its own space (see the docs)."""
    _positive(fewest=fewest, again=again)
    _share("carry", carry)
    _share("stay", stay)
    for name, value in (("handicap", handicap), ("head_start", head_start)):
        _require(-1 <= value <= 1, f"{name}={value} must be a share of right guesses, e.g. 0.05 for five points")
    _require(paired or not stay, "stay needs paired=true")
    known = (setup, carry, handicap, head_start)
    return Composed(setup, narrowing(fewest, again), Paired(*known, stay) if paired else Informed(*known))


@register(FIRST_ONLINE, Preset(FIRST_ONLINE, {"environment": "both", "length": 0.3, "longest": 24, "validation": 30}))
def first_online_policy(setup: Setup, *, rungs: int = 2, finalists: int = 0, carry: float = 1.0) -> Policy:
    """The first `online`: a race. Learners and runs that were saved with it go on with it."""
    policy = race_policy(setup, rungs=rungs, finalists=finalists, carry=carry)
    policy.description = {"resolves_to": "race"}
    return policy


@register("gp")
def gp_policy(
    setup: Setup, *, trials: int = 25, batch: int = 5, memory: float = 0.8, kernel: str = "matern", kappa: float = 1.0
) -> Policy:
    """A Gaussian process over the grid, explored by upper confidence bounds."""
    return _surrogate(setup, trials, batch, memory, kernel, explore="ucb", kappa=kappa)


@register("thompson")
def thompson_policy(
    setup: Setup, *, trials: int = 25, batch: int = 5, memory: float = 0.8, kernel: str = "quadratic"
) -> Policy:
    """Bayesian linear regression on quadratic features of the grid, explored by posterior samples."""
    return _surrogate(setup, trials, batch, memory, kernel, explore="thompson")


def _surrogate(
    setup: Setup, trials: int, batch: int, memory: float, kernel: str, *, explore: str, kappa: float = 1.0
) -> Policy:
    if len(setup.space) > MOST_MODELLED:
        raise UserError(f"gp and thompson model {MOST_MODELLED} actions at most, this space has {len(setup.space)}")
    _positive(trials=trials, batch=batch)
    _share("memory", memory)
    _choice("kernel", kernel, KERNELS)
    _require(kappa >= 0, f"kappa={kappa} must be at least 0")
    return Composed(setup, best_guesses(trials, batch), Surrogate(setup, kernel, explore, memory, kappa))


def named_now(values: Mapping[str, Any]) -> dict[str, Any]:
    """A saved recipe or saved settings, with the names that their policy and space have now.

    What was saved with the first `online` does not know `trials.even`.
    """
    trials = values.get("trials")
    if not isinstance(trials, Mapping) or "even" in trials:
        return dict(values)
    return {**values, **{key: FIRST_ONLINE for key in ("policy", "space") if values.get(key) == DEFAULT_POLICY}}


def make_policy(name: str, setup: Setup, options: Mapping[str, Option] | None = None) -> Policy:
    """The policy of that name with its options, and wrappers around it: `safe=1.0`, `every=2` or `every="first"`.

    >>> from poise.actions import Action
    >>> from poise.spaces import make_space
    >>> setup = Setup(make_space("paper", Action(logit_kd=0, feature_kd=1, lr=0.1)), short=16, full=160, seed=0)
    >>> policy = make_policy("grid", setup, {"safe": 1.0, "every": 2})
    >>> policy.begin(1)
    >>> len(policy.ask())
    50
    """
    _refuse_unknown(name)
    given = dict(options or {})
    around = {key: given.pop(key) for key in WRAPPER_OPTIONS if key in given}
    own = _own_options(name, given)
    policy = POLICIES[name](setup, **own)
    resolves = {key: value for key, value in policy.description.items() if key == "resolves_to"}
    policy.description = {"name": name, **resolves, **own}
    return _wrap(policy, around)


def resolved_options(name: str, options: Mapping[str, Option] | None = None) -> dict[str, Option]:
    """Every option of the named policy, as given or by default, and the wrappers that were given."""
    _refuse_unknown(name)
    given = dict(options or {})
    around = {key: given.pop(key) for key in WRAPPER_OPTIONS if key in given}
    if around and not PRESETS[name].tunes:
        raise UserError(f"policy {name} chooses nothing; leave {', '.join(around)} out, or name another policy")
    return {**_own_options(name, given), **around}


def is_shipped(name: str) -> bool:
    """Whether poise brings the policy of that name along; any other is the user's own."""
    return POLICIES[name].__module__.partition(".")[0] == __name__.partition(".")[0]


def _refuse_unknown(name: str) -> None:
    if name not in POLICIES:
        raise UserError(f"unknown policy '{name}'; {suggestion(name, POLICIES)}")


def _own_options(name: str, given: Mapping[str, Option]) -> dict[str, Option]:
    """Every option of the policy: as given, or its default."""
    parameters = inspect.signature(POLICIES[name]).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    for key, value in given.items():
        if key not in defaults:
            known = (*defaults, *(WRAPPER_OPTIONS if PRESETS[name].tunes else ()))
            raise UserError(f"policy {name} has no option '{key}'; {suggestion(key, known)}")
        wanted = (int, float) if isinstance(defaults[key], float) else type(defaults[key])
        if not isinstance(value, wanted) or isinstance(value, bool) is not isinstance(defaults[key], bool):
            raise UserError(f"policy {name}: {key}={shown(value)} must be like {defaults[key]!r}")
        if isinstance(value, float):
            check_size(f"policy {name}: {key}", value)
    return {**defaults, **given}


def _wrap(policy: Policy, around: Mapping[str, Option]) -> Policy:
    z, plain, period = around.get("safe", False), around.get("safe_plain", False), around.get("every", 1)
    _require(isinstance(plain, bool), f"safe_plain={plain!r} must be true or false")
    _require(not plain or z is not False, "safe_plain needs safe, e.g. safe=1.0")
    if z is not False:
        number = isinstance(z, int | float) and z is not True and z >= 0
        _require(number, f"safe={shown(z)} must be a number of standard errors, e.g. safe=1.0")
        check_size("safe", float(z))
        policy = Safe(policy, float(z), plain=bool(plain))
    if period != 1 or period is True:
        whole = isinstance(period, int) and not isinstance(period, bool) and period >= 1
        _require(whole or period == "first", f"every={shown(period)} must be a number of phases or 'first'")
        policy = Every(policy, int(period) if whole else None)
    return policy


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)


def _positive(**counts: int) -> None:
    for name, value in counts.items():
        check_whole(name, value, 1, MOST_TRIALS)


def _share(name: str, value: float) -> None:
    _require(0 <= value <= 1, f"{name}={value} must be between 0 and 1")


def _choice(name: str, word: str, known: Sequence[str]) -> None:
    _require(word in known, f"unknown {name} '{word}'; {suggestion(word, known)}")
