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
from poise.learner import Label, LearnerState
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
    """A summary of a learner's file, as `poise info` prints it.

    Attributes:
        path: of the file.
        saved: what it says beside its weights and images.
        parameters: how many weights the network that predicts has.
        kept: how many images of each class are in the file; None where they were left out when it was saved, together
            with how it learns.
        interrupted: whether a phase of `poise learn` lies beside the file.
    """

    path: Path
    saved: LearnerState
    parameters: int
    kept: Mapping[Label, int] | None
    interrupted: bool

    @classmethod
    def read(cls, path: Path, *, interrupted: bool = False) -> Self:
        """Read the summary of a file; `interrupted` says that an unfinished phase lies beside it."""
        meta, shapes, tensors = store.read_summary(path, LABELS, kind="learner")
        with reading(path):
            saved = LearnerState.described(meta)
            known = saved.knowledge
            rows = [row for name in LABELS for row in (tensors[name].tolist() if name in tensors else ())]
            found = Counter(known.classes[row] for row in rows)
        weights = [
            size
            for name, size in shapes.items()
            if name.startswith("predictor.") and not name.endswith(STATISTICS) and name not in REMEMBERED
        ]
        whole = LABELS[0] in tensors or not known.phases
        kept = {label: found[label] for label in known.classes} if whole else None
        return cls(path, saved, sum(map(math.prod, weights)), kept, interrupted)

    def as_json(self) -> dict[str, Any]:
        """Plain values for programs; kept images in the order of the classes."""
        saved, known = self.saved, self.saved.knowledge
        channels, *size = known.shape or (None,)
        return {
            "path": str(self.path),
            "classes": list(known.classes),
            "phases": known.phases,
            "image_size": size or None,
            "channels": channels,
            "network": saved.models["predictor"].net if "predictor" in saved.models else None,
            "parameters": self.parameters,
            "kept_images": None if self.kept is None else [*self.kept.values()],
            "classifier": known.classifier,
            "method": saved.settings.method,
            "policy": None if self.kept is None else saved.settings.policy,
            "pending": saved.pending is not None or self.interrupted,
            "format": store.FORMAT,
            "poise": saved.poise,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The summary as rows of a name and a value."""
        found = self.as_json()
        images = network = "nothing was learned yet"
        if found["image_size"]:
            height, width = found["image_size"]
            images = f"{height}×{width} pixels, {counted(found['channels'], 'channel')}"
            network = f"{found['network']}, {self.parameters:,} parameters"
        under_way = "none"
        if found["pending"]:
            under_way = "one was saved in its middle; partial_fit continues it with the same images"
        if self.interrupted:
            under_way = "one was interrupted; the same 'poise learn' continues it"
        kept = "left out when it was saved: it predicts and cannot learn further"
        if self.kept is not None:
            each = _list_some([f"{label} {count}" for label, count in self.kept.items()])
            kept = f"{sum(self.kept.values())}" + (f": {each}" if any(self.kept.values()) else "")
        told = [
            ("classes", f"{len(found['classes'])}: {_list_some([*map(str, found['classes'])])}"),
            ("phases", str(found["phases"])),
            ("images", images),
            ("network", network),
            ("kept images", kept),
            ("classifier", found["classifier"]),
            ("method", found["method"]),
            ("policy", found["policy"] or "left out when it was saved"),
            ("phase under way", under_way),
            ("file", f"format {store.FORMAT}" + (f", written by poise {found['poise']}" if found["poise"] else "")),
        ]
        return [(what, one_line(how)) for what, how in told]


def _list_some(words: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    return ", ".join(words[:MOST_NAMED]) + more
