"""The random streams are those that were committed, and their table says what the runs say."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from poise.data import class_order, make_stream
from poise.runs import load_recipe

ROOT = Path(__file__).parents[2]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("streams", ROOT / "benchmarks" / "streams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["streams"] = module
    spec.loader.exec_module(module)
    return module


streams = load_script()
KINDS = [(data, dev) for data in ("digits", "cifar100") for dev in (False, True)]


def drawn(data: str, dev: bool) -> list[Any]:
    count = streams.DIGITS_STREAMS if data == "digits" else streams.CIFAR_STREAMS
    return [streams.draw_stream(data, number, dev=dev) for number in range(count)]


# The streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("data", "dev"), KINDS)
def test_streams_are_what_was_asked_for(data: str, dev: bool) -> None:
    found = drawn(data, dev)
    assert len(found) >= (20 if data == "digits" else 4)
    assert all(2 <= stream.memory <= 20 for stream in found)
    assert len({(stream.groups, stream.order) for stream in found}) == len(found)
    assert sum(isinstance(stream.images, tuple) for stream in found) >= len(found) // 4  # long-tailed
    for stream in found:
        recipe = load_recipe(f"{data}/lucir", stream.words())
        assert recipe.exam == ("dev" if dev else "test")
        made = make_stream(
            "groups", order=class_order(stream.order, 10 if data == "digits" else 100), groups=stream.groups
        )
        assert len(made) == len(stream.groups) >= 3


def test_the_streams_for_showing_are_those_committed_before_the_first_run() -> None:
    """If this fails, streams.md does not belong to this script any more."""
    described = "\n".join(str(stream) for data in ("digits", "cifar100") for stream in drawn(data, False))
    assert hashlib.sha256(described.encode()).hexdigest()[:16] == "4c760876bc220c99"


@pytest.mark.parametrize("dev", [False, True])
def test_the_sweep_for_cifar100_is_what_the_seed_draws(dev: bool) -> None:
    for path, text in streams.sweep_files(dev=dev).items():
        assert (ROOT / path).read_text(encoding="utf-8") == text
        if path.parent.name == "streams":
            recipe = load_recipe(str(ROOT / path))
            assert (recipe.epochs, recipe.deterministic, recipe.data) == (40, True, "cifar100")


# Running --------------------------------------------------------------------------------------------------------------


def test_entries_start_from_one_phase_0_and_what_is_done_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    slow = streams.parse_entry("slow: policy=fixed action.lr=0.02")
    short = ("epochs=1", "groups=[2,1]")

    def run(*entries: Any) -> list[dict[str, Any]]:
        job = streams.Job(streams.draw_stream("digits", 2, dev=True), 1, entries, short)
        assert streams.run_all([job], out, workers=1, budget=math.inf) == 0
        rows: list[dict[str, Any]] = streams.read_rows([out])
        return rows

    (first,) = run(streams.FIXED)
    fixed, other = run(streams.FIXED, slow)
    assert fixed == first  # the line is still the one of the first call
    assert "1 runs: " in capsys.readouterr().err.splitlines()[-2]
    assert (fixed["entry"], other["entry"]) == ("fixed", "slow")
    assert fixed["start"] == other["start"]  # phase 0 was trained again, to the same bytes
    assert fixed["accuracy"][0] == other["accuracy"][0]
    assert other["actions"][0]["lr"] == 0.02
    assert (fixed["kind"], fixed["stream"], fixed["seed"], len(fixed["accuracy"])) == ("dev", "digits-2", 1, 2)
    assert fixed["cpu_seconds"] > 0
    assert fixed["machine"]
    assert len(fixed["date"]) == 10


# The table ------------------------------------------------------------------------------------------------------------


def row(stream: int, seed: int, entry: str, fc: float, ncm: float = 0.0, **more: Any) -> dict[str, Any]:
    """A run whose exams all have the same accuracy."""
    return {
        **{
            "kind": "showing",
            "stream": f"digits-{stream}",
            "seed": seed,
            "entry": entry,
            "constant": entry != "online",
        },
        **{"groups": [2, 1], "memory": 5, "images": [60, 5], "start": f"{stream} {seed}"},
        **{"accuracy": [fc, fc], "accuracy_fc": [fc, fc], "accuracy_ncm": [ncm, ncm]},
        **{"cpu_seconds": 4.0 if entry == "online" else 2.0, "seconds": 9.0, **more},
    }


def test_a_gain_is_the_mean_of_paired_differences() -> None:
    rows = [row(0, seed, "fixed", 80 + 5 * seed) for seed in range(3)]
    rows += [row(0, seed, "online", 80 + 5 * seed + gain) for seed, gain in enumerate((1.0, 2.0, 3.0))]
    found = streams.compare(rows, "online")
    assert (found.gain, found.seeds, found.fixed, found.cost) == (pytest.approx(2), 3, pytest.approx(85), 2.0)
    assert found.error == pytest.approx(1 / math.sqrt(3))
    assert found.best == ""
    assert not found.is_below


def test_runs_from_another_phase_0_are_no_pair() -> None:
    rows = [row(0, seed, entry, 80) for seed in range(2) for entry in ("fixed", "online")]
    rows[-1]["start"] = "another machine's"
    assert streams.compare(rows, "online").seeds == 1
    assert "1 runs of online have no fixed run from the same phase 0" in streams.table(rows)


@pytest.mark.parametrize(
    ("gains", "below"),
    [((-1.0, -1.1, -0.9), True), ((-0.2, -0.2, -0.21), False), ((-3.0, 2.5, -1.0), False), ((-1.0,), True)],
)
def test_below_means_by_more_than_a_third_of_a_point_and_more_than_its_error(
    gains: tuple[float, ...], below: bool
) -> None:
    rows = [row(0, seed, "fixed", 80) for seed in range(len(gains))]
    rows += [row(0, seed, "online", 80 + gain) for seed, gain in enumerate(gains)]
    assert streams.compare(rows, "online").is_below is below


def test_the_best_constant_is_chosen_in_hindsight_and_with_either_classifier() -> None:
    rows = [row(0, seed, "online", 85) for seed in range(2)] + [row(0, seed, "fixed", 80) for seed in range(2)]
    rows += [row(0, 0, "lucky", 70, ncm=92), row(0, 1, "lucky", 70, ncm=80)]  # 86 on average
    rows += [row(0, 0, "steady", 84), row(0, 1, "steady", 84), row(0, 0, "once", 99)]
    found = streams.compare(rows, "online")
    assert found.best == "lucky, ncm"
    assert found.distance == pytest.approx(-1)
    # With the other seed alone: seed 0 by seed 1 takes steady (84), seed 1 by seed 0 takes lucky (80).
    assert found.unseen == pytest.approx(((85 - 84) + (85 - 80)) / 2)


def test_each_stream_counts_once_in_the_mean() -> None:
    rows = []
    for stream, (gain, seeds) in enumerate([(1.0, 3), (2.0, 3), (6.0, 9)]):
        for seed in range(seeds):
            rows += [row(stream, seed, "fixed", 80), row(stream, seed, "online", 80 + gain)]
    text = streams.table(rows)
    assert "Mean gain: **+3.00, 95 % interval -3.57 to +9.57 over 3 streams**" in text
    assert "**0 of 3** streams" in text
    assert "| 2 | 2+1 | 60 to 5 | 5 | 80.00 | +6.00 | 0.00 | 9 | – | – | 2.00 |" in text
