"""How far a reader walks: poise's functions, files and changes of room before the first training step, and in a report.

    python benchmarks/hops.py

Traces `poise run digits/lucir epochs=1 groups=[2,1,1]` up to its first backward pass, then `poise report` of that run.
A function counts once, where it is first called; lambdas, comprehensions and whatever runs while a module is imported
do not count. A room is a folder of `src/poise`, or a module at its top; it changes where two functions that are
called for the first time one after the other are of different rooms. The last lines say which rooms the functions of
the run are in.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import poise
from poise.cli import main

ROOT = str(Path(poise.__file__).parent)


class Walk:
    """The functions of poise in the order of their first calls, until the first backward pass."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], None] = {}
        self.stepped = False

    def trace(self, words: list[str]) -> None:
        """Run a command and note what it calls."""
        sys.argv = ["poise", *words]
        sys.setprofile(self._note)
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401 - of sys.setprofile
        code = frame.f_code
        if event != "call" or self.stepped:
            return
        if code.co_name in ("backward", "grad") and "autograd" in code.co_filename.split("torch")[-1]:
            self.stepped = True
        key = code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname
        if key[0] == code.co_filename or key in self.functions or code.co_name.startswith("<"):
            return
        outer: FrameType | None = frame
        while outer is not None and not (
            outer.f_code.co_name == "<module>" and outer.f_code.co_filename.startswith(ROOT)
        ):
            outer = outer.f_back
        if outer is None:  # no module is being imported
            self.functions[key] = None

    def figures(self) -> dict[str, int]:
        """How many functions, files and changes of room there are."""
        files = [file for file, _ in self.functions]
        rooms = [str(Path(file).parent) if "/" in file else file for file in files]
        changes = sum(one != other for one, other in pairwise(rooms))
        return {"functions": len(files), "files": len({*files}), "changes of room": changes}


if __name__ == "__main__":
    run, report, folder = Walk(), Walk(), f"{tempfile.mkdtemp()}/run"
    run.trace(["run", "digits/lucir", "epochs=1", "groups=[2,1,1]", "--out", folder])
    report.trace(["report", folder, "--out", f"{folder}-page"])
    rooms = Counter(file.partition("/")[0] for file, _ in run.functions)
    print(json.dumps({"run": run.figures(), "report": report.figures(), "rooms": dict(rooms.most_common())}))
