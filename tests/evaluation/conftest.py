"""A tiny run to evaluate, and protocols that measure nothing."""

import dataclasses
import shutil

import pytest

from evaluation_images import every_twelfth
from prosmin import config as configs
from prosmin.evaluation import run as evaluation
from prosmin.evaluation.protocol import Result
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.training.pretrain import pretrain
from tiny_run import TINY


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run of six steps."""
    return pretrain(configs.resolve(recipe="demo", overrides=TINY), tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    """The run, with results that the tests of one file share."""
    return shutil.copytree(trained, tmp_path_factory.mktemp("shared") / "run")


@pytest.fixture
def copy(trained, tmp_path):
    """The run without results."""
    return shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))


@pytest.fixture
def fake(monkeypatch):
    """Protocols that measure nothing; their names, as they run."""
    ran = []

    def make(name):
        def measure(context):
            ran.append(name)
            return Result(metrics={"top1": 0.5}, settings={})

        return measure

    monkeypatch.setattr(evaluation, "open_pictures", every_twelfth)
    for name, protocol in list(PROTOCOLS.items()):
        monkeypatch.setitem(PROTOCOLS, name, dataclasses.replace(protocol, run=make(name)))
    return ran
