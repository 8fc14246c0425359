"""Play the recorded trials of LUCIR runs back into `online` with other options: what would it have decided?

    python tools/playback.py results/cifar100/NAME.journal.jsonl.xz… [--set paired=true stay=0.01] [--missing median]

A trial that these options ask for and that was not run gets the median of its phase's rewards, or the `least` or the
`largest` one (`--missing`). Prints, for each journal, how many trials were missing and which decisions are others.
"""

from __future__ import annotations

import argparse
import json
import lzma
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from poise import Learner
from poise.actions import Action
from poise.policies import Outcome, Setup, make_policy
from poise.runs.overrides import parse_once

FILL: Mapping[str, Callable[[Sequence[float]], float]] = {"median": statistics.median, "least": min, "largest": max}
EPOCHS = 160

Seen = tuple[float, int]  # the reward of a trial, and the number of classes that it was validated on


def read_journal(path: Path) -> tuple[dict[int, dict[int, Seen]], dict[int, Action]]:
    """What was seen of every trial, by phase and arm, and the decided action of every phase."""
    trials: dict[int, dict[int, Seen]] = {}
    decided = {}
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row: dict[str, Any] = json.loads(line)
            if row.get("event") == "trial":
                seen = row["reward"], len(row["record"]["classes"])
                trials.setdefault(row["phase"], {})[row["trial"]["arm"]] = seen
            elif row.get("event") == "action":
                decided[row["phase"]] = Action.restored(row["action"])
    return trials, decided


def play_back(path: Path, options: Mapping[str, bool | float | str], missing: str) -> tuple[dict[int, Action], int]:
    """The phases with another decision, with that decision, and the number of trials that were not run."""
    trials, decided = read_journal(path)
    space = Learner("lucir", epochs=EPOCHS, device="cpu").space
    policy = make_policy("online", Setup(space, short=16, full=EPOCHS, seed=0), options)
    others, lacking = {}, 0
    for phase, known in sorted(trials.items()):
        policy.begin(phase)
        classes = max(count for _, count in known.values())
        substitute = FILL[missing]([reward for reward, _ in known.values()])
        while asked := policy.ask():
            lacking += sum(trial.arm not in known for trial in asked)
            rewards = [known[trial.arm][0] if trial.arm in known else substitute for trial in asked]
            pairs = zip(asked, rewards, strict=True)
            policy.tell([Outcome(trial, reward, (reward,) * classes) for trial, reward in pairs])
        if (found := space.actions[policy.decide()]) != decided[phase]:
            others[phase] = found
    return others, lacking


def main(words: Sequence[str]) -> int:
    """Play all journals back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", nargs="+", type=Path)
    parser.add_argument("--set", nargs="*", default=[], dest="options", help="options of the policy")
    parser.add_argument("--missing", choices=FILL, default="median")
    given = parser.parse_args(words)
    for path in given.journals:
        others, lacking = play_back(path, parse_once(given.options), given.missing)
        print(f"{path.name}: {len(others)} other decisions, {lacking} trials were not run")
        for phase, action in others.items():
            print(f"  phase {phase}: {action}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
