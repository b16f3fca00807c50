"""Small images whose red channel is their number, as files and as bytes."""

import io

from PIL import Image


def encoded(number: int = 0, size: tuple[int, int] = (8, 6), format: str = "PNG") -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    Image.new("RGB", size, (number, 20, 30)).save(file, format)
    return file.getvalue()


def write(path, data: bytes | None = None, number: int = 0) -> None:
    """A file of these bytes, or of the image with this number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(number) if data is None else data)


def reds(pictures) -> list[int]:
    """The numbers of decoded images."""
    return pictures.images[:, 0, 0, 0].tolist()
