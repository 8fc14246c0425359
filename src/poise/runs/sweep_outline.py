"""What a sweep would do: its cells, how far each is, and about how long it takes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

from poise.errors import PoiseError
from poise.runs.dryrun import Cost, plan_cost, plan_speed, refuse_early
from poise.runs.folder import RunFolder
from poise.runs.plan import Plan
from poise.runs.run import Run
from poise.runs.sweep_file import Cell
from poise.runs.sweep_order import rounds
from poise.learner import Speed
from poise.words import counted, duration


class SweepOutline(NamedTuple):
    """What a sweep would do, as text, and why some of its cells would be refused, by name."""

    text: str
    refused: dict[str, PoiseError]


def describe_sweep(cells: Sequence[Cell], out: Path, number: int = 0) -> SweepOutline:
    """Each cell, the first of which has this number, with its state and about how long it takes here, alone.

    Cells that could not be run in any order are refused.
    """
    waiting = {cell.name for part in rounds(cells, out)[1:] for cell in part}
    speeds, refused = dict[Hashable, Speed](), dict[str, PoiseError]()
    rows, costs = list[tuple[str, str]](), list[Cost]()
    for cell in cells:
        try:
            state = Run(cell.plan, RunFolder(out / cell.name)).state()
            reads = state == "new" and cell.name not in waiting
            cost = _cost(cell.plan, speeds, reads=reads) if state != "finished" else None
        except PoiseError as error:
            state, cost, refused[cell.name] = "refused", None, error
        costs += [cost] if cost else []
        rows.append((state, _about([cell.plan], sum(cost)) if cost else ""))
    wide = max(len("time"), *(len(time) for _, time in rows))
    lines = [f"cell  state     {'time':{wide}}  folder"]
    for place, (cell, (state, time)) in enumerate(zip(cells, rows, strict=True), number):
        lines.append(f"{place:4d}  {state:8}  {time:{wide}}  {cell.name}")
    left = [cell.plan for cell, (_, time) in zip(cells, rows, strict=True) if time]
    took = f": {_about(left, sum(map(sum, costs)))}, one after the other (measured here, without a teacher"
    took += "; begun ones in full)" if any(state == "begun" for state, _ in rows) else ")"
    lines += ["", f"{len(left)} of {counted(len(cells), 'cell')} to run{took if left else ''}"]
    return SweepOutline("\n".join(lines), refused)


def _cost(plan: Plan, speeds: dict[Hashable, Speed], *, reads: bool) -> Cost:
    """What a run costs; speeds are measured once for runs that train the same network in the same way.

    `reads`: whether it would read the phase 0 that it starts from, if it starts from one.
    """
    images, learner, schedule = plan.images(), plan.new_learner(), plan.settings.schedule
    refuse_early(plan, images[0], reads=reads)
    data = plan.source.fingerprint if plan.source.is_here else plan.source.name
    way = (data, plan.recipe.method, str(plan.recipe.options), learner.architecture)
    steps = (schedule.batch, schedule.optimiser, plan.recipe.device, plan.recipe.precision, plan.augmentation)
    key = (*way, *steps)
    if key not in speeds:
        speeds[key] = plan_speed(plan, learner, images[0])
    return plan_cost(plan, learner, images, speeds[key])


def _about(plans: Sequence[Plan], seconds: float) -> str:
    """The time; with a policy whose own work nobody counted it is the least."""
    kinds = [plan.settings.kind for plan in plans]
    return f"{'about' if all(kind.asks or not kind.tunes for kind in kinds) else 'at least'} {duration(seconds)}"
