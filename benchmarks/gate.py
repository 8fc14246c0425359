"""Whether a change kept every byte: hashes of small runs on the digits, written by one checkout and checked by another.

    python benchmarks/gate.py --write gate.json      # before the change
    python benchmarks/gate.py --check gate.json      # after each step of it, on the same machine

Every method with its own action and LUCIR with every kind of tuner, three phases of a few epochs; each run once
uninterrupted, and once stopped and resumed at every tenth event. Compared are the contents of the final tensors
(whatever their names), `result.json` without its seconds, and the journal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from poise import store
from poise.errors import Interrupted
from poise.runs import Run, RunFolder, load_recipe, make_plan
from poise.runs.stopping import Stop

METHODS = ("lucir", "icarl", "lwf", "podnet", "aanets", "rmm", "der", "foster")
SHORT = ("groups=[4,3,3]", "epochs=2", "batch=64", "policy=fixed")
TUNED = ("groups=[4,3,3]", "epochs=4", "batch=64", "space={feature_kd=[0,1],lr=[0.1,0.05]}")
POLICIES: dict[str, tuple[str, ...]] = {
    "online": ("groups=[4,3,3]", "epochs=4", "batch=64", "policy=online"),
    "exp3": (*TUNED, "policy=exp3", "policy_options.iterations=6"),
    "race": (*TUNED, "policy=race", "policy_options.finalists=2"),
    "bilevel": ("groups=[4,3,3]", "epochs=2", "batch=64", "policy=bilevel", "policy_options.rounds=3"),
    "offline-rl": (*TUNED, "policy=offline-rl", "policy_options.episodes=3"),
}
CELLS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{f"{method} fixed": (f"digits/{method}", SHORT) for method in METHODS},
    **{f"lucir {name}": ("digits/lucir", words) for name, words in POLICIES.items()},
    "lucir online reserve": ("digits/lucir", (*POLICIES["online"], "memory.reserve=2")),
    "rmm online": ("digits/rmm", ("groups=[4,3,3]", "epochs=2", "batch=64", "method=lucir", "policy=online")),
}
STOP_EVERY = 10


def hashes(folder: RunFolder) -> dict[str, str]:
    """What must not change: contents of tensors, result, journal."""
    tensors, _ = store.read_tensors(folder.model, kind="learner")
    contents = sorted(
        hashlib.sha256(
            repr((tensor.dtype, tuple(tensor.shape))).encode() + tensor.contiguous().numpy().tobytes()
        ).digest()
        for tensor in tensors.values()
    )
    result = {key: value for key, value in store.read_json(folder.result).items() if key != "seconds"}
    return {
        "tensors": hashlib.sha256(b"".join(contents)).hexdigest()[:16],
        "result": hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:16],
        "journal": hashlib.sha256(folder.journal.path.read_bytes()).hexdigest()[:16],
    }


def stopped_and_resumed(name: str, words: tuple[str, ...], path: Path) -> None:
    """The run, stopped after every tenth event and resumed."""
    begun = False
    while True:
        stop = Stop()
        run = Run(make_plan(name, load_recipe(name, words)), RunFolder(path), stop=stop)
        going = run.resuming() if begun else run.starting()
        begun = True
        if len(list(islice(going, STOP_EVERY))) < STOP_EVERY:
            return
        stop.set()
        try:
            for _ in going:
                pass
        except Interrupted:
            continue
        return


def run_cell(job: tuple[str, bool]) -> tuple[str, dict[str, str], float]:
    """One run of the gate, and what it took."""
    cell, stopped = job
    torch.set_num_threads(1)
    name, words = CELLS[cell]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        if stopped:
            stopped_and_resumed(name, words, path)
        else:
            Run(make_plan(name, load_recipe(name, words)), RunFolder(path)).start()
        found = hashes(RunFolder(path))
    return f"{cell}{' stopped' if stopped else ''}", found, time.monotonic() - began


def main() -> int:
    """Write hashes, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--cells", nargs="*", default=[], help="only cells whose name contains one of these words")
    parser.add_argument("--quick", action="store_true", help="without the runs that are stopped and resumed")
    arguments = parser.parse_args()
    cells = [cell for cell in CELLS if not arguments.cells or any(word in cell for word in arguments.cells)]
    jobs = [(cell, stopped) for stopped in ((False,) if arguments.quick else (True, False)) for cell in cells]
    known: dict[str, Any] = json.loads(arguments.check.read_text()) if arguments.check else {}
    found: dict[str, dict[str, str]] = {}
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for name, hashed, seconds in pool.imap_unordered(run_cell, jobs):
            found[name] = hashed
            other = [key for key, value in hashed.items() if known and known.get(name, {}).get(key) != value]
            print(f"{name}: {seconds:.0f} s, {'other ' + ', '.join(other) if other else 'ok'}", flush=True)
            same = found.get(name.removesuffix(" stopped"), hashed), found.get(f"{name} stopped", hashed)
            if any(each != hashed for each in same):
                print(f"{name}: stopped and resumed is not the same as uninterrupted", flush=True)
    if arguments.write:
        arguments.write.write_text(json.dumps(found, indent=1, sort_keys=True))
    return int(any(known.get(name) != hashed for name, hashed in found.items()) if known else 0)


if __name__ == "__main__":
    sys.exit(main())
