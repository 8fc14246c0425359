"""The first screen of the page: what was run, in words that need no other page, and what may be concluded from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from poise.report.comparisons import Comparison, Ranking, comparisons, rankings
from poise.report.figures import gains_figure, ranking_figure
from poise.report.reading import RunRecord, StreamKind, UnreadPath, remarks
from poise.report.statistics import ENOUGH, Spread
from poise.report.tables.table import with_sign
from poise.words import counted, duration

#: Methods as their authors spell them.
NAMES: Final = {
    **{name: name.upper() for name in ("lucir", "rmm", "der", "foster")},
    **{"icarl": "iCaRL", "lwf": "LwF", "podnet": "PODNet", "aanets": "AANets"},
}
#: Of so many streams the leading configurations are named in words; the figure below shows all.
NAMED: Final = 4
#: What a paired difference allows to say.
CERTAINTY: Final = {
    "gain": "its 95 % interval excludes zero",
    "loss": "its 95 % interval excludes zero",
    "open": "its 95 % interval includes zero",
    "few": f"fewer than {ENOUGH} paired seeds are too few to tell",
}
JUDGED: Final = "policy=fixed action.classifier=auto"


def title(runs: Sequence[RunRecord]) -> str:
    """Methods and data sets."""
    if not runs:
        return "Nothing to report"
    methods = sorted(
        {" + ".join(NAMES.get(part, part) for part in run.method.split("+")) for run in runs}, key=str.lower
    )
    return f"{_list(methods)} on {_list(sorted({run.data for run in runs}))}"


def summary(runs: Sequence[RunRecord], unread: Sequence[UnreadPath]) -> dict[str, Any]:
    """Everything that the first screen says and shows."""
    done = sum(run.finished for run in runs)
    going = len(runs) - done
    what = f"{counted(len(runs), 'run')}: {done} finished" + (f", {going} not finished yet" if going else "")
    what += f"; {counted(len(unread), 'folder')} could not be read" if unread else ""
    return {
        "what": f"{what}.",
        "facts": list(_facts(runs)),
        "meanings": list(_meanings(runs)),
        "answers": list(_answers(runs)),
        "warnings": remarks(runs),
    }


def _facts(runs: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    if runs:
        yield "methods", _list(sorted({run.method for run in runs}))
        yield "data, exam", _list(sorted({f"{run.data} ({run.exam})" for run in runs}))
        yield "settings", _list([str(stream) for stream in sorted({StreamKind.of(run) for run in runs})])
        yield "policies", _list(sorted({run.policy_label for run in runs}))
        yield "seeds", _list([str(seed) for seed in sorted({run.seed for run in runs})])
        machines = sorted({name for run in runs if run.machine for name in run.machines})
        yield "machine", _list(machines) or "not recorded"
        yield "computed in all", duration(sum(run.seconds.get("total", 0.0) for run in runs))


def _meanings(runs: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    """What the words of the first screen mean: each kind of stream, policies, and the figure that is compared."""
    kinds: dict[str, StreamKind] = {}
    for stream in sorted({StreamKind.of(run) for run in runs}):
        kinds.setdefault(stream.setting, stream)
    yield from ((str(stream), stream.meaning) for stream in kinds.values())
    if any(run.fixed for run in runs):
        yield "fixed", "the method's own hyperparameters"
    if any(not run.fixed and not run.informed for run in runs):
        others = _list(sorted({run.policy for run in runs if not run.fixed and not run.informed}))
        yield others, "hyperparameters and classifier are chosen in each phase, on held-out training images"
    if runs:
        yield "average accuracy", "the mean over the exams after every phase, each on all classes so far"


def _answers(runs: Sequence[RunRecord]) -> Iterator[dict[str, Any]]:
    """What can be compared: a heading, a sentence or two, and a figure each."""
    compared, ranked = comparisons(runs), rankings(runs)
    if compared:
        figure = gains_figure(runs)
        assert figure is not None
        yield {"title": figure.title, "words": _does_it_help(compared), "figure": figure}
    if ranked:
        figure = ranking_figure(runs)
        assert figure is not None
        yield {"title": figure.title, "words": _who_is_ahead(ranked), "figure": figure}
    if not compared and not ranked:
        words = (
            "Nothing is compared here: no two finished runs share data, setting and seed and differ in method or "
            "policy. Give 'poise report' the folders of such runs together."
        )
        yield {"title": "", "words": words if runs else "", "figure": None}


def _does_it_help(found: Sequence[Comparison]) -> str:
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
    return (
        f"{counted(len(found), 'comparison')} with the method's own hyperparameters: {words}. "
        f"The largest difference is {with_sign(best.difference.mean)} points ({best.row.label}, {best.stream}, "
        f"{counted(best.difference.count, 'paired seed')}). {_classifier_words(best, found)}"
    )


def _classifier_words(best: Comparison, found: Sequence[Comparison]) -> str:
    """What of a difference is not the merit of tuning."""
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


def _who_is_ahead(found: Sequence[Ranking]) -> str:
    """The best two of each stream, and how certain the difference is."""
    said = []
    for ranking in found[:NAMED]:
        assert ranking.leaders is not None
        first, second = ranking.leaders
        difference = ranking.difference(first, second)
        assert difference is not None
        names = [f"{ranking.names[row.label]} ({ranking.mean(row):.2f} %)" for row in (first, second)]
        where = f"{ranking.where}, {ranking.stream}" if len({each.where for each in found}) > 1 else f"{ranking.stream}"
        said.append(f"{where}: {names[0]} before {names[1]}, {_difference_words(difference)}.")
    rest = len(found) - len(said)
    return " ".join([*said, *([f"And {counted(rest, 'more setting')} below."] if rest else [])])


def _difference_words(difference: Spread) -> str:
    seeds = counted(difference.count, "paired seed")
    return f"{with_sign(difference.mean)} points over {seeds}: {CERTAINTY[difference.verdict()]}"


def _list(words: Sequence[str], most: int = 8) -> str:
    shown = list(words[:most]) + ([f"{len(words) - most} more"] if len(words) > most else [])
    return ", ".join(shown)
