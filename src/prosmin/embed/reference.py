"""What belongs, and from which distance on a picture is flagged.

Nine tenths of the reference are the bank that distances are measured to. The last tenth, which the bank does not hold,
shows how far pictures that belong lie from it: the threshold is a quantile of their scores, so that of pictures drawn
like the reference a share of at most `false_alarms` is flagged, on average over draws.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from prosmin.data.sources import Source
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.held_out import held_out_mask
from prosmin.evaluation.ood import KnnDistance, fit_knn_distance
from prosmin.files import writing
from prosmin.randomness import generator

MOST = 50_000
"""Pictures of the reference that are used, chosen at random: a bank of this size fits everywhere."""

_SIMILARITIES = 2**25  # held at once: 128 MiB in float32


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The bank with its k, and the scores (n,) of the held-out tenth, rising."""

    distance: KnnDistance
    held_out: Tensor

    def measure(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Distances to the nearest and to the k-th nearest picture of the bank, the score: (N, D) -> (N,), (N,)."""
        return _distances(self.distance, features)

    def threshold(self, false_alarms: float) -> float:
        """A new picture of the same kind scores above it with a chance of at most `false_alarms`.

        Among n + 1 exchangeable scores the new one has every rank alike: the threshold is the r-th smallest of the n,
        r = ceil((n + 1) (1 - false_alarms)).
        """
        return float(self.held_out[_rank(len(self.held_out), false_alarms) - 1])

    def to(self, device: torch.device) -> "Reference":
        """The same with its bank on the device."""
        return Reference(
            distance=KnnDistance(bank=self.distance.bank.to(device), k=self.distance.k), held_out=self.held_out
        )


def choose(source: Source) -> Tensor:
    """The numbers of the reference's pictures that are used, rising: all, or `MOST` of them."""
    if len(source) <= MOST:
        return torch.arange(len(source))
    return torch.randperm(len(source), generator=generator(0, 0, "reference"))[:MOST].sort().values


def hold_out(source: Source, numbers: Tensor) -> Tensor:
    """True for the tenth of these pictures that is kept out of the bank: (n,) -> (n,) mask."""
    if len(numbers) < 20:
        raise ProsminError(
            f"The reference {source.spec} has {len(numbers)} pictures; a bank and a held-out tenth need 20 or more. "
            "Name more with --reference, or do without a score: --reference none."
        )
    keys = [source.key(i) for i in numbers.tolist()]
    return held_out_mask(torch.zeros(len(numbers), dtype=torch.int64), keys, source.spec)


def check_rate(held_out: int, false_alarms: float) -> None:
    """An error where so few held-out pictures cannot tell of so small a rate."""
    if _rank(held_out, false_alarms) > held_out:
        raise UsageError(
            f"--false-alarms is {false_alarms:g}, but the held-out tenth of the reference has {held_out} pictures, "
            f"which tell rates from {1 / (held_out + 1):.2g} on. Give a larger rate or a larger --reference."
        )


def fit(features: Tensor, held: Tensor) -> Reference:
    """Bank and held-out scores: (M, D), (M,) mask."""
    if not bool(features.isfinite().all()):
        raise ProsminError("The features of the reference hold values that are not finite; is the checkpoint sound?")
    distance = fit_knn_distance(features[~held])
    _, scores = _distances(distance, features[held])
    return Reference(distance=distance, held_out=scores.cpu().sort().values)


def write_reference(reference: Reference, path: Path) -> None:
    """Keep it for the processes beside this one, and for the next start."""
    distance = reference.distance
    with writing(path) as part:
        save_file({"bank": distance.bank.cpu(), "k": torch.tensor(distance.k), "held_out": reference.held_out}, part)


def read_reference(path: Path) -> Reference:
    """What `write_reference` wrote."""
    tensors = load_file(path)
    distance = KnnDistance(bank=tensors["bank"], k=int(tensors["k"]))
    return Reference(distance=distance, held_out=tensors["held_out"])


def _distances(distance: KnnDistance, features: Tensor) -> tuple[Tensor, Tensor]:
    """To the nearest and the k-th nearest row of the bank, whose rows have length 1: (N, D) -> (N,), (N,).

    Nothing is asked of a GPU, which so works on while the next batch is prepared.
    """
    rows = max(1, _SIMILARITIES // len(distance.bank))
    normal = F.normalize(features.to(distance.bank), dim=1)
    best = torch.cat([(part @ distance.bank.T).topk(distance.k, dim=1).values for part in normal.split(rows)])
    distances = (2 - 2 * best).clamp_min(0).sqrt()  # (N, k)
    return distances[:, 0], distances[:, -1]


def _rank(count: int, false_alarms: float) -> int:
    return math.ceil((count + 1) * (1 - false_alarms) - 1e-9)  # a product such as 19.000000000000004 is 19
