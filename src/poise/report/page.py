"""The page: one HTML file with everything in it. Its first screen says what was run and what may be concluded."""

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
from poise.report.draw import Figure, for_page
from poise.report.figures import gains_figure
from poise.report.statistics import ENOUGH
from poise.report.study import Comparison, StreamKind, Study, remarks
from poise.report.tables import Table, with_sign
from poise.runs.record import PhaseRecord, RunRecord
from poise.settings import said_keys
from poise.words import counted, duration, printable

GENERATOR: Final = f"poise {__version__}"
#: Methods as their authors spell them.
NAMES: Final = {
    **{name: name.upper() for name in ("lucir", "rmm", "der", "foster")},
    **{"icarl": "iCaRL", "lwf": "LwF", "podnet": "PODNet", "aanets": "AANets"},
}
#: Of so many streams the leading rows are named in words.
NAMED: Final = 6
#: What a paired difference allows to say.
CERTAINTY: Final = {
    "gain": "its 95 % interval excludes zero",
    "loss": "its 95 % interval excludes zero",
    "open": "its 95 % interval includes zero",
    "few": f"fewer than {ENOUGH} paired seeds are too few to tell",
}
JUDGED: Final = "policy=fixed action.classifier=auto"


@dataclass(frozen=True)
class Contents:
    """The contents of a page; figures are given with the SVG of each of their panels."""

    study: Study
    tables: Sequence[Table] = ()  # the first one lists all runs
    figures: Sequence[tuple[Figure, Sequence[str]]] = ()
    links: Mapping[str, str] = field(default_factory=dict)  # from a run's name to its folder, relative to the page


def make_page(contents: Contents, refresh: int | None = None) -> str:
    """The page's HTML. With `refresh` the browser reloads it every `refresh` seconds."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    study = contents.study
    sources = resources.files("poise.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["column_groups"] = lambda columns: [
        (group, len(list(inside))) for group, inside in itertools.groupby(columns, lambda column: column.group)
    ]
    environment.filters["drawn"] = lambda svg: Markup(for_page(svg))
    template = environment.from_string((sources / "page.html").read_text(encoding="utf-8"))
    script = (sources / "page.js").read_text(encoding="utf-8")
    page = template.render(
        title=_title(study.runs),
        generator=GENERATOR,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        refresh=refresh,
        style=Markup((sources / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode(),
        summary=summary(study),
        contents=contents,
        runs=[_section(run, contents.links.get(run.name, "")) for run in study.runs],
        anchors=_anchors(study.runs),
        seeds={run.name: run.seed for run in study.runs},
    )
    return printable(page.lstrip())


# The first screen -----------------------------------------------------------------------------------------------------


def summary(study: Study) -> dict[str, Any]:
    """Everything that the first screen says and shows."""
    done = sum(run.finished for run in study.runs)
    going = len(study.runs) - done
    what = f"{counted(len(study.runs), 'run')}: {done} finished" + (f", {going} not finished yet" if going else "")
    what += f"; {counted(len(study.unread), 'folder')} could not be read" if study.unread else ""
    return {
        "what": f"{what}.",
        "facts": list(_facts(study.runs)),
        "meanings": list(_meanings(study.runs)),
        "answers": list(_answers(study)),
        "warnings": study.remarks(),
    }


def _title(runs: Sequence[RunRecord]) -> str:
    """Methods and data sets."""
    if not runs:
        return "Nothing to report"
    methods = {" + ".join(NAMES.get(part, part) for part in run.method.split("+")) for run in runs}
    return f"{_list(sorted(methods, key=str.lower))} on {_list(sorted({run.data for run in runs}))}"


def _facts(runs: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    if runs:
        yield "methods", _list(sorted({run.method for run in runs}))
        yield "data, exam", _list(sorted({f"{run.data} ({run.exam})" for run in runs}))
        yield "settings", _list([str(stream) for stream in sorted({StreamKind.of(run) for run in runs})])
        yield "policies", _list(sorted({run.policy_label for run in runs}))
        yield "seeds", _list([str(seed) for seed in sorted({run.seed for run in runs})])
        yield "machine", _list(sorted({name for run in runs if run.machine for name in run.machines})) or "not recorded"
        yield "computed in all", duration(sum(run.seconds.get("total", 0.0) for run in runs))


def _meanings(runs: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    """Explanations of the first screen's words: each kind of stream, policies, and the figure that is compared."""
    kinds: dict[str, StreamKind] = {}
    for stream in sorted({StreamKind.of(run) for run in runs}):
        kinds.setdefault(stream.setting, stream)
    yield from ((str(stream), stream.meaning) for stream in kinds.values())
    if any(run.fixed for run in runs):
        yield "fixed", "the method's own hyperparameters"
    if others := sorted({run.policy for run in runs if not run.fixed and not run.informed}):
        yield _list(others), "hyperparameters and classifier are chosen in each phase, on held-out training images"
    if runs:
        yield "average accuracy", "the mean over the exams after every phase, each on all classes so far"


def _answers(study: Study) -> Iterator[dict[str, Any]]:
    """The comparisons that these runs allow: a heading, a sentence or two, and perhaps a figure each."""
    if (figure := gains_figure(study)) is not None:
        compared = [each for each in study.comparisons.values() if not each.row.first.informed]
        yield {
            "title": figure.title,
            "words": _does_it_help(study, compared),
            "figure": figure,
            "svg": figure.svgs()[0],
        }
    if study.rankings:
        methods = len({row.first.method for ranking in study.rankings for row in ranking.rows}) > 1
        title = f"Which {'method' if methods else 'configuration'} is ahead?"
        yield {"title": title, "words": _who_is_ahead(study), "figure": None}
    if figure is None and not study.rankings:
        words = (
            "Nothing is compared here: no two finished runs share data, setting and seed and differ in method or "
            "policy. Give 'poise report' the folders of such runs together."
        )
        yield {"title": "", "words": words if study.runs else "", "figure": None}


def _does_it_help(study: Study, found: Sequence[Comparison]) -> str:
    """How certain the gains are, and how much of the largest one the classifier brings alone."""
    counts = {word: sum(each.difference.verdict() == word for each in found) for word in CERTAINTY}
    parts = [
        (counts["gain"], "a gain whose 95 % interval excludes zero"),
        (counts["loss"], "a loss whose interval excludes zero"),
        (counts["open"], "no certain difference: the interval includes zero"),
        (counts["few"], f"fewer than {ENOUGH} paired seeds, too few to tell"),
    ]
    words = "; ".join(f"{count} with {text}" for count, text in parts if count)
    policies = [each for each in found if not each.row.first.judged] or found
    best = max(policies, key=lambda each: each.difference.mean)
    reference = study.reference.replace("same method's", "method's")
    return (
        f"{counted(len(found), 'comparison')} with {reference}: {words}. "
        f"The largest difference is {with_sign(best.difference.mean)} points ({best.row.full_label}, {best.stream}, "
        f"{counted(best.difference.count, 'paired seed')}). "
    ) + ("" if study.against else _classifier_words(best, found))


def _classifier_words(best: Comparison, found: Sequence[Comparison]) -> str:
    """The part of a difference that is due to the classifier and not to tuning, in words."""
    alone = next((each for each in found if each.row.first.judged and each.stream == best.stream), None)
    if best.row.first.judged:
        return "Nothing but the classifier was chosen there."
    if alone is not None:
        measured = f"{with_sign(alone.difference.mean)} are reached by choosing the classifier alone ({JUDGED})"
        return f"In the same setting, {measured}; only what goes beyond that is the merit of tuning."
    if best.by_classifier is None:
        return f"A part of it may come from the choice of the classifier alone, which {JUDGED} runs."
    if not any(best.by_classifier.values):
        return "None of it comes from the choice of the classifier: it was the method's own throughout."
    part = with_sign(best.by_classifier.mean)
    return (
        f"Of it, {part} come from the choice of the classifier: the method's own networks gain as much when they are "
        f"read with the classifiers that the policy used. {JUDGED} runs that choice alone."
    )


def _who_is_ahead(study: Study) -> str:
    """The best two of each stream, how certain the difference is, and in which training keys rows differ."""
    said, found = [], study.rankings
    for ranking in found[:NAMED]:
        assert ranking.leaders is not None
        first, second = ranking.leaders
        difference = ranking.difference(first, second)
        assert difference is not None
        names = [f"{ranking.names[row.label]} ({ranking.mean(row):.2f} %)" for row in (first, second)]
        ahead = f"{with_sign(difference.mean)} points over {counted(difference.count, 'paired seed')}"
        where = f"{ranking.where}, {ranking.stream}" if len({each.where for each in found}) > 1 else f"{ranking.stream}"
        said.append(f"{where}: {names[0]} before {names[1]}, {ahead}: {CERTAINTY[difference.verdict()]}.")
    rest = len(found) - len(said)
    more = [f"And {counted(rest, 'more setting')} in the table."] if rest else []
    return " ".join([*said, *more, *(f"{line}." for line in study.differences)])


def _list(words: Sequence[str], most: int = 8) -> str:
    return ", ".join(list(words[:most]) + ([f"{len(words) - most} more"] if len(words) > most else []))


# A run's own section --------------------------------------------------------------------------------------------------


def _section(run: RunRecord, folder: str) -> dict[str, Any]:
    return {
        "run": run,
        "words": f"{run.method}, {run.policy_label}, {run.data}, {StreamKind.of(run)}, seed {run.seed}",
        "marks": remarks([run]),
        "result": list(_result(run)),
        "machine": [pair for pair in _flat(run.machine) if pair[0] != "folder"] or [("machine.json", "not there")],
        "journal": list(_journal(run, folder)),
        "recipe": _flat(run.recipe),
        "phases": [_phase(phase) for phase in run.phases],
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
    yield from ((f"policy.{key}", value) for key, value in _flat(run.result.get("resolved_policy") or {}))


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


def _flat(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key, _plain(value)) for key, value in said_keys(values).items()]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_plain(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_plain, value))
    return str(value)


def _anchors(runs: Sequence[RunRecord]) -> dict[str, str]:
    """An address on the page for every run."""
    found: dict[str, str] = {}
    for run in runs:
        plain = f"run-{re.sub(r'[^A-Za-z0-9_.-]+', '-', run.name)}"
        free = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
        found[run.name] = next(name for name in free if name not in found.values())
    return found
