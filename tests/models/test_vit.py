"""The faster ViT computes what timm's does."""

import copy

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch.nn import functional

from prosmin.models.vit import (
    ClassTokenViT,
    PatchProjection,
    QuickGelu,
    ResizingViT,
    encode,
    resize_positions,
    speed_up,
)


@pytest.fixture
def plain():
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", num_classes=0, img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3,
        dynamic_img_size=True,
    )  # fmt: skip


@pytest.mark.parametrize("side", [32, 16])
def test_it_computes_what_timm_computes(plain, side):
    quick = speed_up(copy.deepcopy(plain))
    assert isinstance(quick.patch_embed.proj, PatchProjection)
    assert sum(isinstance(module, QuickGelu) for module in quick.modules()) == 2
    assert list(quick.state_dict()) == list(plain.state_dict())
    x = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for model in (plain, quick):
        model.double()
    same = {"rtol": 1e-10, "atol": 1e-12} if side == 32 else {"rtol": 1e-5, "atol": 1e-6}  # timm resizes in float32
    torch.testing.assert_close(encode(quick, x), plain(x), **same)
    loss = [model(x).square().sum() for model in (plain, quick)]
    gradients = [
        torch.autograd.grad(each, list(model.parameters())) for each, model in zip(loss, (plain, quick), strict=True)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one, **{name: 100 * value for name, value in same.items()})


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("new", [(2, 2), (7, 7), (3, 9), (4, 1), (5, 6)])
def test_positions_are_resized_as_timm_does(prefix, new):
    old = (5, 6)
    positions = torch.randn(1, prefix + 30, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    resized = resize_positions(positions, old=old, new=new, prefix=prefix)
    expected = resample_abs_pos_embed(positions, list(new), list(old), num_prefix_tokens=prefix)
    assert resized.shape == (1, prefix + new[0] * new[1], 8)
    torch.testing.assert_close(resized, expected, rtol=1e-5, atol=1e-5)  # rounding in float32
    weights = torch.randn(resized.shape, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad((weights * x).sum(), positions)[0] for x in (resized, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"reg_tokens": 2}, {"reg_tokens": 2, "no_embed_class": True}, {"class_token": False, "global_pool": "avg"}],
)
def test_a_resized_network_computes_what_timm_computes(options):
    torch.manual_seed(0)
    plain = timm.create_model(
        "vit_tiny_patch16_224", num_classes=0, img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3,
        dynamic_img_size=True, **options,
    )  # fmt: skip
    quick = speed_up(copy.deepcopy(plain))
    assert isinstance(quick, ResizingViT)
    x = torch.randn(2, 3, 24, 40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(quick(x), plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"init_values": 0.1}, {"qk_norm": True}, {"reg_tokens": 2}, {"qkv_bias": False}, {"scale_attn_norm": True}],
)
def test_the_class_token_alone_is_that_of_the_whole_last_block(options):
    torch.manual_seed(0)
    plain = timm.create_model(
        "vit_tiny_patch16_224", num_classes=0, img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, **options
    ).double()
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    quick = speed_up(copy.deepcopy(plain))
    assert isinstance(quick, ClassTokenViT)
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(quick(x), plain(x), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(quick.forward_features(x), plain.forward_features(x), rtol=1e-9, atol=1e-11)
    quick.set_grad_checkpointing(True)
    torch.testing.assert_close(quick.train()(x), plain(x), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("options", [{"global_pool": "avg"}, {"class_token": False, "global_pool": "avg"}])
def test_features_of_other_tokens_need_the_whole_last_block(options):
    vit = timm.create_model(
        "vit_tiny_patch16_224", num_classes=0, img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, **options
    )
    assert not isinstance(speed_up(vit), ClassTokenViT)


def test_a_copy_is_fast_too_and_sides_that_are_no_multiple_of_the_patch_are_refused(plain):
    twin = copy.deepcopy(speed_up(plain))
    assert isinstance(twin, VisionTransformer)
    assert isinstance(twin.patch_embed.proj, PatchProjection)
    assert twin.patch_embed.proj.weight is not plain.patch_embed.proj.weight
    with pytest.raises(AssertionError):
        twin(torch.zeros(1, 3, 30, 30))


def test_tokens_are_as_wide_as_autocast_computes(plain):
    speed_up(plain)
    seen = []
    plain.blocks[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].dtype))
    x = torch.randn(2, 3, 32, 32)
    features = plain(x)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = plain(x)
    assert seen == [torch.float32, torch.bfloat16]
    # bf16 keeps eight bits: a few per cent of the features' size, over two blocks.
    assert (narrow.float() - features).norm() < 0.03 * features.norm()


def test_gelu_of_bf16_is_the_exact_one_but_for_rounding():
    module = QuickGelu()
    x = torch.linspace(-9, 9, 40_001)
    narrow = x.bfloat16().requires_grad_()
    exact = narrow.detach().double().requires_grad_()
    value, expected = module(narrow), functional.gelu(exact)
    value.sum().backward()
    expected.sum().backward()
    # bf16 keeps 8 bits: half a step is 2^-8 of the value at most; the fit is off by 2.6e-5.
    assert ((value.double() - expected).abs() <= 2.0**-8 * expected.abs() + 2.7e-5).all()
    assert (narrow.grad.double() - exact.grad).abs().max() < 1.13 * 2.0**-8 + 2e-4  # the slope reaches 1.13
    assert torch.equal(module(x), functional.gelu(x))
