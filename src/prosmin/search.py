"""`prosmin search`: the images of a Parquet file that are most similar to an image."""

from pathlib import Path

from prosmin.data.sources.remote import path_of
from prosmin.encoder import Encoder, load
from prosmin.encoder.stored import Match, Stored, open_stored
from prosmin.errors import MissingFileError, ProsminError


def search(image: str, within: Path | str, k: int = 24, *, encoder: Path | str | None = None) -> list[Match]:
    """The k images of a file that are most similar to an image file, or else to the image of this key in the file.

    The encoder is the one that the file names; `encoder` says where it is now. An image given by its key is left out,
    and needs no encoder.
    """
    stored = open_stored(within)
    path = path_of(image).expanduser()
    if path.is_file():
        return _load(stored, encoder).search(path if isinstance(path, Path) else image, k, within=stored.path)
    row = stored.row(image)
    if row is None:
        raise MissingFileError(
            f"{image} is neither an image file nor a key of {stored.path}. "
            "Give the path of a file, or a value of the column key."
        )
    return stored.search(stored.features(row), k, leave_out=row)


def _load(stored: Stored, encoder: Path | str | None) -> Encoder:
    if encoder is not None:
        return load(encoder)
    try:
        return load(stored.run)
    except ProsminError as error:
        raise ProsminError(
            f"{stored.path} was written with the encoder {stored.run}, which cannot be loaded: {error} "
            "If it has been moved, give its new place with --encoder RUN."
        ) from None
