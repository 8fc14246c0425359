"""Random streams that nothing was tuned for: what a policy gains over the fixed action, and how often it loses.

    python benchmarks/streams.py --dev --out dev.jsonl [--streams 6] [--seeds 3] [--jobs 2] [--budget MINUTES]
    python benchmarks/streams.py --dev --out dev.jsonl --entry 'online, all: policy=online policy_options.again=1'
    python benchmarks/streams.py --out paper/notes/streams.jsonl [--constants]
    python benchmarks/streams.py --collect runs/cifar100-streams/* --out paper/notes/streams.jsonl
    python benchmarks/streams.py --table paper/notes/streams.jsonl

Streams are drawn from a seed: sizes of phases, class orders, 2 to 20 kept images per class, and of three streams one
with all images, one with fewer and one long-tailed. Those *for showing* are examined on test images, and are run once
with what was frozen before. Those of `--dev` come from another seed and are examined on training images set aside:
policies may be chosen with them. A stream and a seed are run in a process of their own with one thread: first phase 0,
then every entry from there. One JSON line is written for each run, and a run that has one is not repeated.

The streams on CIFAR-100 are recipes for `poise sweep`, which `--write-sweep` writes; `--collect` reads what it ran.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from poise import draws

#: The seeds that all streams are drawn from. They were committed before the first run and stay as they are.
SHOWING_SEED: Final = 20_261_116
DEV_SEED: Final = 411

DIGITS_STREAMS: Final = 24
CIFAR_STREAMS: Final = 4
CIFAR_EPOCHS: Final = 40
SEEDS: Final = 3

ROOT: Final = Path(__file__).parents[1]
RATE: Final = 4_500.0  # images per CPU second, until runs have been measured

Row = dict[str, Any]

# Streams --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomStream:
    """A stream that was drawn.

    Attributes:
        name: the data set and a number.
        kind: `showing` or `dev`.
        groups: how many classes each phase brings.
        order: the seed of the class order.
        memory: images kept of each class.
        images: training images of a class; two numbers: of the largest and of the smallest class; None: all there are.
    """

    name: str
    kind: str
    groups: tuple[int, ...]
    order: int
    memory: int
    images: int | tuple[int, int] | None

    def keys(self) -> dict[str, Any]:
        """The keys of its recipe."""
        images = {} if self.images is None else {"images_per_class": np.array(self.images).tolist()}
        exam = {"exam": "dev" if self.kind == "dev" else "test"}
        return {"groups": list(self.groups), "order": self.order, "memory": self.memory, **images, **exam}

    def words(self) -> list[str]:
        """The same as overrides."""
        return [f"{key}={value}" for key, value in self.keys().items()]

    @property
    def amount(self) -> str:
        """How many images it has of each class, in words."""
        if self.images is None:
            return "all"
        return str(self.images) if isinstance(self.images, int) else f"{self.images[0]} to {self.images[1]}"


def draw_stream(data: str, number: int, *, dev: bool) -> RandomStream:
    """The stream of that number on `digits` or `cifar100`, for development or for showing."""
    generator = draws.generator(DEV_SEED if dev else SHOWING_SEED, f"{data} stream", number)

    def whole(least: int, most: int) -> int:
        return int(generator.integers(least, most + 1))

    cifar = data == "cifar100"
    if cifar:
        sizes = [whole(10, 50), *(whole(2, 20) for _ in range(whole(3, 6)))]
        groups = [size for place, size in enumerate(sizes) if sum(sizes[: place + 1]) <= 100]
    else:
        first = whole(2, 5)
        cuts = generator.choice(9 - first, whole(1, min(4, 8 - first)), replace=False) + 1
        groups = [first, *np.diff([0, *sorted(cuts.tolist()), 10 - first]).tolist()]
    order = whole(0, 2**31)
    memory = round(2 * 10 ** generator.uniform())  # 2 to 20, and as often below 6 as above
    amounts: tuple[int | tuple[int, int] | None, ...] = (
        None,
        whole(50, 250) if cifar else whole(15, 60),
        (500 if cifar else whole(60, 120), whole(5, 50) if cifar else whole(3, 12)),
    )
    kind = "dev" if dev else "showing"
    return RandomStream(f"{data}-{number}", kind, tuple(groups), order, memory, amounts[number % 3])


# Entries --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """What is run on a stream: a name, and what it adds to the recipe. One that never chooses anything is constant."""

    name: str
    words: tuple[str, ...]
    constant: bool = False


FIXED: Final = Entry("fixed", ("policy=fixed",), constant=True)
ONLINE: Final = Entry("online", ("policy=online",))


def _constant(name: str, **axes: float | str) -> Entry:
    return Entry(name, ("policy=fixed", *(f"action.{axis}={value}" for axis, value in axes.items())), constant=True)


#: Constant actions beside LUCIR's own (γ 1, β 0, lr 0.1), each with both classifiers: a run is examined with both.
CONSTANTS: Final = (
    _constant("lr 0.02", lr=0.02),
    _constant("γ 0.1", feature_kd=0.1),
    _constant("γ 0.5, β 1, lr 0.05", feature_kd=0.5, logit_kd=1, lr=0.05),
    _constant("γ 2, lr 0.05", feature_kd=2, lr=0.05),
    _constant("plastic, τ 1", feature_kd=0, logit_kd=1, margin=0, old_rows="trained", adjustment=1),
    _constant("plastic, balanced", feature_kd=0, logit_kd=1, margin=0, old_rows="trained", balance="finetune"),
)


def parse_entry(text: str) -> Entry:
    """`NAME: key=value key=value …`."""
    name, _, words = text.partition(":")
    return Entry(name.strip(), tuple(words.split()))


# Running --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Some entries on one stream with one seed, from one phase 0."""

    stream: RandomStream
    seed: int
    entries: tuple[Entry, ...]
    more: tuple[str, ...] = ()  # further words for all of them

    def as_json(self) -> str:
        """The job as one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> Job:
        """The job that `as_json` wrote."""
        read = json.loads(line)
        images = read["stream"]["images"]
        parts = {
            "groups": tuple(read["stream"]["groups"]),
            "images": tuple(images) if isinstance(images, list) else images,
        }
        entries = tuple(Entry(**{**entry, "words": tuple(entry["words"])}) for entry in read["entries"])
        return Job(RandomStream(**{**read["stream"], **parts}), read["seed"], entries, tuple(read["more"]))


def run_job(job: Job) -> None:
    """Run the entries of a job in this process; print a line for each as it is finished."""
    import torch

    from poise.runs import Run, RunFolder, load_recipe, make_plan

    torch.set_num_threads(1)
    words = [*job.stream.words(), f"seed={job.seed}", "device=cpu", *job.more]

    def run(name: str, *added: str, until: int | None = None) -> tuple[Row, float]:
        plan = make_plan("digits/lucir", load_recipe("digits/lucir", [*words, *added]))
        before = time.process_time()
        result = Run(plan, RunFolder(folder / name), until=until).start()
        return result, time.process_time() - before

    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        _, first = run("start", "policy=fixed", until=1)
        for number, entry in enumerate(job.entries):
            result, seconds = run(str(number), *entry.words, f"start={folder / 'start'}")
            facts = {"cpu_seconds": round(seconds, 2), "phase_0_cpu_seconds": round(first, 2)}
            print(json.dumps(make_row(job.stream, entry, result, folder / str(number), **facts)), flush=True)


def make_row(stream: RandomStream, entry: Entry, result: Row, folder: Path, **facts: Any) -> Row:  # noqa: ANN401
    """What is kept of a run."""
    machine = json.loads((folder / "machine.json").read_bytes())
    curve = result["curve"]
    return {
        "kind": stream.kind,
        "stream": stream.name,
        "seed": result["seed"],
        "entry": entry.name,
        "constant": entry.constant,
        "groups": list(stream.groups),
        "order": stream.order,
        "memory": stream.memory,
        "images": stream.images,
        "epochs": result["epochs"],
        "policy": result["resolved_policy"],
        **{name: [point[name] for point in curve] for name in ("accuracy", "accuracy_fc", "accuracy_ncm")},
        **({} if entry.constant else {"actions": [point["action"] for point in curve[1:]]}),
        **facts,
        "seconds": result["seconds"]["total"],
        "start": _phase_0(folder),
        "machine": machine["hardware"]["gpu"] or machine["hardware"]["processor"],
        "torch": machine["versions"]["torch"],
        "date": machine["finished"][:10],
        "commit": _commit(),
    }


def _phase_0(folder: Path) -> str:
    """A hash of the state after phase 0: runs that share it are paired."""
    from poise import store
    from poise.data.sources import digest

    tensors, _ = store.read_tensors(folder / "phase-0.safetensors", kind="phase 0")
    return digest([part for name in sorted(tensors) for part in (name, tensors[name])])[:12]


def _commit() -> str:
    def git(*words: str) -> str:
        try:
            return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:
            return ""

    changed = "+" if git("status", "--porcelain", "src", "benchmarks/streams.py") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def planned_images(stream: RandomStream, entry: Entry) -> float:
    """About how many images a run trains on after phase 0, trials included."""
    from poise.runs import load_recipe, make_plan

    plan = make_plan("digits/lucir", load_recipe("digits/lucir", [*stream.words(), *entry.words]))
    return sum(part.of for part in plan.work(plan.training_images()) if part.phase > 0)


@dataclass
class Account:
    """CPU seconds: what was spent, and what is to come by the images to train on."""

    budget: float
    spent: float = 0.0
    images: float = 0.0
    waiting: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def expected(self) -> float:
        """About how many CPU seconds the waiting runs take."""
        rate = self.images / self.spent if self.spent else RATE
        return self.waiting / rate

    @property
    def is_open(self) -> bool:
        """Whether something may still be started."""
        return self.spent < self.budget

    def note(self, row: Row, images: float) -> None:
        """A run is done."""
        self.spent += row["cpu_seconds"]
        self.images += images
        self.waiting -= images

    def __str__(self) -> str:
        return f"{self.spent / 60:.1f} CPU minutes spent, about {self.expected / 60:.1f} to come"


def run_all(jobs: Sequence[Job], out: Path, workers: int, budget: float) -> int:
    """Every job in a process of its own, some side by side; returns how many failed.

    What is in the file already is not run again. Once the budget of CPU seconds is spent, nothing more is started.
    """
    done = {_key(row) for row in read_rows([out])} if out.exists() else set()
    left = [
        Job(job.stream, job.seed, entries, job.more)
        for job in jobs
        if (
            entries := tuple(e for e in job.entries if (job.stream.kind, job.stream.name, job.seed, e.name) not in done)
        )
    ]
    images = {(job.stream.name, e.name): 0.0 for job in left for e in job.entries}
    streams = {job.stream.name: (job.stream, job.entries) for job in left}
    for name, (stream, entries) in streams.items():
        images |= {(name, entry.name): planned_images(stream, entry) for entry in entries}
    account = Account(budget, waiting=sum(images[job.stream.name, e.name] for job in left for e in job.entries))
    print(f"{sum(len(job.entries) for job in left)} runs: {account} after phase 0", file=sys.stderr)

    def work(job: Job) -> int:
        if not account.is_open:
            return 0
        command = [sys.executable, __file__, "--one", job.as_json()]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for line in process.stdout:
                row = json.loads(line)
                with account.lock, out.open("a", encoding="utf-8") as file:
                    file.write(line)
                    account.note(row, images[row["stream"], row["entry"]])
                    average = float(np.mean(row["accuracy"]))
                    said = f"{row['stream']}, seed {row['seed']}, {row['entry']}: {average:.2f}"
                    print(f"{said} in {row['cpu_seconds']:.0f} s; {account}", file=sys.stderr)
        if process.returncode:
            print(f"failed: {job.stream.name}, seed {job.seed}", file=sys.stderr)
        return int(process.returncode != 0)

    with ThreadPoolExecutor(workers) as pool:
        return sum(pool.map(work, left))


# CIFAR-100 ------------------------------------------------------------------------------------------------------------


def sweep_files(*, dev: bool) -> dict[Path, str]:
    """The recipes of the streams on CIFAR-100, and the sweep that runs them: the text of each by its path.

    Runs are deterministic, so that both policies have the same phase 0 although each of them trains its own.
    """
    mark = "-dev" if dev else ""
    name = f"paper/sweeps/cifar100-streams{mark}.toml"
    files = {}
    for number in range(CIFAR_STREAMS):
        stream = draw_stream("cifar100", number, dev=dev)
        keys = {
            **{"data": "cifar100", "method": "lucir", "setting": "groups", **stream.keys()},
            **{"epochs": CIFAR_EPOCHS, "batch": 128, "momentum": 0.9, "weight_decay": 5e-4, "deterministic": True},
        }
        lines = [f"# Stream {number} on CIFAR-100, drawn by benchmarks/streams.py; {name} runs it."]
        lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        files[Path(f"paper/sweeps/streams/cifar100-stream{mark}-{number}.toml")] = "\n".join(lines) + "\n"
    listed = ",\n".join(f'  "{path.as_posix()}"' for path in files)
    command = f"poise sweep {name} --out runs/cifar100-streams{mark}"
    text = f"# Random streams on CIFAR-100, short phases: {command}\nrecipe = [\n{listed},\n]\n"
    text += '\n[grid]\npolicy = ["fixed", "online"]\n'
    return {**files, Path(name): text}


def collect(folders: Sequence[Path]) -> list[Row]:
    """The rows of finished run folders of a sweep."""
    rows = []
    for folder in folders:
        if not (folder / "result.json").exists():
            continue
        result = json.loads((folder / "result.json").read_bytes())
        mark, _, number = str(result["recipe"]).removesuffix(".toml").rpartition("stream-")[2].rpartition("-")
        stream = draw_stream("cifar100", int(number), dev=mark == "dev")
        entry = {"fixed": FIXED}.get(result["policy"], Entry(result["policy"], ()))
        rows.append(make_row(stream, entry, result, folder))
    return rows


# The table ------------------------------------------------------------------------------------------------------------


def _key(row: Row) -> tuple[str, str, int, str]:
    return row["kind"], row["stream"], row["seed"], row["entry"]


def read_rows(files: Sequence[Path]) -> list[Row]:
    """What was measured."""
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines() if line]


def averages(rows: Sequence[Row], entry: str, part: str = "accuracy") -> dict[int, float]:
    """The average accuracy over all exams, by seed."""
    return {row["seed"]: float(np.mean(row[part])) for row in rows if row["entry"] == entry}


def pair_rows(rows: Sequence[Row], entry: str) -> list[Row]:
    """The runs of fixed and of an entry whose phase 0 is the same."""
    first = {row["seed"]: row["start"] for row in rows if row["entry"] == FIXED.name}
    both = [row for row in rows if row["entry"] in (FIXED.name, entry) and first.get(row["seed"]) == row["start"]]
    shared = {row["seed"] for row in both if row["entry"] == entry}
    return [row for row in both if row["seed"] in shared]


def hindsight(rows: Sequence[Row], seeds: Sequence[int]) -> dict[str, dict[int, float]]:
    """The average accuracy of each constant action that ran with all seeds, with both classifiers, by seed."""
    names = dict.fromkeys(row["entry"] for row in rows if row["constant"])
    found = {
        f"{name}, {classifier}": averages(rows, name, f"accuracy_{classifier}")
        for name in names
        for classifier in ("fc", "ncm")
    }
    return {name: values for name, values in found.items() if set(seeds) <= values.keys()}


@dataclass(frozen=True)
class Comparison:
    """An entry against fixed on one stream.

    Attributes:
        stream: its first row, which describes it.
        fixed: mean accuracy of fixed.
        gain: mean over paired seeds of the entry's accuracy minus that of fixed.
        error: its standard error; NaN with one seed.
        seeds: how many.
        best: the best constant action in hindsight, with its classifier; empty if none was run.
        distance: the entry's mean accuracy minus that of the best constant action.
        unseen: the same, with the constant action chosen by the other seeds; NaN with one seed.
        cost: CPU time after phase 0 (on a GPU: time in all) as a multiple of that of fixed.
    """

    stream: Row
    fixed: float
    gain: float
    error: float
    seeds: int
    best: str = ""
    distance: float = math.nan
    unseen: float = math.nan
    cost: float = math.nan

    @property
    def is_below(self) -> bool:
        """Whether it is below fixed by more than 0.3 and by more than the standard error."""
        return self.gain < -0.3 and not self.gain >= -self.error


def compare(rows: Sequence[Row], entry: str) -> Comparison | None:
    """An entry against fixed on the stream that the rows belong to; None without a pair."""
    from poise.report.statistics import paired_difference

    both = pair_rows(rows, entry)
    mine, fixed = averages(both, entry), averages(both, FIXED.name)
    difference = paired_difference(mine, fixed)
    if difference is None:
        return None
    constants = hindsight(rows, [*mine])
    best, distance, unseen = "", math.nan, math.nan
    if len(constants) > 2:  # more than fixed with both classifiers
        best = _best(constants, [*mine])
        distance = float(np.mean([mine[seed] - constants[best][seed] for seed in mine]))
        if len(mine) > 1:
            others = {seed: [each for each in mine if each != seed] for seed in mine}
            unseen = float(np.mean([mine[s] - constants[_best(constants, others[s])][s] for s in mine]))
    times = [
        sum(row.get("cpu_seconds") or row["seconds"] for row in both if row["entry"] == name)
        for name in (entry, FIXED.name)
    ]
    return Comparison(
        both[0],
        float(np.mean([*fixed.values()])),
        difference.mean,
        math.nan if difference.deviation is None else difference.deviation / math.sqrt(difference.count),
        difference.count,
        best,
        distance,
        unseen,
        times[0] / times[1],
    )


def _best(constants: Mapping[str, Mapping[int, float]], seeds: Sequence[int]) -> str:
    return max(constants, key=lambda name: sum(constants[name][seed] for seed in seeds))


def table(rows: Sequence[Row]) -> str:
    """Every entry that chooses something against fixed, by data set."""
    sections = []
    for kind in ("showing", "dev"):
        for data in ("digits", "cifar100"):
            mine = [row for row in rows if row["kind"] == kind and row["stream"].startswith(data)]
            for entry in dict.fromkeys(row["entry"] for row in mine if not row["constant"]):
                sections.append(_section(mine, kind, data, entry))
    return "\n\n".join(sections)


def _section(rows: Sequence[Row], kind: str, data: str, entry: str) -> str:
    names = sorted({row["stream"] for row in rows}, key=lambda name: int(name.rpartition("-")[2]))
    by_stream = {name: [row for row in rows if row["stream"] == name] for name in names}
    found = [each for name in names if (each := compare(by_stream[name], entry)) is not None]
    exam = "test images" if kind == "showing" else "development exam"
    lines = [
        f"### {data}, {entry} against fixed, {exam}",
        "",
        "| stream | classes by phase | images of a class | kept | fixed | gain | standard error | seeds "
        "| to the best constant | which | cost |",
        "|---" * 11 + "|",
        *(_line(each) for each in found),
        "",
        *_summary(found),
    ]
    missing = sum(row["entry"] == entry for row in rows) - sum(each.seeds for each in found)
    if missing:
        lines.append(f"- {missing} runs of {entry} have no fixed run from the same phase 0 and are left out.")
    return "\n".join(lines)


def _line(found: Comparison) -> str:
    stream = found.stream
    images = stream["images"]
    amount = "all" if images is None else f"{images[0]} to {images[1]}" if isinstance(images, list) else images
    groups = "+".join(map(str, stream["groups"]))
    below = " (below)" if found.is_below else ""
    cells = (
        *(stream["stream"].rpartition("-")[2], groups, amount, stream["memory"]),
        *(f"{found.fixed:.2f}", f"{found.gain:+.2f}{below}", _figure(found.error), found.seeds),
        *(_figure(found.distance, "+"), found.best or "–", _figure(found.cost)),
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def _figure(value: float, sign: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:{sign}.2f}"


def _summary(found: Sequence[Comparison]) -> list[str]:
    from poise.report.statistics import spread

    def mean(values: Sequence[float]) -> str:
        known = spread([value for value in values if not math.isnan(value)])
        low, high = known.interval()
        interval = "" if math.isnan(low) else f", 95 % interval {low:+.2f} to {high:+.2f}"
        return f"{known.mean:+.2f}{interval} over {known.count} stream{'s' if known.count > 1 else ''}"

    if not found:
        return ["- No pair of runs yet."]
    below = [each.stream["stream"].rpartition("-")[2] for each in found if each.is_below]
    which = f" ({', '.join(below)})" if below else ""
    lines = [
        f"- Mean gain: **{mean([each.gain for each in found])}** (each stream counts once).",
        "- Below fixed by more than 0.3 and by more than its standard error: "
        f"**{len(below)} of {len(found)}** streams{which}.",
    ]
    if any(each.best for each in found):
        lines.append(f"- To the best constant action in hindsight: {mean([each.distance for each in found])}.")
    if any(not math.isnan(each.unseen) for each in found):
        lines.append(f"- To the constant action that is best with the other seeds: {mean([e.unseen for e in found])}.")
    lines.append(f"- Cost: {np.mean([each.cost for each in found]):.2f} times that of fixed.")
    return lines


# The command ----------------------------------------------------------------------------------------------------------


def _listing(*, dev: bool) -> str:
    drawn = [
        draw_stream(data, number, dev=dev)
        for data, count in (("digits", DIGITS_STREAMS), ("cifar100", CIFAR_STREAMS))
        for number in range(count)
    ]
    lines = [
        f"| {each.name} | {'+'.join(map(str, each.groups))} | {each.amount} | {each.memory} | {each.order} |"
        for each in drawn
    ]
    return "\n".join(
        ["| stream | classes by phase | images of a class | kept | class order |", "|---" * 5 + "|", *lines]
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("streams.jsonl"))
    parser.add_argument("--dev", action="store_true", help="the streams for development")
    parser.add_argument("--streams", type=int, default=DIGITS_STREAMS, help="only the first so many")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=math.inf, help="CPU minutes after which nothing is started")
    parser.add_argument("--constants", action="store_true", help="constant actions, too")
    parser.add_argument("--entry", action="append", default=[], type=parse_entry, help="instead of online; repeatable")
    parser.add_argument("--list", action="store_true", help="print the streams")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--write-sweep", action="store_true", help="write recipes and sweeps for CIFAR-100")
    parser.add_argument("--collect", nargs="+", type=Path, metavar="RUN", help="append finished runs of a sweep")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> int:
    """Run streams, or one of the other things that the options name."""
    given = _arguments()
    if given.table:
        print(table(read_rows(given.table)))
    elif given.list:
        print(_listing(dev=given.dev))
    elif given.one:
        run_job(Job.from_json(given.one))
    elif given.write_sweep:
        for path, text in {**sweep_files(dev=False), **sweep_files(dev=True)}.items():
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text, encoding="utf-8")
    elif given.collect:
        done = {_key(row) for row in read_rows([given.out])} if given.out.exists() else set()
        new = [row for row in collect(given.collect) if _key(row) not in done]
        with given.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in new)
        print(f"{len(new)} rows appended to {given.out}", file=sys.stderr)
    else:
        entries = (FIXED, *(given.entry or (ONLINE,)), *(CONSTANTS if given.constants else ()))
        jobs = [
            Job(draw_stream("digits", number, dev=given.dev), seed, entries)
            for seed in range(given.seeds)
            for number in range(given.streams)
        ]
        failed = run_all(jobs, given.out, given.jobs, 60 * given.budget)
        print(table(read_rows([given.out])))
        return int(failed > 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
