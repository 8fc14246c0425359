"""Policies: what decides the action of a phase. Plain Python and numpy, no torch in this room.

A policy asks for trials, is told their outcomes, and decides; it never sees a model or an image.
"""

from poise.policies.base import Fixed, Outcome, Policy, Setup, Trial, Wish, decision_entry, replay
from poise.policies.catalog import POLICIES, make_policy, register

__all__ = [
    "POLICIES",
    "Fixed",
    "Outcome",
    "Policy",
    "Setup",
    "Trial",
    "Wish",
    "decision_entry",
    "make_policy",
    "register",
    "replay",
]
