"""Published weights in our backbones give the features that the published code computes."""

import os
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from prosmin.config import BackboneConfig
from prosmin.errors import ProsminError, UsageError
from prosmin.methods import build_method
from prosmin.models.backbones import build_backbone
from prosmin.models.weights import load_backbone_weights, read_weights
from published_layouts import dino_checkpoint, ibot_checkpoint, moco_checkpoint, vit_features, vit_tensors

TENSORS, OTHER = vit_tensors(), vit_tensors(seed=1)
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def vit(*, heads: int = 4, size: int = 32, depth: int = 2, width: int = 32, patch: int = 8) -> nn.Module:
    config = BackboneConfig(name="vit_tiny_patch16_224", patch_size=patch, width=width, depth=depth, heads=heads)
    return build_backbone(config, image_size=size).eval()


def saved(folder: Path, content: object, name: str = "w.pth") -> Path:
    torch.save(content, folder / name)
    return folder / name


LAYOUTS = {
    "DINO": (dino_checkpoint(TENSORS, student=OTHER), "DINO or iBOT; 3 left out (head)"),
    "DINO backbone": (TENSORS, "a plain state dict."),
    "iBOT": (ibot_checkpoint(TENSORS), "DINO or iBOT; 4 left out (head, masked_embed)"),
    "iBOT backbone": ({"state_dict": TENSORS | {"masked_embed": torch.ones(1, 32)}}, "1 left out (masked_embed)"),
    "MoCo v3": (moco_checkpoint(TENSORS, momentum=OTHER), "MoCo v3, its base encoder"),
    "MoCo v3 for DeiT": ({"model": TENSORS}, "a plain state dict."),
    "classifier": (TENSORS | {"head.weight": torch.ones(10, 32), "head.bias": torch.ones(10)}, "2 left out (head)"),
}


class TestLayouts:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_features_are_those_of_the_published_code(self, tmp_path, layout):
        content, says = LAYOUTS[layout]
        backbone = vit()
        sentence = load_backbone_weights(backbone, saved(tmp_path, content))
        assert sentence.startswith(f"{len(TENSORS)} tensors of w.pth, ")
        assert says in sentence
        # float32 through two blocks, the sums in another order
        with torch.inference_mode():
            expected = vit_features(TENSORS, IMAGES, heads=4)
            torch.testing.assert_close(backbone(IMAGES), expected, rtol=1e-4, atol=1e-4)
            assert not torch.allclose(vit_features(OTHER, IMAGES, heads=4), expected, atol=0.1)

    def test_safetensors_and_half_precision(self, tmp_path):
        save_file({name: tensor.half() for name, tensor in TENSORS.items()}, tmp_path / "w.safetensors")
        backbone = vit()
        load_backbone_weights(backbone, tmp_path / "w.safetensors")
        assert backbone.state_dict()["norm.bias"].dtype == torch.float32
        torch.testing.assert_close(backbone.state_dict()["norm.bias"], TENSORS["norm.bias"], rtol=1e-3, atol=1e-3)

    def test_legacy_files_of_torch(self, tmp_path):
        file = tmp_path / "old.pth.tar"
        content = dino_checkpoint(TENSORS, student=OTHER)
        torch.save(content, file, _use_new_zipfile_serialization=False)
        # numpy's numbers had another name before numpy 2
        file.write_bytes(file.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
        assert b"numpy.core.multiarray" in file.read_bytes()
        assert torch.equal(read_weights(file).tensors["norm.bias"], TENSORS["norm.bias"])

    @pytest.mark.parametrize("layout", ["DINO", "DINO backbone", "MoCo v3"])
    def test_resnet(self, tmp_path, layout):
        import torchvision

        torch.manual_seed(0)
        published = torchvision.models.resnet18(num_classes=7).eval()
        for module in published.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
        tensors = {name: t for name, t in published.state_dict().items() if not name.startswith("fc.")}
        content = {
            "DINO": dino_checkpoint(tensors, student=tensors),
            "DINO backbone": {name: t for name, t in tensors.items() if "num_batches" not in name},
            "MoCo v3": moco_checkpoint(tensors, momentum=tensors, head="fc"),
        }[layout]
        backbone = timm.create_model("resnet18", num_classes=0).eval()
        load_backbone_weights(backbone, saved(tmp_path, content))
        published.fc = nn.Identity()
        with torch.inference_mode():
            torch.testing.assert_close(backbone(IMAGES), published(IMAGES), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("publisher", ["iBOT", "timm"])
    def test_swin(self, tmp_path, publisher):
        """The published code keeps a stage's downsampling with the stage before, timm with the stage itself."""
        sizes = {"embed_dim": 8, "depths": (1, 1), "num_heads": (2, 2), "img_size": 56}
        torch.manual_seed(0)
        made, filled = (timm.create_model("swin_tiny_patch4_window7_224", num_classes=0, **sizes) for _ in range(2))
        tensors = made.state_dict()
        if publisher == "iBOT":
            tensors = {n.replace("layers.1.downsample", "layers.0.downsample"): t for n, t in tensors.items()}
            assert set(tensors) != set(made.state_dict())
            tensors |= {"layers.0.blocks.0.attn.relative_position_index": torch.zeros(49, 49, dtype=torch.int64)}
            tensors = {"state_dict": tensors}
        load_backbone_weights(filled, saved(tmp_path, tensors))
        for name, tensor in made.state_dict().items():
            assert torch.equal(tensor, filled.state_dict()[name]), name

    def test_our_own_encoder(self, tmp_path, tiny):
        method = build_method(tiny())
        trained = method.get_submodule("online.backbone").state_dict()
        tensors = {name: tensor.clone().contiguous() for name, tensor in method.state_dict().items()}
        save_file(tensors, tmp_path / "encoder.safetensors")  # as the run folder has it
        backbone = build_backbone(BackboneConfig(name="resnet8_cifar"), image_size=32)
        sentence = load_backbone_weights(backbone, tmp_path / "encoder.safetensors")
        assert "an encoder of prosmin" in sentence
        assert all(torch.equal(tensor, trained[name]) for name, tensor in backbone.state_dict().items())
        assert load_backbone_weights(backbone, tmp_path) == sentence  # the folder stands for the file
        (tmp_path / "empty").mkdir()
        with pytest.raises(UsageError, match=r"empty.* without encoder\.safetensors"):
            load_backbone_weights(backbone, tmp_path / "empty")


class TestGrid:
    def test_position_embedding_is_resized(self, tmp_path):
        backbone = vit(size=64)
        sentence = load_backbone_weights(backbone, saved(tmp_path, TENSORS))
        assert "position embedding resized from 17 to 65 tokens" in sentence
        resized = backbone.state_dict()["pos_embed"]
        assert torch.equal(resized[:, 0], TENSORS["pos_embed"][:, 0])  # the class token's stays
        grid = TENSORS["pos_embed"][:, 1:].transpose(1, 2).unflatten(2, (4, 4))
        larger = nn.functional.interpolate(grid, size=(8, 8), mode="bicubic", antialias=True)
        torch.testing.assert_close(resized[:, 1:], larger.flatten(2).transpose(1, 2))

    def test_one_that_is_no_square_is_refused(self, tmp_path):
        content = TENSORS | {"pos_embed": torch.zeros(1, 13, 32)}
        with pytest.raises(ProsminError, match="does not fit"):
            load_backbone_weights(vit(), saved(tmp_path, content))


class TestHeads:
    def test_moco_vit_small_has_twelve_heads_and_says_so(self, tmp_path):
        tensors = vit_tensors(width=384, depth=1)
        file = saved(tmp_path, moco_checkpoint(tensors, momentum=tensors))
        with pytest.raises(ProsminError, match=r"12 attention heads.*6.*backbone\.heads"):
            load_backbone_weights(vit(width=384, depth=1, heads=6), file)
        backbone = vit(width=384, depth=1, heads=12)
        load_backbone_weights(backbone, file)
        with torch.inference_mode():
            torch.testing.assert_close(backbone(IMAGES), vit_features(tensors, IMAGES, heads=12), rtol=1e-3, atol=1e-3)
        load_backbone_weights(vit(width=384, depth=1, heads=6), saved(tmp_path, tensors))  # DINO's has six


class Evil:
    """What a file of unknown origin may try."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class TestRefusals:
    def test_nothing_is_run(self, tmp_path):
        file = saved(tmp_path, TENSORS | {"more": Evil(tmp_path / "ran")})
        with pytest.raises(ProsminError, match=r"(posix|nt)\.mkdir.*\.safetensors"):
            load_backbone_weights(vit(), file)
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("network", "message"),
        [
            ({"depth": 3}, r"12 of the network's 42 tensors.*blocks\.2\.norm1.*backbone\.depth is 2 \(now 3\)\.$"),
            ({"depth": 1}, r"12 tensors.*blocks\.1\..*backbone\.depth is 2 \(now 1\)\.$"),
            ({"patch": 4}, r"proj\.weight.*\(32, 3, 8, 8\).*\(32, 3, 4, 4\).*patch_size is 8 \(now 4\)\.$"),
            ({"patch": 16, "size": 64}, r"patch_size is 8 \(now 16\), views\.global_size is 32 \(now 64\)\.$"),
            ({"width": 64, "size": 64}, r"\(32.*\(64.*backbone\.width is 32 \(now 64\)\.$"),
        ],
    )
    def test_missing_and_unknown_tensors_and_other_shapes_are_named(self, tmp_path, network, message):
        with pytest.raises(ProsminError, match=message):
            load_backbone_weights(vit(**network), saved(tmp_path, TENSORS))

    def test_refused_weights_leave_the_network_alone(self, tmp_path):
        backbone = vit()
        before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
        broken = TENSORS | {"norm.bias": torch.full((32,), float("nan"))}
        with pytest.raises(ProsminError, match=r"not finite, in norm\.bias"):
            load_backbone_weights(backbone, saved(tmp_path, broken))
        assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())

    def test_a_network_without_patches_has_no_fields_to_name(self, tmp_path):
        with pytest.raises(ProsminError, match=r"made with\.$"):
            load_backbone_weights(build_backbone(BackboneConfig(), image_size=32), saved(tmp_path, TENSORS))

    @pytest.mark.parametrize("junk", [b"", b"hello", b"e", b"G", b"<html>", b"PK\x03\x04xxxx"])
    @pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
    def test_damaged_files(self, tmp_path, junk, name):
        (tmp_path / name).write_bytes(junk)
        expected = r"is empty" if not junk else "weights"
        with pytest.raises(ProsminError, match=rf"{name} .*{expected}.*Allowed: \.safetensors") as error:
            load_backbone_weights(vit(), tmp_path / name)
        assert not any(word in str(error.value) for word in ("101", "Error"))

    def test_files_without_tensors(self, tmp_path):
        with pytest.raises(ProsminError, match="entries: epoch"):
            load_backbone_weights(vit(), saved(tmp_path, {"epoch": 3}))
        with pytest.raises(ProsminError, match="list"):
            load_backbone_weights(vit(), saved(tmp_path, [1, 2]))
        with pytest.raises(UsageError, match=r"missing\.pth"):
            load_backbone_weights(vit(), tmp_path / "missing.pth")
