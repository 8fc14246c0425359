"""Tuners of a phase that are no policies over trials: chosen by the same key, behind the same call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from poise.actions import Grid
from poise.errors import UserError, suggestion
from poise.policies import POLICIES, Policy, Setup, make_policy, preset, resolved_options
from poise.tuning.bilevel import BilevelOptions
from poise.tuning.offline import OfflineOptions

TUNERS: Final[Mapping[str, type[BilevelOptions] | type[OfflineOptions]]] = {
    "bilevel": BilevelOptions,
    "offline-rl": OfflineOptions,
}


def deciders() -> list[str]:
    """Every word that `policy` can be."""
    return [*POLICIES, *TUNERS]


def tuner_options(name: str, given: Mapping[str, Any]) -> BilevelOptions | OfflineOptions:
    """The options of a tuner, those that are not given as they are by default."""
    known = [each.name for each in fields(TUNERS[name])]
    for key in given:
        if key not in known:
            raise UserError(f"policy {name} has no option '{key}'; {suggestion(key, known)}")
    return TUNERS[name](**given)


def decider_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a policy or tuner, resolved, so that what is saved does not depend on later defaults."""
    if not isinstance(name, str) or name not in deciders():
        raise UserError(f"unknown policy '{name}'; {suggestion(str(name), deciders())}")
    if not isinstance(given, Mapping):
        raise UserError(f"policy_options={given!r} must be a mapping, such as {{'safe': 1.0}}")
    return asdict(tuner_options(name, given)) if name in TUNERS else resolved_options(name, given)


def own_space(name: str, space: str | Grid | None, tune: object) -> str | Grid:
    """The space that a policy chooses from: as given, else the one it brings along. Bilevel has none."""
    if name != "bilevel":
        return preset(name).space if space is None else space
    if space or tune is not None:
        raise UserError("policy=bilevel moves weights and learning rate freely; leave space and tune out")
    return {}


def make_decider(name: str, setup: Setup, given: Mapping[str, Any]) -> Policy:
    """The policy of that name; for a tuner one that asks for nothing, since the tuner decides."""
    if name not in TUNERS:
        return make_policy(name, setup, given)
    policy = make_policy("fixed", setup)
    policy.description = {"name": name, **asdict(tuner_options(name, given))}
    return policy
