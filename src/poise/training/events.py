"""What happens during a phase, as plain values: journaled and shown as progress, never read back by the learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """Something happened in this phase. `kept` events belong in the journal, the others are only shown."""

    kind: ClassVar[str]
    kept: ClassVar[bool] = True

    phase: int

    def as_json(self) -> dict[str, Any]:
        """The event as one JSON object."""
        return {"event": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Progress(Event):
    """How far one part of a phase has come: for those who watch, never written down.

    Attributes:
        what: the part: `augmentation`, `trials`, `classifiers`, `training`, or the name of a tuner.
        done: how many images it was trained on so far,
        of: how many are planned.
        detail: what is under way, in a few words.
    """

    kind = "progress"
    kept = False

    what: str
    done: int
    of: int
    detail: str = ""


@dataclass(frozen=True)
class DefaultsChosen(Event):
    """Defaults were chosen for the first images: a line that says which, and every value."""

    kind = "defaults"

    line: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class PhaseStarted(Event):
    """New classes arrived; nothing was tried or trained yet."""

    kind = "phase"

    new_classes: int
    classes: int
    new_images: int
    memory_images: int


@dataclass(frozen=True)
class TrialDone(Event):
    """An action was tried; `trial` is its place in the policy's plan, `record` what was measured on the way.

    `distribution` is the policy's over the space when it asked, if it has one.
    """

    kind = "trial"

    trial: Mapping[str, Any]
    action: Mapping[str, float | str]
    classifier: str
    reward: float
    diverged: bool
    record: Mapping[str, Any]
    distribution: Sequence[float] | None = None


@dataclass(frozen=True)
class TuningDone(Event):
    """A tuner other than a policy made one step: a round of hypergradients, or an episode on pseudo tasks."""

    kind = "tuning"

    tuner: str
    record: Mapping[str, Any]


@dataclass(frozen=True)
class ActionDecided(Event):
    """The phase will be trained with this action; `distribution` is the policy's over the space, if it has one.

    `reward` is the local reward of the action, if it was tried; `past_reward`, the sum of those of earlier phases,
    is Part I of the paper's cumulative reward: a constant, recorded and left out of every update.
    `trains` is false where no step follows, so that no learning rate counts.
    """

    kind = "action"

    policy: str
    action: Mapping[str, float | str]
    distribution: Sequence[float] | None = None
    reward: float | None = None
    past_reward: float = 0.0
    trains: bool = True

    def as_json(self) -> dict[str, Any]:
        """The event as one JSON object, without `trains`: there the epochs that follow say so."""
        written = super().as_json()
        del written["trains"]
        return written


@dataclass(frozen=True)
class EpochDone(Event):
    """An epoch ended.

    Loss and terms are means over its steps, the terms before weighting; `lr` is the learning rate it was trained with.
    """

    kind = "epoch"

    stage: str
    epoch: int
    epochs: int
    lr: float
    loss: float
    terms: Mapping[str, float]


@dataclass(frozen=True)
class PhaseDone(Event):
    """The model is trained, the memory updated (the reserve counts), the classifier chosen that counts from now on."""

    kind = "learned"

    classifier: str
    memory_images: int


@dataclass(frozen=True)
class StageDone(Event):
    """A stage ended."""

    kind = "stage"

    stage: str
