"""Images on disk for the tests of `prosmin embed`, and a look into the files it writes."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from coloured import coloured
from prosmin.cuda_graph import Recorded
from prosmin.embed import embed, run


def encoded(image, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, kind)
    return file.getvalue()


def write_parquet(path, count, *, seed, labels=True):
    """A Parquet file of coloured images; returns its SPEC."""
    pictures = coloured(count, seed=seed)
    columns = {"image": [encoded(image) for image in pictures.images]}
    columns |= {"label": pictures.labels.tolist()} if labels else {}
    pq.write_table(pa.table(columns), path)
    return f"parquet:{path}"


def write_folder(path, count, *, seed=0, broken=(), only=()):
    """A folder of coloured images 000.png, 001.png, ..., or only some of them; returns its SPEC."""
    path.mkdir(exist_ok=True)
    for i, image in enumerate(coloured(count, seed=seed).images):
        if not only or i in only:
            (path / f"{i:03d}.png").write_bytes(b"broken" if i in broken else encoded(image))
    return f"folder:{path}"


def write_bmp(place, count, *, seed, only=()):
    """Images whose files all have the same size: in a folder, or in a Parquet file if `place` is named so."""
    files = [encoded(image, "BMP") for image in coloured(count, seed=seed).images]
    if place.suffix == ".parquet":
        table = pa.table({"image": files})
        pq.write_table(table, place, compression="none", use_dictionary=False, write_statistics=False)
        return f"parquet:{place}"
    place.mkdir(exist_ok=True)
    for i, data in enumerate(files):
        if not only or i in only:
            (place / f"{i:03d}.bmp").write_bytes(data)
    return f"folder:{place}"


def about(path):
    """The metadata of a file."""
    return json.loads(pq.read_schema(path).metadata[b"prosmin"])


def column(table, name):
    return torch.tensor(table.column(name).to_pylist())


def stop_before_joining(encoder, request, monkeypatch):
    """Write all parts, but not the file."""
    with monkeypatch.context() as patch:
        patch.setattr(run, "join", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            embed(encoder, request)


def row_groups(path):
    metadata = pq.read_metadata(path)
    return [metadata.row_group(i) for i in range(metadata.num_row_groups)]


class Again(Recorded):
    """Replaces a CUDA graph where there is no GPU: the same work on the inputs in memory."""

    def __call__(self):
        return self._function()
