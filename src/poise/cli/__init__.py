"""The commands: each parses what is typed, makes one call and prints. Every mistake is one line and an exit code.

A command imports what it works with when it is called: torch takes seconds; help and lists are to be there at once.
"""

import os
import signal
import sys
from typing import NoReturn

__all__ = ["main"]

INTERRUPTED = 128 + signal.SIGINT  # the exit code after Ctrl-C


def main() -> NoReturn:
    """Run the command that was typed."""
    try:
        from poise.cli.app import run_command

        run_command()
    except ModuleNotFoundError as error:
        package = (error.name or "poise").partition(".")[0]
        if package == "poise":
            raise
        advice = "install it, or all that poise needs (in a clone of poise: pip install .)"
        print(f"poise: {package} is not installed for {sys.executable}; {advice}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except KeyboardInterrupt:  # wherever nothing writes a checkpoint first, imports included
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who keeps pressing it gets the same exit code
        os.write(2, b"poise: interrupted without a checkpoint; what was saved before is still there\n")
        os._exit(INTERRUPTED)
