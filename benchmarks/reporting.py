"""Seconds and bytes of a report over many run folders: reading them, and the page with its tables and figures.

Prints one JSON line. The folders are copies of one finished run with other seeds and methods' names, so that they make
rows, pairs and intervals as a study does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
import time
from pathlib import Path

from poise import store
from poise.report import gather

#: Methods × with and without a policy × settings.
CELLS = tuple(itertools.product(("lucir", "icarl", "lwf", "podnet", "aanets"), ("fixed", "online"), ("tfh", "tfs")))


def copies(run: Path, out: Path, count: int) -> None:
    """Write `count` folders that look like a study: methods × with and without a policy × settings × seeds."""
    recipe, result = (store.read_json(run / name) for name in ("recipe.json", "result.json"))
    for number in range(count):
        seed, rest = divmod(number, len(CELLS))
        changes = {**dict(zip(("method", "policy", "setting"), CELLS[rest], strict=True)), "seed": seed}
        changes |= {"phases": len(result["curve"]) - (changes["setting"] == "tfh"), "groups": None}
        folder = out / f"run-{number:03d}"
        folder.mkdir(parents=True)
        for name in ("journal.jsonl", "machine.json"):
            shutil.copy(run / name, folder)
        for name, value in (
            ("recipe.json", {**recipe, "recipe": {**recipe["recipe"], **changes}}),
            ("result.json", {**result, **changes}),
        ):
            own = {key: each for key, each in value.items() if key not in ("format", "digest")}
            store.write_json(folder / name, own, digest=name == "result.json")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a finished run folder, best one that tuned something")
    parser.add_argument("--count", type=int, default=200)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        copies(words.run, Path(place) / "runs", words.count)
        marks, work = [time.perf_counter()], time.process_time()
        report = gather([Path(place) / "runs"])
        marks.append(time.perf_counter())
        page = report.write(Path(place) / "report")
        marks.append(time.perf_counter())
        work = time.process_time() - work
        spent = [round(later - before, 2) for before, later in itertools.pairwise(marks)]
        print(
            json.dumps(
                {
                    "runs": len(report.runs),
                    "read_seconds": spent[0],
                    "page_seconds": spent[1],
                    "read_and_page_processor_seconds": round(work, 2),
                    "page_bytes": page.stat().st_size,
                }
            )
        )


if __name__ == "__main__":
    main()
