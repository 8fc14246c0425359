"""The policy that does not tune: every phase gets the same action."""

from __future__ import annotations

from dataclasses import dataclass

from poise.actions import Action
from poise.errors import UserError, suggestion

POLICIES = ("fixed",)


@dataclass(frozen=True)
class Fixed:
    """The method's own action, or the one the user set."""

    action: Action

    def decide(self) -> Action:
        """The action for this phase."""
        return self.action

    def resolved(self) -> dict[str, object]:
        """What the policy turned out to be, for the record."""
        return {"name": "fixed", "action": dict(self.action)}


def make_policy(name: str, action: Action) -> Fixed:
    """The policy of that name; `action` is what it starts from."""
    if name not in POLICIES:
        raise UserError(f"unknown policy '{name}'; {suggestion(name, POLICIES)}")
    return Fixed(action)
