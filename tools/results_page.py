"""Write the tables of results/cifar100.md, and the README's, from the raw results in results/cifar100/.

    python tools/results_page.py                 refresh both pages
    python tools/results_page.py --check         change nothing; exit 1 if a page is not what the files say
    python tools/results_page.py --keep DIR...   first copy finished runs there: result.json, and the journal compressed
    python tools/results_page.py --keep DIR... --suffix WORD   the same, under the name of the folder and this word

Text between `<!-- NAME: tools/results_page.py -->` and `<!-- end -->` is written here, all other text by hand. A cell
that was not run is `–`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from poise.errors import PoiseError
from poise.methods import make_method
from poise.report import RunRecord, load_result, read_run
from poise.report.reading import StreamKind
from poise.report.reading.folders import KEPT_JOURNAL
from poise.report.statistics import Spread, spread
from poise.report.tables.paper import (
    ablation_number,
    every,
    printed_ablation,
    printed_accuracy,
    printed_hours,
    published_accuracy,
)
from poise.report.tables.table import with_sign
from poise.runfolder import JOURNAL, RESULT
from poise.spaces import FIRST_ONLINE, WITH_ALLOCATION

ROOT = Path(__file__).parents[1]
STREAMS = tuple(StreamKind(phases, setting) for phases in (5, 25) for setting in ("tfh", "tfs"))
#: A cell that is further from the paper's is a bug until shown otherwise.
CLOSE = 1.5
#: Both classifiers of two runs that share a phase 0 are no further apart in the exam after it, in points.
SHARED = 0.1
ORDER = 1993
MISSING = "–"
BLOCK = re.compile(r"(<!-- (?P<name>[\w ]+): tools/results_page\.py -->\n).*?(<!-- end -->)", re.DOTALL)

Cell = dict[int, RunRecord]  # the runs of a cell by their seed


@dataclass(frozen=True)
class Line:
    """A row of the table: which runs belong to it, and the paper's row it stands beside."""

    label: str
    wanted: Callable[[RunRecord], bool]
    command: str
    notes: str = ""
    paper: str = ""  # the method's name in the paper's table; none: it has no such row
    tuned: bool = False  # whether the paper's row is the one "w/ ours"
    classifier: str | None = None  # the classifier whose accuracy is shown, where it is not the one that counted
    paired: bool = False  # whether its gain over the method's own settings from the same phase 0 is shown


def fixed(method: str, **more: str) -> Callable[[RunRecord], bool]:
    """Runs of a method with its own hyperparameters and these options, in the paper's memory."""
    return lambda run: own(run, method) and per_class(run) == 20 and options_of(run) == more and not is_repeated(run)


def own(run: RunRecord, method: str) -> bool:
    """Whether it is a run of this method with its own hyperparameters."""
    return run.method == method and run.fixed


def tuned(
    method: str,
    policy: str,
    *,
    leak: bool = False,
    space: str | None = None,
    pairs: bool = False,
    repeated: bool = False,
) -> Callable[[RunRecord], bool]:
    """Runs of a method with that policy in all of its space, deciding in every phase.

    `pairs`: those that compare actions in pairs. `repeated`: those that repeat others with small last batches joined.
    """
    whole = {name for name in (space,) if name} or {"online", FIRST_ONLINE, "paper"}

    def wanted(run: RunRecord) -> bool:
        plain = every(run) == 1 and ("leak" in run.labels) == leak and str((run.space or {}).get("name")) in whole
        asked = run.policy == policy and compares_in_pairs(run) == pairs and joins_last_batch(run) == repeated
        return run.method == method and asked and plain and not is_ablated(run)

    return wanted


def compares_in_pairs(run: RunRecord) -> bool:
    """Whether its policy compared actions in pairs, which `online` does if asked to."""
    return bool(((run.result or {}).get("resolved_policy") or {}).get("paired"))


def per_class(run: RunRecord) -> object:
    """How many images of each class are kept; None where the memory has another size."""
    return (run.recipe.get("memory") or {}).get("per_class")


def total(run: RunRecord) -> object:
    """How many images are kept in all; None where the memory has another size."""
    return (run.recipe.get("memory") or {}).get("total")


def has_its_own_memory(run: RunRecord) -> bool:
    """Whether it keeps what FOSTER's authors keep: 2,000 images in equal phases, else 20 per class."""
    return total(run) == 2000 if StreamKind.of(run).setting == "tfs" else per_class(run) == 20


def options_of(run: RunRecord) -> Mapping[str, object]:
    """The options of its method that are not the usual ones."""
    usual = make_method(run.method.split("+")[0]).options
    return {name: value for name, value in (run.recipe.get("options") or {}).items() if usual.get(name) != value}


def is_repeated(run: RunRecord) -> bool:
    """Whether it repeats another run: those that a policy's are paired with are kept under such a name."""
    return run.path.stem.endswith("-paired") or joins_last_batch(run)


def joins_last_batch(run: RunRecord) -> bool:
    """Whether small last batches joined the ones before and such a batch was there: kept under such a name."""
    return run.path.stem.endswith("-joined")


def is_ablated(run: RunRecord) -> bool:
    """Whether only some kinds of axes were tuned, for Table 3; `exp3` over the paper's space tunes just those."""
    return run.policy == "online" and ablation_number(run) is not None


def knows_increment(run: RunRecord) -> bool:
    """Whether it is RMM's released rule."""
    return "knows increment" in run.labels


RMM = "poise run cifar100/rmm"
LINES: tuple[Line, ...] = (
    Line("iCaRL", fixed("icarl"), "poise run cifar100/icarl", "classifies by the nearest class mean (NCM)", "icarl"),
    Line(
        "LwF",
        fixed("icarl"),
        "poise run cifar100/icarl",
        "the linear head (FC) of the iCaRL runs; the paper has no such row",
        classifier="fc",
    ),
    Line("PODNet", fixed("podnet"), "poise run cifar100/podnet", "", "podnet"),
    Line(
        "DER",
        lambda run: own(run, "der") and per_class(run) == 20,
        "poise run cifar100/der",
        "170 epochs; TFS with `options.first=warm`; the paper does not give the memory size of its TFS runs",
        "der",
    ),
    Line(
        "FOSTER, protocol of the other rows",
        lambda run: own(run, "foster") and per_class(run) == 20 and run.augmentation is None,
        "poise run cifar100/foster",
        "170 epochs; TFH 25 with `action.beta1=0.95`, TFS 25 with `action.beta1=0.96`",
        "foster",
    ),
    Line(
        "FOSTER, its own protocol",
        lambda run: own(run, "foster") and run.augmentation == "autoaugment+cutout" and has_its_own_memory(run),
        "poise run cifar100/foster augmentation=autoaugment+cutout",
        "170 epochs; TFS: `cifar100/foster-2000`, 2,000 images in total; the paper's TFS 25 has 20 phases: "
        "`phases=20 action.beta1=0.96 options.beta1_falls=0`",
        "foster",
    ),
    Line("LUCIR", fixed("lucir"), "poise run cifar100/lucir", "", "lucir"),
    Line(
        "LUCIR, run again",
        lambda run: own(run, "lucir") and is_repeated(run) and not joins_last_batch(run),
        "poise run cifar100/lucir",
        "the runs that `online` is compared with, seed 0",
        "lucir",
    ),
    Line(
        "LUCIR, run again with small last batches joined",
        lambda run: own(run, "lucir") and joins_last_batch(run),
        "poise run cifar100/lucir",
        "how poise has trained since 2026-11-16",
        "lucir",
    ),
    Line(
        "LUCIR + `online`",
        tuned("lucir", "online"),
        "poise run cifar100/lucir policy=online start=…",
        "policy frozen before these runs; small last batches not joined",
        "lucir",
        tuned=True,
        paired=True,
    ),
    Line(
        "LUCIR + `online`, small last batches joined",
        tuned("lucir", "online", repeated=True),
        "poise run cifar100/lucir policy=online start=…",
        "how poise has trained since 2026-11-16",
        "lucir",
        tuned=True,
        paired=True,
    ),
    Line(
        "LUCIR + `online`, small last batches joined, `paired` and `stay`",
        tuned("lucir", "online", pairs=True, repeated=True),
        "poise run cifar100/lucir policy=online policy_options.paired=true policy_options.stay=0.01 start=…",
        "replayed on its trials, the policy decides the same without these options (16 missing trials filled in)",
        "lucir",
        tuned=True,
        paired=True,
    ),
    Line(
        f"LUCIR + the first `online` (`{FIRST_ONLINE}`)",
        tuned("lucir", FIRST_ONLINE),
        f"poise run cifar100/lucir policy={FIRST_ONLINE} start=…",
        "policy frozen before these runs, which revealed a flaw in its race",
        "lucir",
        tuned=True,
        paired=True,
    ),
    Line(
        "LUCIR + `exp3`, the paper's policy as printed",
        tuned("lucir", "exp3"),
        "poise run cifar100/lucir policy=exp3 space=paper start=…",
        "25 trials per phase; rewards on held-out training images",
        "lucir",
        tuned=True,
        paired=True,
    ),
    Line(
        "the same, rewarded with test accuracy (*leak*)",
        tuned("lucir", "exp3", leak=True),
        "poise audit cifar100/lucir policy=exp3 space=paper start=…",
        "not a result: it measures what the leak in the released code is worth",
        "lucir",
        tuned=True,
        paired=True,
    ),
    Line(
        "AANets",
        fixed("aanets"),
        "poise run cifar100/aanets",
        "η reset to 1 in phase 1, as in the released code",
        "aanets",
    ),
    Line(
        "AANets, η kept",
        fixed("aanets", eta="kept"),
        "poise run cifar100/aanets options.eta=kept",
        "η carried over from phase to phase, the default until 2026-11-17",
        "aanets",
    ),
    Line(
        "AANets + `online`",
        tuned("aanets", "online"),
        "poise run cifar100/aanets policy=online start=…",
        "",
        "aanets",
        tuned=True,
        paired=True,
    ),
    Line(
        "RMM, causal rule",
        lambda run: own(run, "aanets+rmm") and not knows_increment(run),
        RMM,
        "unlike the paper's rule, not told the size of the next phase; holds 420 images per class between phases 0 and "
        "1 (TFS: 270; TFH 25: 370); TFS with `memory.allocation=0.5`; 25 phases with `cifar100/rmm-25`",
        "rmm",
    ),
    Line(
        "RMM, released rule",
        lambda run: own(run, "aanets+rmm") and knows_increment(run),
        f"{RMM} memory.knows_increment=true",
        "told the size of the next phase (*knows increment*); TFS and 25 phases as above",
        "rmm",
    ),
    Line(
        "RMM + `online`, ρ chosen too",
        tuned("aanets+rmm", "online", space=f"online{WITH_ALLOCATION}"),
        f"{RMM} policy=online space=online{WITH_ALLOCATION}",
        "causal rule; TFS and 25 phases as above",
        "rmm",
        tuned=True,
    ),
)  # fmt: skip


# Runs and figures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """All runs that were kept, and where their files lie, seen from a page."""

    runs: Sequence[RunRecord]
    prefix: str = ""

    @staticmethod
    def read(folder: Path, prefix: str = "") -> Results:
        """The results in this folder; one that is damaged, or has no digest, is refused."""
        runs = [read_run(path) for path in sorted(folder.glob("*.json"), key=lambda path: path.stem)]
        unsure = [run.name for run in runs if not run.verified]
        if unsure:
            raise SystemExit(f"{', '.join(unsure)} have no digest; 'poise digest {folder}' adds it")
        return Results(runs, prefix)

    def cell(self, line: Line, stream: StreamKind, order: object = ORDER) -> Cell:
        """The runs of one cell by seed."""
        return by_seed(self.of(line), stream, order)

    def of(self, line: Line) -> list[RunRecord]:
        """The finished runs of a row on the test exam."""
        return [run for run in self.runs if run.exam == "test" and run.data == "cifar100" and line.wanted(run)]

    def partner(self, run: RunRecord) -> RunRecord | None:
        """The run with the method's own settings that shares the phase 0 of this one."""
        others = [other for other in self.runs if other.fixed and _is_comparable(run, other)]
        apart = {other.path: _apart_at_first(run, other) for other in others}
        nearest = min(others, key=lambda other: apart[other.path], default=None)
        return nearest if nearest and apart[nearest.path] <= SHARED else None

    def link(self, words: str, run: RunRecord) -> str:
        """The words, leading to the raw file."""
        return f"[{words}]({self.prefix}{run.path.name})"


def _is_comparable(run: RunRecord, other: RunRecord) -> bool:
    """Whether nothing but the policy differs, as far as results say it."""
    keys = ("order", "memory", "epochs", "augmentation", "seed")
    one, two = (
        [joins_last_batch(run), options_of(run), *(run.recipe.get(key) for key in keys)] for run in (run, other)
    )
    return one == two and (StreamKind.of(run), run.method) == (StreamKind.of(other), other.method)


def _apart_at_first(run: RunRecord, other: RunRecord) -> float:
    """How far two runs are apart in the exam after phase 0: where they share it, by rounding at most."""
    one, two = run.phases[0], other.phases[0]
    return max(abs(one.accuracy_fc - two.accuracy_fc), abs(one.accuracy_ncm - two.accuracy_ncm))


def by_seed(runs: Iterable[RunRecord], stream: StreamKind, order: object = ORDER) -> Cell:
    """The runs of one stream and order by seed; of two with the same seed, the first."""
    found: Cell = {}
    for run in runs:
        if StreamKind.of(run) == stream and run.recipe.get("order") == order:
            found.setdefault(run.seed, run)
    return found


def average(run: RunRecord, classifier: str | None = None) -> float:
    """Average accuracy over all exams, by the classifier that counted or by this one."""
    if classifier is None:
        assert run.average is not None
        return run.average
    return sum(phase.accuracy_by(classifier) for phase in run.phases) / len(run.phases)


def plus_minus(found: Spread, digits: int = 2) -> str:
    """A mean; where there are several seeds, with its deviation, which may be small, and their number."""
    more = f" ± {found.deviation:.2f}, n {found.count}" if found.count > 1 else ""
    return f"{found.mean:.{digits}f}{more}"


# Table 1 --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row as it is shown, and how far its cells are from the paper's."""

    cells: list[str]
    off: dict[StreamKind, float] = field(default_factory=dict)
    unlike: list[StreamKind] = field(default_factory=list)


def accuracy_row(results: Results, line: Line, order: object = ORDER) -> Row:
    """The cells of a row: ours, the paper's in brackets, and the difference."""
    row = Row([])
    for phases in (5, 25):
        both = []
        for stream in (each for each in STREAMS if each.phases == phases):
            cell = results.cell(line, stream, order)
            both.append({seed: average(run, line.classifier) for seed, run in cell.items()})
            row.cells.append(_accuracy_cell(results, line, stream, cell, row))
        shared = [(both[0][seed] + both[1][seed]) / 2 for seed in both[0] if seed in both[1]]
        printed = _format_printed(line, phases, "average")
        mean = spread(shared) if shared else None
        shown = f"{mean.mean:.2f}" if mean else MISSING
        if mean and any(stream.phases == phases for stream in row.unlike):
            row.cells.append(f"{shown} (paper {printed}: not comparable)" if printed else shown)
            continue
        compared = {stream for stream in row.off if stream.phases == phases}
        row.cells.append(_beside(shown, mean, printed, compare=len(compared) == 2))
    return row


def _accuracy_cell(results: Results, line: Line, stream: StreamKind, cell: Cell, row: Row) -> str:
    printed = _format_printed(line, stream.phases, stream.setting)
    if not cell:
        return _beside(MISSING, None, printed)
    found = spread([average(run, line.classifier) for run in cell.values()])
    words = plus_minus(found)
    first = next(iter(cell.values()))
    shown = results.link(words, first) if len(cell) == 1 else f"{words}: {_seed_links(results, cell)}"
    if printed is None or line.classifier:
        return shown
    unlike = _unlike(first, stream)
    if unlike:
        row.unlike.append(stream)
        return f"{shown} (paper {printed}: {unlike})"
    row.off[stream] = found.mean - _number(printed)
    return _beside(shown, found, printed)


def _unlike(run: RunRecord, stream: StreamKind) -> str:
    """Why the paper's figure cannot be compared with this run's; nothing where it can."""
    if "leak" in run.labels:
        return ""
    known = published_accuracy(run, stream.phases, stream.setting)
    return known.unlike or "" if known else "another protocol"


def _seed_links(results: Results, cell: Cell) -> str:
    return " ".join(results.link(f"s{seed}", run) for seed, run in sorted(cell.items()))


def _format_printed(line: Line, phases: int, setting: str) -> str | None:
    if not line.paper:
        return None
    found = printed_accuracy(line.paper, "cifar100", phases, setting, tuned=line.tuned)
    if found is None:
        return None
    return f"{found.figure:.1f}" + (f" ± {found.deviation:.1f}" if found.deviation else "")


def _number(printed: str) -> float:
    return float(printed.split(" ", maxsplit=1)[0])


def _beside(shown: str, found: Spread | None, printed: str | None, *, compare: bool = True) -> str:
    """A figure, and the paper's in brackets with the difference."""
    if printed is None:
        return shown
    difference = f", {with_sign(found.mean - _number(printed), 1)}" if found and compare else ""
    return f"{shown} ({printed}{difference})"


def verdict(row: Row) -> str:
    """Whether the paper's figures were reproduced, as far as they were run."""
    if not row.off:
        return "not comparable" if row.unlike else "not run"
    far = [f"{stream} {with_sign(by, 1)}" for stream, by in row.off.items() if abs(by) > CLOSE]
    if far:
        return f"no: {', '.join(far)}"
    return "yes" if len(row.off) == len(STREAMS) else f"so far, {len(row.off)} of {len(STREAMS)} cells"


def gain_row(results: Results, line: Line) -> list[str]:
    """Gains over the method's own settings from the same phase 0, and the paper's in brackets."""
    cells = []
    for stream in STREAMS:
        pairs = [(run, results.partner(run)) for run in results.cell(line, stream).values()]
        gains = [average(run) - average(other) for run, other in pairs if other]
        printed = [
            printed_accuracy(line.paper, "cifar100", stream.phases, stream.setting, tuned=on) for on in (False, True)
        ]
        theirs = with_sign(printed[1].figure - printed[0].figure, 1) if printed[0] and printed[1] else MISSING
        ours = with_sign(gains[0]) if len(gains) == 1 else MISSING
        if len(gains) > 1:
            found = spread(gains)
            ours = f"{with_sign(found.mean)} ± {found.deviation:.2f}, n {found.count}"
        cells.append(f"{ours} ({theirs})")
    return [*cells[:2], "", *cells[2:], ""]


def main_table(results: Results) -> str:
    """The whole table, in the paper's layout; rows of other orders and runs of no row follow where there are any."""
    heads = ["", "TFH 5", "TFS 5", "average 5", "TFH 25", "TFS 25", "average 25", "seeds", "verified", "command, notes"]
    rows = []
    for line in LINES:
        row, runs = accuracy_row(results, line), [run for run in results.of(line) if run.recipe.get("order") == ORDER]
        seeds = ", ".join(map(str, sorted({run.seed for run in runs}))) or MISSING
        said = MISSING if not line.paper or "leak" in line.label else verdict(row)
        said = "not the paper's policy" if runs and "`online`" in line.label else said
        rows.append(
            [line.label, *row.cells, seeds, said, f"`{line.command}`" + (f"; {line.notes}" if line.notes else "")]
        )
        if line.paired:
            rows.append(["– gain, from the same phase 0", *gain_row(results, line), "", "", ""])
        rows += _other_orders(results, line)
    return markdown(heads, rows) + _list_unplaced(results)


def summary(results: Results) -> str:
    """How many cells of the methods' own rows were run, and how far the furthest one is from the paper's."""
    count, far = 0, list[tuple[float, str]]()
    for line in (line for line in LINES if line.paper and not line.tuned and "again" not in line.label):
        row = accuracy_row(results, line)
        count += sum(bool(results.cell(line, stream)) for stream in STREAMS)
        far += [(abs(by), f"{line.label}, {stream}: {with_sign(by, 1)}") for stream, by in row.off.items()]
    close = sum(by <= CLOSE for by, _ in far)
    furthest = f"; the furthest is {max(far)[1]}" if far else ""
    ours = f"Of the {len(far)} that the paper has a comparable figure for, {close} are within {CLOSE} points of it"
    return f"{count} cells of the methods with their own settings have been run. {ours}{furthest}."


def _other_orders(results: Results, line: Line) -> Iterator[list[str]]:
    runs = [run for run in results.of(line) if run.recipe.get("order") != ORDER]
    for order in {str(run.recipe.get("order")): run.recipe.get("order") for run in runs}.values():
        row = accuracy_row(results, line, order)
        seeds = ", ".join(map(str, sorted({run.seed for run in runs if run.recipe.get("order") == order})))
        yield [f"{line.label}, order `{order}`", *row.cells, seeds, verdict(row), f"`{line.command} order={order}`"]


def _list_unplaced(results: Results) -> str:
    """Runs that belong to no row of any table: none is hidden."""
    shown = set[Path]()
    for line in LINES:
        orders = {str(run.recipe.get("order")): run.recipe.get("order") for run in results.of(line)}
        for stream, order in product(STREAMS, orders.values()):
            shown |= {run.path for run in results.cell(line, stream, order).values()}
    for _, runs in (*table_3_rows(results), *every_rows(results)):
        shown |= {run.path for stream in STREAMS for run in by_seed(runs, stream).values()}
    left = [run for run in results.runs if run.path not in shown]
    lines = [
        f"- {run.method}, {run.policy_label}, {StreamKind.of(run)}, order {run.recipe.get('order')}, seed {run.seed}, "
        f"exam {run.exam}, {_describe_memory(run)}: {results.link(f'{average(run):.2f}', run)}"
        for run in left
    ]
    return "\n".join(["", "", "Other runs, for which the paper has no figure:", "", *lines]) if lines else ""


def _describe_memory(run: RunRecord) -> str:
    return f"{total(run):,} images kept in total" if isinstance(total(run), int) else f"{per_class(run)} per class"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# Tables 3, S1 and S2 --------------------------------------------------------------------------------------------------

ABLATION: tuple[tuple[str, str, str], ...] = (
    ("1", "fixed", "poise run cifar100/lucir"),
    ("2", "`online`, only β and γ", "poise run cifar100/lucir policy=online 'tune=[\"kd\"]' start=…"),
    ("3", "`online`, + δ", 'poise run cifar100/lucir policy=online \'tune=["kd","classifier"]\' start=…'),
    ("4", "`online`, + λ", 'poise run cifar100/lucir policy=online \'tune=["kd","classifier","lr"]\' start=…'),
    ("", "`online`, everything it tunes", "poise run cifar100/lucir policy=online start=…"),
    ("5", "cross-validated constant (*oracle*)", "poise crossval cifar100/lucir space=online start=…"),
    ("6", "offline RL", "poise run cifar100/lucir policy=offline-rl"),
    ("7", "bilevel ([TFS 5: part CPU](cifar100-dev.md#bilevel))", "poise run cifar100/lucir policy=bilevel start=…"),
)


def table_3_rows(results: Results) -> list[tuple[str, list[RunRecord]]]:
    """The runs of each row of Table 3, in the order of `ABLATION`."""
    lucir = [
        run
        for run in results.runs
        if run.method == "lucir" and run.exam == "test" and not (run.fixed and is_repeated(run))
    ]
    whole = tuned("lucir", "online")
    rows = []
    for number, _, _ in ABLATION:
        own = [run for run in lucir if (str(ablation_number(run)) == number and run.policy in POLICIES[number])]
        rows.append((number, own if number else [run for run in lucir if whole(run)]))
    return rows


POLICIES: Mapping[str, tuple[str, ...]] = {
    **{"1": ("fixed",), "5": ("crossval",), "6": ("offline-rl",), "7": ("bilevel",), "": ()},
    **dict.fromkeys("234", ("online",)),
}


def table_3(results: Results) -> str:
    """Table 3 with LUCIR: what is tuned, and other ways to tune it."""
    rows = []
    for (number, label, command), (_, runs) in zip(ABLATION, table_3_rows(results), strict=True):
        rows.append([number, label, *_stream_cells(results, runs, "ablation", number), f"`{command}`"])
    return markdown(["No.", "tuned", *map(str, STREAMS), "command"], rows)


def every_rows(results: Results) -> list[tuple[str, list[RunRecord]]]:
    """The runs of each row of Table S1."""
    own = [run for run in results.runs if run.method == "lucir" and run.policy == "online" and run.exam == "test"]
    plain = tuned("lucir", "online")
    return [("1", [run for run in own if plain(run)])] + [
        (str(period), [run for run in own if every(run) == period and not run.informed]) for period in (2, 5)
    ]


def table_s1(results: Results) -> str:
    """Table S1: every how many phases the policy decides."""
    command = "poise run cifar100/lucir policy=online policy_options.every={} start=…"
    rows = [
        [period, *_stream_cells(results, runs, "every", period), f"`{command.format(period)}`"]
        for period, runs in every_rows(results)
    ]
    return markdown(["every", *map(str, STREAMS), "command"], rows)


def _stream_cells(results: Results, runs: Sequence[RunRecord], table: str, key: str) -> Iterator[str]:
    for stream in STREAMS:
        cell = by_seed(runs, stream)
        printed = printed_ablation(table, key, stream)
        found = spread([average(run) for run in cell.values()]) if cell else None
        shown = MISSING
        if found:
            one = len(cell) == 1
            first = next(iter(cell.values()))
            shown = (
                results.link(plus_minus(found), first) if one else f"{plus_minus(found)}: {_seed_links(results, cell)}"
            )
        yield _beside(shown, found, None if printed is None else f"{printed:.2f}")


#: Rows of Table S2: what they are called, how often they decide (None: by another tuner), and their key in the paper.
TIMES: tuple[tuple[str, str, tuple[int, ...], str], ...] = (
    ("fixed", "fixed", (), "fixed"),
    ("`online`, every phase", "online", (1, 2, 3, 4, 5), "1"),
    ("`online`, every 2", "online", (1, 3, 5), "2"),
    ("`online`, every 5", "online", (1,), "5"),
    ("bilevel", "bilevel", (1, 2, 3, 4, 5), "bilevel"),
    ("offline RL", "offline-rl", (0,), "offline-rl"),
)


def table_s2(file: Path) -> str:
    """Table S2: minutes of LUCIR TFH 5, from one incremental phase of each, alone, and multiplied."""
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    hours, rows, base = printed_hours(), [], None
    for label, policy, decides, key in TIMES:
        minutes = _estimate_minutes(found, policy, decides)
        base = minutes if policy == "fixed" else base
        ours = f"{minutes:.1f} min" if minutes else MISSING
        ratio = f"{minutes / base:.2f}" if minutes and base else MISSING
        rows.append([label, ours, ratio, f"{hours[key]:g} h", f"{hours[key] / hours['fixed']:.2f}"])
    return markdown(["", "ours", "to fixed", "paper (one V100)", "to fixed"], rows)


def _estimate_minutes(found: Mapping[str, dict[str, list[float]]], policy: str, decides: Sequence[int]) -> float | None:
    """Minutes of phase 0 and five more, each of which takes as long as the one that was measured."""
    if "fixed" not in found or policy not in found:
        return None
    first, plain = found["fixed"]["phases"]
    if 0 in decides:  # learned before phase 0, applied for nothing
        first, plain = found[policy]["phases"]
    own = found[policy]["phases"][-1]
    return (first + sum(own if phase in decides else plain for phase in range(1, 6))) / 60


# The README -----------------------------------------------------------------------------------------------------------


#: Rows of the README's first table. DER and FOSTER follow, for they have other protocols.
OWN_ROWS: tuple[str, ...] = (
    *("LUCIR", "iCaRL", "PODNet", "AANets", "RMM, causal rule", "DER"),
    *("FOSTER, protocol of the other rows", "FOSTER, its own protocol"),
)


def readme_tables(results: Results) -> str:
    """The README's two tables: methods with their own settings, and with `online`."""
    lines = {line.label: line for line in LINES}
    own_rows = []
    for label in OWN_ROWS:
        cells = [_short_cell(results, lines[label], stream) for stream in STREAMS]
        if any(not cell.startswith(MISSING) for cell in cells):
            own_rows.append([label, *cells])
    heads = ["", *map(str, STREAMS)]
    gains = []
    for line in LINES:
        if not line.tuned or "online" not in line.label or not results.of(line):
            continue
        cells = [_short_cell(results, line, stream) for stream in STREAMS]
        if line.paired:
            cells = list(map(_gain_cell, cells, filter(None, gain_row(results, line))))
        gains.append([line.label, *cells])
    return (
        "**The methods' own settings**: average accuracy in %, with the paper's figure in brackets.\n\n"
        f"{markdown(heads, own_rows)}\n\n"
        "\\* The paper's figure comes from another protocol and cannot be compared.\n\n"
        "**With `online`**: average accuracy; gain over the method's own settings from the same first phase. The "
        "paper's figures in brackets are for its own policy.\n\n"
        f"{markdown(heads, gains)}\n"
    )


def _gain_cell(average: str, gain: str) -> str:
    return average if average == MISSING else f"{average}; {gain}"


def _short_cell(results: Results, line: Line, stream: StreamKind) -> str:
    """Ours, and the paper's in brackets where they can be compared."""
    cell = results.cell(line, stream)
    if not cell:
        return MISSING
    printed = _format_printed(line, stream.phases, stream.setting)
    unlike = bool(printed) and bool(_unlike(next(iter(cell.values())), stream))
    theirs = f" ({_number(printed):.1f})" if printed and not unlike else ""
    return plus_minus(spread([average(run) for run in cell.values()]), 1) + theirs + ("\\*" if unlike else "")


# The pages ------------------------------------------------------------------------------------------------------------


def fill_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """A page with these blocks; one that it names and nobody writes is refused."""

    def fill_block(found: re.Match[str]) -> str:
        if found["name"] not in blocks:
            raise SystemExit(f"nothing is known of a block '{found['name']}'; known: {', '.join(blocks)}")
        return f"{found[1]}{blocks[found['name']].rstrip()}\n{found[3]}"

    return BLOCK.sub(fill_block, text)


def pages(root: Path) -> dict[Path, str]:
    """Both pages as the files beneath `root` say."""
    folder = root / "results" / "cifar100"
    beside, above = Results.read(folder, "cifar100/"), Results.read(folder, "results/cifar100/")
    blocks = {
        "table 1": main_table(beside),
        "summary": summary(beside),
        "table 3": table_3(beside),
        "table S1": table_s1(beside),
        "table S2": table_s2(root / "results" / "cifar100-times.json"),
        "readme": readme_tables(above),
    }
    names = (root / "results" / "cifar100.md", root / "README.md")
    return {path: fill_blocks(path.read_text(encoding="utf-8"), blocks) for path in names}


def keep(run: Path, folder: Path, suffix: str = "") -> None:
    """Copy the result of a finished run, and its journal compressed, under the name of its folder and the suffix."""
    load_result(run)  # finished, and as it was written
    target = folder / f"{run.resolve().name}{f'-{suffix}' if suffix else ''}.json"
    data = (run / RESULT).read_bytes()
    if target.exists() and target.read_bytes() != data:
        raise SystemExit(f"{target} is another result; give a --suffix")
    target.write_bytes(data)
    if (run / JOURNAL).is_file():  # a cross-validation has none of its own
        packed = lzma.compress((run / JOURNAL).read_bytes(), preset=9)
        target.with_suffix(KEPT_JOURNAL).write_bytes(packed)


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    parser.add_argument("--keep", type=Path, nargs="+", default=[], metavar="DIR", help="run folders to be kept first")
    parser.add_argument("--suffix", default="", metavar="WORD", help="what the names of the kept ones end with")
    given = parser.parse_args(words)
    try:
        for run in given.keep:
            keep(run, root / "results" / "cifar100", given.suffix)
    except PoiseError as error:
        raise SystemExit(str(error)) from error
    old = []
    for path, text in pages(root).items():
        if path.read_text(encoding="utf-8") != text:
            old.append(path)
            if not given.check:
                path.write_text(text, encoding="utf-8")
    for path in old:
        print(f"{path} {'is not what the files say' if given.check else 'was refreshed'}")
    return int(given.check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
