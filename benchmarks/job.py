"""How long a whole job takes, part by part: LUCIR in the paper's TFH setting with five phases, or any other recipe.

Training, policy, herding (with class means) and exams are timed apart; capturing is part of what it serves. The device
is waited for at the end of every epoch. Prints one JSON line.

    python benchmarks/job.py [cifar100/lucir] [key=value …] [--phases 6]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import torch

from poise.experiment import Plan, load_recipe, make_plan
from poise.experiment.examiner import Examiner
from poise.learner import Learner
from poise.training import Event, PhaseDone, TrialDone, TuningDone

PARTS = ("train", "policy", "herding", "exams")


def timed_phase(events: Iterator[Event], seconds: dict[str, float]) -> None:
    """Learn one phase and add what it took to the parts: an event ends the part that led to it."""
    began = time.perf_counter()
    for event in events:
        part = "herding" if isinstance(event, PhaseDone) else "train"
        part = "policy" if isinstance(event, TrialDone | TuningDone) else part
        now = time.perf_counter()
        seconds[part] += now - began
        began = now


def run(plan: Plan, phases: int) -> dict[str, object]:
    """The job, as `poise run` does it but for journal and checkpoints."""
    train, exam = plan.images()
    examiner, learner = Examiner(exam, plan.stream), plan.new_learner()
    seconds = dict.fromkeys(PARTS, 0.0)
    per_phase, accuracies = [], []
    began = time.perf_counter()
    for phase, group in enumerate(plan.stream.groups[:phases]):
        arrived, before = train.of_labels(group), sum(seconds.values())
        policy = seconds["policy"]
        timed_phase(learner.fitting(arrived.pixels, arrived.labels), seconds)
        mark = time.perf_counter()
        accuracies.append(examiner.examine(learner, phase).accuracy())
        seconds["exams"] += time.perf_counter() - mark
        per_phase.append({"all": sum(seconds.values()) - before, "policy": seconds["policy"] - policy})
    return {
        "hardware": _hardware(learner),
        "precision": learner.backend.precision,
        "seconds": {name: round(spent, 2) for name, spent in seconds.items()},
        "total": round(time.perf_counter() - began, 2),
        "herding_and_exams_share": round((seconds["herding"] + seconds["exams"]) / sum(seconds.values()), 4),
        "per_phase": [{name: round(spent, 2) for name, spent in phase.items()} for phase in per_phase],
        "average_accuracy": round(sum(accuracies) / len(accuracies), 2),
    }


def _hardware(learner: Learner) -> str:
    on_gpu = learner.backend.device.type == "cuda"
    return torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default="cifar100/lucir")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--phases", type=int, default=10_000, help="stop after so many")
    arguments = parser.parse_args()
    words = ["exam=dev", *arguments.overrides]
    plan = make_plan(arguments.recipe, load_recipe(arguments.recipe, words))
    found = run(plan, arguments.phases)
    print(json.dumps({"benchmark": "job", "recipe": arguments.recipe, "overrides": words, **found}))


if __name__ == "__main__":
    main()
