"""Numbers as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A stretch of time in its largest sensible unit.

    >>> duration(12.3), duration(600), duration(9000)
    ('12 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
