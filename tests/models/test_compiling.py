"""Compiled networks compute the same; a block is compiled once for all depths."""

import pytest
import torch

from prosmin.methods import build_method
from prosmin.models import compiling
from prosmin.models.compiling import compile_networks
from tiny_methods import tiny_draws, tiny_method, tiny_views

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns when dynamo reads the gradient of inputs


@pytest.fixture
def graphs(monkeypatch):
    """The compiled graphs, run without a compiler."""
    found = []

    def backend(graph, inputs):
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    real = torch.compile
    monkeypatch.setattr(compiling.torch, "compile", lambda function, **how: real(function, backend=backend, **how))
    yield found
    torch._dynamo.reset()


def losses(config, how):
    method = build_method(config)
    names = set(method.state_dict())
    compile_networks(method, how)
    assert set(method.state_dict()) == names
    output = method(tiny_views(config), tiny_draws())
    output.losses.mean().backward()
    norm = torch.stack([p.grad.norm() for p in method.parameters() if p.grad is not None]).norm()
    return output.losses.detach(), norm


@pytest.mark.parametrize("name", ["prosmin", "dino", "ibot", "mocov3"])
@pytest.mark.parametrize("vit", [True, False], ids=["vit", "resnet"])
def test_compiled_networks_compute_the_same(graphs, name, vit):
    config = tiny_method(name, vit=vit)
    expected, norm = losses(config, "none")
    assert not graphs
    for how in ("blocks", "whole"):
        torch._dynamo.reset()
        got, got_norm = losses(config, how)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(got_norm, norm, rtol=1e-4, atol=1e-6)
        assert graphs


def test_a_block_is_compiled_once_for_every_depth(graphs):
    counts = []
    for depth in ("2", "6"):
        torch._dynamo.reset()
        before = len(graphs)
        losses(tiny_method("prosmin", vit=True, backbone__depth=depth), "blocks")
        counts.append(len(graphs) - before)
    assert counts[0] == counts[1]


def test_with_blocks_a_resnet_is_not_compiled_but_its_head_is():
    method = build_method(tiny_method("prosmin", vit=False))
    compile_networks(method, "blocks")
    networks = (method.online.backbone, *method.online.backbone.blocks)
    assert not any("forward" in vars(network) for network in networks)
    assert all("forward" in vars(part) for part in (method.online.projector, method.predictor, method.scorer))


def test_nothing_is_compiled_for_any_shape(graphs):
    """Each size of views has a graph of its own, in which sizes are constants."""
    losses(tiny_method("prosmin", vit=True), "blocks")
    assert not any(isinstance(node.meta.get("example_value"), torch.SymInt) for g in graphs for node in g.graph.nodes)
