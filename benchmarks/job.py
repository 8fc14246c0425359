"""How long a whole job takes, part by part: LUCIR in the paper's TFH setting with five phases, or any other recipe.

Training, policy, herding (with class means) and exams are timed apart; capturing is part of what it serves, and so is
what runs beside it: on a GPU the judgement of classifiers is part of the training. The device is waited for at the end
of every epoch. With `--baseline` the same phases are run with `policy=fixed` first, from the same phase 0, and what the
policy adds to each is the difference. Prints one JSON line.

    python benchmarks/job.py [cifar100/lucir] [key=value …] [--phases 6] [--baseline]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

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


State = tuple[dict[str, torch.Tensor], dict[str, Any]]


def run(plan: Plan, phases: int, start: State | None = None) -> tuple[dict[str, Any], State]:
    """The job, as `poise run` does it but for journal and checkpoints, perhaps from after phase 0; and that state."""
    train, exam = plan.images()
    examiner, learner = Examiner(exam, plan.stream), plan.new_learner()
    if start is not None:
        meta = {**start[1], "settings": learner.state(images=True)[1]["settings"]}
        learner = Learner.from_state(start[0], meta, device=plan.recipe.device)
    seconds = dict.fromkeys(PARTS, 0.0)
    per_phase, accuracies = [], []
    began = time.perf_counter()
    for phase in range(learner.phases_, min(phases, len(plan.stream))):
        arrived, before = train.of_labels(plan.stream[phase]), sum(seconds.values())
        policy = seconds["policy"]
        timed_phase(learner.fitting(arrived.pixels, arrived.labels), seconds)
        mark = time.perf_counter()
        accuracies.append(examiner.examine(learner, phase).accuracy())
        seconds["exams"] += time.perf_counter() - mark
        per_phase.append({"all": sum(seconds.values()) - before, "policy": seconds["policy"] - policy})
        if phase == 0:
            tensors, meta = learner.state(images=True)
            start = {name: tensor.clone() for name, tensor in tensors.items()}, meta
    assert start is not None
    return {
        "hardware": _hardware(learner),
        "precision": learner.backend.precision,
        "seconds": {name: round(spent, 2) for name, spent in seconds.items()},
        "total": round(time.perf_counter() - began, 2),
        "herding_and_exams_share": round((seconds["herding"] + seconds["exams"]) / sum(seconds.values()), 4),
        "per_phase": [{name: round(spent, 2) for name, spent in phase.items()} for phase in per_phase],
        "average_accuracy": round(sum(accuracies) / len(accuracies), 2),
    }, start


def beside_baseline(plan: Plan, phases: int) -> dict[str, Any]:
    """The job from phase 1 on after the same one with `policy=fixed`, and the seconds that the policy adds to each."""
    fixed = plan.recipe.model_copy(update={"policy": "fixed", "policy_options": {}})
    baseline, start = run(replace(plan, recipe=fixed), phases)
    found, _ = run(plan, phases, start)
    pairs = zip(found["per_phase"], baseline["per_phase"][1:], strict=True)
    return {**found, "baseline": baseline, "added": [round(one["all"] - other["all"], 2) for one, other in pairs]}


def _hardware(learner: Learner) -> str:
    on_gpu = learner.backend.device.type == "cuda"
    return torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default="cifar100/lucir")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--phases", type=int, default=10_000, help="stop after so many")
    parser.add_argument("--baseline", action="store_true", help="what the policy adds to policy=fixed")
    arguments = parser.parse_args()
    words = ["exam=dev", *arguments.overrides]
    plan = make_plan(arguments.recipe, load_recipe(arguments.recipe, words))
    found = (beside_baseline if arguments.baseline else lambda *job: run(*job)[0])(plan, arguments.phases)
    print(json.dumps({"benchmark": "job", "recipe": arguments.recipe, "overrides": words, **found}))


if __name__ == "__main__":
    main()
