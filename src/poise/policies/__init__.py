"""Policies: what decides the action of a phase. Plain Python and numpy, no torch in this room.

A policy asks for trials, is told their outcomes, and decides; it never sees a model or an image.
"""

from poise.policies.base import (
    NOT_THE_POLICYS,
    RULES,
    Fixed,
    Outcome,
    Policy,
    Setup,
    Trial,
    Wish,
    decision_entry,
    replay,
)
from poise.policies.catalog import POLICIES, Preset, make_policy, preset, register, resolved_options

__all__ = [
    "NOT_THE_POLICYS",
    "POLICIES",
    "RULES",
    "Fixed",
    "Outcome",
    "Policy",
    "Preset",
    "Setup",
    "Trial",
    "Wish",
    "decision_entry",
    "make_policy",
    "preset",
    "register",
    "replay",
    "resolved_options",
]
