"""compute.deterministic: what it sets, that it is restored, and what it refuses."""

import os
from contextlib import nullcontext

import pytest
import torch
import torch.utils.deterministic
from torch.utils._python_dispatch import TorchDispatchMode

from prosmin.config import ComputeConfig
from prosmin.errors import UsageError
from prosmin.training import determinism, pretrain
from prosmin.training.determinism import WORKSPACE, deterministic
from tiny_methods import METHODS, tiny_draws, tiny_method, tiny_views

ON = ComputeConfig(deterministic=True)


def settings():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        os.environ.get(WORKSPACE),
    )


@pytest.fixture
def fresh(monkeypatch):
    """A process that has not used a GPU, with cuDNN trying algorithms."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.delenv(WORKSPACE, raising=False)


@pytest.mark.parametrize("fails", [False, True])
def test_settings_are_set_inside_and_restored_after(fresh, fails):
    before = settings()
    with pytest.raises(KeyError) if fails else nullcontext(), deterministic(ON):
        assert settings() == (True, False, True, False, ":4096:8")
        if fails:
            raise KeyError
    assert settings() == before
    with deterministic(ComputeConfig()):
        assert settings() == before


@pytest.mark.parametrize("mode", ["none", "blocks", "whole"])
def test_compiled_code_is_not_chosen_by_its_time(fresh, mode):
    inductor = pytest.importorskip("torch._inductor.config")
    before = inductor.shape_padding
    with deterministic(ComputeConfig(deterministic=True, compile=mode)):
        assert inductor.shape_padding == (before and mode == "none")
    assert inductor.shape_padding == before


def test_training_is_deterministic_inside_and_not_after(monkeypatch, tmp_path):
    """The mode holds from the start of the processes to the stored background."""
    seen, before = [], settings()
    for name in ("make_fabric", "store_background"):
        work = getattr(pretrain, name)
        monkeypatch.setattr(pretrain, name, lambda *a, work=work, **k: (seen.append(settings()[0]), work(*a, **k))[1])
    pretrain.pretrain(tiny_method("dino", training__max_steps="1", compute__deterministic="true"), tmp_path / "run")
    assert seen == [True, True]
    assert settings() == before


def test_a_process_that_has_used_the_gpu_is_refused(fresh, monkeypatch):
    """cuBLAS has read the setting by then."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UsageError, match=rf"compute\.deterministic.*{WORKSPACE} not set"), deterministic(ON):
        pass
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic(ComputeConfig(deterministic=True, accelerator="cpu")):
        assert torch.are_deterministic_algorithms_enabled()
    with pytest.raises(UsageError, match="not set"), deterministic(ON):  # the run on the CPU has not set it
        pass
    monkeypatch.setenv(WORKSPACE, ":16:8")
    with deterministic(ON):
        assert os.environ[WORKSPACE] == ":16:8"


def test_the_workspace_stays_where_cublas_has_read_it(fresh, monkeypatch):
    with deterministic(ON):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert os.environ[WORKSPACE] == determinism.FIXED[0]
    with deterministic(ON):  # a second run in this process
        pass


def test_a_network_that_cannot_be_deterministic_is_named(fresh):
    with pytest.raises(UsageError, match=r"backbone\.name.*some_backward"), deterministic(ON):
        raise RuntimeError("some_backward does not have a deterministic implementation, but you set ...")
    with pytest.raises(RuntimeError, match="out of memory"), deterministic(ON):
        raise RuntimeError("out of memory")


LOSSES = (
    {"loss__norm": "coordinate", "loss__estimator": "ustat", "loss__samples": "4"},
    {"loss__norm": "coordinate", "loss__estimator": "ustat", "loss__samples": "4", "loss__beta": "1.5"},
    {"loss__rule": "crps", "loss__norm": "coordinate", "loss__estimator": "closed", "loss__pairs": "pooled"}
    | {"loss__same_view": "true"},
    {"loss__identification": "0.5", "loss__target_views": "one"},
)


class Called(TorchDispatchMode):
    """Notes the names of the operations that torch calls."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.names.add(operation.name().partition(".")[0])
        return operation(*arguments, **(options or {}))


UNORDERED = {
    "aten::scatter", "aten::scatter_", "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce",
    "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::index_add", "aten::index_add_",
    "aten::_upsample_bicubic2d_aa_backward", "aten::cumsum", "aten::put_", "aten::histc", "aten::bincount",
}  # fmt: skip
"""What a GPU adds up in any order, or only by waiting for the host, which a CUDA graph cannot record."""


@pytest.mark.parametrize(("name", "changes"), [*((name, {}) for name in METHODS), *(("prosmin", c) for c in LOSSES)])
def test_no_step_adds_in_an_order_that_a_gpu_does_not_fix(name, changes):
    """Forward and backward pass of each method with local views."""
    config = tiny_method(name, vit=True, views__local="2", compute__accelerator="cpu", **changes)
    method = pretrain.build(config)
    with Called() as called:
        method(tiny_views(config), tiny_draws()).losses.sum().backward()
    used = called.names
    assert "aten::mm" in used
    if changes.get("loss__target_views") == "one":
        used -= {"aten::scatter_"}  # of one_hot: ones, so that their order does not matter
    assert not used & UNORDERED
