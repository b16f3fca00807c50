"""The quicker ViT is the same network."""

import copy

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from prosmin.models.vit import PatchProjection, encode, quicken


@pytest.fixture
def plain():
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", num_classes=0, img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3,
        dynamic_img_size=True,
    )  # fmt: skip


@pytest.mark.parametrize("side", [32, 16])
def test_it_computes_what_timm_computes(plain, side):
    quick = quicken(copy.deepcopy(plain))
    assert isinstance(quick.patch_embed.proj, PatchProjection)
    assert list(quick.state_dict()) == list(plain.state_dict())
    x = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for model in (plain, quick):
        model.double()
    torch.testing.assert_close(encode(quick, x), plain(x), rtol=1e-10, atol=1e-12)
    loss = [model(x).square().sum() for model in (plain, quick)]
    gradients = [
        torch.autograd.grad(each, list(model.parameters())) for each, model in zip(loss, (plain, quick), strict=True)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-10)


def test_a_copy_is_quick_too_and_pictures_that_are_no_multiple_are_refused(plain):
    twin = copy.deepcopy(quicken(plain))
    assert isinstance(twin, VisionTransformer)
    assert isinstance(twin.patch_embed.proj, PatchProjection)
    assert twin.patch_embed.proj.weight is not plain.patch_embed.proj.weight
    with pytest.raises(AssertionError):
        twin(torch.zeros(1, 3, 30, 30))


def test_tokens_are_as_wide_as_autocast_computes(plain):
    quicken(plain)
    seen = []
    plain.blocks[1].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].dtype))
    x = torch.randn(2, 3, 32, 32)
    features = plain(x)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = plain(x)
    assert seen == [torch.float32, torch.bfloat16]
    # bf16 keeps eight bits: a few per cent of the features' size, over two blocks.
    assert (narrow.float() - features).norm() < 0.03 * features.norm()
