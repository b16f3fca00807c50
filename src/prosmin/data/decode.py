"""Encoded bytes in, an RGB image out: uint8 (3, H, W), rotated by its EXIF orientation.

torchvision's operators decode JPEG, PNG and WebP, outside Python's lock; Pillow decodes every other format, and
what they refuse. Both give the same pixels. Alpha is dropped, not blended; of an animation the first frame is used;
16-bit values are scaled to 8 bits; an image of more than `MAX_PIXELS` is refused before it is decoded.
Tensors lie in memory pixel by pixel, as decoders write them.
"""

import functools
import io
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

MAX_PIXELS = 89_000_000
"""Largest image that is decoded, in pixels: just below the size at which Pillow warns of a decompression bomb."""

JPEG_END = b"\xff\xd9"
"""The marker that ends a JPEG; its data cannot contain it."""

JPEG_TAIL = 4096
"""Bytes at the end of a file that are searched for the marker: some programs append data."""

MAX_SHORTER, MAX_LONGER = 512, 768
"""Larger images are reduced until their sides fit. Views of some hundred pixels lose nothing, and since a batch is
padded to its largest image, one panorama would set the size of all."""

_ORIENTATION = 0x0112  # the number of the EXIF entry
_RGB = 3  # torchvision.io.ImageReadMode.RGB, whose Python class warns from torchvision 0.29 on


class PictureError(Exception):
    """An image cannot be decoded; the message is the reason in a few words."""


class Header(NamedTuple):
    """The contents of a file's first bytes."""

    kind: str  # "jpeg", "png", "webp" or "" for all others
    height: int  # 0 if only a decoder knows
    width: int
    plain: bool  # torchvision's operator can decode it
    exif: bool  # has EXIF data, perhaps with an orientation


def decode(data: bytes) -> Tensor:
    """The image in `data`. Raises PictureError."""
    return _decode(data, read_header(data))


def _decode(data: bytes, header: Header) -> Tensor:
    if not data:
        raise PictureError("the file is empty")
    _check_pixels(header.height, header.width)
    operator = _operator("decode_image") if header.plain else None
    if operator is not None:
        try:
            return _to_uint8(operator(_as_tensor(data), _RGB, True))
        except RuntimeError:
            pass  # Pillow knows more variants of each format; if it fails too, its error is raised
    return _decode_with_pillow(data)


def decode_bounded(data: bytes) -> Tensor:
    """The image in `data`, reduced as by `bounded`. Large JPEGs are not decoded in full."""
    header = read_header(data)
    _check_pixels(header.height, header.width)
    if header.kind == "jpeg" and min(header.height, header.width) > 0:
        size = bounded_size(header.height, header.width)
        if max(header.height, header.width) >= 2 * max(size):
            return bounded(_decode_with_pillow(data, draft=True))
    return bounded(_decode(data, header))


def bounded(picture: Tensor) -> Tensor:
    """The image, reduced with antialiasing if its sides are above `MAX_SHORTER` and `MAX_LONGER`."""
    height, width = picture.shape[1:]
    size = bounded_size(height, width)
    if size == (height, width):
        return picture
    if picture.is_cuda:
        # Float: the uint8 kernel exists only on the CPU.
        wide = picture[None].float()
        reduced = torch.nn.functional.interpolate(wide, size=size, mode="bilinear", antialias=True)[0]
        return reduced.round().to(torch.uint8)
    # Pillow uses one thread, where torch would start a team of threads in every worker.
    image = Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).numpy()))
    return _rgb(image.resize(size[::-1], Image.Resampling.BILINEAR))


def bounded_size(height: int, width: int) -> tuple[int, int]:
    """Height and width within the bounds, at the same ratio."""
    ratio = min(1.0, MAX_SHORTER / min(height, width), MAX_LONGER / max(height, width))
    return max(1, round(height * ratio)), max(1, round(width * ratio))


def decode_batch(data: Sequence[bytes], device: torch.device) -> list[Tensor | PictureError]:
    """Each image, or the reason why it cannot be decoded. On a GPU, nvJPEG decodes plain JPEGs, which stay there."""
    results: list[Tensor | PictureError | None] = [None] * len(data)
    operator = _operator("decode_jpegs_cuda") if device.type == "cuda" else None
    fit = [i for i, item in enumerate(data) if _fits_nvjpeg(item)] if operator is not None else []
    if operator is not None and fit:
        try:
            decoded = list(operator([_as_tensor(data[i]) for i in fit], _RGB, device))
        except RuntimeError:
            decoded = []  # one bad file fails them all: the CPU then decodes each alone
        for i, picture in zip(fit, decoded, strict=False):
            results[i] = picture
    return [_attempt(item) if result is None else result for item, result in zip(data, results, strict=True)]


def read_header(data: bytes) -> Header:
    """Format and size from the first bytes, without decoding: a few microseconds."""
    if data[:2] == b"\xff\xd8":
        return _jpeg_header(data)
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        # The operator's libpng prints warnings about colour profiles to the terminal.
        return Header("png", height, width, plain=b"iCCP" not in data[:4096], exif=b"eXIf" in data[:4096])
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp_header(data)
    return Header("", 0, 0, plain=False, exif=False)


def upright_size(data: bytes) -> tuple[int, int]:
    """Height and width of the image in `data` after its EXIF rotation, without decoding; (0, 0) if none can be read."""
    header = read_header(data)
    if header.height > 0 and not header.exif:
        return header.height, header.width
    try:
        with Image.open(io.BytesIO(data)) as image:
            turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
            return image.size if turned else image.size[::-1]
    except Exception:  # Pillow's plugins raise nearly anything for a damaged file
        return 0, 0


def _jpeg_header(data: bytes) -> Header:
    """Walks the segments to the start of frame, which has the size and the number of components."""
    at, exif = 2, False
    while at + 10 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width, components = struct.unpack(">HHB", data[at + 5 : at + 10])
            # With four components (CMYK) the operators disagree with Pillow about inverted inks.
            return Header("jpeg", height, width, plain=components in (1, 3), exif=exif)
        exif = exif or (marker == 0xE1 and data[at + 4 : at + 8] == b"Exif")
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return Header("jpeg", 0, 0, plain=False, exif=exif)


def _webp_header(data: bytes) -> Header:
    """The extended format has the size of the canvas, the simple ones that of their only frame."""
    if data[12:16] == b"VP8X" and len(data) >= 30:
        width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
        animated, exif = bool(data[20] & 0x02), bool(data[20] & 0x08)
        # The operator reads neither animations nor, in WebP, the orientation.
        return Header("webp", height, width, plain=not (animated or exif), exif=exif)
    if data[12:16] == b"VP8 " and len(data) >= 30:
        width, height = (side & 0x3FFF for side in struct.unpack("<HH", data[26:30]))
        return Header("webp", height, width, plain=True, exif=False)
    if data[12:16] == b"VP8L" and len(data) >= 25:
        bits = int.from_bytes(data[21:25], "little")
        return Header("webp", 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF), plain=True, exif=False)
    return Header("webp", 0, 0, plain=False, exif=False)


@functools.cache
def _operator(name: str) -> Callable[..., Any] | None:
    """An operator of torchvision's image library, or None in a torchvision that has dropped it.

    The functions of `torchvision.io` around them are deprecated from 0.29 on and warn at every call.
    """
    import torchvision.io  # noqa: F401  (loads the library)

    return getattr(torch.ops.image, name, None)


def _attempt(data: bytes) -> Tensor | PictureError:
    try:
        return decode(data)
    except PictureError as reason:
        return reason


def _fits_nvjpeg(data: bytes) -> bool:
    """A complete RGB or grey JPEG of allowed size, without rotation, which nvJPEG ignores.

    nvJPEG silently fills the rest of a truncated file with grey, so the CPU decodes a file without its end.
    """
    if JPEG_END not in data[-JPEG_TAIL:]:
        return False
    header = read_header(data)
    allowed = 0 < header.height * header.width <= MAX_PIXELS
    return header.kind == "jpeg" and header.plain and allowed and (not header.exif or _orientation(data) == 1)


def _orientation(data: bytes) -> int:
    """The EXIF orientation, 1 (upright) by default."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return int(image.getexif().get(_ORIENTATION, 1))
    except (OSError, SyntaxError, ValueError):
        return 1


def _check_pixels(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise PictureError(f"{width} x {height} pixels, above the limit of {MAX_PIXELS:,} in total")


def _decode_with_pillow(data: bytes, *, draft: bool = False) -> Tensor:
    """With `draft` a JPEG is decoded at a half, a quarter or an eighth, the smallest that fills the bounds."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            _check_pixels(image.height, image.width)
            if draft:
                image.draft(None, bounded_size(image.height, image.width)[::-1])
            image.load()
            return from_pillow(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise PictureError(f"above the limit of {MAX_PIXELS:,} pixels") from None
    except Image.UnidentifiedImageError:
        raise PictureError("not an image in any known format") from None
    except (PictureError, MemoryError):
        raise
    except Exception as error:  # Pillow's plugins raise nearly anything for a damaged file
        raise PictureError(str(error) or type(error).__name__) from None


def from_pillow(image: Image.Image) -> Tensor:
    """Upright and RGB: uint8 (3, H, W)."""
    upright = ImageOps.exif_transpose(image)
    # Pillow reads a PGM of more than 8 bits as 32-bit pixels from 0 to 65,535, whatever its maximum is.
    if upright.mode.startswith("I;16") or (upright.mode == "I" and image.format == "PPM"):
        return _to_uint8(torch.from_numpy(np.array(upright, dtype=np.uint16)).expand(3, -1, -1))
    if upright.mode in ("I", "F"):
        raise PictureError(f"32-bit pixels ({upright.mode}) have no defined range")
    if upright.mode == "P" and "transparency" in upright.info:
        upright = upright.convert("RGBA")  # Pillow would warn that it drops the transparency
    return _rgb(upright.convert("RGB"))


def _rgb(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _as_tensor(data: bytes) -> Tensor:
    """The bytes as a tensor; copied, since a tensor must be writable."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _to_uint8(picture: Tensor) -> Tensor:
    """16-bit values scaled so that 65,535 becomes 255; 8-bit images as they are."""
    if picture.dtype == torch.uint8:
        return picture
    wide = picture.to(torch.int32)
    return ((wide * 255 + 32767) // 65535).to(torch.uint8)
