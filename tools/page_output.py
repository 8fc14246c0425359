"""Run a page of the documentation and write what it prints into its text blocks.

    python tools/page_output.py docs/tutorial.md

Python blocks run in one namespace and commands between them, all in an empty folder. A text block right after one of
them holds what it printed; of long progress, the middle is left out.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: A block, and the text block that follows it at once.
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
#: So many lines of progress are shown whole.
MANY = 8
POISE = "from poise.cli import main; main()"


def main(page: Path) -> None:
    """Refresh the page."""
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "page"}
    page = page.absolute()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        found = BLOCK.sub(lambda block: _refresh_block(block, namespace), text)
    page.write_text(found, encoding="utf-8")


def _refresh_block(block: re.Match[str], namespace: dict[str, Any]) -> str:
    kind, body, shown = block.groups()
    printed = _run_python(body, namespace) if kind == "python" else _run_commands(body)
    if shown is None:
        return block[0]
    return f"```{kind}\n{body}```\n\n```text\n{_shorten(printed)}```\n"


def _run_python(body: str, namespace: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(body, "page", "exec"), namespace)
    return out.getvalue()


def _run_commands(body: str) -> str:
    printed = ""
    for line in body.splitlines():
        program, *words = shlex.split(line.removeprefix("$ "))
        if program != "poise":
            raise SystemExit(f"only poise is run here, not {program}")
        done = subprocess.run(
            [sys.executable, "-c", POISE, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{line}\n{done.stdout}")
        printed += done.stdout
    return printed


def _shorten(printed: str) -> str:
    """The lines without the middle of a long progress, whose lines are indented."""
    lines = []
    for indented, group in itertools.groupby(printed.splitlines(), lambda line: line.startswith("  ")):
        some = list(group)
        lines += [*some[:3], "  …", *some[-2:]] if indented and len(some) > MANY else some
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
