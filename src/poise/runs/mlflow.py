"""An extra: the numbers of a run in MLflow (`mlflow`)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from poise.errors import UserError
from poise.runs.folder import RunFolder
from poise.runs.tracking import Scalar, Tracker
from poise.words import install_extra

EXPERIMENT = "poise"
LONGEST = 500  # characters of a parameter that every store takes


class MLflow(Tracker):
    """A run of the experiment `poise`, or of the one that `MLFLOW_EXPERIMENT_NAME` names."""

    name = "mlflow"

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(folder)
        try:
            import mlflow
            from mlflow import entities
        except ImportError as error:
            raise UserError(f"mlflow needs the extra; {install_extra('mlflow')}") from error
        self._mlflow: Any = mlflow
        self._entities: Any = entities

    def _begin(self, name: str, settings: Mapping[str, Any], known: str | None) -> str:
        self._client = self._mlflow.MlflowClient()  # a run of its own: whatever the process has active stays so
        if known is not None:
            self._client.update_run(known, status="RUNNING")
            self._run = known
            return known
        wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(wanted)
        number = experiment.experiment_id if experiment is not None else self._client.create_experiment(wanted)
        self._run = str(self._client.create_run(number, run_name=name).info.run_id)
        words = {key: str(value)[:LONGEST] for key, value in settings.items()}
        self._client.log_batch(self._run, params=[self._entities.Param(*pair) for pair in words.items()])
        return self._run

    def _write(self, found: list[Scalar]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, float(value), now, step) for name, value, step in found]
        self._client.log_batch(self._run, metrics=metrics)

    def _end(self, *, finished: bool) -> None:
        self._client.set_terminated(self._run, status="FINISHED" if finished else "KILLED")
