"""Policies: what decides the action of a phase. Plain Python, no torch in this room."""

from poise.policies.fixed import POLICIES, Fixed, make_policy

__all__ = ["POLICIES", "Fixed", "make_policy"]
