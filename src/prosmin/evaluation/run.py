"""`prosmin evaluate`: run protocols on an encoder and leave one JSON file each in RUN/results."""

import dataclasses
import json
import math
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from prosmin.data.image_sets import Pictures, PictureSet, memory_limit, open_pictures, tell_left_out
from prosmin.data.sources import files_marks, tree_mark
from prosmin.encoder import Encoder, encoder_folder, load
from prosmin.encoder.foreign import is_foreign
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.context import Context, FeatureCache
from prosmin.evaluation.corrupted import check_corrupted
from prosmin.evaluation.label_subsets import labelled_shares
from prosmin.evaluation.options import Options, as_arguments, check_read, read_by
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.evaluation.protocols.ood import near_and_far
from prosmin.evaluation.protocols.transfer import check_transfer_sets, splits_of
from prosmin.evaluation.results import Result, has_no_folder, keep_card, measured_run, results_folder
from prosmin.evaluation.sets import UNLABELLED, WITHOUT_LABELS, NamedSets, named_sets, tenth_by_name
from prosmin.files import check_writable, write_text, writing

DEFAULT = ("knn", "linear", "ood", "uncertainty", "corruption", "pictures")
"""What is run when nothing is named: minutes on a CPU for a small set."""
QUICK: dict[str, Any] = {
    "corruptions": ("gaussian_noise", "defocus_blur", "contrast", "jpeg_compression"),
    "severities": (1, 3, 5),
}
"""Options of that run where they are not given; a result of the full protocol that is already there counts too."""
SUITES = {
    "paper": (
        "knn", "linear", "linear-paper", "lowshot", "semi", "transfer", "ood", "corruption", "uncertainty", "pictures",
    ),
}  # fmt: skip
"""What --suite names: `paper` are all tasks of the paper, and the single images that a report shows."""

_NEEDS = {
    "ood": "out-of-distribution images: --ood SPEC[,SPEC...]",
    "transfer": "other labelled images: --transfer SPEC[,SPEC...]",
}
READS_OOD = ("ood", "uncertainty", "pictures")
"""Protocols that look at the out-of-distribution sets, of which the numbers or the images shown then depend."""
_GIVE_LABELS = (
    "give them with --data SPEC, and --test SPEC where that has no test split; a folder with labels has one folder a "
    "class."
)


def evaluate(
    run: Path | str,
    *,
    protocols: Sequence[str] | str | None = None,
    suite: str | None = None,
    data: str | None = None,
    test: str | None = None,
    ood: Sequence[str] | str | None = None,
    options: Options | None = None,
    out: Path | str | None = None,
    again: bool = False,
) -> dict[str, dict[str, Any]]:
    """The results by protocol.

    What the results folder holds already for this encoder, these images and these options is not repeated.
    Protocols of a suite that the data do not allow are left out and named; those asked for by name are refused.
    Where the images have no splits, a tenth of them takes the place of test for what needs no labels.
    Results go to `out`, else to the run's own folder; the folder that was `out` once stands for its run.
    """
    protocols, ood = ([x] if isinstance(x, str) else x for x in (protocols, ood))
    run, folder = places(run, out)
    reads_own = data is None and (protocols is None or list(protocols) != ["transfer"])
    encoder = _opened(run, reads_own=reads_own)
    asked = options or Options()
    options = asked if protocols or suite else _quick(asked)
    own = encoder.config.data.spec
    named = named_sets(own if data is None else data, test, ood, learned_from=own)
    names, left_out = _chosen(protocols, suite, has={"ood": bool(named.ood), "transfer": bool(options.transfer)})
    check_read(asked, names, left_out)
    _check_ood(ood, names)

    marks = _marks(named, options)
    found: dict[str, dict[str, Any]] = {}
    if not again:
        for same in (asked, options):
            rows = {name: _finished(folder, name, encoder, named, same) for name in names}
            found = {name: row for name, row in rows.items() if row is not None} | found
        found = _unchanged(found, marks)
    missing = [name for name in names if name not in found]
    if missing:
        _check_place(folder)
        cache = FeatureCache(folder / "cache", encoder.card["hash"])
        sets: dict[str, PictureSet] = {}
        if set(missing) != {"transfer"}:  # which reads its own alone
            sets = _load(named, max_bad=encoder.config.data.max_bad, own=data is None)
        context = Context(encoder, sets, ood=named.ood, own_tenth=named.own_tenth, options=options, cache=cache)
        # All that can be wrong is found before the first protocol takes its time.
        obstacles = {name: sentence for name in missing if (sentence := _obstacle(name, context))}
        if obstacles and (protocols is not None or len(obstacles) == len(names)):
            name, why = next(iter(obstacles.items()))
            raise ProsminError(f"The protocol {name} cannot be measured: {why}")
        left_out |= obstacles
    if named.note and set(names) != {"transfer"}:
        print(f"{named.note}.", file=sys.stderr)
    if left_out:
        print("left out: " + _by_reason(left_out), file=sys.stderr)
    wanted = [name for name in missing if name not in left_out]
    if replaced := _replaced(folder, wanted, named, options):
        print(f"replacing {replaced}; --out DIR keeps results apart.", file=sys.stderr)
    keep_card(encoder.card, folder, run=run if isinstance(run, Path) else None)
    if wanted:
        context.settle()
    for name in wanted:
        began = time.monotonic()
        result = PROTOCOLS[name](context)
        if name != "transfer":
            result.settings.update(_known_of(named, context))
        command = _command(run, folder, name, named, options)
        row = _row(name, result, encoder, named, options, command, time.monotonic() - began, context.seed)
        row["files"] = {spec: mark for spec, mark in marks.items() if spec in _pictures(name, named, options)}
        found[name] = _write(folder, row, result)
    return {name: found[name] for name in names if name in found}


def _check_ood(ood: Sequence[str] | None, names: Sequence[str]) -> None:
    """Refuse out-of-distribution images that none of the protocols looks at."""
    if ood and not set(names) & set(READS_OOD):
        raise UsageError(
            f"No protocol that is to run ({', '.join(names)}) reads --ood {','.join(ood)}. "
            f"Leave it out, or add one that does: {', '.join(READS_OOD)}."
        )


def _opened(run: Path | str, *, reads_own: bool) -> Encoder:
    """The encoder; one that was not trained here has no images of its own to read."""
    without = f"{run} brings no images along to be judged on. Give them with --data SPEC."
    if reads_own and is_foreign(run):  # before its weights are fetched
        raise UsageError(without)
    encoder = load(run)
    if reads_own and not encoder.card.get("steps"):
        raise UsageError(without)
    return encoder


def places(run: Path | str, out: Path | str | None) -> tuple[Path | str, Path]:
    """The encoder, as a Path where it has a folder, and where its results go."""
    if not isinstance(run, str | Path):
        raise UsageError(
            f"evaluate takes a run folder or the name of an encoder, and got {type(run).__name__}; "
            "save an encoder first: evaluate(encoder.save(DIR))."
        )
    if has_no_folder(run):
        return str(run), results_folder(run, out)
    folder = encoder_folder(run)  # the file of an encoder means the folder it lies in
    owner = measured_run(folder)
    if owner is None:
        return folder, results_folder(folder, out)
    if not owner.is_dir():
        raise ProsminError(
            f"{folder} keeps the results of {owner}, which is not there any more. "
            "Measure it where it is now: prosmin evaluate RUN --out DIR."
        )
    return owner, results_folder(owner, folder if out is None else out)


def _check_place(folder: Path) -> None:
    """Results that cannot be written are known before anything is measured."""
    try:
        check_writable(folder / "results")
    except ProsminError as error:
        raise ProsminError(f"{error} `--out DIR` puts the results elsewhere.") from error


def _quick(options: Options) -> Options:
    """The options with those of a quick run in the place of defaults; who names all severities has them all."""
    return dataclasses.replace(
        options, **{k: v for k, v in QUICK.items() if getattr(options, k) is getattr(Options(), k)}
    )


def _chosen(
    protocols: Sequence[str] | None, suite: str | None, *, has: dict[str, bool]
) -> tuple[list[str], dict[str, str]]:
    """The protocols to run, and what each that is left out would need."""
    if protocols is None:
        if suite is not None and suite not in SUITES:
            raise UsageError(f"There is no suite {suite!r}; there are: {', '.join(SUITES)}.")
        wanted = [name for name in (SUITES[suite] if suite else DEFAULT) if name in PROTOCOLS]
        left_out = {name: f"needs {what}" for name, what in _NEEDS.items() if name in wanted and not has[name]}
        return [name for name in wanted if name not in left_out], left_out
    if suite is not None:
        raise UsageError("--suite and --protocols exclude each other; give one of them.")
    for name in protocols:
        if name not in PROTOCOLS:
            raise UsageError(f"There is no protocol {name!r}; there are: {', '.join(PROTOCOLS)}.")
        if name in _NEEDS and not has[name]:
            raise UsageError(f"The protocol {name} needs {_NEEDS[name]}.")
    return list(dict.fromkeys(protocols)), {}


def _obstacle(name: str, context: Context) -> str | None:
    """Why these images do not allow a protocol. What a person got wrong is raised."""
    if name == "transfer":
        check_transfer_sets(context.options.transfer)
        return None
    if name == "ood":
        near_and_far(context)
    if context.unlabelled:
        why = f"labelled train and test images are needed, but {context.unlabelled}; {_GIVE_LABELS}"
        return None if name in WITHOUT_LABELS else why
    if name in ("ood", "pictures"):
        return None
    _ = context.classes
    if name in ("linear", "linear-paper", "corruption", "uncertainty") and not bool(context.held_out.any()):
        train = context.sets["train"]
        return (
            f"{train.spec} has {len(train)} images of {context.classes} classes, of which no tenth can be held "
            "out to choose on; give two images or more of a class"
        )
    try:
        if name in ("lowshot", "semi"):
            labelled_shares(context)
        if name == "corruption":
            check_corrupted(context)
    except ProsminError as error:
        if context.options.label_lists or context.options.corrupted:
            raise
        return str(error)
    return None


def _by_reason(left_out: dict[str, str]) -> str:
    """What is left out and why, each reason once."""
    reasons: dict[str, list[str]] = {}
    for name, why in left_out.items():
        reasons.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)}: {why.rstrip('.')}" for why, names in reasons.items())


def _known_of(named: NamedSets, context: Context) -> dict[str, str]:
    """What a reader of a result must know of its images; nothing where test is a labelled split."""
    said = {"test_pictures": named.note, UNLABELLED: context.unlabelled}
    return {name: text for name, text in said.items() if text}


def _load(named: NamedSets, *, max_bad: float, own: bool) -> dict[str, PictureSet]:
    """The sets by name, in memory as far as they fit into it together; `own`: train is what the run itself names."""
    sets: dict[str, PictureSet] = {}
    room = memory_limit()
    for name, spec in named.specs.items():
        if name == "test" and named.own_tenth:
            mask = tenth_by_name(sets["train"].keys, spec=spec)
            sets |= {"train": sets["train"].subset(~mask), "test": sets["train"].subset(mask)}
            continue
        try:
            sets[name] = pictures = open_pictures(spec, limit=room, max_bad=max_bad)
        except UsageError as error:
            where = "The run names these images, as seen from where it was trained: name them with --data SPEC."
            raise UsageError(f"{error} {where}" if own and name == "train" else str(error)) from None
        if len(pictures) < 2:
            raise ProsminError(f"{spec} holds one image; a protocol needs 2 or more.")
        if isinstance(pictures, Pictures):
            room -= pictures.images.nbytes
            tell_left_out(pictures.spec, pictures.bad)
    return sets


def _finished(folder: Path, name: str, encoder: Encoder, named: NamedSets, options: Options) -> dict[str, Any] | None:
    """A result already there, if it is of this encoder, these images and these options."""
    row = _read(folder, name)
    # A result of an earlier version says nothing of an option that there was not: it had its default.
    had, asked = read_by(Options(), name) | (row.get("options") or {}), read_by(options, name)
    if asked.get("baselines") == "none":
        had["baselines"] = "none"  # a result with baselines has all that is asked for
    read = _by_name(name, row.get("data") or {}, had.get("transfer") or ())
    is_same = read == _by_name(name, named.data, options.transfer) and row.get("checkpoint") == _checkpoint(encoder)
    return row if row and is_same and had == asked else None


def _read(folder: Path, name: str) -> dict[str, Any]:
    """The result in a folder; empty where there is none that can be read."""
    try:
        row = json.loads((folder / "results" / f"{name}.json").read_text())
    except (OSError, ValueError):
        return {}
    return row if isinstance(row, dict) else {}


def _marks(named: NamedSets, options: Options) -> dict[str, str]:
    """What the files of each SPEC, and those that options name, are known by, as far as there are any."""
    marks = files_marks(named.specs.values())
    for spec in options.transfer:
        with suppress(UsageError):  # told where it is opened
            marks[spec] = " ".join(files_marks(splits_of(spec)).values())
    for name in (*options.label_lists, *([options.corrupted] if options.corrupted else [])):
        marks[name] = tree_mark(name.removeprefix("folder:"))
    return {name: mark for name, mark in marks.items() if mark}


def _unchanged(found: dict[str, dict[str, Any]], marks: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The results behind whose SPECs the same files lie as when they were measured; what becomes of them is said."""
    known = [item for row in found.values() for item in row.get("files", {}).items()]
    changed = {spec for spec, mark in known if marks.get(spec, mark) != mark}
    if changed:
        print(f"measuring again: the files of {', '.join(sorted(changed))} are others than they were.", file=sys.stderr)
    kept = {name: row for name, row in found.items() if not changed & row.get("files", {}).keys()}
    if kept:
        print(f"measured before: {', '.join(kept)}; --again measures anew.", file=sys.stderr)
    return kept


def _replaced(folder: Path, names: Sequence[str], named: NamedSets, options: Options) -> str:
    """The results of other images that these protocols are about to replace, by their images; empty: none."""
    found: dict[str, list[str]] = {}
    for name in names:
        row = _read(folder, name)
        old = _by_name(name, row.get("data") or {}, (row.get("options") or {}).get("transfer") or ())
        if old.items() - _by_name(name, named.data, options.transfer).items():
            found.setdefault(", ".join(old.values()), []).append(name)
    return "; ".join(f"the results of {', '.join(those)} on {pictures}" for pictures, those in found.items())


def _pictures(name: str, named: NamedSets, options: Options) -> set[str]:
    """The SPECs and files that a protocol looks at."""
    read = read_by(options, name)
    files = [*(read.get("label_lists") or ()), *filter(None, [read.get("corrupted")])]
    return {*_by_name(name, named.specs, options.transfer).values(), *files}


def _by_name(name: str, data: dict[str, str], transfer: Sequence[str]) -> dict[str, str]:
    """Those that a protocol looks at, by name."""
    if name == "transfer":
        return {spec: spec for spec in transfer}
    return {part: spec for part, spec in data.items() if part in ("train", "test") or name in READS_OOD}


def _checkpoint(encoder: Encoder) -> dict[str, Any]:
    return {"step": encoder.card["step"], "hash": encoder.card["hash"]}


def _row(
    name: str,
    result: Result,
    encoder: Encoder,
    named: NamedSets,
    options: Options,
    command: str,
    seconds: float,
    seed: int,
) -> dict[str, Any]:
    """A result as its file holds it."""
    row: dict[str, Any] = {
        "protocol": name,
        "metrics": result.metrics,
        "baselines": result.baselines,
        "settings": result.settings,
        "data": named.data,
        "options": read_by(options, name),
        "checkpoint": _checkpoint(encoder),
        "seed": seed,
        "seconds": round(seconds, 2),
        "command": command,
    }
    row |= {key: value for key, value in (("sets", result.sets), ("curves", result.curves)) if value}
    return _finite(row)


def _finite(value: Any) -> Any:
    """NaN, such as the AUROC of errors that do not occur, is not JSON."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(folder: Path, row: dict[str, Any], result: Result) -> dict[str, Any]:
    path = folder / "results" / f"{row['protocol']}.json"
    if result.arrays:
        with writing(path.with_suffix(".npz")) as part, part.open("wb") as file:
            np.savez_compressed(file, **result.arrays)  # type: ignore[arg-type]
    write_text(path, json.dumps(row, indent=1))
    return row


def _command(run: Path | str, folder: Path, name: str, named: NamedSets, options: Options) -> str:
    """The command that measures this protocol alone."""
    words = ["prosmin", "evaluate", str(run), "--protocols", name, *named.arguments]
    words += ["--out", str(folder)] if has_no_folder(run) or folder.resolve() != Path(run).resolve() else []
    return f"{shlex.join(words)} {as_arguments(options, name)}".rstrip()
