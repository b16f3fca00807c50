"""Which step of a run becomes its encoder: the last, that with the best kNN, or the newest that has not forgotten."""

from safetensors import SafetensorError
from torch import nn

from prosmin.config import Config
from prosmin.errors import ProsminError
from prosmin.training import checkpoint as checkpoints
from prosmin.training.run_folder import RunFolder


def load_chosen(run: RunFolder, method: nn.Module, config: Config, *, done: int) -> int:
    """Load the weights that become the encoder into the method, which has the last ones; returns their step."""
    if config.training.encoder == "best":
        return _load_best(run, method)
    if config.training.guard:
        return _load_close(run, method, config.training.guard, done=done)
    return done


def _load_best(run: RunFolder, method: nn.Module) -> int:
    name, score = checkpoints.best(run.checkpoints)
    if name is None or score is None:
        raise ProsminError(f"No checkpoint in {run.checkpoints} has a kNN. Leave training.encoder at last.")
    step = _load(run, method, name)
    print(f"the encoder is from step {step}: kNN {100 * score:.1f} % on the held-out tenth", flush=True)
    return step


def _load_close(run: RunFolder, method: nn.Module, limit: float, *, done: int) -> int:
    name, share = checkpoints.newest_close(run.checkpoints, limit)
    if name is None or share is None:
        raise ProsminError(
            f"No checkpoint in {run.checkpoints} keeps {limit:.0%} of the starting encoder's nearest neighbours, as "
            "training.guard asks. The same command with --training.guard 0 saves the last one as the encoder."
        )
    step = _load(run, method, name)
    if step == done:
        return done
    why = f"the newest checkpoint that keeps {limit:.0%} of the starting encoder's neighbours (it keeps {share:.0%})"
    print(f"training.guard: the encoder is from step {step} of {done}, {why}", flush=True)
    if step == 0:
        print("it is the starting encoder: nothing was gained, and its heads are untrained", flush=True)
    return step


def _load(run: RunFolder, method: nn.Module, name: str) -> int:
    try:
        checkpoint = checkpoints.load(run.checkpoints / name)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ProsminError(
            f"The chosen checkpoint {run.checkpoints / name} is damaged ({error}). "
            "Remove it and run again to use the best of the others."
        ) from None
    method.load_state_dict(checkpoint.model, strict=True)
    return checkpoint.step
