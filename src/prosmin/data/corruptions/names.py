"""The corruptions by name, in the order of the publication (Hendrycks and Dietterich, 2019)."""

from prosmin.errors import UsageError

COMMON = (
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
"""The fifteen that a mean corruption error is over."""

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Four more, published for choosing a model; never part of the mean over the fifteen."""

ALL = COMMON + EXTRA
SEVERITIES = (1, 2, 3, 4, 5)


def check_names(names: tuple[str, ...]) -> None:
    """An error for no corruption, an unknown one or one named twice."""
    for name in names:
        if name not in ALL:
            raise UsageError(f"There is no corruption {name!r}; there are: {', '.join(ALL)}.")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"The corruptions are {list(names)}; name one or more of {', '.join(ALL)}, each once.")


def check_severities(severities: tuple[int, ...]) -> None:
    """An error for no severity, an unknown one or one given twice."""
    if not severities or len(set(severities)) < len(severities) or not set(severities) <= set(SEVERITIES):
        raise UsageError(f"The severities are {list(severities)}; give one or more of 1, 2, 3, 4, 5, each once.")
