"""What a protocol can be told beyond the pictures: one field an option of `prosmin evaluate`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every field has a value that works without being given."""

    corrupted: str | None = None
    """A stored set of corrupted pictures (CIFAR-10-C or ImageNet-C as published); None: generated."""
    transfer: tuple[str, ...] = ()
    """Other labelled sets to fine-tune on."""
    label_lists: tuple[str, ...] = ()
    """Files with the names of the labelled pictures, for the published 1 % and 10 % subsets."""
