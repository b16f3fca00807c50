"""All commands on a GPU with the GPU recipes: compiled, as CUDA graphs, in bfloat16."""

import json

import pytest
import torch
from PIL import Image

import prosmin
from prosmin import cli
from prosmin import config as configs
from prosmin.data.sources.photos import load_photograph, photograph_files

SMALL = {
    "data.spec": "photos",
    "heads.hidden": 64,
    "heads.bottleneck": 32,
    "heads.dim": 48,
    "heads.predictor_hidden": 64,
    "training.batch_size": 64,
    "training.epochs": 1,
    "training.checkpoint_every": 4,
    "training.log_every": 1,
}
WHITENED = {
    "heads.last": "whiten",
    "heads.initial_scale": 1,
    "target.whitening": "whiten",
    "target.normalise": "true",
    "loss.identification": 0,
}
CASES = {
    "resnet": ("cifar10-resnet18", {}),
    "resnet-whitened": ("cifar10-resnet18", WHITENED),
    "vit": ("cifar10-vit", {"backbone.depth": 2, "heads.condition": "true"}),
}


def run(*words: object) -> None:
    assert cli.main([str(word) for word in words]) == 0


@pytest.mark.parametrize(("recipe", "changes"), CASES.values(), ids=CASES)
def test_the_settings_are_valid_everywhere(recipe, changes):
    fields = {name: str(value) for name, value in (SMALL | changes).items()}
    config = configs.resolve(recipe=recipe, overrides=fields)
    assert config.target.is_whitened(config.heads) == (changes is WHITENED)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("recipe", "changes"), CASES.values(), ids=CASES)
def test_from_images_to_a_page_on_a_gpu(recipe, changes, tmp_path, capsys):
    folder = tmp_path / "run"
    fields = [word for name, value in (SMALL | changes).items() for word in (f"--{name}", value)]
    train = ("pretrain", "--recipe", recipe, "--out", folder, *fields)
    run(*train, "--training.max_steps", 6)
    run(*train, "--training.max_steps", 12)
    assert "from step 6" in capsys.readouterr().out
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 13))

    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for name, path in photograph_files().items():  # of natural size: they are streamed
        Image.fromarray(load_photograph(path).permute(1, 2, 0).numpy()).save(pictures / f"{name}.jpg")
    protocols = "knn,linear,ood,uncertainty,corruption"
    run("evaluate", folder, "--protocols", protocols, "--ood", f"folder:{pictures}", "--severities", 3)
    assert {path.stem for path in (folder / "results").glob("*.json")} >= set(protocols.split(","))
    run("embed", folder, "--data", f"folder:{pictures}", "--out", tmp_path / "rows.parquet", "--views", 2)
    run("export", folder, "--format", "safetensors", "--out", tmp_path / "encoder")
    run("report", folder, "--out", tmp_path / "report.html")

    images = torch.randint(256, (4, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    here, there = (prosmin.load(tmp_path / "encoder").to(device)(images) for device in ("cpu", "cuda"))
    # TF32 products have ten bits.
    torch.testing.assert_close(there.features.cpu(), here.features, rtol=2e-2, atol=2e-2)
