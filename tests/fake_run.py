"""A run folder as a finished run leaves it, made in a fraction of a second: what the report is tested on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import skimage.data
import yaml

NASTY = "<script>window.harmed = true</script>"
CONFIG: dict[str, Any] = {
    "method": {"name": "prosmin"},
    "data": {"spec": "photos", "max_bad": 0.01},
    "views": {"global_size": 32, "local_size": 16, "local": 2, "global_scale": [0.4, 1.0]},
    "backbone": {"name": "resnet14_cifar", "patch_size": None},
    "heads": {"hidden": 512, "bottleneck": 128, "dim": 256, "batchnorm": True},
    "loss": {"rule": "energy", "norm": "euclidean", "pairs": "within", "beta": 1.0, "lam": 0.5, "samples": 4},
    "target": {"momentum": 0.9, "momentum_end": 1.0},
    "optimizer": {"lr": 0.001, "lr_end": 1e-6, "warmup_epochs": 2.0, "weight_decay": 0.04},
    "training": {"epochs": 20, "max_steps": None, "batch_size": 256, "seed": 0, "log_every": 5},
    "compute": {"accelerator": "auto", "devices": 1, "precision": "32-true"},
}
STEPS = 260
CLASSES = ("astronaut", "chelsea", "coffee", "rocket")
SCORES = {"knn_distance": 1.9, "mahalanobis": 1.5, "mean_log_scale": 1.1, "cross_view_energy": 0.7}


def fake_run(
    folder: Path,
    *,
    seed: int = 0,
    skill: float = 1.0,
    nasty: bool = False,
    changes: dict[str, Any] | None = None,
) -> Path:
    """Write every file of a run. `skill` scales what it learned; `nasty` puts scripts into its names."""
    rng = np.random.default_rng(seed)
    (folder / "results").mkdir(parents=True)
    config = {group: {**fields, **(changes or {}).get(group, {})} for group, fields in CONFIG.items()}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False, default_flow_style=None))
    lines = [json.dumps(line) for line in fake_log(rng, skill)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    top1 = 0.55 + 0.25 * skill
    write(folder, "knn", fake_classifier(top1, rng))
    write(folder, "linear", fake_classifier(top1 + 0.05, rng, calibrated=True))
    write(folder, "ood", *fake_ood(rng, skill, NASTY if nasty else "photos@ood"))
    write(folder, "uncertainty", *fake_uncertainty(rng, skill, nasty=nasty))
    return folder


def write(folder: Path, name: str, result: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
    common = {
        "protocol": name,
        "data": {"train": "photos@train", "test": "photos@test"},
        "checkpoint": {"step": STEPS, "hash": "5d41402abc4b2a76"},
        "seed": 0,
        "seconds": 4.21,
        "command": f"prosmin evaluate {folder} --protocols {name} --data photos@train --test photos@test",
    }
    (folder / "results" / f"{name}.json").write_text(json.dumps(common | result, indent=1))
    if arrays:
        np.savez_compressed(folder / "results" / f"{name}.npz", **arrays)


def fake_log(rng: np.random.Generator, skill: float) -> list[dict[str, float]]:
    lines = []
    for step in range(5, STEPS + 1, 5):
        done = step / STEPS
        scale = 0.05 - 0.02 * done
        line: dict[str, float] = {
            "step": step,
            "epoch": step / 13,
            "loss": 0.62 - 0.26 * skill * (1 - np.exp(-4 * done)) + 0.012 * rng.normal(),
            "lr": 0.001 * min(1.0, done / 0.1) * (0.5 + 0.5 * np.cos(np.pi * done)),
            "weight_decay": 0.2 - 0.16 * (0.5 + 0.5 * np.cos(np.pi * done)),
            "momentum": 1 - 0.1 * (0.5 + 0.5 * np.cos(np.pi * done)),
            "grad_norm": 1.4 * np.exp(-2 * done) * np.exp(0.2 * rng.normal()) + 0.1,
            "target_std": 0.031 + 0.029 * (1 - np.exp(-6 * done)) + 0.0007 * rng.normal(),
            "feature_rank": 12 + 46 * skill * (1 - np.exp(-3 * done)) + 0.8 * rng.normal(),
            "scale_mean": scale,
            "scale_min": scale * (0.9 - 0.6 * done),
            "scale_max": scale * (1.2 + 1.4 * done),
            "bad_pictures": 0,
            "images_per_second": 402 + 9 * rng.normal(),
            "memory_mib": 0.0,
        }
        if step % 65 == 0:
            line["knn_top1"] = 0.547 + 0.25 * skill * (1 - np.exp(-4 * done))
        lines.append(line)
    return lines


def fake_classifier(top1: float, rng: np.random.Generator, *, calibrated: bool = False) -> dict[str, Any]:
    def metrics(accuracy: float, ece: float) -> dict[str, float]:
        nll = 2.4 * (1 - accuracy) + 0.2
        found = {
            "top1": accuracy,
            "nll": nll,
            "ece": ece,
            "ece_low": ece - 0.009,
            "ece_high": ece + 0.011,
            "ece_floor": 0.0189,
        }
        found |= {
            "adaptive_ece": ece * 0.97,
            "classwise_calibration_error": ece / 6,
            "brier": 1.3 * (1 - accuracy),
        }
        if not calibrated:
            return found | {"top1_k200": accuracy - 0.03}
        after = {
            "nll_calibrated": nll * 0.93,
            "ece_calibrated": 0.021,
            "ece_low_calibrated": 0.015,
            "ece_high_calibrated": 0.033,
        }
        return found | after | {"temperature": 1.31}

    result: dict[str, Any] = {
        "metrics": metrics(top1, 0.041),
        "baselines": {"raw pixels": metrics(0.336, 0.112), "untrained": metrics(0.547, 0.078)},
        "settings": {"k": 20, "temperature": 0.07, "similarity": "cosine"},
    }
    if calibrated:
        shift = {"reliability": 0.06, "reliability_calibrated": 0.01}
        result["curves"] = {name: fake_bins(rng, top1, over) for name, over in shift.items()}
    return result


def fake_bins(rng: np.random.Generator, top1: float, over: float) -> dict[str, list[float | None]]:
    """Bins of a classifier that says `over` more than it should; the lowest two are empty."""
    confidence = rng.beta(4 * top1, 1.4, size=840)
    bin_of = np.minimum((confidence * 15).astype(int), 14)
    right = rng.random(840) < np.clip(confidence - over, 0, 1)
    masks = [(bin_of == i) & (bin_of > 1) for i in range(15)]
    return {
        "edges": np.linspace(0, 1, 16).tolist(),
        "confidence": [float(confidence[m].mean()) if m.any() else None for m in masks],
        "accuracy": [float(right[m].mean()) if m.any() else None for m in masks],
        "count": [int(m.sum()) for m in masks],
    }


def fake_ood(rng: np.random.Generator, skill: float, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    arrays, scores = {}, {}
    for score, gap in SCORES.items():
        inside, outside = rng.normal(size=840), rng.normal(loc=gap * skill, scale=1.2, size=240)
        arrays |= {f"in/{score}": inside, f"out/{name}/{score}": outside}
        auroc = float((inside[:, None] < outside).mean())
        scores[score] = {
            "auroc": auroc,
            "aupr_in": auroc**0.5,
            "aupr_out": auroc**2,
            "fpr_at_95_tpr_in": 1 - auroc**3,
        }
    metrics = {
        "auroc": scores["knn_distance"]["auroc"],
        **{f"auroc_{s}": v["auroc"] for s, v in scores.items()},
    }
    result = {
        "metrics": metrics,
        "baselines": {"raw pixels": {"auroc": 0.642}, "untrained": {"auroc": 0.781}},
        "settings": {"default_score": "knn_distance", "positive_class": "out of distribution"},
        "sets": {name: scores},
    }
    return result, arrays


def fake_uncertainty(
    rng: np.random.Generator, skill: float, *, nasty: bool
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    correct = rng.random(840) < 0.55 + 0.25 * skill
    uncertainty = -3.2 + 0.25 * rng.normal(size=840) + 0.35 * skill * ~correct
    wrong = ~correct[np.argsort(uncertainty)]
    risk = np.cumsum(wrong) / np.arange(1, 841)
    shown = np.linspace(0, 839, 100).round().astype(int)
    result = {
        "metrics": {
            "recall_at_1": float(correct.mean()),
            "r_auroc": 0.5 + 0.3 * skill,
            "aurc": float(risk.mean()),
            "aurc_random": 0.2,
        },
        "settings": {"answer": "nearest training picture"},
        "curves": {"risk_coverage": {"coverage": ((shown + 1) / 840).tolist(), "risk": risk[shown].tolist()}},
    }
    return result, {
        "uncertainty": uncertainty,
        "correct": correct,
        "index": np.arange(840),
        **fake_thumbnails(rng, nasty=nasty),
    }


def fake_thumbnails(rng: np.random.Generator, *, nasty: bool, each: int = 12) -> dict[str, np.ndarray]:
    """Patches of 32 px from photographs that come with scikit-image."""
    photographs = [getattr(skimage.data, name)() for name in CLASSES]
    pictures, labels, keys = [], [], []
    for i in range(3 * each):
        at = int(rng.integers(len(CLASSES)))
        height, width = photographs[at].shape[:2]
        top, left = int(rng.integers(height // 4 - 32)), int(rng.integers(width // 4 - 32))
        pictures.append(photographs[at][::4, ::4][top : top + 32, left : left + 32])
        labels.append(NASTY if nasty else CLASSES[at])
        keys.append(f'{NASTY if nasty else CLASSES[at]}/{i:04d}.png" onerror="window.harmed = true')
    kinds = ["certain"] * each + ["uncertain"] * each + ["ood"] * each
    values = np.concatenate([rng.normal(-3.9, 0.1, each), rng.normal(-2.2, 0.1, each), rng.normal(1.1, 0.05, each)])
    return {
        "thumbnails": np.stack(pictures).astype(np.uint8),
        "thumbnail_uncertainty": values,
        "thumbnail_label": np.array(labels),
        "thumbnail_kind": np.array(kinds),
        "thumbnail_key": np.array(keys),
    }
