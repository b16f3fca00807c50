"""Does the forecast hold: coverage, calibration and skill of every run that has one."""

from collections.abc import Iterable

from results_cells import cell, head, row, seed_list
from results_numbers import Metric, file_interval
from results_runs import Finished, Runs, Seeds


def _metric(title: str, name: str, *, percent: bool = False, digits: int = 3) -> Metric:
    """A number of the uncertainty protocol that has its own best value, with the interval of its file."""
    return Metric(
        title,
        lambda run: run.metric("uncertainty", name),
        better=0, percent=percent, digits=digits, sampling=file_interval("uncertainty", name),
    )  # fmt: skip


def _ratio(run: Finished) -> float | None:
    settings = run.document["results"].get("uncertainty", {}).get("settings", {})
    calibration, scale = settings.get("calibration"), run.health("scale_mean")
    # A sentence stands there where nothing was measured.
    constant = calibration.get("constant_scale") if isinstance(calibration, dict) else None
    return scale / constant if scale and constant else None


COVERAGE = {
    share: _metric(f"{share} % intervals hold %", f"coverage_{share}", percent=True, digits=1) for share in (50, 90, 95)
}
JOINT = _metric("90 % ellipsoids hold %", "joint_coverage_90", percent=True, digits=1)
REACHABLE = _metric("could hold %", "joint_coverage_90_reachable", percent=True, digits=1)
ERROR_RATIO = _metric("squared error ratio", "squared_error_ratio", digits=2)
PIT = _metric("PIT distance", "pit_distance")
SKILL = _metric("skill against one scale", "energy_skill")
COORDINATES = _metric("skill against one scale a coordinate", "energy_skill_coordinates")
CLIMATOLOGY = _metric("skill against climatology", "energy_skill_climatology")
SCALE_RATIO = Metric("scale / constant scale", _ratio, better=0, percent=False, digits=2)

INTERVALS = (*COVERAGE.values(), JOINT, REACHABLE)
SHAPE = (ERROR_RATIO, PIT, SKILL, COORDINATES, CLIMATOLOGY)


def forecasts(names: Iterable[str], runs: Runs) -> list[str]:
    """Two tables of the named runs that forecast with a scale."""
    told = {name: [run for run in runs.get(name, []) if not run.is_copy] for name in names}
    found = {name: seeds for name, seeds in told.items() if any(run.has_forecast for run in seeds)}
    if not found:
        return ["Not run yet."]
    found = {f"`{name}`": seeds for name, seeds in found.items()}
    return [*_table("run", INTERVALS, found), "", *_table("run", SHAPE, found)]


def in_short(seeds: Seeds) -> str:
    """Coverage by coordinate and as a whole, and what a scale of its own for every picture is worth."""
    return (
        f"90 % intervals hold {cell(COVERAGE[90], seeds)} % of coordinates, 90 % ellipsoids {cell(JOINT, seeds)} % of "
        f"embeddings (could hold: {cell(REACHABLE, seeds)}); skill against one constant scale {cell(SKILL, seeds)}"
    )


def along(values: dict[str, str], runs: Runs, *, title: str) -> list[str]:
    """The same along a field, value -> name of its run, and the scale against the constant one."""
    found = {value: runs[name] for value, name in values.items() if any(r.has_forecast for r in runs.get(name, []))}
    return [*_table(title, INTERVALS, found), "", *_table(title, (*SHAPE, SCALE_RATIO), found)] if found else []


def _table(title: str, columns: tuple[Metric, ...], found: Runs) -> list[str]:
    lines = head(title, "seed numbers", *(metric.title for metric in columns))
    for name, seeds in found.items():
        lines.append(row(name, seed_list(seeds), *(cell(metric, seeds) for metric in columns)))
    return lines
