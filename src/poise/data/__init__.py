"""What arrives: image sets, sources, streams, class orders, augmentation, the feed and the memory."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poise.data.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        """Load torch when a name is first asked for, so that listing data sets does not."""
        return getattr(import_module("poise.data.public"), name)
