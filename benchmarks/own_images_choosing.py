r"""Words for `Learner` on the choosing tasks of `own_images.py`: how its defaults are chosen.

    POISE_DATA=FOLDER python benchmarks/own_images_choosing.py --out FILE.jsonl --tasks few,tail --seeds 0,1 \
        loop '{"policy": "fixed"}' '{"policy": "fixed", "optimiser": "adamw"}'

Each line of the file is one run: the task, the seed, what `Learner` was given beside memory, seed and device, and the
accuracy in percent of both classifiers on training images that were set aside. What is in the file is not run again.
`"net": [[blocks], [widths]]` is a small ResNet of that shape; `"augmentation": [pad, flip]` shifts and mirrors;
`"more": {"cutout": 0.5}` adds to the augmentation that is chosen.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from own_images import TASKS, Task, draw, read_rows, run_loop, side_by_side

CHOOSING = {task.name: task for task in TASKS if not task.showing}


def run_words(task: Task, seed: int, words: dict[str, Any] | None, folder: Path) -> dict[str, float]:
    """Both accuracies and the CPU seconds of `Learner` with these words; of the reference loop without any."""
    torch.set_num_threads(1)
    phases, (exam, wanted) = draw(task, seed, folder)
    begin = time.process_time()
    if words is None:
        guessed, _ = run_loop(phases, exam, task.memory, seed)
        guesses = {"fc": guessed, "ncm": guessed}
    else:
        learner = _learner(task, seed, words)
        for images, labels in phases:
            learner.partial_fit(images, labels)
        guesses = learner.predictions(exam)
    seconds = time.process_time() - begin
    hits = {name: 100 * float((np.asarray(guess) == np.asarray(wanted)).mean()) for name, guess in guesses.items()}
    return {**{f"accuracy_{name}": round(value, 2) for name, value in hits.items()}, "cpu_seconds": round(seconds, 1)}


def _learner(task: Task, seed: int, words: dict[str, Any]) -> Any:  # noqa: ANN401 - imported late: the loop needs none
    from poise import Learner
    from poise.data import Augmentation, suitable_augmentation
    from poise.learner.defaults import judge_augmentation
    from poise.nets.model import BACKBONES
    from poise.nets.resnet import cifar_resnet

    given = dict(words)
    if isinstance(given.get("net"), list):
        blocks, widths = map(tuple, given["net"])
        BACKBONES["chosen"] = lambda variant, channels: cifar_resnet(variant, channels, blocks, widths)
        given["net"] = "chosen"
    if "more" in given:
        more = given.pop("more")
        chosen = mock.patch(f"{judge_augmentation.__module__}.suitable_augmentation")
        chosen.start().side_effect = lambda side: replace(suitable_augmentation(side), **more)
    if "augmentation" in given:
        pad, flip = given["augmentation"]
        given["augmentation"] = Augmentation(pad=pad, flip=flip)
    return Learner(memory=task.memory, seed=seed, device="cpu", **given)


def run_all(jobs: Sequence[tuple[str, int, str]], workers: int, out: Path) -> None:
    """Every job in a process of its own, a few at a time."""
    done = {(row["task"], row["seed"], json.dumps(row["learner"])) for row in read_rows([out])} if out.exists() else ()
    waiting = [job for job in jobs if job not in done]
    commands = [[__file__, "--one", name, str(seed), words] for name, seed, words in waiting]
    for number, line in side_by_side(commands, workers):
        name, seed, words = waiting[number]
        row = json.dumps({"task": name, "seed": seed, "learner": json.loads(words), **json.loads(line)})
        with out.open("a") as file:
            file.write(row + "\n")
        print(row, file=sys.stderr)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """FC / NCM minus the loop of the same task and seed, mean over seeds, for each task; the mean over tasks."""
    loops = {(row["task"], row["seed"]): row["accuracy_fc"] for row in rows if row["learner"] == "loop"}
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    lines = ["| words | " + " | ".join(tasks) + " | mean |", "|---" * (len(tasks) + 2) + "|"]
    for words in dict.fromkeys(json.dumps(row["learner"]) for row in rows if row["learner"] != "loop"):
        found = [
            [
                (row["accuracy_fc"] - loops[key], row["accuracy_ncm"] - loops[key])
                for row in rows
                if row["task"] == task
                and json.dumps(row["learner"]) == words
                and (key := (row["task"], row["seed"])) in loops
            ]
            for task in tasks
        ]
        means = [np.mean(pairs, axis=0) if pairs else None for pairs in found]
        cells = [f"{pair[0]:+.1f} / {pair[1]:+.1f}" if pair is not None else "" for pair in means]
        whole = np.mean([pair for pair in means if pair is not None], axis=0) if any(cells) else (0.0, 0.0)
        lines.append(f"| `{words}` | " + " | ".join(cells) + f" | {whole[0]:+.1f} / {whole[1]:+.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Run words on tasks, one pair of them, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="`loop`, or what `Learner` is given, as JSON")
    parser.add_argument("--out", type=Path, default=Path("own-images-choosing.jsonl"))
    parser.add_argument("--tasks", default=",".join(CHOOSING))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--one", nargs=3, metavar=("TASK", "SEED", "WORDS"))
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    folder = Path(os.environ.get("POISE_DATA", "."))
    if given.table:
        print(table(read_rows([given.table])))
    elif given.one:
        name, seed, text = given.one
        words = json.loads(text)
        print(json.dumps(run_words(CHOOSING[name], int(seed), None if words == "loop" else words, folder)))
    else:
        texts = ['"loop"' if text == "loop" else json.dumps(json.loads(text)) for text in given.words]
        seeds = [int(seed) for seed in given.seeds.split(",")]
        run_all([(t, s, w) for s in seeds for t in given.tasks.split(",") for w in texts], given.jobs, given.out)
        print(table(read_rows([given.out])))


if __name__ == "__main__":
    main()
