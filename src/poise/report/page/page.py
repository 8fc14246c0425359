"""The page: one HTML file with everything in it, made from runs, tables and figures."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

from poise import __version__
from poise.actions import Action
from poise.report.figures import Figure, method_colours, run_panels
from poise.report.page import glance
from poise.report.page.svg import legend_html, panel_html
from poise.report.reading import PhaseRecord, RunRecord, StreamKind, UnreadPath, remarks
from poise.report.tables import ReportTable
from poise.report.tables.table import Column
from poise.settings import flat_keys
from poise.words import printable

GENERATOR: Final = f"poise {__version__}"
#: With more runs than this, the sections of single runs have no charts, so that the page stays light.
CHARTED: Final = 60


@dataclass(frozen=True)
class Contents:
    """What a page shows."""

    runs: Sequence[RunRecord]
    unread: Sequence[UnreadPath] = ()
    tables: Sequence[ReportTable] = ()  # the first one lists all runs
    texts: Sequence[tuple[str, str]] = ()
    figures: Sequence[Figure] = ()
    printed: bool = False  # whether the figures also lie beside the page as files
    links: Mapping[str, str] = field(default_factory=dict)  # from a run's name to its folder, relative to the page


def make_page(contents: Contents, refresh: int | None = None) -> str:
    """The page's HTML. With `refresh` the browser reloads it every `refresh` seconds."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    runs = contents.runs
    colours = method_colours(runs) if len(runs) <= CHARTED else {}
    files = resources.files("poise.report.page")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["column_groups"] = _column_groups
    environment.filters["panel"] = lambda panel: Markup(panel_html(panel))
    environment.filters["legend"] = lambda legend: Markup(legend_html(legend))
    text = environment.from_string((files / "page.html").read_text(encoding="utf-8"))
    script = (files / "page.js").read_text(encoding="utf-8")
    page = text.render(
        title=glance.title(runs),
        generator=GENERATOR,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        refresh=refresh,
        style=Markup((files / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode(),
        summary=glance.summary(runs, contents.unread),
        contents=contents,
        runs=[_section(run, contents.links.get(run.name, ""), colours.get(run.method)) for run in runs],
        anchors=anchors(runs),
        seeds={run.name: run.seed for run in runs},
    )
    return printable(page.lstrip())


def anchors(runs: Sequence[RunRecord]) -> dict[str, str]:
    """An address on the page for every run."""
    found: dict[str, str] = {}
    for run in runs:
        plain = f"run-{re.sub(r'[^A-Za-z0-9_.-]+', '-', run.name)}"
        free = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
        found[run.name] = next(name for name in free if name not in found.values())
    return found


def _column_groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    return [(group, len(list(inside))) for group, inside in itertools.groupby(columns, lambda column: column.group)]


# A run's own section --------------------------------------------------------------------------------------------------


def _section(run: RunRecord, folder: str, colour: str | None) -> dict[str, Any]:
    return {
        "run": run,
        "name": run.name,
        "words": f"{run.method}, {run.policy_label}, {run.data}, {StreamKind.of(run)}, seed {run.seed}",
        "state": run.state,
        "marks": remarks([run]),
        "result": list(_result(run)),
        "machine": [pair for pair in _flat(run.machine) if pair[0] != "folder"] or [("machine.json", "not there")],
        "journal": list(_journal(run, folder)),
        "recipe": _flat(run.recipe),
        "phases": [_phase(phase) for phase in run.phases],
        "panels": run_panels(run, colour) if colour else [],
    }


def _result(run: RunRecord) -> Iterator[tuple[str, object]]:
    if run.result is None:
        last = run.last_event
        yield "state", f"{run.state}, last event: {last.get('event', 'none')} in phase {last.get('phase', '–')}"
        return
    for key in ("average_accuracy", "average_accuracy_after_phase_0", "last_accuracy", "average_forgetting"):
        yield key, run.result.get(key, "–")
    yield "backward_transfer", "–" if run.backward_transfer is None else round(run.backward_transfer, 4)
    if "pretrained_on" in run.result:
        yield "pretrained on", run.result["pretrained_on"]
    for part, spent in run.seconds.items():
        yield f"seconds.{part}", spent
    yield from _flat(run.result.get("resolved_policy") or {}, "policy.")


def _journal(run: RunRecord, folder: str) -> Iterator[tuple[str, object]]:
    from markupsafe import Markup, escape

    yield "folder", Markup(f'<a href="{escape(folder)}">{escape(run.path)}</a>') if folder else str(run.path)
    yield "events", ", ".join(f"{count} {kind}" for kind, count in run.events.items()) or "no journal"
    if run.space is not None:
        axes = " × ".join(f"{axis} {{{', '.join(map(_plain, values))}}}" for axis, values in run.axes.items())
        yield "space", f"{run.space.get('name')}: {axes or 'nothing tuned'}, {run.space.get('actions')} actions"
    if run.trials:
        yield "trials", f"{len(run.trials)}, {sum(trial.epochs for trial in run.trials)} epochs in all"


def _phase(phase: PhaseRecord) -> dict[str, Any]:
    figures = [
        (phase.phase, str(phase.phase)),
        (phase.classes, str(phase.classes)),
        *((value, f"{value:.2f}") for value in (phase.accuracy, phase.accuracy_fc, phase.accuracy_ncm)),
        *((count, "–" if count is None else str(count)) for count in (phase.stored, phase.held, phase.budget)),
        (phase.reward, "–" if phase.reward is None else f"{phase.reward:.3f}"),
    ]
    return {"figures": figures, "action": str(Action(**phase.action)) if phase.action else "–"}


# ----------------------------------------------------------------------------------------------------------------------


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    return [(f"{prefix}{key}", _plain(value)) for key, value in flat_keys(values) if value not in (None, {}, [])]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_plain(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_plain, value))
    return str(value)
