"""What can go wrong, said once: every error a user meets carries one line and an exit code."""

from __future__ import annotations

import difflib
import errno
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: How many bad files are named, each of them, where there are more.
MOST_NAMED: Final = 20


class PoiseError(Exception):
    """The base of every error that poise raises on purpose; its text is one line that says what to do."""

    exit_code = 1


class UserError(PoiseError, ValueError):
    """The user's mistake: a typo, a missing folder, labels that do not fit. Nothing was changed."""

    exit_code = 2


class NotLearned(UserError):
    """A learner is asked for something before it has learned anything."""


def not_learned(line: str = "this learner has learned nothing yet; call partial_fit first") -> NotLearned:
    """The error of a learner that has learned nothing; in a program that uses scikit-learn also its `NotFittedError`.

    scikit-learn is not loaded for it: who wants to catch that error has loaded it.
    """
    theirs = sys.modules.get("sklearn.exceptions")
    return NotLearned(line) if theirs is None else _with_base(theirs.NotFittedError)(line)


@functools.cache
def _with_base(theirs: type[Exception]) -> type[NotLearned]:
    """`NotLearned` that is an error of another library as well, and can be sent to another process."""
    return type("NotLearned", (NotLearned, theirs), {"__reduce__": lambda self: (not_learned, self.args)})


class OtherImages(UserError):
    """A phase that was saved in its middle is to be continued with other images than it was started with."""


class UnreadFile(UserError):
    """A file of which the system gave nothing or not all: nothing is known of its contents, which may be good."""


class BadImages(UserError):
    """Image files that cannot be read. All of them are in `faults`, each with the line about it.

    >>> faults = {"a.png": UserError("image a.png is empty"), "b.png": UserError("image b.png is a broken link")}
    >>> print(BadImages(faults))
    2 images cannot be read: a.png, b.png; the first: image a.png is empty
    """

    def __init__(self, faults: Mapping[str, UserError]) -> None:
        self.faults = dict(faults)
        names, first = list(self.faults), str(next(iter(self.faults.values())))
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        listed = ", ".join(names[:MOST_NAMED])
        one = len(names) == 1
        super().__init__(first if one else f"{len(names)} images cannot be read: {listed}{more}; the first: {first}")

    def __reduce__(self) -> tuple[type[BadImages], tuple[dict[str, UserError]]]:
        """Make it again from its parts: exceptions are sent from one process to another."""
        return type(self), (self.faults,)


class RunFailed(PoiseError):
    """The run itself failed (diverged, disk full); what was saved before is still there."""


class Diverged(RunFailed):
    """The loss stopped being a number."""


class OutOfMemory(RunFailed):
    """A GPU's memory did not suffice."""


class RankLost(RunFailed):
    """Another of the processes that train together has ended, so that nothing can be exchanged any more."""


class Damaged(RunFailed):
    """A file that poise wrote is not as it was written."""


@contextmanager
def reading(path: Path, todo: str = "restore it from a copy") -> Iterator[None]:
    """Around what is made of the contents of a file: whatever goes wrong there is said of that file."""
    try:
        yield
    except (PoiseError, OSError):
        raise
    except Exception as error:
        raise Damaged(f"{path} is not as poise writes it ({kind_and_line(error, 200)}); {todo}") from error


class Interrupted(PoiseError):
    """Ctrl-C or another signal arrived and a checkpoint was written. The exit code says which signal."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def suggestion(word: object, known: Iterable[str], prefix: str = "") -> str:
    """The end of an error line about an unknown word: the nearest known one, or all of them, each after the prefix.

    >>> suggestion("lucri", ["lucir", "icarl"]), suggestion("iCaRL", ["lucir", "icarl"])
    ("did you mean 'lucir'?", "did you mean 'icarl'?")
    >>> suggestion("x", ["rule", "total"], prefix="memory.")
    'known: memory.rule, memory.total'
    """
    choices, text = sorted(known), word if isinstance(word, str) else shown(word)
    lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(text[:_LONGEST].lower(), lower, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{prefix}{lower[near[0]]}'?"
    return f"known: {', '.join(prefix + choice for choice in choices)}" if choices else "none is known"


def refuse_taken(what: str, name: str, old: object, new: object) -> None:
    """Refuse to register something under a name that is taken, but for the same class or function made anew.

    That is one of the same name in the same file, which may be imported twice, or typed into a shell.
    """
    if old is None:
        return
    files = [getattr(sys.modules.get(each.__module__), "__file__", None) for each in (old, new)]
    names = [getattr(each, "__qualname__", repr(each)) for each in (old, new)]
    if names[0] != names[1] or (None not in files and files[0] != files[1]):
        theirs = f"{files[0] or old.__module__}:{names[0]}"
        raise UserError(f"the {what} '{name}' is registered already by {theirs}; give yours its own name")


def unknown_argument(whose: str, name: str, known: Iterable[str]) -> UserError:
    """The error of a call with an argument that is not known."""
    return UserError(f"{whose} has no argument '{name}'; {suggestion(name, {*known} - {'self', 'cls'})}")


def suggesting(function: Callable[P, R]) -> Callable[P, R]:
    """Answer a misspelt argument of this function, or of a class of this constructor, with a suggestion."""
    names = inspect.signature(function).parameters
    whose = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs.keys() - names:
            raise unknown_argument(whose, name, names)
        return function(*args, **kwargs)

    return checked


#: The largest whole number that a setting can be, unless it says otherwise.
MOST: Final = 10**9
#: The largest whole number of all: what 64 bits hold.
LARGEST_WHOLE: Final = 2**63 - 1
#: The largest number that float32 holds, in which networks are trained.
LARGEST_NUMBER: Final = 3e38

_LONGEST: Final = 80  # characters of a value in an error line


def shown(value: object, longest: int = _LONGEST) -> str:
    """A value as an error line shows it: on one line, and cut where it is long.

    >>> shown("lucir"), shown(10**5000)
    ("'lucir'", 'a value of type int')
    """
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # Python refuses to print thousands of digits, or too many levels
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def first_line(error: BaseException) -> str:
    r"""The first line of an error's message; its class where it has no message.

    >>> first_line(ValueError("no such place\nat all")), first_line(KeyError())
    ('no such place', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def kind_and_line(error: BaseException, longest: int) -> str:
    r"""The kind of an error, and what it says in one line, cut where that is long.

    >>> kind_and_line(ValueError("no such place\nat all"), 7)
    'ValueError: no such'
    """
    return f"{type(error).__name__}: {first_line(error)[:longest]}"


def check_whole(name: str, value: object, least: int, most: int = MOST) -> None:
    """Refuse a setting that is not a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name}={shown(value)} must be a whole number, at least {least}")
    if value > most:
        raise UserError(f"{name}={shown(value)} must be a whole number, at most {most}")


def check_number(
    name: str, value: object, *, most: float = LARGEST_NUMBER, below: float = math.inf, positive: bool = False
) -> None:
    """Refuse a setting that is not a number from 0 (or above it, if `positive`) to `most`, or to below `below`."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most and value < below
    if not fits or (positive and value == 0):
        least = "above 0" if positive else "of at least 0"
        limit = f"below {below:g}" if below < math.inf else f"at most {most:g}"
        raise UserError(f"{name}={shown(value)} must be a number {least} and {limit}")


def check_flag(name: str, value: object) -> None:
    """Refuse a setting that is neither true nor false."""
    if not isinstance(value, bool):
        raise UserError(f"{name}={shown(value)} must be true or false")


# Errors of the system -------------------------------------------------------------------------------------------------


def is_disk_full(error: BaseException) -> bool:
    """Whether it says that the disk is full, or that this user has no room left on it (a quota)."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def explain_refusal(error: OSError, again: str) -> str:
    """One line for an error of the system: error, path, and a remedy we know; `again` is how to try again."""
    if is_disk_full(error):
        place = f" for {error.filename}" if error.filename else ""
        return f"no space left{place}; free some, then {again} (nothing that was saved is lost)"
    return f"{error.filename or 'the system'}: {error.strerror or error}; nothing that was saved is lost"


@contextmanager
def explaining_refusals(again: str) -> Iterator[None]:
    """Turn errors of the system into our own, with the line of `explain_refusal`."""
    try:
        yield
    except OSError as error:
        raise RunFailed(explain_refusal(error, again)) from error


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add this file to errors of the system that name none, as those of a read do."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
