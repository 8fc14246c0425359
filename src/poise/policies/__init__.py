"""Policies: what decides the action of a phase. Plain Python and numpy, no torch in this room.

A policy asks for trials, is told their outcomes, and decides; it never sees a model or an image.
"""

from poise.policies.base import Decided, Outcome, Planned, Policy, Setup, Trial, Tried, Wish, plan_trials, replay
from poise.policies.catalog import DEFAULT_POLICY, POLICIES, UNTUNED, Preset, make_policy, register, resolved_options

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
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
