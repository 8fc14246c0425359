"""The commands: thin, no logic. Every mistake is one line and the right exit code.

`runs`, `studies`, `reports`, `models` and `lists` hold what a user types, and each command imports what it works with
when it is called: torch takes seconds, and help, versions and lists are to be there at once. `app` puts them together.
This file itself imports next to nothing: Ctrl-C is one line from the first moment on.
"""

import os
import signal
import threading
from types import FrameType
from typing import NoReturn

__all__ = ["main"]

INTERRUPTED = 128 + signal.SIGINT  # the exit code after Ctrl-C
_leaving: list[int] = []  # the signal that made this command leave


def main() -> NoReturn:
    """Run a command; a user's mistake is one line on stderr."""
    is_main = threading.current_thread() is threading.main_thread()
    heard = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        _leaving.clear()
        signal.signal(signal.SIGINT, _leave)
    try:
        from poise.cli.app import run_command

        run_command()
    except KeyboardInterrupt:  # while the last words were said
        if not heard:
            raise
        _exit("interrupted; what was saved before is still there")
    finally:
        if heard:  # all is done or said: one more Ctrl-C must not break off the rest
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(signum: int, frame: FrameType | None) -> None:
    """Ctrl-C. While something is imported nothing was begun, and an import that is broken off says all kinds of things.

    A job that has something to lose hears it itself (`poise.runs.stopping`). Who presses it once more while the
    command is already leaving is obeyed at once.
    """
    if _leaving:
        _exit("interrupted; what was saved before is still there")
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _exit("interrupted before it had begun; nothing was changed")
        frame = frame.f_back
    _leaving.append(signum)
    raise KeyboardInterrupt


def _exit(line: str) -> NoReturn:
    os.write(2, f"\npoise: {line}\n".encode())
    os._exit(INTERRUPTED)
