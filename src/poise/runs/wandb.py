"""Two extras with one interface: Weights & Biases (`wandb`), and trackio (`trackio`)."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Mapping
from typing import Any

from poise.errors import UserError
from poise.runs.folder import RunFolder
from poise.runs.tracking import Scalar, Tracker
from poise.words import install_extra

PROJECT = "poise"


class Wandb(Tracker):
    """A run of the project `poise`, or of the one that `WANDB_PROJECT` names."""

    name = "wandb"

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(folder)
        try:
            self._service: Any = importlib.import_module(self.name)
        except ImportError as error:
            raise UserError(f"{self.name} needs the extra; {install_extra(self.name)}") from error

    def _begin(self, name: str, settings: Mapping[str, Any], known: str | None) -> str:
        going_on = {"id": known, "resume": "allow"} if known is not None else {}
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = self._service.init(project=project, name=name, config=dict(settings), **going_on)
        return str(self._run.id)

    def _write(self, found: list[Scalar]) -> None:
        # All numbers of a run share one axis, on which it is counted what was written; so the real one is written too.
        axis = "phase" if found[0].name.startswith(("accuracy/", "action/", "result/")) else "epoch or trial"
        self._run.log({**{name: value for name, value, _ in found}, axis: found[0].step})

    def _end(self, *, finished: bool) -> None:
        self._run.finish()


class Trackio(Wandb):
    """A run of the project `poise`, or of the one that `TRACKIO_PROJECT` names; it is known by its name."""

    name = "trackio"

    def _begin(self, name: str, settings: Mapping[str, Any], known: str | None) -> str:
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        unique = known or f"{name}-{secrets.token_hex(3)}"
        self._run = self._service.init(project=project, name=unique, config=dict(settings), resume="allow")
        return str(self._run.name)
