"""Data sources: where images come from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poise.data.sources.opening import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        """Load torch when a name is first asked for, so that listing data sets does not."""
        return getattr(import_module("poise.data.sources.opening"), name)
