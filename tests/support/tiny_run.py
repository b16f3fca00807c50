"""A run small enough for any machine, and what tests ask of runs."""

import json

import torch
from safetensors.torch import load_file

TINY = {
    "backbone.name": "resnet8_cifar",
    "heads.hidden": "32",
    "heads.bottleneck": "16",
    "heads.dim": "8",  # at most the images of a batch, which whitening needs
    "heads.predictor_hidden": "32",
    "views.local": "1",
    "training.batch_size": "32",
    "training.epochs": "1",
    "training.max_steps": "6",
    "training.log_every": "1",
    "training.checkpoint_every": "2",
    "compute.deterministic": str(torch.cuda.is_available()).lower(),  # a CPU does not need it for equal bits
}

SMALL_GRID = TINY | {"training.batch_size": "16", "training.max_steps": "2", "training.checkpoint_every": "1"}
"""The same for the cells of a grid."""

VOLATILE = {"images_per_second", "memory_mib"}


def metrics(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in VOLATILE} for row in rows]


def assert_same_run(one, other):
    first, second = load_file(one / "encoder.safetensors"), load_file(other / "encoder.safetensors")
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert metrics(one) == metrics(other)


def last_step(run):
    """The newest logged step, read as anyone could while the run goes on."""
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        return json.loads(lines[-1])["step"] if lines else 0
    except (OSError, json.JSONDecodeError):
        return 0
