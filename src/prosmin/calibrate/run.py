"""`prosmin calibrate` from top to bottom: features of views, whitening, heads, a folder that prosmin.load reads."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prosmin import __version__
from prosmin import config as configs
from prosmin.calibrate.heads import (
    HIDDEN,
    Directions,
    Examples,
    Fitted,
    fit_directions,
    fit_heads,
    forecasts_of_random,
    judge,
    skill,
    split,
)
from prosmin.calibrate.views import (
    NAME,
    FeaturesError,
    check_network,
    read_views,
    removing_useless,
    write_views,
)
from prosmin.config import ViewsConfig
from prosmin.config.methods import method_title
from prosmin.data.image_sets import check_not_empty
from prosmin.data.sources import files_mark, open_source
from prosmin.data.unreadable import CheckedSource, report_left_out
from prosmin.embed.leftovers import remove_parts
from prosmin.embed.parts import PART, Parts, Process, open_folder, refuse_other
from prosmin.embed.request import names_digest
from prosmin.encoder import PRECISIONS, Encoder, load
from prosmin.encoder.background import SAMPLE, make_background, write_background
from prosmin.encoder.calibrated import CALIBRATION, COMMAND, UNFINISHED, calibrated_network
from prosmin.encoder.file import CARD, WEIGHTS, read_card, write_encoder
from prosmin.encoder.neighbours import first_of_copies
from prosmin.errors import ProsminError, UsageError
from prosmin.files import check_writable, file_hash, staged, write_text
from prosmin.interrupts import if_interrupted
from prosmin.randomness import generator

LEAST = 100
"""Different images: of fewer, too few are left for judging the forecasts."""
MOST_VIEWS = 100
"""Random views of an image: the features of all views are in memory when the heads are trained."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of the command."""

    data: str  # SPEC
    out: Path
    images: int = 20_000  # at most
    views: int = 4
    seed: int = 0
    batch: int | None = None
    max_bad: float | None = None  # a share; None: that of the encoder's run
    precision: str = "32-true"

    def __post_init__(self) -> None:
        if self.images < LEAST:
            raise UsageError(f"--images is {self.images}; allowed: {LEAST} or more.")
        if not 2 <= self.views <= MOST_VIEWS:
            raise UsageError(
                f"--views is {self.views}; allowed: 2 to {MOST_VIEWS}. One view forecasts another, and the features of "
                "all are kept in memory. The default is 4."
            )
        if self.batch is not None and not 1 <= self.batch <= PART:
            raise UsageError(f"--batch is {self.batch}; allowed: 1 to {PART}.")
        if self.max_bad is not None and not 0 <= self.max_bad <= 1:
            raise UsageError(f"--max-bad is {self.max_bad:g}; allowed: a share from 0 to 1.")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed is {self.seed}; allowed: 0 to 2^63 - 1.")
        if self.precision not in PRECISIONS:
            raise UsageError(f"--precision is {self.precision!r}; allowed: {', '.join(PRECISIONS)}.")


def calibrate(run: Path | str, request: Request, *, command: str = "") -> dict[str, Any]:
    """Train forecast heads for the encoder `prosmin.load(run)`; returns the entry `calibration` of the new card."""
    check_place(request.out)
    encoder = load(run)
    check_precision(request.precision, encoder.device)
    encoder.to(encoder.device, precision=request.precision)
    if CALIBRATION in encoder.card:
        raise UsageError(f"{run} is calibrated already. Give the encoder that it was made from.")
    check_network(encoder)
    source = CheckedSource(open_source(request.data))
    check_not_empty(source)
    settings = settings_of(encoder, source, request)
    if (found := finished(request.out, settings)) is not None:
        print(f"{request.out} has already been written:")
        remove_parts(request.out / UNFINISHED, settings)
        return found
    check_writable(request.out)
    numbers = choose(len(source), request)
    parts = Parts(request.out / UNFINISHED, NAME, numbers)
    folder = open_folder(parts.folder, settings, Process(0, 1, 0), finished=lambda: False, output="folder")
    with folder, removing_useless(parts):
        if command:
            write_text(parts.folder / COMMAND, command)
        if there := len(parts) - len(parts.missing(Process(0, 1, 0))):
            print(f"continuing {request.out}: {there} of {len(parts)} parts are written", flush=True)
        max_bad = encoder.config.data.max_bad if request.max_bad is None else request.max_bad
        write_views(
            parts, encoder, source, views=request.views, seed=request.seed, batch=request.batch, max_bad=max_bad
        )
        report_left_out(request.data, source.lines())
        directions, fitted, figures, sample = _fit(parts, encoder.config.views, request)
        calibration = settings | {
            "features": len(directions.centre),
            "dim": directions.axes.shape[1],
            "hidden": HIDDEN,
            "step": fitted.step,
            "held_out": figures,
            "prosmin": __version__,
            "command": command,
        }
        _write(encoder, directions, fitted, calibration, sample, request.out)
        with if_interrupted(partial(shutil.rmtree, parts.folder, ignore_errors=True)):
            shutil.rmtree(parts.folder)
    return calibration


def check_place(out: Path) -> None:
    """An error if the folder is that of another encoder or run, or has files that are not calibrate's."""
    card = read_card(out) if (out / CARD).exists() else {}
    if (out / "config.yaml").exists() or (card and CALIBRATION not in card):
        raise UsageError(f"--out {out} is the folder of a run, whose encoder would be lost. Choose another folder.")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file, and a folder is to be written. Choose another name.")
    if out.is_dir() and not card and not (out / UNFINISHED).exists() and any(out.iterdir()):
        raise UsageError(
            f"--out {out} has other files already; allowed: a new or an empty folder. Choose another name."
        )


def check_precision(precision: str, device: torch.device) -> None:
    """An error for a precision that is for a GPU, without one."""
    if precision != PRECISIONS[0] and device.type != "cuda":
        raise UsageError(
            f"--precision is {precision}, which needs a GPU, and there is none; allowed on a CPU: {PRECISIONS[0]}. "
            "Leave --precision out."
        )


def settings_of(encoder: Encoder, source: CheckedSource, request: Request) -> dict[str, Any]:
    """Everything that determines the features of the views, and so the result."""
    views = json.dumps(configs.to_tree(encoder.config)["views"], sort_keys=True)
    return {
        "encoder": encoder.card["hash"],
        "data": source.spec,
        "pictures": len(source),
        "names": names_digest(source),
        "files": files_mark(source.spec, times=True),
        "images": min(request.images, len(source)),
        "views": request.views,
        "view_settings": hashlib.blake2b(views.encode(), digest_size=8).hexdigest(),
        "seed": request.seed,
        "precision": request.precision,
    }


def finished(out: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The calibration in the folder, None if there is none or it is damaged; an error if it has other settings."""
    if not (out / CARD).exists() or not (out / WEIGHTS).exists():
        return None
    card = read_card(out)
    found = card[CALIBRATION]
    refuse_other({name: found.get(name) for name in settings}, settings, what=str(out), output="folder")
    if file_hash(out / WEIGHTS) != card["hash"]:
        print(f"{out / WEIGHTS} was changed or truncated, and is made again", flush=True)
        return None
    return found


def choose(count: int, request: Request) -> Tensor:
    """The numbers of the images, sorted; a random subset of more than `request.images`."""
    if count < LEAST:
        raise ProsminError(f"{request.data} has {count} images; allowed: {LEAST} or more to learn and judge forecasts.")
    order = torch.randperm(count, generator=generator(request.seed, 0, "calibrate images"))
    return order[: request.images].sort().values


def _fit(parts: Parts, views: ViewsConfig, request: Request) -> tuple[Directions, Fitted, dict[str, Any], Tensor]:
    """Whitening, heads, their figures on held-out images, and features of some evaluation views."""
    evaluation = torch.cat([part.features[:, 0] for part in read_views(parts)])
    images = different(evaluation, spec=request.data)
    each = split(images, seed=request.seed)
    is_train = torch.zeros(len(evaluation), dtype=torch.bool).index_fill_(0, each.train, True)

    def train_parts() -> Iterator[Tensor]:
        first = 0
        for part in read_views(parts):
            yield part.features[is_train[first : first + len(part.features)]]
            first += len(part.features)

    directions = fit_directions(train_parts)
    white = [((part.features - directions.centre) @ directions.axes, part.parameters) for part in read_views(parts)]
    examples = Examples(*(torch.cat(each) for each in zip(*white, strict=True)))
    fitted = fit_heads(examples.of(each.train), examples.of(each.choice), views=views, seed=request.seed)
    report = examples.of(each.report)
    figures = {"images": len(each.report), **judge(fitted, report)}
    figures["linear_skill"] = skill(forecasts_of_random(fitted.linear, report))
    some = torch.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().long()
    return directions, fitted, figures, evaluation[images[some]]


def different(features: Tensor, *, spec: str) -> Tensor:
    """The rows of (N, D), rising, without copies of others: those of training images would not be held out."""
    images = first_of_copies(features).unique()
    if len(images) < LEAST:
        raise FeaturesError(
            f"{spec} has {len(images)} different readable images; allowed: {LEAST} or more. Copies count once, as do "
            "images that the encoder cannot tell apart. Give more images with --data."
        )
    if copies := len(features) - len(images):
        print(f"{copies} of {len(features)} images are copies of others and were left out", flush=True)
    return images


def _write(
    encoder: Encoder, directions: Directions, fitted: Fitted, calibration: dict[str, Any], sample: Tensor, out: Path
) -> None:
    """The encoder's folder, with the sample as its background; all files at once."""
    backbone = encoder.method.get_submodule("online.backbone").cpu()
    network = calibrated_network(backbone, calibration, encoder.config.views)
    network.centre, network.axes = directions.centre, directions.axes
    network.predictor.load_state_dict(fitted.heads.state_dict())
    network.radius.load_state_dict(fitted.radius.state_dict())
    network.typical_radius.load_state_dict(fitted.typical_radius.state_dict())
    with staged(out / WEIGHTS, folder=out) as part:  # inside the folder, whose parent may be another file system
        card = write_encoder(part, network.eval(), card_of(encoder, calibration), replace=True)
        made = load(part, device=encoder.device)
        write_background(part, make_background(made.features, sample), encoder=card["hash"])


def card_of(encoder: Encoder, calibration: dict[str, Any]) -> dict[str, Any]:
    """The original card with the calibration; `encoder` says which encoder this is."""
    card = dict(encoder.card)
    if "encoder" not in card:  # a run of ours
        card |= {"encoder": method_title(card["config"]), "backbone": card["config"]["backbone"]}
    origin = card.get("weights", f"a run of prosmin, step {card['step']}.")
    return card | {"weights": f"{origin.rstrip('.')}; forecast heads by prosmin calibrate.", CALIBRATION: calibration}
