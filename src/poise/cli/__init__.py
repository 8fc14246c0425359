"""The commands: thin, no logic. Every mistake is one line and the right exit code.

`runs`, `studies`, `reports`, `models` and `lists` hold what a user types, and each command imports what it works with
when it is called: torch takes seconds, and help, versions and lists are to be there at once. `app` puts them together.
"""

from poise.cli.app import main

__all__ = ["main"]
