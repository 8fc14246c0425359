"""Whether a change kept the numbers: hashes of small runs on the digits, written by one checkout, checked by another.

    python benchmarks/gate.py --write gate.json      # with the checkout of before on PYTHONPATH
    python benchmarks/gate.py --check gate.json      # after each step of the change, on the same machine

Every method with its own action, LUCIR with every kind of tuner, and two ranks, three phases of a few epochs. Each runs
once uninterrupted; some are killed after every new line of the journal, too, and resumed until they are done. All this
goes through the command line and files, so that the checkouts may differ in all else. Compared are the contents of
the final tensors (whatever their names), the exams, the actions, and the rewards of the trials.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open

# Batch and rate are said, so that the digits' recipes may change.
COMMON = ("groups=[4,3,3]", "batch=64", "device=cpu")
RATES = ("first_lr=0.1", "action.lr=0.1")
SHORT = (*COMMON, "epochs=2", "policy=fixed")  # and rates
TUNED = (*COMMON, *RATES, "epochs=4", "space={feature_kd=[0,1],lr=[0.1,0.05]}")
METHODS = ("lucir", "icarl", "lwf", "podnet", "aanets", "rmm", "der", "foster", "replay", "finetune", "joint")
ONLINE = (*COMMON, *RATES, "epochs=4", "policy=online")
BASELINE = ("first_lr=0.05", "action.lr=0.05")
OWN: dict[str, tuple[str, ...]] = {
    "replay": (*BASELINE, "action.adjustment=0.0"),
    "finetune": BASELINE,
    "slca": ("first_lr=0.01", "action.lr=0.01"),
}
CELLS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{f"{method} fixed": (f"digits/{method}", (*SHORT, *OWN.get(method, RATES))) for method in METHODS},
    **{
        f"{method} fixed": ("digits/lucir", (*SHORT, f"method={method}", *OWN.get(method, RATES)))
        for method in ("slca", "ranpac", "simplecil")
    },
    "lucir online": ("digits/lucir", ONLINE),
    "lucir exp3": ("digits/lucir", (*TUNED, "policy=exp3", "policy_options.iterations=6")),
    "lucir race": ("digits/lucir", (*TUNED, "policy=race", "policy_options.finalists=2")),
    "lucir bilevel": ("digits/lucir", (*COMMON, *RATES, "epochs=2", "policy=bilevel", "policy_options.rounds=3")),
    "lucir offline-rl": ("digits/lucir", (*TUNED, "policy=offline-rl", "policy_options.episodes=3")),
    "lucir online reserve": ("digits/lucir", (*ONLINE, "memory.reserve=2")),
    "rmm online": ("digits/rmm", (*COMMON, *RATES, "epochs=2", "policy=online", "method=lucir")),
    "lucir ranks": ("digits/lucir", (*SHORT, *RATES)),
}
RANKS = {"lucir ranks"}
SKIPPED = {"seconds", "version", "date", "format", "time", "at", "digest", "digests", "machine"}


def digest(value: object) -> str:
    """Sixteen digits of the value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def hashes(folder: Path) -> dict[str, str]:
    """What must not change in a finished run folder."""
    contents = []
    model = max(folder.glob("*.safetensors"), key=lambda path: path.name == "model.safetensors")
    with safe_open(str(model), "np") as file:
        for key in file.keys():  # noqa: SIM118
            array = file.get_tensor(key)
            head = repr((str(array.dtype), array.shape)).encode()
            contents.append(hashlib.sha256(head + array.tobytes()).hexdigest())
    result = json.loads((folder / "result.json").read_text())
    curve = [{key: value for key, value in point.items() if key not in SKIPPED} for point in result["curve"]]
    rewards = [
        found for line in (folder / "journal.jsonl").read_text().splitlines() for found in rewards_in(json.loads(line))
    ]
    exams = [{key: value for key, value in point.items() if key != "action"} for point in curve]
    return {
        "tensors": digest(sorted(contents)),
        "exams": digest(exams),
        "actions": digest([point.get("action") for point in curve]),
        "rewards": digest(rewards),
    }


def rewards_in(value: Any) -> list[Any]:  # noqa: ANN401 - any JSON
    """All rewards in a line of the journal, in its order."""
    if isinstance(value, list):
        return [found for each in value for found in rewards_in(each)]
    if not isinstance(value, dict):
        return []
    here = [value["reward"]] if "reward" in value else []
    return here + [found for key in sorted(value) for found in rewards_in(value[key]) if key != "reward"]


def start(words: list[str], ranks: bool, log: Path) -> subprocess.Popen[bytes]:
    """A command of poise in a process group of its own."""
    if ranks:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            "--standalone",
            "-m",
            "poise",
            *words,
        ]
    else:
        command = [sys.executable, "-m", "poise", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)


def run_killed(words: list[str], path: Path, log: Path) -> None:
    """The run, killed after every new line of its journal and resumed."""
    lines, command = 0, words
    journal = path / "journal.jsonl"
    while True:
        process = start(command, False, log)
        while process.poll() is None:
            found = journal.read_bytes().count(b"\n") if journal.exists() else 0
            if found > lines:
                lines = found
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                break
            time.sleep(0.002)
        if (path / "result.json").exists():
            return
        if process.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(log.read_text()[-2000:])
        if path.exists():
            command = ["resume", str(path)] if (path / "recipe.json").exists() else words


def run_cell(job: tuple[str, bool], more: tuple[str, ...]) -> tuple[str, dict[str, str], float]:
    """One run of the gate, and what it took."""
    cell, killed = job
    recipe, words = CELLS[cell]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "run", Path(folder) / "log"
        replaced = {word.partition("=")[0] for word in more}
        own = [word for word in words if word.partition("=")[0] not in replaced]
        command = ["run", recipe, *own, *more, "--out", str(path)]
        if killed:
            run_killed(command, path, log)
        elif start(command, cell in RANKS, log).wait() != 0:
            return cell, {"failed": log.read_text()[-1500:]}, time.monotonic() - began
        return f"{cell}{' killed' if killed else ''}", hashes(path), time.monotonic() - began


def main() -> int:
    """Write hashes, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--cells", nargs="*", default=[], help="only cells whose name contains one of these words")
    parser.add_argument("--quick", action="store_true", help="without the runs that are killed and resumed")
    parser.add_argument("--words", nargs="*", default=[], help="more words for every run, such as device=cuda")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    cells = [cell for cell in CELLS if not arguments.cells or any(word in cell for word in arguments.cells)]
    kills = (
        [] if arguments.quick else [cell for cell in cells if cell in ("lucir online", "lucir bilevel", "lucir exp3")]
    )
    jobs = [(cell, True) for cell in kills] + [(cell, False) for cell in cells]
    known: dict[str, Any] = json.loads(arguments.check.read_text()) if arguments.check else {}
    found: dict[str, dict[str, str]] = {}
    failed = False
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for name, hashed, seconds in pool.imap_unordered(partial(run_cell, more=tuple(arguments.words)), jobs):
            found[name] = hashed
            expected = known.get(name.removesuffix(" killed"), {}) if known else hashed
            other = [
                f"{key} {value}" if key == "failed" else key
                for key, value in hashed.items()
                if expected.get(key) != value
            ]
            failed |= bool(other) or "failed" in hashed
            if "failed" in hashed:
                other = [hashed["failed"]]
            print(f"{name}: {seconds:.0f} s, {'DIFFERS: ' + ', '.join(other) if other else 'ok'}", flush=True)
    for name, hashed in found.items():
        if name.endswith(" killed") and hashed != found.get(name.removesuffix(" killed")):
            failed = True
            print(f"{name}: killed and resumed is not the same as uninterrupted", flush=True)
    if arguments.write:
        arguments.write.write_text(json.dumps(found, indent=1, sort_keys=True))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
