"""`prosmin evaluate`: run protocols on an encoder and write one JSON file each to RUN/results."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prosmin.config.fields import check_share
from prosmin.data.image_sets import Pictures, PictureSet, memory_limit, open_pictures
from prosmin.data.unreadable import report_left_out
from prosmin.encoder import Encoder, load
from prosmin.encoder.calibrated import CALIBRATION
from prosmin.encoder.foreign import is_foreign
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.context import Context, FeatureCache
from prosmin.evaluation.options import Options, check_read
from prosmin.evaluation.protocol import Result
from prosmin.evaluation.protocols import PROTOCOLS, SUITES, protocols_of
from prosmin.evaluation.results import Job, Row, check_folder, keep_card, places, unchanged, write_result
from prosmin.evaluation.sets import UNLABELLED, NamedSets, named_sets, same_pictures, tenth_by_name
from prosmin.progress import announced


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
    max_bad: float | None = None,
) -> dict[str, Row]:
    """The results by protocol. Results that exist for this encoder, these images and these options are reused.

    Protocols of a suite that the data do not allow are left out and named; for those asked for by name, it is an error.
    Images without splits: a tenth of them replaces test for protocols that need no labels.
    Results go to `out`, else to the run's folder; a folder that was `out` once stands for its run.
    """
    protocols, ood = ([x] if isinstance(x, str) else x for x in (protocols, ood))
    if max_bad is not None:
        check_share("max_bad", max_bad)
    run, folder = places(run, out)
    asked = options or Options()
    options = asked if protocols or suite else _quick(asked)
    reads_own = data is None and (protocols is None or any(not _has_own_images(name) for name in protocols))
    encoder = _open_encoder(run, needs_images=reads_own)
    own = encoder.config.data.spec
    heads_only = _only_heads_learned(encoder.card)
    named = named_sets(own if data is None else data, test, ood, learned_from=own, heads_only=heads_only)
    names, left_out = _choose(protocols, suite, named, options)
    check_read(asked, names, left_out)
    _check_ood(ood, names)

    job = Job(run=run, folder=folder, encoder=encoder, named=named, options=options)
    marks = job.marks()
    found = {} if again else unchanged(_finished(job, names, asked), marks)
    missing = [name for name in names if name not in found]
    if missing:
        check_folder(folder)
        context = _context(job, missing, max_bad=max_bad, own=data is None)
        left_out |= _obstacles(missing, context, strict=protocols is not None, total=len(names))
    to_run = [name for name in missing if name not in left_out]
    _print_notes(job, names, to_run, left_out)
    keep_card(encoder.card, folder, run=run if isinstance(run, Path) else None)
    if to_run:
        context.settle()
    for number, name in enumerate(to_run, 1):
        with announced(name, number=number, total=len(to_run)):
            found[name] = _measure(job, name, context, marks)
    return {name: found[name] for name in names if name in found}


def _has_own_images(name: str) -> bool:
    return name in PROTOCOLS and bool(PROTOCOLS[name].own_images)


def _open_encoder(run: Path | str, *, needs_images: bool) -> Encoder:
    """The encoder; one that was not trained with prosmin has no images of its own."""
    message = f"{run} names no images to evaluate on. Give them with --data SPEC."
    if needs_images and is_foreign(run):  # before its weights are downloaded
        raise UsageError(message)
    encoder = load(run)
    if needs_images and not encoder.card.get("steps") and CALIBRATION not in encoder.card:
        raise UsageError(message)
    return encoder


def _only_heads_learned(card: dict[str, Any]) -> bool:
    """Whether the encoder's images are those of `prosmin calibrate`, and not those that its backbone learned from."""
    if CALIBRATION not in card:
        return False
    trained = card.get("config", {}).get("data", {}).get("spec")
    return trained is None or not same_pictures(trained, card[CALIBRATION]["data"])


def _quick(options: Options) -> Options:
    """The options of a default run: the quick ones, except where they were given."""
    quick = {name: value for protocol in PROTOCOLS.values() for name, value in protocol.quick.items()}
    default = Options()
    unset = {name: value for name, value in quick.items() if getattr(options, name) is getattr(default, name)}
    return dataclasses.replace(options, **unset)


def _choose(
    protocols: Sequence[str] | None, suite: str | None, named: NamedSets, options: Options
) -> tuple[list[str], dict[str, str]]:
    """The protocols to run, and what each that is left out needs."""
    if protocols is not None and suite is not None:
        raise UsageError("--suite and --protocols exclude each other; give one of them.")
    if suite is not None and suite not in SUITES:
        raise UsageError(f"There is no suite {suite!r}; allowed: {', '.join(SUITES)}.")
    names = protocols_of(suite) if protocols is None else list(dict.fromkeys(protocols))
    if unknown := [name for name in names if name not in PROTOCOLS]:
        raise UsageError(f"There is no protocol {unknown[0]!r}; allowed: {', '.join(PROTOCOLS)}.")
    needs = {name: PROTOCOLS[name].missing(ood=bool(named.ood), options=options) for name in names}
    left_out = {name: f"needs {what}" for name, what in needs.items() if what}
    if protocols is not None and left_out:
        name, what = next(iter(left_out.items()))
        raise UsageError(f"The protocol {name} {what}.")
    return [name for name in names if name not in left_out], left_out


def _check_ood(ood: Sequence[str] | None, names: Sequence[str]) -> None:
    """Refuse out-of-distribution images that none of the protocols reads."""
    readers = [name for name, protocol in PROTOCOLS.items() if protocol.ood != "unused"]
    if ood and not set(names) & set(readers):
        raise UsageError(
            f"No protocol that is to run ({', '.join(names)}) reads --ood {','.join(ood)}. "
            f"Leave it out, or add one that does: {', '.join(readers)}."
        )


def _finished(job: Job, names: Sequence[str], asked: Options) -> dict[str, Row]:
    """Results in the folder, with the options asked for or else with those of a quick run."""
    rows = {name: job.finished(name, asked) or job.finished(name, job.options) for name in names}
    return {name: row for name, row in rows.items() if row is not None}


def _context(job: Job, names: Sequence[str], *, max_bad: float | None, own: bool) -> Context:
    """The encoder and the images that these protocols read."""
    allowed = job.encoder.config.data.max_bad if max_bad is None else max_bad
    reads_sets = any(not PROTOCOLS[name].own_images for name in names)
    return Context(
        job.encoder,
        _load(job.named, max_bad=allowed, own=own) if reads_sets else {},
        ood=job.named.ood,
        own_tenth=job.named.own_tenth,
        options=job.options,
        cache=FeatureCache(job.folder / "cache", job.encoder.card["hash"]),
        max_bad=allowed,
    )


def _load(named: NamedSets, *, max_bad: float, own: bool) -> dict[str, PictureSet]:
    """The sets by name, in memory as long as they fit together; `own`: train is the set that the run names."""
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
            learned = "trained or calibrated on these images, under this path"
            hint = f" The run was {learned}: give their present place with --data SPEC."
            raise UsageError(f"{error}{hint if own and name == 'train' else ''}") from None
        if len(pictures) < 2:
            raise ProsminError(f"{spec} has one image; a protocol needs 2 or more.")
        if isinstance(pictures, Pictures):
            room -= pictures.images.nbytes
            report_left_out(pictures.spec, pictures.bad)
    return sets


def _obstacles(names: Sequence[str], context: Context, *, strict: bool, total: int) -> dict[str, str]:
    """Why the images do not allow some protocols: an error if `strict`, or if all `total` of them are concerned.

    All problems are found before the first protocol takes its time.
    """
    found = {name: why for name in names if (why := PROTOCOLS[name].obstacle(context))}
    if found and (strict or len(found) == total):
        name, why = next(iter(found.items()))
        raise ProsminError(f"The protocol {name} cannot be measured: {why}")
    return found


def _print_notes(job: Job, names: Sequence[str], to_run: Sequence[str], left_out: dict[str, str]) -> None:
    """What a reader of the numbers must know: which images are test, what is left out, what is replaced."""
    if job.named.note and any(not PROTOCOLS[name].own_images for name in names):
        print(f"{job.named.note}.", file=sys.stderr)
    reasons: dict[str, list[str]] = {}
    for name, why in left_out.items():
        reasons.setdefault(why.rstrip("."), []).append(name)
    if reasons:
        print("left out: " + "; ".join(f"{', '.join(who)}: {why}" for why, who in reasons.items()), file=sys.stderr)
    if replaced := job.replaced(to_run):
        print(f"replacing {replaced}; --out DIR keeps both.", file=sys.stderr)


def _measure(job: Job, name: str, context: Context, marks: dict[str, str]) -> Row:
    """Run one protocol and write its result."""
    began = time.monotonic()
    result = PROTOCOLS[name].run(context)
    _print_left_out(name, result)
    if not PROTOCOLS[name].own_images:
        notes: dict[str, Any] = {"test_pictures": job.named.note, UNLABELLED: context.unlabelled}
        result.settings.update({key: text for key, text in notes.items() if text})
    row = job.row(name, result, seconds=time.monotonic() - began, seed=context.seed, marks=marks)
    write_result(job.folder, row, result.arrays)
    return row


def _print_left_out(name: str, result: Result) -> None:
    """Parts of a protocol that these images did not allow, such as 1 % of few labels."""
    left_out = result.settings.get("left_out") or {}
    for part, why in left_out.items():
        print(f"{name}: left out {part}: {why}", file=sys.stderr)
