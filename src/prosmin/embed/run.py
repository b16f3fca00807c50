"""`prosmin embed` from top to bottom: open the images, fit the reference, write the parts, join them to one file."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from prosmin import __version__
from prosmin.data.image_sets import check_not_empty
from prosmin.data.sources import Source, files_marks, open_source, parse
from prosmin.data.sources.remote import is_remote
from prosmin.data.stream import Batch
from prosmin.data.unreadable import CheckedSource, check_readable, report_left_out
from prosmin.embed import patches as patch_column
from prosmin.embed import reference as references
from prosmin.embed import rows as columns
from prosmin.embed.leftovers import remove_parts
from prosmin.embed.parts import PART, PartMarks, Parts, Process, open_folder, others_out, this_process
from prosmin.embed.request import NO_REFERENCE, Request, is_finished, refuse_changed, settings_of
from prosmin.embed.rows import Joined, Made, Scoring, join, mark_of, read_about, unreadable_of, write_table
from prosmin.embed.stream import BATCH, fill, recorded
from prosmin.encoder import Encoder, Summary, load
from prosmin.encoder.calibrated import CALIBRATION
from prosmin.encoder.neighbourhood import AMONG_THEMSELVES, NEIGHBOURS
from prosmin.encoder.neighbours import first_of_copies
from prosmin.errors import ProsminError, UsageError
from prosmin.files import writing
from prosmin.interrupts import if_interrupted
from prosmin.local_processes import Helpers


@dataclass(frozen=True)
class Job:
    """One command in one process."""

    request: Request
    encoder: Encoder
    source: CheckedSource  # the images to embed
    belonging: CheckedSource | None  # the images of the reference
    process: Process

    @property
    def folder(self) -> Path:
        """Where the parts are."""
        return self.request.out.with_name(f"{self.request.out.name}.parts")

    @property
    def max_bad(self) -> float:
        """The share of unreadable images that is allowed."""
        return self.encoder.config.data.max_bad if self.request.max_bad is None else self.request.max_bad

    @property
    def batch(self) -> int:
        """Images computed at once."""
        on_gpu = self.encoder.device.type == "cuda"
        return self.request.batch or min(self.encoder.batch_size, BATCH if on_gpu else PART, PART)

    def fill(self, parts: Parts, source: CheckedSource, *, make: Any, write: Any, title: str) -> None:
        """Write the missing parts of this process, see `stream.fill`."""
        fill(
            parts,
            source,
            self.process,
            device=self.encoder.device,
            batch=self.batch,
            max_bad=self.max_bad,
            make=make,
            write=write,
            title=title,
        )

    def say(self, sentence: str) -> None:
        """Print, in the first process."""
        if self.process.rank == 0:
            print(sentence, flush=True)


def embed(run: Path | str, request: Request, *, command: str = "", helpers: Helpers | None = None) -> Path:
    """Write one row per image to `request.out`.

    Of n processes, started by torchrun, srun or as `helpers`, each writes every n-th part; the first joins them.
    """
    process = this_process(os.environ, helpers or Helpers())
    if process.device.type == "cuda":
        torch.cuda.set_device(process.device)  # streams and CUDA graphs are made on the current device
    encoder = load(run, device=process.device).to(process.device, precision=request.precision)
    if request.patches is not None:
        patch_column.check_encoder(encoder)
    source = CheckedSource(_open(request.data))
    job = Job(request, encoder, source, _reference_images(encoder, source, request), process)
    settings = settings_of(encoder, source, job.belonging, request)
    specs = [each.spec for each in (source, job.belonging) if each is not None]
    if is_finished(request.out, settings):
        _check_finished(job, specs)
        if process.rank == 0:
            remove_parts(job.folder, settings)
        return request.out
    marks: dict[str, Any] = {}
    if process.rank == 0:  # before a file is read, since it may be changed meanwhile
        marks = {"files": files_marks(specs), "files_and_times": files_marks(specs, times=True)}
    with open_folder(job.folder, settings, process, finished=partial(is_finished, request.out, settings)):
        if is_finished(request.out, settings):  # by the first process, just before this one had the lock
            return request.out
        scoring = None if job.belonging is None else _fit_reference(job, job.belonging)
        if job.belonging is None and request.reference is None:
            job.say("no reference, so no score and no flag: give images that belong with --reference SPEC")
        parts = Parts(job.folder, "part-{:05d}.parquet", torch.arange(len(source)))
        _write_rows(job, scoring, parts)
        if process.rank == 0:
            process.wait_until(parts.are_whole, what=f"parts of {job.folder}")
            about = _about(str(run), settings, scoring, command) | marks
            with others_out(job.folder, process):
                if process.world > 1:
                    _rewrite_changed(job, scoring, parts)
                joined = join(parts, request.out, source, about, max_bad=job.max_bad)
                process.helpers.end()
                with if_interrupted(partial(shutil.rmtree, job.folder, ignore_errors=True)):
                    shutil.rmtree(job.folder)
            _print_summary(joined, scoring, request)
    return request.out


def _open(spec: str) -> Source:
    source = open_source(spec)
    check_not_empty(source)
    return source


def _reference_images(encoder: Encoder, source: CheckedSource, request: Request) -> CheckedSource | None:
    """The images that belong; None if no score is requested, or if the training images are unknown."""
    unknown = "encoder" in encoder.card and CALIBRATION not in encoder.card
    if request.reference == NO_REFERENCE or (request.reference is None and unknown):
        return None
    spec = request.reference or encoder.config.data.spec
    if spec == request.data:
        return CheckedSource(source.source)  # opening a large folder twice takes a while
    try:
        return CheckedSource(_open(spec))
    except ProsminError as error:
        if request.reference is not None:
            raise
        kind, rest = parse(spec)
        relative = kind.files is not None and not (is_remote(rest) or Path(rest).expanduser().is_absolute())
        where = " Its path is relative to the directory of the training: run the command there." if relative else ""
        raise UsageError(
            f"The default reference, the images of the encoder's training or calibration, {spec}, cannot be opened: "
            f"{error}{where} Or give images that belong with --reference SPEC, or --reference none for no score."
        ) from None


def _check_finished(job: Job, specs: list[str]) -> None:
    """An error if the finished file does not match the files and options of this command."""
    out = job.request.out
    refuse_changed(out, specs, times=not job.process.launched)
    unreadable = (read_about(out) or {}).get("unreadable", [])
    check_readable(
        unreadable, total=len(job.source), max_bad=job.max_bad, spec=job.source.spec, option="--max-bad SHARE"
    )
    job.say(f"{out} has already been written.")


def _fit_reference(job: Job, belonging: CheckedSource) -> Scoring:
    """The same in all processes: all compute features, the first fits.

    It is in a folder whose name has the state of its files: if they change, a command that continues fits it again.
    """
    encoder, process, request = job.encoder, job.process, job.request
    numbers = references.choose(belonging)
    mark = PartMarks(belonging, times=not process.launched)(numbers)
    folder = job.folder / f"reference-{mark}" if mark else job.folder
    file = folder / "reference.safetensors"
    groups, own = references.own_groups(job.source, belonging, numbers)
    if not file.exists():
        references.check_size(len(numbers), belonging.spec)
        references.possible_rate(min(len(numbers), references.SCORED), request.false_alarms)
        parts = Parts(folder, "reference-{:05d}.safetensors", numbers)
        _write_reference_parts(job, belonging, parts)
        if process.rank == 0:
            process.wait_until(parts.are_whole, what=f"parts of {folder}")
            found = [references.load_tensors(parts.path(i)) for i in range(len(parts))]
            features = torch.cat([part["features"] for part in found])
            there = torch.isin(numbers, torch.cat([part["numbers"] for part in found]))
            features, *rows = (row.to(encoder.device) for row in (features, numbers[there], groups[there]))
            first = first_of_copies(features)
            references.check_size(len(first.unique()), belonging.spec)
            itself = belonging.spec == job.source.spec
            fitted = references.fit(
                features,
                *rows,
                space=encoder.background.space,
                neighbours=AMONG_THEMSELVES if itself else NEIGHBOURS,
                first=first,
            )
            references.write_reference(fitted, file)
    process.wait_until(file.exists, what=str(file))
    reference = references.read_reference(file).to(encoder.device)
    rate = references.possible_rate(len(reference.scores), request.false_alarms)
    if request.false_alarms is None and rate != references.FALSE_ALARMS and process.rank == 0:
        needed = references.images_needed(references.FALSE_ALARMS)
        print(
            f"warning: the rate of false alarms is {100 * rate:.3g} %, the least for a reference of "
            f"{len(reference.scores)} images; {100 * references.FALSE_ALARMS:g} % needs {needed}.",
            file=sys.stderr,
        )
    return Scoring(reference, rate, own if bool((own >= 0).any()) else None, belonging.key, mark)


def _write_reference_parts(job: Job, belonging: CheckedSource, parts: Parts) -> None:
    """Features and numbers of the readable reference images."""

    def write(path: Path, chosen: Tensor, made: list[Tensor]) -> None:
        good = belonging.readable(chosen).numpy()  # numpy: see rows.table
        features = np.concatenate([some.cpu().numpy() for some in made])[good]
        with writing(path) as part:
            save_file({"features": features, "numbers": chosen.numpy()[good]}, part)

    make = recorded(job.encoder.batch_features, job.encoder, size=job.batch)
    job.fill(parts, belonging, make=make, write=write, title="reference")


class Seen(NamedTuple):
    """What the networks compute of a batch."""

    summary: Summary
    patches: Tensor | None


def _seen(encoder: Encoder, request: Request, batch: Batch) -> Seen:
    summary = encoder.summarise(batch, views=request.views)
    if request.patches is None:
        return Seen(summary, None)
    return Seen(summary, patch_column.narrowed(encoder.batch_patches(batch), request.patches))


def _write_rows(job: Job, scoring: Scoring | None, parts: Parts) -> None:
    """This process's parts of the file."""
    mark = _marks(job, scoring)
    _remove_changed(job, parts, mark)
    work = recorded(partial(_seen, job.encoder, job.request), job.encoder, size=job.batch)
    known = job.encoder.known  # if there is no reference

    def make(batch: Batch) -> Made:
        summary, patches = work(batch)
        if scoring is not None:
            distances = scoring.measure(summary.features, batch.index)
            return Made(summary, distances, distances.uncertainty, patches)
        uncertainty = None if known.images is None else known.uncertainty(summary.features)
        return Made(summary, None, uncertainty, patches)

    def write(path: Path, numbers: Tensor, made: list[Made]) -> None:
        write_table(path, columns.table(numbers, made, job.source, scoring, mark=mark(numbers)))

    if there := sum(parts.path(i).exists() for i in range(len(parts))):
        job.say(f"continuing {job.request.out}: {there} of {len(parts)} parts are written")
    job.fill(parts, job.source, make=make, write=write, title="images")


def _rewrite_changed(job: Job, scoring: Scoring | None, parts: Parts) -> None:
    """Parts of an earlier command that another process had not yet checked when all parts were there."""
    alone = replace(job, process=Process(0, 1, 0, launched=job.process.launched))
    _remove_changed(alone, parts, _marks(alone, scoring))
    if not parts.are_whole():
        _write_rows(alone, scoring, parts)


def _marks(job: Job, scoring: Scoring | None) -> Callable[[Tensor], str]:
    """The state of the files that the rows of some images depend on: their own, and those of the reference."""
    own = PartMarks(job.source, times=not job.process.launched)
    return own if scoring is None else lambda numbers: f"{own(numbers)} {scoring.mark}".strip()


def _remove_changed(job: Job, parts: Parts, mark: Callable[[Tensor], str]) -> None:
    """Remove parts whose files have changed, and those without an image that is readable by now."""
    for i in parts.own(job.process):
        path = parts.path(i)
        if not path.exists():
            continue
        if mark_of(path) != mark(parts.pictures(i)):
            path.unlink()
        elif left_out := list(unreadable_of(path)):
            for number in left_out:
                job.source.image(number)
            if bool(job.source.readable(torch.tensor(left_out)).any()):
                path.unlink()


def _about(run: str, settings: dict[str, Any], scoring: Scoring | None, command: str) -> dict[str, Any]:
    """The metadata of the file, without the unreadable images."""
    about: dict[str, Any] = {"prosmin": __version__, "run": run, "command": command, "settings": settings}
    if scoring is not None:
        images, scores = scoring.reference.images, scoring.reference.scores
        about["threshold"] = scoring.threshold
        about["false_alarms"] = scoring.reference.reached(scoring.rate)
        about["reference"] = {"bank": len(images.features), "k": images.k, "scores": len(scores)}
    return about | {"columns": columns.column_meanings(patches=settings.get("patches") is not None)}


def _print_summary(joined: Joined, scoring: Scoring | None, request: Request) -> None:
    report_left_out(request.data, joined.unreadable)
    text = f"wrote {request.out}: {joined.rows} images"
    if scoring is not None:
        reached = scoring.reference.reached(scoring.rate)
        text += (
            f", {joined.flagged} of them ({100 * joined.flagged / joined.rows:.1f} %) flagged: ood_score above "
            f"{scoring.threshold:.4f}, as for at most {100 * reached:.3g} % of images like the reference"
        )
        if scoring.groups is not None:
            count = int((scoring.groups >= 0).sum())
            which = "They" if count == len(scoring.groups) else f"{count} of them"
            text += f". {which} are images of the reference, and each was compared only with the others"
    print(text)
