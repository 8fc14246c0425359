"""What the files of an experiment may hold beside a learner: one check each, before anything is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from poise.data import Stream
from poise.learner import Knowledge
from poise.runfolder import SECONDS
from poise.schema import anything, check, keyed, listed, mapped, maybe, number, scalar, text, truth, whole, word

#: More threads than any machine has; to ask for them would end the process.
MOST_THREADS: Final = 1024
_EXAM = keyed(
    {
        "phase": whole(),
        "classifier": word("fc", "ncm"),
        "classes": listed(whole()),
        "images": listed(whole()),
        "hits_fc": listed(whole()),
        "hits_ncm": listed(whole()),
        "confusion": listed(listed(whole(), 3)),
    },
    {"hits_of_start": mapped(listed(whole()))},
)
_CHECKPOINT = keyed(
    {
        "learner": mapped(anything),
        "exams": listed(_EXAM),
        "actions": listed(mapped(scalar)),
        "stored": listed(mapped(whole())),
        "seconds": mapped(number(0), *SECONDS),
        "journal": whole(),
    },
    {"journal_digest": text, "pinned": mapped(text)},
)
_PHASE_0 = keyed({"learner": mapped(anything), "identity": mapped(anything)})
_UNFINISHED = keyed(
    {
        "learner": mapped(anything),
        "lesson": keyed({"settings": mapped(scalar), "update": truth}),
        "folder": text,
        "model": maybe(text),
        "threads": whole(1, MOST_THREADS),
    }
)
_MACHINE = keyed(
    {
        "versions": mapped(anything, "torch"),
        "hardware": mapped(anything, "processor"),
        "threads": whole(1, MOST_THREADS),
        "exact_resume": truth,
        "resumes": listed(mapped(anything)),
    },
    {"switches": mapped(scalar), "ranks": whole(1)},
)


def check_checkpoint(meta: Mapping[str, Any]) -> None:
    """Refuse what no run wrote into a checkpoint beside its learner."""
    _CHECKPOINT(meta, "")
    count = len(meta["exams"])
    for name in ("actions", "stored"):
        check(len(meta[name]) == count, name, f"one for each of {count} exams", len(meta[name]))
    for place, exam in enumerate(meta["exams"]):
        check(exam["phase"] == place, f"exams[{place}].phase", f"{place}", exam["phase"])
        lengths = {len(exam[name]) for name in ("classes", "images", "hits_fc", "hits_ncm")}
        lengths |= {len(hits) for hits in exam.get("hits_of_start", {}).values()}
        check(len(lengths) == 1, f"exams[{place}]", "lists of one length", sorted(lengths))


def check_phase_0(meta: Mapping[str, Any]) -> None:
    """Refuse what no run wrote beside the learner after its phase 0."""
    _PHASE_0(meta, "")


def check_unfinished(meta: Mapping[str, Any]) -> None:
    """Refuse what `poise learn` did not write beside a learner in the middle of a phase."""
    _UNFINISHED(meta, "")


def check_machine(machine: Mapping[str, Any]) -> None:
    """Refuse a description of a machine that a resume cannot read."""
    _MACHINE(machine, "")


def check_progress(known: Knowledge, exams: int, stream: Stream) -> None:
    """Refuse a learner that stands elsewhere in the stream than its exams say."""
    check(exams <= len(stream), "exams", f"at most {len(stream)}", exams)
    inside = exams <= known.phases <= min(exams + 1, len(stream))
    check(inside, "learner.phases", f"{exams} or one more", known.phases)
    seen = {label for group in stream.groups[: known.phases] for label in group}
    check(set(known.classes) == seen, "learner.classes", f"those of {known.phases} phases", list(known.classes))
