"""MLflow as a Fabric logger. `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` say where the run is recorded."""

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_fabric.loggers import Logger
from lightning_fabric.utilities.rank_zero import rank_zero_only

from prosmin.errors import ProsminError
from prosmin.files import write_text

_PARAMS, _METRICS = 100, 1000
"""What MLflow accepts in one request."""


class MlflowLogger(Logger):
    """One run of MLflow per run folder, which keeps its number in mlflow.json, so that it resumes too.

    A row that cannot be sent does not stop the training: it is sent at the end, if MLflow answers again then.
    """

    def __init__(self, run: Path, settings: dict[str, Any]) -> None:
        self._run, self._settings = run, settings
        self._client: Any = None
        self._id = ""
        self._last = -1  # the newest step that an earlier start has sent
        self._unsent: list[Any] = []
        self._answers = True

    @property
    def name(self) -> str:
        """The experiment."""
        return os.environ.get("MLFLOW_EXPERIMENT_NAME") or "prosmin"

    @property
    def version(self) -> str:
        """The run."""
        return self._run.resolve().name

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: `log_metrics` sends the configuration."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Send one row of metrics.jsonl."""
        assert step is not None
        if self._client is None:
            self._open()
            self._add_missed(before=step)
        if step <= self._last:  # a start from an older checkpoint repeats steps; MLflow would keep both rows
            return
        self._add(metrics, step)
        if self._answers:
            self._send()

    def _add(self, metrics: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric  # type: ignore[import-not-found, unused-ignore]

        now = int(1000 * time.time())
        self._unsent += [Metric(name, float(value), now, step) for name, value in metrics.items()]

    def _add_missed(self, *, before: int) -> None:
        """The rows of earlier starts that MLflow does not have, because it did not answer then."""
        file = self._run / "metrics.jsonl"
        for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
            row = json.loads(line)
            step = row.pop("step")
            if self._last < step < before:
                self._add(row, step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run at MLflow."""
        if self._client is None:
            return
        self._send()
        try:
            self._client.set_terminated(self._id, "FINISHED" if status == "success" else "FAILED")
        except Exception as error:  # the run folder is complete without it
            self._warn(error)

    def _open(self) -> None:
        """Start the run, or continue that of the folder."""
        try:
            from mlflow import MlflowClient  # type: ignore[import-not-found, unused-ignore]

            self._client = MlflowClient()
            if not self._continue():
                self._start()
        except Exception as error:  # MLflow's own, and those of each kind of store
            self._client = None
            raise ProsminError(
                f"training.logger is mlflow, but MLflow cannot record this run: {_reason(error)}. Check "
                "MLFLOW_TRACKING_URI, or continue with --training.logger none."
            ) from None

    def _continue(self) -> bool:
        """Whether MLflow has the run of this folder, which then goes on."""
        file = self._run / "mlflow.json"
        if not file.is_file():
            return False
        self._id = json.loads(file.read_text(encoding="utf-8"))["run_id"]
        try:
            self._client.update_run(self._id, status="RUNNING")
        except Exception as error:
            if getattr(error, "error_code", "") != "RESOURCE_DOES_NOT_EXIST":
                raise
            print(f"warning: MLflow does not have the run {self._id} of {file}; a new one starts", file=sys.stderr)
            return False
        self._last = max((each.step for each in self._client.get_metric_history(self._id, "loss")), default=-1)
        return True

    def _start(self) -> None:
        from mlflow.entities import Param  # type: ignore[import-not-found, unused-ignore]

        experiment = self._client.get_experiment_by_name(self.name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self.name)
        self._id = self._client.create_run(number, run_name=self.version).info.run_id
        params = [Param(name, text) for name, text in _flat(self._settings)]
        for start in range(0, len(params), _PARAMS):
            self._client.log_batch(self._id, params=params[start : start + _PARAMS])
        write_text(self._run / "mlflow.json", json.dumps({"run_id": self._id}) + "\n")

    def _send(self) -> None:
        try:
            while self._unsent:
                self._client.log_batch(self._id, metrics=self._unsent[:_METRICS])
                del self._unsent[:_METRICS]
        except Exception as error:  # MLflow's own, and those of each kind of store
            self._answers = False
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        says = f"MLflow does not answer: {_reason(error)}. All rows are in {self._run / 'metrics.jsonl'}."
        print(f"warning: {says}", file=sys.stderr, flush=True)


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The fields by their dotted names, with their values as texts."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def _reason(error: Exception) -> str:
    """In one line."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
