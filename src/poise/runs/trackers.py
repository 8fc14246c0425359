"""The tracking services that are known, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from poise.errors import UserError, suggestion
from poise.runs.folder import RunFolder
from poise.runs.mlflow import MLflow
from poise.runs.tracking import Tracker
from poise.runs.wandb import Trackio, Wandb

TRACKERS: Mapping[str, type[Tracker]] = {each.name: each for each in (Wandb, Trackio, MLflow)}


def make_tracker(name: str, folder: Path) -> Tracker:
    """What hands the numbers of the run in this folder to that service."""
    if name not in TRACKERS:
        raise UserError(f"unknown tracking service '{name}'; {suggestion(name, TRACKERS)}")
    return TRACKERS[name](RunFolder(folder))
