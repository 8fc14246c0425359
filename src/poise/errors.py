"""What can go wrong, said once: every error a user meets carries one line and an exit code."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class PoiseError(Exception):
    """The base of every error that poise raises on purpose; its text is one line that says what to do."""

    exit_code = 1


class UserError(PoiseError):
    """The user's mistake: a typo, a missing folder, labels that do not fit. Nothing was changed."""

    exit_code = 2


class OtherImages(UserError):
    """A phase that was saved in its middle is to be continued with other images than it was started with."""


class RunFailed(PoiseError):
    """The run itself failed (diverged, disk full); what was saved before is still there."""

    exit_code = 1


class Diverged(RunFailed):
    """The loss stopped being a number."""


class OutOfMemory(RunFailed):
    """A GPU's memory did not suffice."""


class Damaged(RunFailed):
    """A file that poise wrote is not as it was written."""


class Malformed(Damaged):
    """Contents that poise does not write, whatever their checksum says; the text continues the name of the file."""


class Interrupted(PoiseError):
    """Ctrl-C or another signal arrived and a checkpoint was written."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def suggestion(word: object, known: Iterable[str]) -> str:
    """The end of an error line about an unknown word: the nearest known one, or all of them.

    >>> suggestion("lucri", ["lucir", "icarl"])
    "did you mean 'lucir'?"
    """
    choices = sorted(known)
    near = difflib.get_close_matches(str(word), choices, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(choices)}" if choices else "none is known"


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse a setting that is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name}={value!r} must be a whole number, at least {least}")


def check_number(name: str, value: object, *, below: float = math.inf, positive: bool = False) -> None:
    """Refuse a setting that is not a number from 0 (or above it, if `positive`) to below `below`."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < below
    if not fits or (positive and value == 0):
        limit = f"below {below:g}" if below < math.inf else "finite"
        raise UserError(f"{name}={value!r} must be a number {'above' if positive else 'of at least'} 0 and {limit}")
