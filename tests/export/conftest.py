"""The runs that the tests of `prosmin export` write."""

from pathlib import Path

import pytest

from exporting import make_run
from tiny_methods import tiny_method


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def resnet_run(folder) -> Path:
    return make_run(tiny_method("prosmin", views__crop_share="0.875"), folder / "resnet")


@pytest.fixture(scope="module")
def vit_run(folder) -> Path:
    return make_run(tiny_method("prosmin", vit=True), folder / "vit")


@pytest.fixture(scope="module")
def timm_resnet_run(folder) -> Path:
    config = tiny_method("prosmin", backbone__name="test_resnet", views__interpolation="bilinear")
    return make_run(config, folder / "timm_resnet")


@pytest.fixture(scope="module")
def ibot_run(folder) -> Path:
    return make_run(tiny_method("ibot"), folder / "ibot")
