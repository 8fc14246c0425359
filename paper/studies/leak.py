"""What a reward on test images is worth: policies replayed on probed trials, with an honest reward and with a leak.

    python paper/studies/leak.py [--runs 60]

A probe is a table of what trials of 16 epochs reached in phase 1 with each of 24 actions: hits on the validation images
of a trial, and hits of the same temporary model on the development exam. A policy is replayed for five phases, each
with that table; the reward of a trial is drawn anew from its hits (honest), or it is the exam itself (leak). Printed is
the accuracy in the exam, after 16 epochs, of the actions that were decided.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poise.actions import Action, make_space
from poise.policies import Outcome, Setup, make_policy

PROBES = Path(__file__).parents[1] / "results" / "probes"
POLICIES: tuple[tuple[str, dict[str, float]], ...] = (("grid", {}), ("exp3", {"xi": 0.01}), ("exp3", {"xi": 0.1}))
PHASES = 5


def shares(trial: dict[str, object], key: str, images: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of each class, the share of its images that the head of a temporary model got right at the end of its trial."""
    hits = trial[key]
    assert isinstance(hits, dict)
    return np.array(hits["16"]["fc"]) / images


def decided(name: str, options: dict[str, float], setup: Setup, expected: NDArray[np.float64], count: int) -> list[int]:
    """The arms that a policy decides in each phase, given the expected accuracy of each arm on each class.

    Rewards are drawn from `count` images of each class; with 0 they are the expected ones.
    """
    policy = make_policy(name, setup, options)
    generator, arms = np.random.default_rng(setup.seed), []
    for phase in range(1, PHASES + 1):
        policy.begin(phase)
        while trials := policy.ask():
            shown = [expected[trial.arm] for trial in trials]
            drawn = [generator.binomial(count, each) / count if count else each for each in shown]
            policy.tell(
                Outcome(trial, float(each.mean()), tuple(map(float, each)))
                for trial, each in zip(trials, drawn, strict=True)
            )
        arms.append(policy.decide())
    return arms


def study(file: Path, runs: int) -> None:
    """Print what each policy decides on this probe, honestly and with the leak."""
    probe = json.loads(file.read_text(encoding="utf-8"))
    space = make_space(probe["recipe"]["space"], Action(**{**probe["space"]["default"], "adjustment": 0.0}))
    counts, exam = np.array(probe["trials"][0]["images"]), np.array(probe["exam"]["images"])
    trials = sorted(probe["trials"], key=lambda trial: trial["arm"])
    honest, leak = (
        np.stack([shares(trial, key, images) for trial in trials]) for key, images in (("hits", counts), ("exam", exam))
    )
    truth = 100 * leak.mean(axis=1)
    print(f"{file.stem}: LUCIR's own action {truth[probe['default']]:.2f}, the best one {truth.max():.2f}")
    for name, options in POLICIES:
        ends = []
        for expected, count in ((honest, int(counts.min())), (leak, 0)):
            setups = (Setup(space, 16, 160, seed) for seed in range(runs))
            arms = [decided(name, options, setup, expected, count) for setup in setups]
            ends.append(truth[np.array(arms)].mean())
        said = " ".join(f"{key}={value}" for key, value in options.items())
        print(f"  {name} {said}: honest {ends[0]:.2f}, with the leak {ends[1]:.2f}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    runs = parser.parse_args().runs
    for setting in ("tfs", "tfh"):
        study(PROBES / f"cifar100-dev-{setting}-local.json", runs)


if __name__ == "__main__":
    main()
