"""What "ProSMIN" and its twin are in the tables, from the configurations in the files."""

from pathlib import Path
from typing import Any

from results_runs import BACKBONES, TABLES, Finished, Runs
from results_tuning import identification


def recipe(runs: Runs, folder: Path) -> list[str]:
    """What stands beside the score in ProSMIN's runs, and whether its twin has all of it too."""
    lines = []
    for backbone, title in BACKBONES.items():
        # The most final table first: the run that counts.
        for names in (table.runs(backbone) for table in TABLES):
            ours, twin = (runs.get(names.get(method, "")) for method in ("prosmin", "deterministic"))
            if ours and not ours[0].is_earlier_code:
                lines.append(f"- {title.split(' (')[0]}: the score, and {_parts(ours[0])}.{_twin(ours[0], twin)}")
                break
    if not lines:
        return []
    told = identification(folder)
    head = '**What "ProSMIN" is in the tables**, but for runs of earlier code: more than the score.'
    return [f"{head} {told}".rstrip(), "", *lines]


def _parts(run: Finished) -> str:
    """What makes the recipe more than the score, in words that follow the fields."""
    fields = run.configuration
    weight = fields["loss.identification"]
    term = f"{weight:g} times an identification term, InfoNCE on the mean forecast among the pictures of a batch"
    parts = {
        f"loss.identification: {weight:g}": term if weight else "no identification term",
        f"heads.last: {fields['heads.last']}": f"a {fields['heads.last']} last layer",
        **_switch(fields, "heads.bottleneck_batchnorm", "BatchNorm in the bottleneck"),
        **_switch(fields, "loss.same_view", "pairs of a view with itself"),
    }
    return ", ".join(f"{words} (`{field}`)" for field, words in parts.items())


def _switch(fields: dict[str, Any], name: str, words: str) -> dict[str, str]:
    return {f"{name}: {str(fields[name]).lower()}": words if fields[name] else f"no {words}"}


def _twin(ours: Finished, twin: list[Finished] | None) -> str:
    """The twin is worth its name where nothing but the scale differs."""
    if not twin:
        return ""
    apart = [name for name in ours.configuration if ours.configuration[name] != twin[0].configuration.get(name)]
    if apart == ["heads.scale"]:
        return " The deterministic twin has all of that too: the two differ in `heads.scale` alone."
    return f" The deterministic twin differs in {', '.join(f'`{name}`' for name in apart)}."
