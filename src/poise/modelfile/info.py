"""What a learner's file holds, in short: read without its weights and images."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from poise import store
from poise.errors import reading
from poise.learner import Label, SavedLearner
from poise.words import counted, one_line

#: Where a file says of which classes its kept images are.
LABELS: Final = ("memory.exemplars.labels", "memory.reserve.labels")
#: How the names of a network's tensors end that are counted and not learned.
STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")
#: What heads remember of the images of each class (SLCA, RanPAC), which are no weights either.
REMEMBERED: Final = frozenset(
    f"predictor.head.{name}" for name in ("means", "factors", "rest", "counts", "gram", "sums", "held_out", "address")
)
#: How many classes are named in a line for people.
MOST_NAMED: Final = 20


@dataclass(frozen=True)
class LearnerSummary:
    """What is told of a learner's file.

    Attributes:
        path: of the file.
        classes: the labels, in the order in which they arrived.
        phases: how many were learned.
        shape: channels, height and width of the images.
        network: backbone, its variant and the head; None in one that has learned nothing.
        parameters: how many weights the network that predicts has.
        kept: how many images of each class are in the file; None where they were left out when it was saved.
        classifier: which one predicts.
        method: by which it learns.
        policy: what decides the action of each phase; None where that was left out, too.
        pending: whether it is in the middle of a phase.
        interrupted: whether that is a phase of `poise learn`, which lies beside the file.
        version: of the poise that wrote it, where that is noted.
    """

    path: Path
    classes: tuple[Label, ...]
    phases: int
    shape: tuple[int, int, int] | None
    network: str | None
    parameters: int
    kept: Mapping[Label, int] | None
    classifier: str
    method: str
    policy: str | None
    pending: bool
    interrupted: bool
    version: str

    @classmethod
    def read(cls, path: Path, *, interrupted: bool = False) -> Self:
        """That of a file; `interrupted` says that a phase of it lies beside it."""
        meta, shapes, tensors = store.read_summary(path, LABELS, kind="learner")
        with reading(path):
            saved = SavedLearner.of(meta)
            known, classes = saved.knowledge, saved.knowledge.classes
            rows = [row for name in LABELS for row in (tensors[name].tolist() if name in tensors else ())]
            found = Counter(classes[row] for row in rows)
        whole = LABELS[0] in tensors or not known.phases
        weights = [
            size
            for name, size in shapes.items()
            if name.startswith("predictor.") and not name.endswith(STATISTICS) and name not in REMEMBERED
        ]
        return cls(
            path=path,
            classes=classes,
            phases=known.phases,
            shape=known.shape,
            network=saved.models["predictor"].net if "predictor" in saved.models else None,
            parameters=sum(map(math.prod, weights)),
            kept={label: found[label] for label in classes} if whole else None,
            classifier=known.classifier,
            method=saved.settings.method,
            policy=saved.settings.policy if whole else None,
            pending=saved.pending is not None or interrupted,
            interrupted=interrupted,
            version=saved.poise,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values for programs; kept images in the order of the classes."""
        channels, *size = self.shape or (None, None, None)
        return {
            "path": str(self.path),
            "classes": list(self.classes),
            "phases": self.phases,
            "image_size": size if self.shape else None,
            "channels": channels,
            "network": self.network,
            "parameters": self.parameters,
            "kept_images": None if self.kept is None else [self.kept[label] for label in self.classes],
            "classifier": self.classifier,
            "method": self.method,
            "policy": self.policy,
            "pending": self.pending,
            "format": store.FORMAT,
            "poise": self.version,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The same for people: what, and how it is."""
        images = network = "nothing was learned yet"
        if self.shape is not None:
            channels, height, width = self.shape
            images = f"{height}×{width} pixels, {counted(channels, 'channel')}"
            network = f"{self.network}, {self.parameters:,} parameters"
        under_way = "none"
        if self.pending:
            under_way = "one was saved in its middle; partial_fit continues it with the same images"
        if self.interrupted:
            under_way = "one was interrupted; the same 'poise learn' continues it"
        kept = "left out when it was saved: it predicts and cannot learn further"
        if self.kept is not None:
            each = _list_some([f"{label} {count}" for label, count in self.kept.items()])
            kept = f"{sum(self.kept.values())}" + (f": {each}" if any(self.kept.values()) else "")
        told = [
            ("classes", f"{len(self.classes)}: {_list_some([str(label) for label in self.classes])}"),
            ("phases", str(self.phases)),
            ("images", images),
            ("network", network),
            ("kept images", kept),
            ("classifier", self.classifier),
            ("method", self.method),
            ("policy", self.policy or "left out when it was saved"),
            ("phase under way", under_way),
            ("file", f"format {store.FORMAT}" + (f", written by poise {self.version}" if self.version else "")),
        ]
        return [(what, one_line(how)) for what, how in told]


def _list_some(words: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    return ", ".join(words[:MOST_NAMED]) + more
