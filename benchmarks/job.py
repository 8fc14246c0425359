"""How long a whole job takes, part by part: LUCIR in the paper's TFH setting with five phases, or any other recipe.

First the fixed policy as `poise run` does it, journal and checkpoints included; then the others, from the same phase 0
unless they learn something before it (`offline-rl`). Training, policy, herding (with class means) and exams are timed
apart; capturing is part of what it serves, and what is judged beside a training is part of that. Prints one JSON line.

    python benchmarks/job.py [cifar100/lucir] [key=value …] [--policy online …] [--out DIR]

One incremental phase of each is timed with `'groups=[50,10]'`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from poise.runs import Exam, Observer, Run, RunFolder, load_recipe, make_plan
from poise.training.events import Event, PhaseDone, TrialDone, TuningDone
from poise.tuning.search import tuner_kind

PARTS = ("train", "policy", "herding", "exams")


class Stopwatch(Observer):
    """Adds up seconds by phase and part: an event ends the part that led to it."""

    def __init__(self) -> None:
        self.phases: dict[int, dict[str, float]] = {}
        self._mark = time.perf_counter()

    def event(self, event: Event) -> None:
        """Something happened."""
        part = "herding" if isinstance(event, PhaseDone) else "train"
        self._add(event.phase, "policy" if isinstance(event, TrialDone | TuningDone) else part)

    def exam(self, exam: Exam) -> None:
        """A phase was examined."""
        self._add(exam.phase, "exams")

    def _add(self, phase: int, part: str) -> None:
        now = time.perf_counter()
        self.phases.setdefault(phase, dict.fromkeys(PARTS, 0.0))[part] += now - self._mark
        self._mark = now

    def as_json(self) -> dict[str, Any]:
        """Seconds of each part and each phase."""
        parts = {part: sum(phase[part] for phase in self.phases.values()) for part in PARTS}
        total = sum(parts.values())
        return {
            "seconds": {part: round(spent, 2) for part, spent in parts.items()},
            "total": round(total, 2),
            "herding_and_exams_share": round((parts["herding"] + parts["exams"]) / total, 4),
            "phases": [round(sum(phase.values()), 2) for phase in self.phases.values()],
        }


def run(recipe: str, words: Sequence[str], out: Path) -> dict[str, Any]:
    """One run in that folder, with a watch held beside it."""
    watch = Stopwatch()
    result = Run(make_plan(recipe, load_recipe(recipe, list(words))), RunFolder(out), (watch,)).start()
    return {**watch.as_json(), "average_accuracy": result["average_accuracy"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default="cifar100/lucir")
    parser.add_argument("overrides", nargs="*", default=[])
    parser.add_argument("--policy", nargs="*", default=["online"], help="what is timed besides the fixed policy")
    parser.add_argument("--out", type=Path, help="where the runs go; by default they are thrown away")
    arguments = parser.parse_args()
    words = ["exam=dev", *arguments.overrides]
    with tempfile.TemporaryDirectory() as passing:
        out = arguments.out or Path(passing)
        found = {"fixed": run(arguments.recipe, [*words, "policy=fixed"], out / "fixed")}
        for policy in arguments.policy:
            more = [f"policy={policy}", *([] if tuner_kind(policy).before_phase_0 else [f"start={out / 'fixed'}"])]
            found[policy] = run(arguments.recipe, [*words, *more], out / policy)
            later = len(found["fixed"]["phases"]) - 1
            pairs = zip(found[policy]["phases"][-later:], found["fixed"]["phases"][1:], strict=True)
            found[policy]["adds_per_phase"] = [round(one - other, 2) for one, other in pairs]
    on_gpu = torch.cuda.is_available()
    hardware = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"
    print(
        json.dumps({"benchmark": "job", "recipe": arguments.recipe, "overrides": words, "hardware": hardware, **found})
    )


if __name__ == "__main__":
    main()
