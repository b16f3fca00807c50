"""An encoder for the tests of `prosmin inspect`."""

import pytest

from prosmin.encoder import untrained
from tiny_methods import tiny_method


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """The folder of an encoder with a scale and views of 16 px."""
    saved = untrained(tiny_method("prosmin", views__global_size="16"))
    return saved.save(tmp_path_factory.mktemp("inspect") / "encoder")
