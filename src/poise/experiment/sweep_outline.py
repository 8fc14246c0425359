"""What a sweep would do: its cells, how far each is, and about how long it takes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

from poise.errors import UserError
from poise.experiment.dryrun import Cost, plan_cost, plan_speed, refuse_start
from poise.experiment.folder import RunFolder
from poise.experiment.plan import Plan
from poise.experiment.sweep_file import Cell, awaited
from poise.learner import Speed
from poise.words import counted, duration


class SweepOutline(NamedTuple):
    """What a sweep would do, as text, and why some of its cells would be refused, by name."""

    text: str
    refused: dict[str, UserError]


def describe_sweep(cells: Sequence[Cell], out: Path) -> SweepOutline:
    """Each cell with its state and about how long it takes here, alone."""
    speeds, refused, rows, total = dict[Hashable, Speed](), dict[str, UserError](), list[tuple[str, str]](), 0.0
    waits = awaited(cells, out)
    for cell in cells:
        try:
            state = _state(cell, RunFolder(out / cell.name))
            cost = _cost(cell.plan, speeds, started=waits[cell.name] is None) if state != "finished" else None
        except UserError as error:
            state, cost, refused[cell.name] = "refused", None, error
        total += sum(cost or ())
        rows.append((state, _about(cell.plan, cost) if cost else ""))
    wide = max(len("time"), *(len(time) for _, time in rows))
    lines = [f"cell  state     {'time':{wide}}  folder"]
    for number, (cell, (state, time)) in enumerate(zip(cells, rows, strict=True)):
        lines.append(f"{number:4d}  {state:8}  {time:{wide}}  {cell.name}")
    left = sum(state in ("new", "begun") for state, _ in rows)
    took = f": about {duration(total)}, one after the other (measured here, without a teacher; begun ones in full)"
    lines += ["", f"{left} of {counted(len(cells), 'cell')} to run{took if left else ''}"]
    return SweepOutline("\n".join(lines), refused)


def _state(cell: Cell, folder: RunFolder) -> str:
    """Whether a cell is new, begun or finished; one whose folder holds something else is refused."""
    if not folder.exists:
        folder.refuse_leftovers()
        return "new"
    folder.refuse_other(cell.plan.as_json())
    return "finished" if folder.finished else "begun"


def _cost(plan: Plan, speeds: dict[Hashable, Speed], *, started: bool) -> Cost:
    """What a run costs; speeds are measured once for runs that train the same network in the same way.

    `started`: whether the phase 0 that it starts from, if it starts from one, should be there already.
    """
    train, learner, schedule = plan.training_images(), plan.new_learner(), plan.settings.schedule
    if started:
        refuse_start(plan, train)
    way = (plan.source.fingerprint, plan.recipe.method, str(plan.recipe.options), learner.architecture)
    steps = (schedule.batch, schedule.optimiser, plan.recipe.device, plan.recipe.precision, plan.augmentation)
    key = (*way, *steps)
    if key not in speeds:
        speeds[key] = plan_speed(plan, learner, train)
    return plan_cost(plan, learner, train, speeds[key])


def _about(plan: Plan, cost: Cost) -> str:
    """The time; of a policy whose own work nobody counted it is the least."""
    kind = plan.settings.kind
    return f"{'about' if kind.asks or not kind.tunes else 'at least'} {duration(sum(cost))}"
