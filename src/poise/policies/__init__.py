"""Policies: what decides the action of a phase. Plain Python and numpy, no torch in this room.

A policy asks for trials, is told their outcomes, and decides; it never sees a model or an image.
"""

from poise.policies.base import Decided, Outcome, Policy, Setup, Trial, Tried, Wish, replay
from poise.policies.catalog import (
    DEFAULT_POLICY,
    MOST_TRIALS,
    POLICIES,
    PRESETS,
    UNTUNED,
    Preset,
    make_policy,
    register,
    resolved_options,
)
from poise.policies.plans import Planned, plan_trials

__all__ = [
    "DEFAULT_POLICY",
    "MOST_TRIALS",
    "POLICIES",
    "PRESETS",
    "UNTUNED",
    "Decided",
    "Outcome",
    "Planned",
    "Policy",
    "Preset",
    "Setup",
    "Trial",
    "Tried",
    "Wish",
    "make_policy",
    "plan_trials",
    "register",
    "replay",
    "resolved_options",
]
