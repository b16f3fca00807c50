"""What a row's distances, and its flag, are judged by."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from prosmin.embed.reference import Measured, Reference


class Judging(NamedTuple):
    """The fitted reference, the rate its threshold is for, which pictures of the set are its own, names and files."""

    reference: Reference
    rate: float
    own: Tensor | None  # (N,): their groups, -1 for the others; None where there are only others
    key: Callable[[int], str]  # the name of a reference picture, by its number
    mark: str  # what the reference's files are known by

    @property
    def threshold(self) -> float:
        """Above it a score is flagged."""
        return self.reference.threshold(self.rate)

    def measure(self, features: Tensor, numbers: Tensor) -> Measured:
        """The pictures with these numbers, as `Reference.measure` has them."""
        if self.own is None:
            return self.reference.measure(features)
        own = self.own[numbers]
        if features.device.type == "cuda":
            own = own.pin_memory()  # a plain copy would wait for all before it
        return self.reference.measure(features, own.to(features.device, non_blocking=True))
