"""What a probe found: how well rewards tell the truth, and the table that a simulation replays policies on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from poise.actions import Action
from poise.errors import UserError
from poise.policies.simulate import Simulation, Table, rank_correlation
from poise.report import align_columns
from poise.runfolder import FULL
from poise.spaces import ActionSpace
from poise.studies.probe_file import read_probe
from poise.tuning import CLASSIFIERS

OWN: Final = "own"  # in place of a classifier: for each action, the one that counts with it
TRUTHS: Final = ("exam", "full")
PHASES: Final = 5  # in which a single probe is replayed

Array = NDArray[np.float64]
TrialLength = int | str  # epochs of a short trial, or FULL


@dataclass(frozen=True)
class ProbeTable:
    """A probe's table. Accuracies are shares; means over rounds; those of a diverged trial are 0.

    `classifier` is `fc` or `ncm`, or `own`: of each action the one that counts with it. A table is `verified` unless it
    comes from a file without a digest.
    """

    table: Mapping[str, Any]
    verified: bool = True

    @cached_property
    def space(self) -> ActionSpace:
        """The actions that were tried."""
        space = self.table["space"]
        grids = [{axis: tuple(each) for axis, each in grid.items()} for grid in space.get("grids", [space["axes"]])]
        actions = tuple(Action(**axes) for axes in self.table["actions"])
        favourite = actions.index(Action(**space["favourite"])) if "favourite" in space else None
        return ActionSpace(space["name"], tuple(grids), actions, self.table["default"], favourite)

    @property
    def lengths(self) -> list[TrialLength]:
        """The lengths of the trials, short ones first."""
        return [*self.table["lengths"], *([FULL] if self.table["full"] else [])]

    @property
    def long(self) -> int:
        """M₂, the epochs of the phase itself."""
        return int(self.table["recipe"]["epochs"])

    def epochs(self, length: TrialLength) -> int:
        """How many epochs that is."""
        return int(self.table["full"]) if length == FULL else int(length)

    @property
    def has_exam(self) -> bool:
        """Whether the temporary models were examined; those of a look-ahead, which are of other classes, are not."""
        return any(entry["exam"] for entry in self.table["trials"])

    @property
    def classifier(self) -> str:
        """The classifier whose hits would be the reward; `own` where that depends on the action."""
        words = set(self.table["counts"])
        return str(words.pop()) if len(words) == 1 else OWN

    def images(self, length: TrialLength) -> tuple[int, ...]:
        """Validation images of each class in B."""
        return tuple(next(entry["images"] for entry in self._entries(length)))

    def weights(self, length: TrialLength) -> tuple[float, ...]:
        """How much each class in B counts in the reward."""
        entry = next(iter(self._entries(length)))
        return tuple(entry.get("weights") or [1 / len(entry["images"])] * len(entry["images"]))

    def _entries(self, length: TrialLength) -> Iterable[Mapping[str, Any]]:
        found = [entry for entry in self.table["trials"] if entry["length"] == length]
        if not found:
            raise UserError(f"the probe has no trials of length {length}; it has {', '.join(map(str, self.lengths))}")
        return found

    def _counts(self, classifier: str, arm: int) -> str:
        return str(self.table["counts"][arm]) if classifier == OWN else classifier

    def checkpoints(self, length: TrialLength) -> tuple[int, ...]:
        """The epochs after which trials of this length were looked at."""
        last = self.epochs(length)
        return tuple(sorted({*(2**power for power in range(last.bit_length()) if 2**power < last), last}))

    def rewards(self, length: TrialLength, classifier: str) -> Array:
        """Checkpoints × arms × classes: accuracies on B."""
        checkpoints, images = self.checkpoints(length), self.images(length)
        sums = np.zeros((len(checkpoints), len(self.space), len(images)))
        counts = np.zeros(len(self.space))
        for entry in self._entries(length):
            counts[entry["arm"]] += 1
            for place, epoch in enumerate(checkpoints):
                hits = _seen_after(entry, "hits", epoch / checkpoints[-1])
                if hits is not None:
                    name = self._counts(classifier, entry["arm"])
                    sums[place, entry["arm"]] += np.array(hits[name]) / entry["images"]
        return sums / counts[:, None]

    def reward(self, length: TrialLength, classifier: str) -> Array:
        """The reward of every arm at the end of its trial."""
        return np.asarray(self.rewards(length, classifier)[-1] @ np.array(self.weights(length)))

    def exam(self, length: TrialLength, classifier: str, among: slice = slice(None)) -> Array:
        """The exam accuracy of every arm's temporary models at the end, perhaps of some classes only."""
        if not self.has_exam:
            raise UserError("this probe examined no model; take the truth from another one of the phase (--truth-from)")
        images = np.array(self.table["exam"]["images"])[among]
        found: list[list[float]] = [[] for _ in self.space.actions]
        for entry in self._entries(length):
            hits = _seen_after(entry, "exam", 1.0)
            right = 0 if hits is None else np.array(hits[self._counts(classifier, entry["arm"])])[among].sum()
            found[entry["arm"]].append(float(right / images.sum()))
        return np.array([np.mean(values) for values in found])

    def diverged(self) -> int:
        """How many actions diverged in some trial."""
        return len({entry["arm"] for entry in self.table["trials"] if entry["diverged"]})


def _seen_after(entry: Mapping[str, Any], what: str, share: float) -> Mapping[str, list[int]] | None:
    """What was seen after that share of the trial; None if it diverged. An action may have epochs of its own."""
    if entry["diverged"] or not entry[what]:
        return None
    epochs = sorted(map(int, entry[what]))
    passed = [epoch for epoch in epochs if epoch <= share * epochs[-1] + 1e-9]
    return dict(entry[what][str(passed[-1] if passed else epochs[0])])


def load_probe(path: Path) -> ProbeTable:
    """The table that `poise probe` wrote."""
    return ProbeTable(*read_probe(path))


# Does the reward tell the truth? --------------------------------------------------------------------------------------


def probe_summary(probe: ProbeTable) -> str:
    """How well rewards go with the exam of the temporary models, and what choosing by them gives."""
    table = probe.table
    counts = f"{table['old']} old and {table['new']} new classes, {sum(probe.images(probe.lengths[0]))} images in B"
    lines = [
        f"probe of {table['name']}, phase {table['phase']}, seed {table['seed']}: {counts}, "
        f"rounds: {table['rounds']}, diverged: {probe.diverged()}",
        str(probe.space),
    ]
    if not probe.has_exam:
        return "\n".join([*lines, "the temporary models of this environment were not examined"])
    header = ["trials", "exam after", "counts", "correlation", "ten best", "rank", "ten best"]
    header += ["default", "best reward", "best there is", "random"]
    lines += ["", align_columns(header, [row for pair in _pairs(probe) for row in _rows(probe, *pair)]), ""]
    return "\n".join([*lines, f"exam '{table['exam']['name']}' of temporary models, in percent; it enters no reward"])


def _pairs(probe: ProbeTable) -> list[tuple[TrialLength, TrialLength]]:
    """Rewards of which trials against the exam after which: their own, and that after full length."""
    pairs = [(length, length) for length in probe.lengths]
    return pairs + [(length, FULL) for length in probe.table["lengths"] if probe.table["full"]]


def _rows(probe: ProbeTable, tried: TrialLength, examined: TrialLength) -> list[list[str]]:
    names = [OWN] if probe.classifier == OWN else CLASSIFIERS
    return [_row(probe, tried, examined, name) for name in names]


def _row(probe: ProbeTable, tried: TrialLength, examined: TrialLength, classifier: str) -> list[str]:
    reward, exam = probe.reward(tried, classifier), probe.exam(examined, classifier)
    ten = np.argsort(-reward, kind="stable")[:10]
    figures = (exam[probe.space.default], exam[_best_arm(probe, reward)], exam.max(), exam.mean())
    return [
        str(probe.epochs(tried)),
        str(probe.epochs(examined)),
        classifier,
        *(_two_digits(value) for value in (_correlation(reward, exam), _correlation(reward[ten], exam[ten]))),
        *(_two_digits(value) for value in (rank_correlation(reward, exam), rank_correlation(reward[ten], exam[ten]))),
        *(f"{100 * value:.2f}" for value in figures),
    ]


def _best_arm(probe: ProbeTable, reward: Array) -> int:
    """The arm with the best reward; the default, if it is among the best."""
    own = probe.space.default
    return own if reward[own] == reward.max() else int(reward.argmax())


def _correlation(one: Array, other: Array) -> float:
    if len(one) < 3 or one.std() == 0 or other.std() == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


def _two_digits(value: float) -> str:
    return "–" if np.isnan(value) else f"{round(value, 2) + 0.0:.2f}"


# Simulation -----------------------------------------------------------------------------------------------------------


def simulation_table(
    probes: Sequence[ProbeTable],
    *,
    length: int | None = None,
    truth: str | None = None,
    classifier: str | None = None,
    phases: int | None = None,
    judges: Sequence[ProbeTable] = (),
) -> tuple[Table, str]:
    """Probes as what policies are replayed on, and what was chosen in words.

    Several probes are one phase after the other; a single one is every phase.

    Args:
        probes: whose rewards are replayed; all of the same space.
        length: M₁; the longest short trials if not given.
        truth: what counts: `exam`, of the temporary models after M₁; or `full`, after M₂; `full` where it is there.
        classifier: whose hits are rewards and truth; the default action's if not given.
        phases: how often a single probe is repeated.
        judges: probes of the same phases whose exams are the truth, where the environment has none.
    """
    _refuse_different(probes, judges, phases)
    first, judged = probes[0], judges or probes
    name, short = _check_classifier(first, classifier), length or max(first.table["lengths"])
    counted = _check_truth(judged, truth, short)
    times = (phases or PHASES) if len(probes) == 1 else 1
    table = Table(
        first.space,
        tuple(probe.rewards(short, name) for probe in probes) * times,
        first.checkpoints(short),
        np.stack([probe.exam(counted, name) for probe in judged] * times),
        tuple(probe.images(short) for probe in probes) * times,
        tuple(probe.rewards(FULL, name)[-1] for probe in probes) * times if _all_full(probes) else None,
        tuple(probe.weights(short) for probe in probes) * times,
    )
    where = f"phase {', '.join(str(probe.table['phase']) for probe in probes)} of {first.table['name']}"
    return table, (
        f"{where}, M₁ = {short}, {name}; truth: exam '{first.table['exam']['name']}' of temporary models after "
        f"{judged[0].epochs(counted)} epochs, which enters no reward"
    )


def _check_truth(judges: Sequence[ProbeTable], truth: str | None, short: int) -> TrialLength:
    if truth not in (None, *TRUTHS):
        raise UserError(f"--truth {truth} must be exam or full")
    if truth == "full" and not _all_full(judges):
        raise UserError("--truth full needs tables made with 'poise probe --full'")
    return FULL if truth != "exam" and _all_full(judges) else short


def _all_full(probes: Sequence[ProbeTable]) -> bool:
    return all(probe.table["full"] for probe in probes)


def _check_classifier(probe: ProbeTable, classifier: str | None) -> str:
    if classifier is None or classifier == probe.classifier:
        return probe.classifier
    if probe.classifier == OWN:
        raise UserError("each action of this space has its own classifier; leave --classifier out")
    if classifier not in CLASSIFIERS:
        raise UserError(f"--classifier {classifier} must be fc or ncm")
    return classifier


def _refuse_different(probes: Sequence[ProbeTable], judges: Sequence[ProbeTable], phases: int | None) -> None:
    if not probes:
        raise UserError("no table to replay a policy on; make one with 'poise probe'")
    first = probes[0]
    for other in (*probes[1:], *judges):
        if other.table["actions"] != first.table["actions"] or other.space.default != first.space.default:
            raise UserError("the tables are of different spaces; probe every phase with the same actions")
    if phases is not None and len(probes) > 1:
        raise UserError("--phases repeats a single table; several tables are one phase each")
    if judges and len(judges) != len(probes):
        raise UserError(f"{len(probes)} tables need as many of --truth-from, not {len(judges)}")
    for one, judge in zip(probes, judges or probes, strict=True):
        if any(one.table[key] != judge.table[key] for key in ("fingerprint", "phase", "classes", "state")):
            raise UserError("--truth-from must be of the same phase of the same run as the table it judges")


def simulation_summary(simulation: Simulation, title: str) -> str:
    """What a policy decided over many runs, phase by phase."""
    found = simulation.summary()
    rows = [
        [
            str(phase + 1),
            f"{found['truth'][phase]:.2f}",
            f"{found['spread'][phase]:.2f}",
            f"{found['default'][phase]:.2f}",
            f"{found['best'][phase]:.2f}",
            f"{found['regret'][phase]:.2f}",
            f"{found['below_default'][phase]:.3f}",
            f"{found['trials'][phase]:.1f}",
            f"{found['epochs'][phase]:.1f}",
        ]
        for phase in range(len(found["truth"]))
    ]
    header = ["phase", "truth", "±", "default", "best", "regret", "below default", "trials", "epochs"]
    rank = found["rank_correlation_of_ten_best"]
    most = list(found["last_decided"].items())[:3]
    return "\n".join(
        [
            title,
            "",
            align_columns(header, rows),
            "",
            f"rank correlation of reward and truth among the ten best: {'–' if rank is None else f'{rank:.2f}'}",
            f"ends more than 0.3 points below the default in {found['below_default'][-1]:.1%} of {found['runs']} runs",
            "decided last: " + "; ".join(f"{share:.0%} {action}" for action, share in most),
        ]
    )
