"""Images as users pass them in Python: tensors, arrays, Pillow images, bytes, paths, a folder, a SPEC."""

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from prosmin.data.decode import MAX_LONGER, MAX_SHORTER, PictureError, from_pillow
from prosmin.data.image_sets import Pictures
from prosmin.data.sources import FORMS, Source, open_source, parse
from prosmin.data.sources.remote import RemotePath, is_remote, path_of
from prosmin.errors import MissingFileError, ProsminError, UsageError

Encoded = bytes | bytearray | memoryview
"""The bytes of an image file, as a web service receives them."""
Picture = Tensor | Image.Image | str | os.PathLike[str] | bytes
Images = Pictures | Picture | Encoded | np.ndarray | Iterable[Picture | Encoded | np.ndarray]
"""What an encoder accepts; see `open_images`."""

_ALLOWED = (
    "uint8 tensors (N, 3, H, W) or (3, H, W), uint8 arrays (N, H, W, 3) or (H, W, 3), Pillow images, "
    "the bytes of a file, paths, a list of these, a folder, a SPEC such as photos@test, or Images"
)


@dataclass(frozen=True)
class Handful:
    """Single images as a source: paths, encoded bytes, Pillow images and tensors (3, H, W)."""

    items: tuple[Picture, ...]
    spec: str = "the images given"
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self.items)

    def key(self, i: int) -> str:
        """The path, or the position among the images given."""
        item = self.items[i]
        return os.fspath(item) if isinstance(item, str | os.PathLike) else f"image {i}"

    def read(self, i: int) -> bytes | Tensor:
        """The file's bytes, or uint8 (3, H, W). Raises OSError or PictureError where it cannot be read."""
        item = self.items[i]
        if isinstance(item, Tensor):
            return item.cpu()
        if isinstance(item, bytes):
            return item
        if isinstance(item, Image.Image):
            with self._lock:  # Pillow reads a file at the first access, and an image may be given twice
                try:
                    return from_pillow(item)
                except PictureError:
                    raise
                except Exception as error:  # Pillow's plugins raise nearly anything for a damaged file
                    raise PictureError(str(error) or type(error).__name__) from None
        if isinstance(item, str) and is_remote(item):
            return RemotePath(item).read()
        return Path(item).expanduser().read_bytes()


def open_images(images: Images) -> Pictures | Source:
    """The images as decoded images or as a source.

    A string is a SPEC if it begins like one (`photos`, `photos@test`, `folder:PATH`, ...), else a path: write a folder
    named `photos` as `./photos`, or give a Path. In a list every string is a path. A folder means `folder:PATH`: all
    images below it in the order of their paths, `train` if it has splits.
    """
    if isinstance(images, Pictures):
        return images
    if isinstance(images, np.ndarray):
        return _from_tensor(_from_array(images, "Images"))
    if isinstance(images, Tensor):
        return _from_tensor(images)
    if isinstance(images, str) and _is_spec(images):
        return open_source(images)
    if isinstance(images, str | os.PathLike):
        _check_named(images, "Images")
        path = path_of(images).expanduser()
        if not path.exists():
            raise MissingFileError(f"{images} is neither a file nor a folder nor a SPEC. Allowed SPECs: {FORMS}.")
        if path.is_dir():
            return open_source(f"folder:{path}")
        return Handful((path if isinstance(path, Path) else str(path),))
    if isinstance(images, Image.Image):
        return Handful((images,))
    if isinstance(images, Encoded):
        return Handful((bytes(images),))
    _refuse_open_file(images, "Images")
    if isinstance(images, set | frozenset | Mapping):
        raise ProsminError(
            f"Images came as {type(images).__name__}; their rows need an order, so give a list"
            f"{', such as list(images.values())' if isinstance(images, Mapping) else ''}."
        )
    if not isinstance(images, Iterable):
        raise ProsminError(f"Images came as {type(images).__name__}; allowed: {_ALLOWED}.")
    items = tuple(_checked_item(item, f"Image {i} of the list") for i, item in enumerate(images))
    if not items:
        raise ProsminError("The list of images is empty; allowed: 1 image or more.")
    return Handful(items)


def _checked_item(item: Any, what: str) -> Picture:
    """One image of a list; `what` names it in errors."""
    if isinstance(item, np.ndarray):
        item = _from_array(item, what)
    if isinstance(item, Encoded):
        return bytes(item)
    if not isinstance(item, os.PathLike):
        _refuse_open_file(item, what)
    if not isinstance(item, Tensor | Image.Image | str | os.PathLike):
        raise ProsminError(f"{what} came as {type(item).__name__}; allowed: {_ALLOWED}.")
    if isinstance(item, Tensor) and (item.ndim != 3 or item.shape[0] != 3 or item.dtype != torch.uint8):
        raise ProsminError(f"{what} came as {item.dtype} {tuple(item.shape)}; allowed: uint8 (3, H, W).")
    if isinstance(item, str | os.PathLike):
        _check_named(item, what)
    return item


def _check_named(path: str | os.PathLike[str], what: str) -> None:
    """Raise for an empty path, which the system would take for the current folder."""
    if not os.fspath(path):
        raise ProsminError(f"{what} came as an empty path; write '.' for the current folder.")


def _refuse_open_file(given: Any, what: str) -> None:
    """Raise for an open file, whose lines would be taken for images."""
    if hasattr(given, "read"):
        raise ProsminError(f"{what} came as {type(given).__name__}, an open file; give its bytes: .read().")


def _is_spec(text: str) -> bool:
    try:
        parse(text)
    except UsageError:
        return False
    return True


def _from_tensor(images: Tensor) -> Pictures | Handful:
    whole = images[None] if images.ndim == 3 else images
    if whole.ndim != 4 or whole.shape[1] != 3 or whole.dtype != torch.uint8 or 0 in whole.shape:
        raise ProsminError(
            f"Images came as {images.dtype} {tuple(images.shape)}; allowed: uint8 (N, 3, H, W) with N of 1 or more, "
            "or (3, H, W), such as torchvision.io.decode_image gives."
        )
    height, width = whole.shape[2:]
    if min(height, width) > MAX_SHORTER or max(height, width) > MAX_LONGER:
        return Handful(tuple(whole))  # reduced one by one, as images from files are
    return Pictures(
        images=whole,
        sizes=torch.tensor([height, width]).expand(len(whole), 2),
        labels=None,
        classes=(),
        keys=tuple(f"image {i}" for i in range(len(whole))),
        spec="the images given",
    )


def _from_array(array: np.ndarray, what: str) -> Tensor:
    """uint8 (..., H, W, 3) as a new tensor (..., 3, H, W)."""
    if array.ndim not in (3, 4) or array.shape[-1] != 3 or array.dtype != np.uint8:
        raise ProsminError(
            f"{what} came as an array, {array.dtype} {array.shape}; allowed: uint8 (N, H, W, 3) or (H, W, 3), in the "
            "order red, green, blue. If the channels come first, give torch.from_numpy(array)."
        )
    return torch.from_numpy(np.array(array, order="C")).movedim(-1, -3).contiguous()
