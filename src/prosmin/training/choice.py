"""Which weights of a run become its encoder: the last, those with the best kNN, or an average with the start."""

from safetensors import SafetensorError
from torch import nn

from prosmin.config import Config
from prosmin.errors import ProsminError
from prosmin.training import checkpoint as checkpoints
from prosmin.training.guard import Guard
from prosmin.training.run_folder import RunFolder


def load_best(run: RunFolder, method: nn.Module) -> int:
    """Load the weights of the checkpoint with the best kNN into the method; returns its step."""
    name, score = checkpoints.best(run.checkpoints)
    if name is None or score is None:
        raise ProsminError(f"No checkpoint in {run.checkpoints} has a kNN. Leave training.encoder at last.")
    try:
        checkpoint = checkpoints.load(run.checkpoints / name)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ProsminError(
            f"The best checkpoint {run.checkpoints / name} is damaged ({error}). "
            "Remove it and run again to use the best of the others."
        ) from None
    method.load_state_dict(checkpoint.model, strict=True)
    print(f"the encoder is from step {checkpoint.step}: kNN {100 * score:.1f} % on the held-out tenth", flush=True)
    return checkpoint.step


def average_with_start(guard: Guard, run: RunFolder, method: nn.Module, config: Config) -> float:
    """Average the backbone with its start as far as training.guard needs; returns the share of the trained weights."""
    limit = config.training.guard or 0.0
    share, kept = guard.average(method, limit=limit)
    if share == 1:
        return share
    if share == 0:
        line = (
            "the encoder is the starting one, since no average with the trained weights keeps "
            f"{limit:.0%} of its nearest neighbours. Lower optimizer.lr, or the guard."
        )
    else:
        line = (
            f"the encoder is {share:.0%} of the trained and {1 - share:.0%} of the starting weights; it keeps "
            f"{kept:.0%} of the starting encoder's nearest neighbours."
        )
    forecasts = (
        f" Its forecasts are still those of the trained weights: `prosmin calibrate {run.path}` fits new heads to it."
        if config.method.name == "prosmin"
        else ""
    )
    print(f"training.guard: {line}{forecasts}", flush=True)
    return share
