"""What the runs along lam have in common, and what their kNN says."""

from collections.abc import Iterable

import evidence
from results_numbers import KNN, measure, write
from results_runs import Runs, Seeds, differing
from results_verdicts import told_apart

VARIED = ("loss.lam", "training.seed", "data.spec")
TUNED = f"{evidence.RESNET}-prosmin-100"


def shared(names: Iterable[str], runs: Runs) -> str:
    """The fields that all of these runs set, and that lam 1/2 among them is therefore not the tuned recipe."""
    found = [run for name in names for run in runs.get(name, [])]
    if not found:
        return ""
    given = [set(run.document["overrides"].items()) for run in found]
    common = [item for item in found[0].document["overrides"].items() if all(item in fields for fields in given)]
    fields = [f"`{name}` {value}" for name, value in common if name not in VARIED]
    text = f"All of these runs set, beside `loss.lam`: {', '.join(fields) or 'nothing'}."
    if TUNED in runs:
        tuned = runs[TUNED][0].configuration
        apart = [name for name in differing(tuned, found[0].configuration) if name not in VARIED]
        if apart:
            named = ", ".join(f"`{name}`" for name in apart)
            text += f" So lam 0.50 here is not the tuned recipe of `{TUNED}`: it differs in {named}."
    return text


def higher(points: dict[float, Seeds]) -> str:
    """That another lam than the proper one has a higher kNN, where one has."""
    found = {lam: number for lam, seeds in points.items() if (number := measure(KNN, seeds)) is not None}
    if 0.5 not in found:
        return ""
    proper = found[0.5]
    above = {lam: number for lam, number in found.items() if number.mean > proper.mean}
    if not above:
        return ""
    named = [
        f"at {lam:g} ({write(KNN, number, points[lam])}, {'' if told_apart(number, proper) else 'not '}told apart)"
        for lam, number in above.items()
    ]
    once = ", one seed" if len(proper.values) == 1 else ""
    return (
        f"kNN is higher {' and '.join(named)} than at the proper 0.5 ({write(KNN, proper, points[0.5])}{once}). "
        "It was seen on test pictures: nothing is chosen by it."
    )
