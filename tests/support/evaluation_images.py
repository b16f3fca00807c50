"""Small image sets for evaluations, and what an evaluation prints."""

import torch
from PIL import Image

from prosmin.data.image_sets import load_pictures


def every_twelfth(spec, **_):
    """A twelfth of a set, so that the protocols take seconds; all classes of train, test and OOD remain."""
    pictures = load_pictures(spec)
    return pictures.subset(torch.arange(0, len(pictures), 12))


def save_images(folder, count, *, size=None):
    """Plain images of different colours, 00.png and so on."""
    folder.mkdir(parents=True)
    for i in range(count):
        Image.new("RGB", size or (32, 32), (8 * i, 99, 5)).save(folder / f"{i:02d}.png")


def notes(capsys):
    """The lines on stderr except the progress of the protocols."""
    return [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
