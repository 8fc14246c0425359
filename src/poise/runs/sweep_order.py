"""In which order the cells of a sweep can be run: one may start from the phase 0 of another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from poise.errors import UserError
from poise.runs.folder import RunFolder, refuse_file
from poise.runs.starting import refuse_start_of
from poise.runs.sweep_file import Cell


def rounds(cells: Sequence[Cell], out: Path) -> list[list[Cell]]:
    """The cells, those first that wait for no other; the others after the one from whose phase 0 they start."""
    refuse_file(out)
    first, left, found = _find_awaited(cells, out), list(cells), list[list[Cell]]()
    for cell in cells:
        other = first[cell.name]
        if other is not None:
            _check_start(cell, other, out / other.name)
    while left:
        names, ready, waiting = {cell.name for cell in left}, list[Cell](), list[Cell]()
        for cell in left:
            other = first[cell.name]
            (waiting if other is not None and other.name in names else ready).append(cell)
        if not ready:
            which = ", ".join(sorted(names))
            raise UserError(f"none of these cells can be the first, each starts from one of them: {which}")
        found.append(ready)
        left = waiting
    return found


def _find_awaited(cells: Sequence[Cell], out: Path) -> dict[str, Cell | None]:
    """For each cell by its name: the one of them from whose phase 0 it starts, if that is still to be trained.

    A cell that was begun has its phase 0 already.
    """
    folders = {str((out / cell.name).resolve()): cell for cell in cells}
    found: dict[str, Cell | None] = {}
    for cell in cells:
        start, begun = cell.plan.recipe.start, RunFolder(out / cell.name).recipe
        waits = start is not None and not begun.exists() and not RunFolder(Path(start)).phase_0.exists()
        found[cell.name] = folders.get(start or "") if waits else None
    return found


def _check_start(cell: Cell, first: Cell, folder: Path) -> None:
    """Refuse a phase 0 that does not fit while nothing was trained; data that are not here are not compared."""
    try:
        if cell.plan.source.is_here and first.plan.source.is_here:
            refuse_start_of(folder, first.plan, cell.plan)
    except UserError as error:
        raise UserError(f"{cell.name}: {error}") from error
