"""What a sweep would do: its cells, and how far each is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from poise.errors import PoiseError
from poise.runs.dryrun import refuse_early
from poise.runs.folder import RunFolder
from poise.runs.run import Run
from poise.runs.sweep_file import Cell
from poise.runs.sweep_order import rounds
from poise.words import counted


class SweepOutline(NamedTuple):
    """What a sweep would do, as text, and why some of its cells would be refused, by name."""

    text: str
    refused: dict[str, PoiseError]


def describe_sweep(cells: Sequence[Cell], out: Path, number: int = 0) -> SweepOutline:
    """Each cell, the first of which has this number, with its state. Cells that could not be run are refused."""
    waiting = {cell.name for part in rounds(cells, out)[1:] for cell in part}
    refused = dict[str, PoiseError]()
    lines, left = ["cell  state     folder"], 0
    for place, cell in enumerate(cells, number):
        try:
            state = Run(cell.plan, RunFolder(out / cell.name)).state()
            if state != "finished":
                cell.plan.new_learner()
                refuse_early(cell.plan, cell.plan.images()[0], reads=state == "new" and cell.name not in waiting)
                left += 1
        except PoiseError as error:
            state, refused[cell.name] = "refused", error
        lines.append(f"{place:4d}  {state:8}  {cell.name}")
    lines += ["", f"{left} of {counted(len(cells), 'cell')} to run"]
    return SweepOutline("\n".join(lines), refused)
