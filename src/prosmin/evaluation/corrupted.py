"""Where corrupted test images come from: a stored set, or the test images with generated corruptions."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from prosmin.config import ViewsConfig
from prosmin.data.corruptions import reference
from prosmin.data.corruptions.generate import corrupt, framed, framed_sides, generators
from prosmin.data.corruptions.parameters import generators_of, parameters_for
from prosmin.data.corruptions.stored import StoredSet, open_stored
from prosmin.data.image_sets import Pictures, PictureSet, in_memory, joined, memory_limit
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.context import Context, place

Show = Callable[[float], None]
"""Called with the share of one corruption at one severity that has been done since the last call."""

_PART = 1024  # images of a stream decoded at once


@dataclass(frozen=True)
class Corrupted:
    """Corrupted images, read or generated one corruption and severity at a time."""

    generators: dict[str, str]  # corruption: "torch", "imagecorruptions" or "stored"
    framed: bool  # whether the images are already cropped to what the encoder sees
    imagenet: bool  # whether this is ImageNet-C, for which AlexNet's errors are known
    settings: dict[str, Any]
    read: Callable[[str, int, Show], Pictures]


def open_corrupted(context: Context) -> Corrupted:
    """The stored set that the options name, else generated corruptions."""
    return _generated(context) if context.options.corrupted is None else _stored(context)


def check_corrupted(context: Context) -> None:
    """Raises ProsminError for all that `open_corrupted` or reading would fail on."""
    if context.options.corrupted is None:
        _makeable(context)
    else:
        _present(context)


def _present(context: Context) -> tuple[StoredSet, list[str]]:
    """The stored set, and which of the chosen corruptions it has."""
    spec, wanted = context.options.corrupted, context.options.corruptions
    assert spec is not None
    stored = open_stored(spec, context.sets["test"].classes)
    present = [name for name in wanted if name in stored.names]
    if not present:
        raise ProsminError(
            f"{spec} has none of the corruptions {', '.join(wanted)}; it has: {', '.join(stored.names)}."
        )
    return stored, present


def _makeable(context: Context) -> tuple[dict[str, str], dict[str, str]]:
    """The generator of each corruption, and why the others cannot be generated."""
    test, views = context.sets["test"], context.encoder.config.views
    # The sizes of a stream are not known yet; the corruption itself raises.
    side = int(framed_sides(test.sizes, views).min()) if isinstance(test, Pictures) else reference.SMALLEST
    if side < reference.SMALLEST:
        raise ProsminError(
            f"The encoder sees {side} x {side} pixels of an image in {test.spec}; corruptions need "
            f"{reference.SMALLEST} pixels or more."
        )
    if isinstance(test, Pictures):
        _parameters(context, int(framed_sides(test.sizes, views).max()))
    if 3 * views.global_size**2 * len(test) > memory_limit():
        raise ProsminError(
            f"{len(test)} images of {test.spec} at {views.global_size} px take more than a third of the memory of "
            "this machine. Give fewer images with --test."
        )
    made, left_out = generators(context.options.corruptions, context.options.corruption_generator)
    if not made:
        reasons = " ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ProsminError(f"None of the corruptions can be generated. {reasons}")
    return made, left_out


def _stored(context: Context) -> Corrupted:
    stored, present = _present(context)
    by = dict.fromkeys(present, "stored")

    def read(name: str, severity: int, show: Show) -> Pictures:
        pictures = stored.read(name, severity)
        show(1.0)
        return pictures

    return Corrupted(
        generators=by,
        framed=stored.framed,
        imagenet=stored.layout == "ImageNet-C" and len(stored.classes) == 1000,
        settings={
            "source": "stored",
            "layout": stored.layout,
            "generators": by,
            "left_out": {name: "not in the set" for name in context.options.corruptions if name not in by},
        },
        read=read,
    )


def _generated(context: Context) -> Corrupted:
    made, left_out = _makeable(context)
    device = context.encoder.device
    seen = _framed(context.sets["test"], context.encoder.config.views)
    pictures = seen.to(place(seen.images, device).device)  # on the encoder's device, if it has room
    side = int(pictures.sizes.max())
    generator, parameters = context.options.corruption_generator, _parameters(context, side)

    def read(name: str, severity: int, show: Show) -> Pictures:
        def progress(done: int) -> None:
            show(done / len(pictures))

        return corrupt(
            pictures,
            name,
            severity,
            seed=context.seed,
            parameters=parameters,
            device=device,
            generator=generator,
            progress=progress,
        )

    return Corrupted(
        generators=made,
        framed=True,
        imagenet=False,  # AlexNet's errors are known for the published files only
        settings={
            "source": "generated",
            "parameters": parameters,
            "pixels": side,
            "generators": made,
            "left_out": left_out,
            "versions": _versions(made),
            "seed": context.seed,
        },
        read=read,
    )


def _parameters(context: Context, side: int) -> str:
    """The table of severities for images of this side; an error if the generator does not have it."""
    chosen, generator = context.options.corruption_parameters, context.options.corruption_generator
    parameters = parameters_for(chosen, side)
    if chosen != parameters and generator not in generators_of(parameters):
        raise UsageError(
            f"--corruption-generator is {generator}, which has the severities of imagenet-c only, but for {side} px "
            f"--corruption-parameters auto means {parameters}. Add --corruption-parameters imagenet-c (far stronger)."
        )
    return parameters


def _framed(pictures: PictureSet, views: ViewsConfig) -> Pictures:
    """Each image cropped to what the encoder sees, which fits into memory even if the images do not."""
    if isinstance(pictures, Pictures):
        return framed(pictures, views)
    parts = torch.arange(len(pictures)).split(_PART)
    return joined([framed(in_memory(pictures.subset(part)), views) for part in parts])


def _versions(made: dict[str, str]) -> dict[str, str]:
    """The versions of packages that the pixels depend on."""
    versions = {"torch": torch.__version__, "pillow": metadata.version("pillow")}
    library = reference.version() if "frost" in made or "imagecorruptions" in made.values() else None
    return versions if library is None else versions | {reference.PACKAGE: library}
