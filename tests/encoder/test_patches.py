"""Features of patches: the tokens of the last block, in the places of the patches."""

import pytest
import timm
import torch
from safetensors.torch import save_file

from prosmin.data.views import evaluation_view
from prosmin.encoder import Encoder, load, untrained
from prosmin.errors import ProsminError
from tiny_methods import tiny_method


@pytest.fixture(scope="module")
def vit() -> Encoder:
    return untrained(tiny_method("prosmin", vit=True))


def foreign(name: str, folder) -> Encoder:
    """A network of timm with weights from a file."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_file(timm.create_model(name, num_classes=0).state_dict(), folder / "weights.safetensors")
    return load(f"timm:{name}@{folder / 'weights.safetensors'}", device="cpu")


def tokens_of(encoder: Encoder, images: torch.Tensor) -> torch.Tensor:
    """The tokens (N, T, D) that timm gives for the evaluation views."""
    sizes = torch.tensor(images.shape[2:]).expand(len(images), 2)
    backbone = encoder.method.get_submodule("online.backbone")
    return backbone.forward_features(evaluation_view(images, sizes, encoder.config.views))


def test_they_are_the_last_tokens_without_the_class_token(vit, images):
    vit.batch_size = 2  # the batches are joined
    found = vit.patches(images)
    assert found.shape == (5, 4, 4, 24)  # views of 32 pixels, patches of 8
    torch.testing.assert_close(found.flatten(1, 2), tokens_of(vit, images)[:, 1:])


@pytest.mark.parametrize(
    ("name", "prefix", "side"),
    [
        ("test_vit2", 1, 10),  # a register and no class token
        ("vit_small_patch16_dinov3", 5, 16),  # a class token and 4 registers, of another class of timm's
    ],
)
def test_registers_are_left_out(name, prefix, side, images, tmp_path):
    encoder = foreign(name, tmp_path)
    found = encoder.patches(images[:2])
    assert found.shape[1:3] == (side, side)
    torch.testing.assert_close(found.flatten(1, 2), tokens_of(encoder, images[:2])[:, prefix:])


def test_each_patch_is_in_its_place():
    """Without attention a token depends on its own patch alone: changing one patch changes one feature."""
    encoder = untrained(tiny_method("prosmin", vit=True))
    for block in encoder.method.get_submodule("online.backbone").blocks:
        block.attn.proj.weight.zero_()
    image = torch.full((1, 3, 32, 32), 100, dtype=torch.uint8)
    other = image.clone()
    other[:, :, 8:16, 24:32] = 200  # second row, last column
    changed = (encoder.patches(image) != encoder.patches(other)).any(-1)[0]
    assert changed.nonzero().tolist() == [[1, 3]]


def test_bf16_gives_float32(vit, images):
    found = untrained(tiny_method("prosmin", vit=True)).to("cpu", precision="bf16-mixed").patches(images)
    assert found.dtype == torch.float32
    assert 0 < (found - vit.patches(images)).norm() < 0.03 * found.norm()  # bf16 keeps eight bits


def test_a_resnet_has_none(encoder, images):
    with pytest.raises(ProsminError, match="resnet8_cifar"):
        encoder.patches(images)
