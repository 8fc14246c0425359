"""Which classes a model's errors go to, phase by phase, from kept journals (or those of run folders).

    python paper/studies/bias.py paper/results/*aanets*.journal.jsonl.xz

For each phase from 1 on, by the classifier that counts, in percent: the accuracy on old classes and on the newest ones;
the share of all images that is taken for one of the newest classes, and their true share; of the images of old classes,
how many are taken for a new class and how many for another old one; of those of new classes, how many for an old one.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from poise.runs.journal import read_journal

HEADS = ("phase", "old", "new", "as new", "true", "old→new", "old→old", "new→old")


def shares(exam: dict[str, Any], known: int) -> list[float]:
    """The figures of one exam, after which `known` classes are old."""
    old, images = set(exam["classes"][:known]), sum(exam["images"])
    count = {"old": sum(exam["images"][:known]), "new": sum(exam["images"][known:])}
    found = dict.fromkeys(("old", "new", "old→new", "old→old", "new→old", "as new"), 0)
    for truth, guess, number in exam["confusion"]:
        kind = "old" if truth in old else "new"
        found["as new"] += number * (guess not in old)
        if truth == guess:
            found[kind] += number
        elif kind == "old":
            found["old→old" if guess in old else "old→new"] += number
        else:
            found["new→old"] += number * (guess in old)
    parts = (("old", "old"), ("new", "new"), ("as new", ""), ("old→new", "old"), ("old→old", "old"), ("new→old", "new"))
    percent = [100 * found[name] / (count[of] if of else images) for name, of in parts]
    return [*percent[:3], 100 * count["new"] / images, *percent[3:]]


def main(files: list[str]) -> None:
    """Print the table of each journal."""
    for file in map(Path, files):
        exams = [event for event in read_journal(file) if event.get("event") == "exam"]
        print(f"\n{file.name}\n" + "  ".join(f"{head:>7}" for head in HEADS))
        for before, exam in pairwise(exams):
            figures = shares(dict(exam), len(before["classes"]))
            print(f"{exam['phase']:>7}  " + "  ".join(f"{figure:7.1f}" for figure in figures))


if __name__ == "__main__":
    main(sys.argv[1:])
