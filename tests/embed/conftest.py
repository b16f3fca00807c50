"""An encoder, images and small parts for the tests of `prosmin embed`."""

import pytest
import torch

from embedding import write_parquet
from prosmin.embed import parts, rows, run
from prosmin.encoder import untrained
from tiny_methods import tiny_method


@pytest.fixture(autouse=True)
def one_thread():
    """As in the processes that tests start: the bits of a sum depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The folder of an encoder with views of 16 px."""
    return untrained(tiny_method("prosmin", views__global_size="16")).save(tmp_path_factory.mktemp("embed") / "encoder")


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """A reference of 400 images, and 300 new images of the same kind."""
    folder = tmp_path_factory.mktemp("images")
    return write_parquet(folder / "own.parquet", 400, seed=1), write_parquet(folder / "new.parquet", 300, seed=2)


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of 64 images, row groups of 100."""
    monkeypatch.setattr(parts, "PART", 64)
    monkeypatch.setattr(run, "PART", 64)
    monkeypatch.setattr(rows, "ROWS", 100)
