"""What `prosmin embed` is asked for, checked before anything is opened."""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from prosmin import __version__
from prosmin.data.image_sets import check_not_empty
from prosmin.data.sources import Source, files_marks, open_source
from prosmin.data.stream import Batch
from prosmin.data.unreadable import CheckedSource, check_readable, report_left_out
from prosmin.embed import reference as references
from prosmin.embed import rows as columns
from prosmin.embed.parts import PART, PartMarks, Parts, Process, open_folder, others_out, refuse_other, this_process
from prosmin.embed.reference import own_groups
from prosmin.embed.rows import Joined, Judging, Made, join, mark_of, told_of, unreadable_of, write_table
from prosmin.embed.stream import BATCH, fill, recorded
from prosmin.encoder import PRECISIONS, Encoder, load
from prosmin.errors import ProsminError, UsageError
from prosmin.files import writing
from prosmin.local_processes import Helpers

NO_REFERENCE = "none"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of the command."""

    data: str  # SPEC
    out: Path
    reference: str | None = None  # SPEC; None: the images the encoder was trained on
    false_alarms: float | None = None  # a share; None: 0.05, or the least that a small reference tells
    views: int = 2
    batch: int | None = None
    max_bad: float | None = None  # a share; None: what the encoder's run allowed
    precision: str = "32-true"

    def __post_init__(self) -> None:
        if self.out.suffix != ".parquet" or self.out.is_dir():
            raise UsageError(f"--out is {self.out}; allowed: a file named *.parquet.")
        if self.false_alarms is not None and not 0 < self.false_alarms < 1:
            raise UsageError(f"--false-alarms is {self.false_alarms:g}; allowed: a share above 0 and below 1.")
        if self.false_alarms is not None and self.reference == NO_REFERENCE:
            raise UsageError(
                f"--false-alarms is {self.false_alarms:g}, but --reference {NO_REFERENCE} leaves nothing to flag by; "
                "give one of them, or images that belong: --reference SPEC."
            )
        if self.views == 1 or self.views < 0:
            raise UsageError(f"--views is {self.views}; allowed: 2 or more to compare, or 0 for none.")
        if self.batch is not None and not 1 <= self.batch <= PART:
            raise UsageError(f"--batch is {self.batch}; allowed: 1 to {PART}, the images of a part.")
        if self.max_bad is not None and not 0 <= self.max_bad <= 1:
            raise UsageError(f"--max-bad is {self.max_bad:g}; allowed: a share from 0 to 1.")
        if self.precision not in PRECISIONS:
            raise UsageError(f"--precision is {self.precision!r}; allowed: {', '.join(PRECISIONS)}.")


def embed(run: Path | str, request: Request, *, command: str = "", helpers: Helpers | None = None) -> Path:
    """Write one row per image to `request.out`.

    Several processes, started by torchrun, SLURM or as `helpers`, each take every n-th part; the first one puts them
    together.
    """
    process = this_process(os.environ, helpers or Helpers())
    if process.device.type == "cuda":
        torch.cuda.set_device(process.device)  # streams and recordings are made on the current device
    encoder = load(run, device=process.device).to(process.device, precision=request.precision)
    source = CheckedSource(_open(request.data))
    belonging = _belonging(encoder, source, request)
    settings = _settings(encoder, source, belonging, request)
    specs = [each.spec for each in (source, belonging) if each is not None]
    if _is_finished(request.out, settings):
        _refuse_changed(request.out, specs, times=not process.launched)
        left_out = (told_of(request.out) or {}).get("unreadable", [])
        check_readable(
            left_out, total=len(source), max_bad=_max_bad(encoder, request), spec=source.spec, option="--max-bad SHARE"
        )
        _say(process, f"{request.out} has been written already.")
        return request.out
    folder = request.out.with_name(f"{request.out.name}.parts")
    # Before a file is read: it may be written to meanwhile.
    marks = (
        {"files": files_marks(specs), "files_and_times": files_marks(specs, times=True)} if process.rank == 0 else {}
    )
    with open_folder(folder, settings, process, finished=partial(_is_finished, request.out, settings)):
        if _is_finished(request.out, settings):  # by the first process, between the last line and the lock
            return request.out
        judging = None if belonging is None else _reference(encoder, source, belonging, folder, process, request)
        if belonging is None and request.reference is None:
            _say(process, "no reference, so no score and no flag: name images that belong with --reference SPEC")
        parts = Parts(folder, "part-{:05d}.parquet", torch.arange(len(source)))
        _write_rows(encoder, source, judging, parts, process, request)
        if process.rank == 0:
            process.wait_until(parts.are_whole, what=f"parts of {folder}")
            with others_out(folder, process):
                if process.world > 1:
                    _mend_rows(encoder, source, judging, parts, process, request)
                about = _about(str(run), settings, judging, command) | marks
                found = join(parts, request.out, source, about, max_bad=_max_bad(encoder, request))
                process.helpers.end()
                shutil.rmtree(folder)
            _tell(found, judging, request)
    return request.out


def _open(spec: str) -> Source:
    source = open_source(spec)
    check_not_empty(source)
    return source


def _belonging(encoder: Encoder, source: CheckedSource, request: Request) -> CheckedSource | None:
    """The images that belong; None where no score is wanted, or where nobody knows what the encoder learned from."""
    if request.reference == NO_REFERENCE:
        return None
    if request.reference is None and "encoder" in encoder.card:
        return None
    if (request.reference or encoder.config.data.spec) == request.data:
        return CheckedSource(source.source)  # opening it takes a while: it is the list of all images
    if request.reference is not None:
        return CheckedSource(_open(request.reference))
    try:
        return CheckedSource(_open(encoder.config.data.spec))
    except ProsminError as error:
        raise UsageError(
            f"The reference is the run's own images, which cannot be had: {error} "
            "Name others with --reference SPEC, or do without a score: --reference none."
        ) from None


def _settings(
    encoder: Encoder, source: CheckedSource, belonging: CheckedSource | None, request: Request
) -> dict[str, Any]:
    """All that decides the rows."""
    return {
        "encoder": encoder.card["hash"],
        "data": source.spec,
        "pictures": len(source),
        "names": _digest(source),
        "reference": None if belonging is None else belonging.spec,
        "reference_names": None if belonging is None else _digest(belonging),
        "false_alarms": None if belonging is None else request.false_alarms or references.FALSE_ALARMS,
        "threshold_from": None if belonging is None else "each reference image against the others",
        "views": request.views,
        "precision": request.precision,
        "columns": list(columns.COLUMNS),
    }


def _digest(source: Source) -> str:
    """A hash of the images' names in their order."""
    digest = hashlib.blake2b(digest_size=8)
    for i in range(len(source)):
        digest.update(source.key(i).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def _is_finished(out: Path, settings: dict[str, Any]) -> bool:
    told = told_of(out)
    if told is None:
        return False
    refuse_other(told["settings"], settings, where=f"{out} was written")
    return True


def _refuse_changed(out: Path, specs: list[str], *, times: bool) -> None:
    """A finished file is not that of files with other sizes or times by now, though their names are the same."""
    told = told_of(out) or {}
    timed = times and "files_and_times" in told  # a file of a prosmin that looked at the sizes alone has no times
    then = told.get("files_and_times" if timed else "files", {})
    now = files_marks(specs, times=timed)
    changed = [spec for spec, mark in now.items() if then.get(spec, mark) != mark]
    if changed:
        raise ProsminError(
            f"{out} was written from other files: those of {', '.join(changed)} have been written to since, by their "
            "sizes or times of modification. Remove it, or give another file with --out."
        )


def _reference(
    encoder: Encoder, source: CheckedSource, belonging: CheckedSource, folder: Path, process: Process, request: Request
) -> Judging:
    """The same for all processes: features by all of them, the fit by the first.

    It lies in a folder named after the state of its files: when they change, a command that continues finds none.
    """
    numbers = references.choose(belonging)
    mark = PartMarks(belonging, times=not process.launched)(numbers)
    folder = folder / f"reference-{mark}" if mark else folder
    file = folder / "reference.safetensors"
    groups, own = own_groups(source, belonging, numbers)
    if not file.exists():
        references.check_size(len(numbers), belonging.spec)
        references.possible_rate(min(len(numbers), references.JUDGED), request.false_alarms)

        def write(path: Path, chosen: Tensor, made: list[Tensor]) -> None:
            good = belonging.readable(chosen).numpy()  # numpy: see columns.table
            features = np.concatenate([some.cpu().numpy() for some in made])[good]
            with writing(path) as part:
                save_file({"features": features, "numbers": chosen.numpy()[good]}, part)

        parts = Parts(folder, "reference-{:05d}.safetensors", numbers)
        fill(
            parts,
            belonging,
            process,
            device=encoder.device,
            batch=_batch(encoder, request),
            max_bad=_max_bad(encoder, request),
            make=recorded(encoder.batch_features, encoder, size=_batch(encoder, request)),
            write=write,
            title="reference",
        )
        if process.rank == 0:
            process.wait_until(parts.are_whole, what=f"parts of {folder}")
            found = [references.load_tensors(parts.path(i)) for i in range(len(parts))]
            features = torch.cat([part["features"] for part in found])
            there = torch.isin(numbers, torch.cat([part["numbers"] for part in found]))
            references.check_size(len(features), belonging.spec)
            rows = (numbers[there].to(encoder.device), groups[there].to(encoder.device))
            fitted = references.fit(features.to(encoder.device), *rows)
            references.write_reference(fitted, file)
    process.wait_until(file.exists, what=str(file))
    reference = references.read_reference(file).to(encoder.device)
    rate = references.possible_rate(len(reference.scores), request.false_alarms)
    if request.false_alarms is None and rate != references.FALSE_ALARMS and process.rank == 0:
        print(
            f"warning: the reference has {len(reference.scores)} images, which tell rates of false alarms from "
            f"{100 * rate:.3g} % on; that is taken. {references.pictures_needed(references.FALSE_ALARMS)} images or "
            f"more tell {100 * references.FALSE_ALARMS:g} %.",
            file=sys.stderr,
        )
    return Judging(reference, rate, own if bool((own >= 0).any()) else None, belonging.key, mark)


def _write_rows(
    encoder: Encoder, source: CheckedSource, judging: Judging | None, parts: Parts, process: Process, request: Request
) -> None:
    """This process's parts of the file."""
    threshold, belonging = (None, None) if judging is None else (judging.threshold, judging.key)
    mark = _row_marks(source, judging, process)
    _forget_changed(parts, source, mark, process)

    summarise = recorded(partial(encoder.summarise, views=request.views), encoder, size=_batch(encoder, request))

    def make(batch: Batch) -> Made:
        summary = summarise(batch)
        return Made(summary, None if judging is None else judging.measure(summary.features, batch.index))

    def write(path: Path, numbers: Tensor, made: list[Made]) -> None:
        rows = columns.table(numbers, made, source, belonging=belonging, threshold=threshold, mark=mark(numbers))
        write_table(path, rows)

    there = sum(parts.path(i).exists() for i in range(len(parts)))
    if there:
        _say(process, f"continuing {request.out}: {there} of {len(parts)} parts are there")
    fill(
        parts,
        source,
        process,
        device=encoder.device,
        batch=_batch(encoder, request),
        max_bad=_max_bad(encoder, request),
        make=make,
        write=write,
        title="pictures",
    )


def _mend_rows(
    encoder: Encoder, source: CheckedSource, judging: Judging | None, parts: Parts, process: Process, request: Request
) -> None:
    """What another process had not yet looked at when all parts of an earlier command were there."""
    alone = Process(0, 1, 0, launched=process.launched)
    _forget_changed(parts, source, _row_marks(source, judging, alone), alone)
    if not parts.are_whole():
        _write_rows(encoder, source, judging, parts, alone, request)


def _row_marks(source: CheckedSource, judging: Judging | None, process: Process) -> Callable[[Tensor], str]:
    """What the rows of some images are known by: the images' own files, and those of the reference."""
    own = PartMarks(source, times=not process.launched)
    return own if judging is None else lambda numbers: f"{own(numbers)} {judging.mark}".strip()


def _forget_changed(parts: Parts, source: CheckedSource, mark: Callable[[Tensor], str], process: Process) -> None:
    """Remove parts whose files are others by now, and those that left out an image which can be read by now."""
    for i in parts.own(process):
        if parts.path(i).exists() and mark_of(parts.path(i)) != mark(parts.pictures(i)):
            parts.path(i).unlink()
        elif parts.path(i).exists() and (left_out := torch.tensor(list(unreadable_of(parts.path(i))))).numel():
            for number in left_out.tolist():
                source.image(number)
            if bool(source.readable(left_out).any()):
                parts.path(i).unlink()


def _max_bad(encoder: Encoder, request: Request) -> float:
    """The share of unreadable images that is allowed: unless told, what its own run allowed."""
    return encoder.config.data.max_bad if request.max_bad is None else request.max_bad


def _batch(encoder: Encoder, request: Request) -> int:
    usual = min(encoder.batch_size, BATCH) if encoder.device.type == "cuda" else encoder.batch_size
    return request.batch or min(usual, PART)


def _about(run: str, settings: dict[str, Any], judging: Judging | None, command: str) -> dict[str, Any]:
    """What the file tells of itself, beside the images that are not in it."""
    about: dict[str, Any] = {"prosmin": __version__, "run": run, "command": command, "settings": settings}
    if judging is not None:
        reference = judging.reference
        about["threshold"] = judging.threshold
        about["false_alarms"] = reference.reached(judging.rate)
        about["reference"] = {
            "bank": len(reference.distance.bank),
            "k": reference.distance.k,
            "scores": len(reference.scores),
        }
    return about | {"columns": {name: meaning for name, (_, meaning) in columns.COLUMNS.items()}}


def _tell(found: Joined, judging: Judging | None, request: Request) -> None:
    report_left_out(request.data, found.unreadable)
    score = ""
    if judging is not None:
        reached = judging.reference.reached(judging.rate)
        score = (
            f", {found.flagged} of them ({100 * found.flagged / found.rows:.1f} %) flagged: ood_score above "
            f"{judging.threshold:.4f}, which at most {100 * reached:.3g} % of images like the reference reach"
        )
        if judging.own is not None:
            count = int((judging.own >= 0).sum())
            those = "They" if count == len(judging.own) else f"{count} of them"
            score += f". {those} are images of the reference itself, and each was compared with the others"
    print(f"wrote {request.out}: {found.rows} images{score}")


def _say(process: Process, sentence: str) -> None:
    if process.rank == 0:
        print(sentence, flush=True)
