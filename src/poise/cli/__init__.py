"""The commands: each parses what is typed, makes one call and prints. Every mistake is one line and an exit code.

A command imports what it works with when it is called: torch takes seconds; help and lists are to be there at once.
"""

import os
import signal
from typing import NoReturn

__all__ = ["main"]

INTERRUPTED = 128 + signal.SIGINT  # the exit code after Ctrl-C


def main() -> NoReturn:
    """Run the command that was typed."""
    try:
        from poise.cli.app import run_command

        run_command()
    except KeyboardInterrupt:  # while something was imported, or the last words were said
        os.write(2, b"\npoise: interrupted; what was saved before is still there\n")
        os._exit(INTERRUPTED)
