"""What the file of a probe must hold: checked once on reading, so that whatever works with it can rely on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from poise import store
from poise.actions import MOST_EPOCHS, Action
from poise.errors import Damaged, UserError
from poise.runfolder import FULL, PROBE
from poise.spaces import MOST_ACTIONS
from poise.tuning import CLASSIFIERS

Count = Annotated[int, Strict(), Field(ge=0, le=10**9)]
Positive = Annotated[int, Strict(), Field(ge=1, le=10**9)]
Epochs = Annotated[int, Strict(), Field(ge=1, le=MOST_EPOCHS)]
Axes = dict[str, Annotated[float, Strict()] | str]
#: By the epoch after which they were counted and by classifier, the hits of each class.
Hits = dict[Annotated[str, Field(pattern=r"^[0-9]{1,7}$")], dict[str, list[Count]]]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class _Space(_Part):
    name: str
    axes: dict[str, list[float | str]]
    grids: list[dict[str, list[float | str]]] = Field(default_factory=list)
    favourite: Axes | None = None


class _Exam(_Part):
    name: str
    images: list[Positive]


class _Recipe(_Part):
    epochs: Epochs


class _Trial(_Part):
    length: Epochs | str
    round: Count
    arm: Count
    diverged: Annotated[bool, Strict()]
    images: list[Positive] = Field(min_length=1)
    weights: list[Annotated[float, Field(ge=0, le=1)]] | None = None
    hits: Hits
    exam: Hits


class _Table(_Part):
    name: str
    fingerprint: str
    state: str
    seed: int
    phase: Positive
    old: Count
    new: Count
    classes: list[Any]
    rounds: Positive
    recipe: _Recipe
    space: _Space
    actions: list[Axes] = Field(min_length=1, max_length=MOST_ACTIONS)
    default: Count
    counts: list[str]
    lengths: list[Epochs]
    full: Epochs | None
    exam: _Exam
    trials: list[_Trial] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> _Table:
        actions = [Action(**axes) for axes in self.actions]
        arms = range(len(actions))
        own = self.space.favourite is None or Action(**self.space.favourite) in actions
        tuned = {axis for grid in (self.space.axes, *self.space.grids) for axis in grid}
        lengths: list[int | str] = [*self.lengths, *([FULL] if self.full else [])]
        holds = (
            self.default in arms
            and own
            and len(self.counts) == len(actions)
            and {*self.counts} <= {*CLASSIFIERS}
            and all(tuned <= {*action} for action in actions)
            and all(self._fit(length, arms) for length in lengths)
        )
        if not holds or not lengths:
            raise ValueError("its parts do not fit together")
        return self

    def _fit(self, length: int | str, arms: Iterable[int]) -> bool:
        """Whether there is a trial of this length for every arm, all of them on the same images."""
        found = [trial for trial in self.trials if trial.length == length]
        images, seen = found[0].images if found else [], self.exam.images
        return {trial.arm for trial in found} == {*arms} and all(
            trial.images == images
            and (trial.weights is None or len(trial.weights) == len(images))
            and (trial.diverged or bool(trial.hits))
            and _hits_fit(trial.hits, images)
            and _hits_fit(trial.exam, seen)
            for trial in found
        )


def _hits_fit(hits: Mapping[str, Mapping[str, list[int]]], images: list[int]) -> bool:
    """Whether both classifiers have hits of each class, not more than there are images."""
    return all(
        {*CLASSIFIERS} <= {*each}
        and all(
            len(right) == len(images) and all(one <= count for one, count in zip(right, images, strict=True))
            for right in each.values()
        )
        for each in hits.values()
    )


def read_probe(path: Path) -> tuple[dict[str, Any], bool]:
    """The table that `poise probe` wrote, with everything in it that is used later; and whether it has a digest."""
    if not path.is_file():
        raise UserError(f"{path} is not a file; give a table that 'poise probe' wrote")
    table, verified = store.read_verified(path)
    if table.get("kind") != PROBE:
        raise UserError(f"{path} is not a table of 'poise probe'")
    check_probe(path, table)
    return table, verified


def check_probe(path: Path, table: Mapping[str, Any]) -> None:
    """Refuse a table of a probe, read from that file, that lacks something or does not fit together."""
    try:
        _Table.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"][:2])) or "all of it"
        raise Damaged(f"{path} is not as 'poise probe' wrote it ({where}: {first['msg'].lower()})") from error
    except UserError as error:  # an action that cannot be
        raise Damaged(f"{path} is not as 'poise probe' wrote it ({error})") from error
