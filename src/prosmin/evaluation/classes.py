"""Do two splits count the same classes?"""

from collections.abc import Sequence

from prosmin.errors import ProsminError


def common_classes(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...] | None:
    """The names of the classes of two splits that count them alike; None where they do not.

    A split that has no picture of a class may know it by its number alone, or not at all where it is the last.
    """
    names = []
    for number in range(max(len(first), len(second))):
        known = {split[number] for split in (first, second) if number < len(split)} - {str(number)}
        if len(known) > 1:
            return None
        names.append(known.pop() if known else str(number))
    # Names that are numbers: a class that is missing in the middle has moved the others, who look like their places.
    return tuple(names) if len(set(names)) == len(names) else None


def check_classes(
    first: Sequence[str], second: Sequence[str], *, specs: tuple[str, str], advice: str
) -> tuple[str, ...]:
    """The common classes; an error that names some of the others, and what to do, where there are others."""
    common = common_classes(first, second)
    if common is None:
        different = sorted(set(first) ^ set(second))[:5]
        raise ProsminError(
            f"{specs[0]} and {specs[1]} have other classes, such as {', '.join(different) or 'their order'}{advice}"
        )
    return common
