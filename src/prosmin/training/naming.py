"""Names in a sentence that has no room for all of them."""

from collections.abc import Sequence


def some(names: Sequence[str]) -> str:
    """The first five, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
