"""Every method learns: after four epochs on the embedded photographs its kNN is well above the untrained network's.

A ViT, whose features pass through no BatchNorm: a ResNet would gain many points by its running statistics alone. Three
seeds of the recipes as they are: benchmarks/embedded.py.
"""

import pytest

from prosmin import config as configs
from prosmin.data.pictures import load_pictures
from prosmin.encoder import load
from prosmin.evaluation.held_out import held_out_knn
from prosmin.training.pretrain import pretrain

SMALL = {"backbone.depth": "2", "backbone.patch_size": "8", "heads.hidden": "256", "training.epochs": "4"}
SMALL |= {"compute.accelerator": "cpu"}
PROTOTYPES = {"heads.bottleneck": "64", "heads.dim": "256", "views.local": "1"}
OWN = {
    "prosmin": PROTOTYPES | {"heads.predictor_hidden": "256"},
    "dino": PROTOTYPES,
    "ibot": PROTOTYPES,
    # In a network this small most of what can learn is the patch embedding.
    "mocov3": {"views.local": "0", "heads.freeze_patch_embedding": "false"},
}


@pytest.mark.parametrize("method", OWN)
def test_a_method_learns(tmp_path, method):
    config = configs.resolve(recipe="demo-vit", overrides=SMALL | OWN[method] | {"method.name": method})
    encoder, pictures = load(pretrain(config, tmp_path / "run")), load_pictures("photos")
    trained = held_out_knn(encoder, pictures)["knn_top1"]
    untrained = held_out_knn(encoder.untrained(), pictures)["knn_top1"]
    # Seen: 12 to 19 points. The held-out blocks are 391 patches, one standard deviation 2.5 points.
    assert trained > untrained + 0.06
