"""Where the lines of metrics.jsonl go besides: Fabric's loggers, each an extra to install."""

import importlib.util
from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning_fabric.loggers import Logger
from lightning_fabric.utilities.rank_zero import rank_zero_only

from prosmin import config as configs
from prosmin.config import Config
from prosmin.errors import ProsminError


def make_loggers(config: Config, run: Path) -> list[Logger]:
    """The loggers the configuration asks for; an error where their package is missing."""
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
    return [WandbLogger(run, configs.to_tree(config))]


class WandbLogger(Logger):
    """Weights & Biases behind Fabric's interface; the run folder's name is the run's name, so that it resumes."""

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
        """The configuration is sent when the run begins."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """One line of metrics.jsonl."""
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
        """End the run there too."""
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if status == "success" else 1)
