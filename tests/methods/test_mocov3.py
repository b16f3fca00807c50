"""MoCo v3 against its paper's pseudo-code, in one process and in two."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prosmin.data.views import Views
from prosmin.errors import UsageError
from prosmin.methods import build_method
from prosmin.methods.mocov3 import Contrast, batchnorm_mlp, sincos_positions
from tiny_methods import tiny_draws, tiny_method, tiny_views


def _unit(*shape: int, seed: int) -> torch.Tensor:
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(x, dim=-1)


def reference_loss(queries, keys, *, temperature: float) -> list[float]:
    """ctr(q1, k2) + ctr(q2, k1) of the paper's algorithm 1, in plain Python, an image at a time.

    Each query of a local view adds ctr(q, k1) and ctr(q, k2); the sum is scaled to two terms, as many as without them.
    """
    V, B = queries.shape[:2]
    pairs = [(view, key) for view in range(V) for key in range(2) if view != key]
    losses = [0.0] * B
    for view, key in pairs:
        for b in range(B):
            logits = [
                sum(float(a) * float(c) for a, c in zip(queries[view, b], keys[key, n], strict=True)) / temperature
                for n in range(B)
            ]
            losses[b] += 2 * temperature * (math.log(sum(math.exp(z) for z in logits)) - logits[b])
    return [loss * 2 / len(pairs) for loss in losses]


@pytest.mark.parametrize("local", [0, 3])
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_the_loss_is_the_papers(temperature, local):
    queries, keys = _unit(2 + local, 5, 6, seed=1), _unit(2, 5, 6, seed=2)
    found = Contrast(temperature)(queries, keys, torch.arange(5))
    expected = reference_loss(queries, keys, temperature=temperature)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_the_gradient_is_that_of_the_loss():
    queries, keys = _unit(3, 3, 4, seed=1).requires_grad_(), _unit(2, 3, 4, seed=2)
    assert torch.autograd.gradcheck(lambda q: Contrast(0.2)(q, keys, torch.arange(3)), (queries,))


def test_matching_queries_and_keys_have_the_smallest_loss():
    keys = torch.eye(8, dtype=torch.float64).expand(2, 8, 8)
    perfect = Contrast(0.2)(keys, keys, torch.arange(8))
    torch.testing.assert_close(perfect, torch.full_like(perfect, 0.8 * math.log(1 + 7 * math.exp(-5))))
    assert bool((Contrast(0.2)(keys.roll(1, 1), keys, torch.arange(8)) > perfect).all())


@pytest.mark.parametrize("local", [0, 2])
def test_a_step_of_the_method_is_the_reference_of_its_networks_outputs(local):
    """All views are queries, after the global ones the local; only global views are keys."""
    fields = {"target__start": "independent", "loss__temperature": "0.3", "views__local": str(local)}
    config = tiny_method("mocov3", **fields)
    method = build_method(config).double()
    views = Views(*(x.double() for x in tiny_views(config, pictures=5).groups))
    output = method(views, tiny_draws(pictures=5))
    groups = [x.flatten(0, 1) for x in views.groups]
    assert len(groups) == (2 if local else 1)
    queries = method.predictor(method.online(groups)[1]).detach()
    keys = method.target(groups[:1])[1]
    queries, keys = ((z / z.norm(dim=1, keepdim=True)).unflatten(0, (-1, 5)) for z in (queries, keys))
    assert (len(queries), len(keys)) == (2 + local, 2)
    expected = reference_loss(queries, keys, temperature=0.3)
    torch.testing.assert_close(output.losses.detach(), torch.tensor(expected, dtype=torch.float64))
    assert len(output.observed["features"]) == 10


def test_local_views_change_the_queries_and_no_key():
    """The gradient of the loss reaches local views; the keys and what `update` needs do not see them."""
    config = tiny_method("mocov3", views__local="2")
    method = build_method(config)
    views = tiny_views(config, pictures=5)
    views.local_views.requires_grad_()
    output = method(views, tiny_draws(pictures=5))
    output.losses.sum().backward()
    assert bool((views.local_views.grad.abs().amax((2, 3, 4)) > 0).all())
    others = type(views)(views.global_views, torch.randn_like(views.local_views))
    again = method(others, tiny_draws(pictures=5))
    torch.testing.assert_close(again.observed["target"], output.observed["target"])
    assert not torch.allclose(again.losses, output.losses)


@pytest.mark.parametrize("vit", [False, True])
def test_local_views_of_another_size_need_no_other_network(vit):
    config = tiny_method("mocov3", vit=vit, views__local="1")
    assert config.views.local_size != config.views.global_size
    without = build_method(tiny_method("mocov3", vit=vit))
    found = build_method(config)
    assert {key: x.shape for key, x in found.state_dict().items()} == {
        key: x.shape for key, x in without.state_dict().items()
    }
    assert found(tiny_views(config), tiny_draws()).losses.isfinite().all()


def test_the_heads_are_the_papers():
    """BatchNorm after every layer, ReLU between them; the last BatchNorm without gain and bias."""
    projector = batchnorm_mlp([16, 32, 32, 8])
    layers = ["Linear", "BatchNorm1d", "ReLU"]
    assert [type(layer).__name__ for layer in projector] == [*layers, *layers, *layers[:2]]
    assert sum(p.numel() for p in projector.parameters()) == 16 * 32 + 64 + 32 * 32 + 64 + 32 * 8
    z = projector(torch.randn(64, 16, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(z.mean(0), torch.zeros(8), rtol=0, atol=1e-5)
    assert [type(layer).__name__ for layer in batchnorm_mlp([8, 32, 8])] == [*layers, *layers[:2]]


def test_the_patch_embedding_of_a_vit_stays_random_by_default():
    def learns(**fields: str) -> bool:
        method = build_method(tiny_method("mocov3", vit=True, **fields))
        return method.online.backbone.patch_embed.proj.weight.requires_grad

    assert not learns()
    assert not learns(heads__freeze_patch_embedding="true")
    assert learns(heads__freeze_patch_embedding="false")
    for value in ("true", "false"):
        with pytest.raises(UsageError, match=r"freeze_patch_embedding.*resnet8_cifar"):
            build_method(tiny_method("mocov3", heads__freeze_patch_embedding=value))


def test_a_vit_begins_with_fixed_positions_and_weights_of_matching_size():
    torch.manual_seed(0)
    vit = build_method(tiny_method("mocov3", vit=True)).online.backbone
    rows, columns = vit.patch_embed.grid_size
    width = vit.embed_dim
    assert not vit.pos_embed.requires_grad
    assert bool((vit.pos_embed[0, 0] == 0).all())  # the class token has no position
    table = vit.pos_embed[0, 1:].unflatten(0, (rows, columns))
    quarter = width // 4
    for row, column in ((0, 0), (1, 2), (rows - 1, columns - 1)):
        at = table[row, column]
        for part, place in ((at[: 2 * quarter], column), (at[2 * quarter :], row)):
            for i in range(quarter):
                angle = place / 10_000 ** (i / quarter)
                assert part[i].item() == pytest.approx(math.sin(angle), abs=1e-6)
                assert part[quarter + i].item() == pytest.approx(math.cos(angle), abs=1e-6)
    block = vit.blocks[0]
    for weight, widths in ((block.attn.qkv.weight, 2 * width), (block.mlp.fc1.weight, sum(block.mlp.fc1.weight.shape))):
        bound = math.sqrt(6 / widths)
        assert 0.95 * bound < weight.abs().max().item() <= bound
    assert vit.cls_token.abs().max() < 1e-4
    patches = vit.patch_embed(torch.randn(8, 3, *vit.patch_embed.img_size))
    assert 0.3 < patches.std() / table.std() < 3  # one does not drown the other


def test_a_width_that_is_no_multiple_of_4_is_refused():
    with pytest.raises(UsageError, match=r"width is 90"):
        sincos_positions(2, 2, 90)


_PROCESS = """
import sys
import torch, torch.distributed as dist
sys.path[:0] = {here!r}
from test_mocov3 import _unit
from prosmin.methods.mocov3 import Contrast
from prosmin.models.batchnorm import gather_rows
torch.set_num_threads(1)
rank = int(sys.argv[1])
dist.init_process_group("gloo", store=dist.FileStore({store!r}, 2), rank=rank, world_size=2)
queries, keys = (_unit(n, 6, 4, seed=seed)[:, rank * 3 : rank * 3 + 3] for n, seed in ((4, 1), (2, 2)))
gathered, first = gather_rows(keys)
assert torch.equal(gathered, _unit(2, 6, 4, seed=2)), "the keys of both processes, in order"
print(*Contrast(0.2)(queries, gathered, torch.arange(first, first + 3)).tolist())
dist.destroy_process_group()
"""


def test_two_processes_have_each_others_images_as_negatives(tmp_path):
    script = _PROCESS.format(
        here=[str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")], store=str(tmp_path / "store")
    )
    commands = [[sys.executable, "-c", script, str(rank)] for rank in range(2)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    found = [float(x) for process in running for x in process.communicate(timeout=120)[0].split()]
    alone = Contrast(0.2)(_unit(4, 6, 4, seed=1), _unit(2, 6, 4, seed=2), torch.arange(6))
    assert found == pytest.approx(alone.tolist(), rel=1e-12)
