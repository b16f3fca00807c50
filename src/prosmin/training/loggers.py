"""Loggers besides metrics.jsonl: TensorBoard, Weights & Biases and MLflow."""

import importlib.util
from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning_fabric.loggers import Logger
from lightning_fabric.utilities.rank_zero import rank_zero_only

from prosmin import config as configs
from prosmin.config import Config
from prosmin.errors import ProsminError
from prosmin.training.mlflow_logger import MlflowLogger


def make_loggers(config: Config, run: Path) -> list[Logger]:
    """The loggers of a configuration; an error if their package is missing."""
    name = config.training.logger
    if name == "none":
        return []
    if importlib.util.find_spec(name) is None:
        raise ProsminError(
            f"training.logger is {name}, but the package {name} is not installed: pip install 'prosmin[{name}]'"
        )
    if name == "tensorboard":
        from lightning_fabric.loggers import TensorBoardLogger

        return [TensorBoardLogger(root_dir=run, name="tensorboard", version="")]
    return [(MlflowLogger if name == "mlflow" else WandbLogger)(run, configs.to_tree(config))]


class WandbLogger(Logger):
    """Weights & Biases as a Fabric logger; its run has the name of the run folder, so that it resumes too."""

    def __init__(self, run: Path, settings: dict[str, Any]) -> None:
        self._run, self._settings = run, settings
        self._wandb: Any = None

    @property
    def name(self) -> str:
        """The project."""
        return "prosmin"

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
        if self._wandb is None:
            import wandb  # type: ignore[import-not-found, unused-ignore]

            self._wandb = wandb.init(
                project=self.name,
                name=self.version,
                dir=str(self._run),
                config=self._settings,
                id=self.version,
                resume="allow",
            )
        self._wandb.log(metrics, step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run at Weights & Biases."""
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if status == "success" else 1)
