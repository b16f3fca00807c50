"""Self-supervised image representations with uncertainty."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from prosmin.config import Config

__version__ = "0.1.0"
__all__ = ["evaluate", "load", "pretrain"]


def pretrain(config: "Config", out: "str | os.PathLike[str]") -> "Path":
    """Train a run in the folder `out`, or continue it; returns the folder."""
    from pathlib import Path

    from prosmin.config import Config
    from prosmin.errors import UsageError

    if not isinstance(config, Config):
        raise UsageError(
            f"The configuration is a {type(config).__name__}; allowed: a Config, such as "
            'prosmin.config.resolve(recipe="demo", overrides={"training.epochs": 3}) returns.'
        )
    from prosmin.training.pretrain import pretrain

    return pretrain(config, Path(out))


def __getattr__(name: str) -> object:
    """The other entry points, imported on first use, so that `import prosmin.scoring` is fast."""
    if name == "evaluate":
        from prosmin.evaluation.run import evaluate

        return evaluate
    if name == "load":
        from prosmin.encoder import load

        return load
    raise AttributeError(f"module 'prosmin' has no attribute {name!r}")
