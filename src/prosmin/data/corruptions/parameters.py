"""The corruptions by name, and how strong each is at severities 1 to 5."""

from collections.abc import Mapping
from typing import Any

from prosmin.errors import UsageError

COMMON = (
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
"""The fifteen of the mean corruption error."""

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Four more, published for model selection; never part of the mean over the fifteen."""

ALL = COMMON + EXTRA
SEVERITIES = (1, 2, 3, 4, 5)


def check_names(names: tuple[str, ...]) -> None:
    """Raise for no corruption, an unknown one or a duplicate."""
    for name in names:
        if name not in ALL:
            raise UsageError(f"The corruption {name!r} does not exist; allowed: {', '.join(ALL)}.")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"The corruptions are {list(names)}; allowed: one or more of {', '.join(ALL)}, each once.")


def check_severities(severities: tuple[int, ...]) -> None:
    """Raise for no severity, an unknown one or a duplicate."""
    if not severities or len(set(severities)) < len(severities) or not set(severities) <= set(SEVERITIES):
        raise UsageError(f"The severities are {list(severities)}; allowed: one or more of 1, 2, 3, 4, 5, each once.")


Table = Mapping[str, tuple[Any, ...]]
"""Corruption -> the parameters of its function, by severity."""

IMAGENET_C: Table = {
    # standard deviation
    "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
    # photons of a white pixel
    "shot_noise": (60, 25, 12, 5, 3),
    # share of the values that are lost
    "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
    # radius of the disc, sigma of its rim
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    # sigma, reach, passes
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    # radius, sigma
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    # end and step of the factors from 1
    "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    # mean and deviation of the noise, size of a flake, threshold, radius and sigma of the fall, weight of the image
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    # weights of the image and of the frost, how many of the photographs, every how many of their pixels
    "frost": ((1, 0.4, 6, 1), (0.8, 0.6, 6, 1), (0.7, 0.7, 6, 1), (0.65, 0.7, 6, 1), (0.6, 0.75, 6, 1)),
    # strength, decay from one scale to the next
    "fog": ((1.5, 2), (2.0, 2), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
    # added to the value
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
    # factor
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
    # as shares of the image's side: strength of the displacements, sigma of their smoothing, moves of the corners
    "elastic_transform": ((0.0625, 0.01, 0), (0.08125, 0.01, 0), (0.10625, 0.01, 0), (0.125, 0.01, 0), (0.15, 0.01, 0)),
    # size
    "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
    # quality
    "jpeg_compression": (25, 18, 15, 10, 7),
    # standard deviation of a white pixel
    "speckle_noise": (0.15, 0.2, 0.35, 0.45, 0.6),
    # sigma
    "gaussian_blur": (1, 2, 3, 4, 6),
    # mean and deviation of the noise, its blur, threshold, strength of water or blur of mud, mud
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    ),
    # factor and summand of the saturation
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
}

CIFAR_10_C: Table = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": (500, 250, 100, 75, 50),
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2, 5, 5), (1, 0.3, 5, 5), (0.9, 0.4, 5, 5), (0.85, 0.4, 5, 5), (0.75, 0.45, 5, 5)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": (80, 65, 58, 50, 40),
    "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),
    "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}

PARAMETERS: dict[str, Table] = {"imagenet-c": IMAGENET_C, "cifar-10-c": CIFAR_10_C}
AUTO = "auto"
SMALL = 64
"""Side in pixels up to which "auto" means CIFAR-10-C's: ImageNet-C's would leave little of so small an image."""


GENERATORS = ("torch", "imagecorruptions")
"""What makes corruptions; the second, the reference, has only ImageNet-C's parameters."""


_OLD_NAMES = {"ImageNet-C's, at the size the encoder sees": "imagenet-c"}


def parameters_for(choice: str, side: int) -> str:
    """The name of the chosen table; for "auto" that for images of this side in pixels."""
    if choice == AUTO:
        return "cifar-10-c" if side <= SMALL else "imagenet-c"
    return choice


def parameters_of(settings: Mapping[str, Any]) -> str | None:
    """The table that a result names, also under its earlier name; None if it names none."""
    name = settings.get("parameters")
    return None if name is None else _OLD_NAMES.get(str(name), str(name))


def check_parameters(choice: str, *, auto: bool) -> None:
    """Raise for an unknown table."""
    allowed = (*((AUTO,) if auto else ()), *PARAMETERS)
    if choice not in allowed:
        raise UsageError(f"The parameters of corruptions are {choice!r}; allowed: {', '.join(allowed)}.")


def generators_of(parameters: str) -> tuple[str, ...]:
    """The generators that have these parameters."""
    return GENERATORS[:1] if parameters == "cifar-10-c" else GENERATORS


def check_generator(generator: str, parameters: str) -> None:
    """Raise for an unknown generator, or one without these parameters."""
    allowed = generators_of(parameters)
    if generator not in allowed:
        raise UsageError(
            f"The corruptions' generator is {generator!r}; allowed with parameters {parameters}: {', '.join(allowed)}."
        )
