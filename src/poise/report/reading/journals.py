"""What the journal of a run says, for reports: exams, trials, and how far it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poise.errors import UserError
from poise.journal import read_journal
from poise.report.reading.runs import PhaseRecord, TrialRecord
from poise.words import one_line, one_line_each


@dataclass
class JournalEvents:
    """What a journal says, collected event by event."""

    phases: list[PhaseRecord] = field(default_factory=list)
    trials: list[TrialRecord] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    action: dict[str, Any] = field(default_factory=dict)
    stored: int | None = None

    @classmethod
    def read(cls, path: Path) -> JournalEvents:
        """Those of the journal of a run, finished or not; of an epoch nothing but that it was."""
        found = cls()
        for event in read_journal(path, brief="epoch"):
            found.add(event)
        return found

    def add(self, event: Mapping[str, Any]) -> None:
        """One more event."""
        kind = one_line(str(event["event"]))
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.last = {"event": kind, "phase": event.get("phase", self.last.get("phase"))}
        if kind == "action":
            self.action = {**event, "action": one_line_each(event.get("action", {}))}
        elif kind == "learned":
            self.stored = int(event["memory_images"])
        elif kind == "trial":
            self.trials.append(_trial_record(event))
        elif kind == "exam":
            self._add_exam(event)

    def _add_exam(self, event: Mapping[str, Any]) -> None:
        labels, images = tuple(event["classes"]), tuple(event["images"])
        hits = {name: tuple(event[f"hits_{name}"]) for name in ("fc", "ncm")}
        before = self.phases[-1].labels if self.phases else ()
        if len({len(labels), len(images), *map(len, hits.values())}) > 1 or labels[: len(before)] != before:
            raise UserError(f"the exam of phase {event['phase']} in the journal does not fit together")
        chances = self.action.get("distribution")
        self.confusion = event.get("confusion") or []
        self.phases.append(
            PhaseRecord(
                phase=int(event["phase"]),
                classes=len(labels),
                accuracy=float(event["accuracy"]),
                accuracy_fc=100 * sum(hits["fc"]) / max(1, sum(images)),
                accuracy_ncm=100 * sum(hits["ncm"]) / max(1, sum(images)),
                action={**self.action.get("action", {}), "classifier": one_line(str(event["classifier"]))},
                stored=self.stored,
                labels=labels,
                arrived=labels[len(before) :],
                images=images,
                hits_by_classifier=hits,
                distribution=tuple(chances) if chances else None,
                reward=self.action.get("reward"),
            )
        )


def _trial_record(event: Mapping[str, Any]) -> TrialRecord:
    plan = event["trial"]
    return TrialRecord(
        phase=int(event["phase"]),
        action=one_line_each(event["action"]),
        reward=float(event["reward"]),
        epochs=int(plan["epochs"]),
        full=bool(plan["full"]),
        diverged=bool(event["diverged"]),
        purpose=str(plan.get("purpose", "action")),
        accuracies=_class_accuracies(event),
    )


def _class_accuracies(event: Mapping[str, Any]) -> tuple[float, ...]:
    """Accuracies of a trial on each class at its end, scaled so that their mean is the reward; zeros if it diverged."""
    images, hits = event["record"].get("images", ()), event["record"].get("hits")
    if event["diverged"] or not hits:
        return (0.0,) * len(images)
    weights = event["record"].get("weights") or [1 / len(images)] * len(images)
    right = hits[max(hits, key=int)][event["classifier"]]
    return tuple(hit / count * weight * len(images) for hit, count, weight in zip(right, images, weights, strict=True))
