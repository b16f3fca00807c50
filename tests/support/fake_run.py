"""A run folder like that of a finished run, written in a fraction of a second, for tests of the report."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import skimage.data
import yaml

from prosmin.evaluation.protocols.gallery import sheet

NASTY = "<script>window.harmed = true</script>"
HARMFUL = '" onerror="window.harmed = true'
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
    evaluated: int = 840,
    shown: int = 120,
    side: int = 32,
) -> Path:
    """Write every file of a run. `skill` scales what it learned; `nasty` puts scripts into its names.

    `evaluated` test images have scores, `shown` of them a thumbnail of `side` px and a place on the map.
    """
    rng = np.random.default_rng(seed)
    (folder / "results").mkdir(parents=True)
    config = {group: {**fields, **(changes or {}).get(group, {})} for group, fields in CONFIG.items()}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False, default_flow_style=None))
    lines = [json.dumps(line) for line in fake_log(rng, skill)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    top1 = 0.55 + 0.25 * skill
    write(folder, "knn", fake_classifier(top1, rng))
    write(folder, "linear", fake_classifier(top1 + 0.05, rng, calibrated=True))
    write(folder, "ood", *fake_ood(rng, skill, NASTY if nasty else "photos@ood", evaluated))
    result, arrays = fake_uncertainty(rng, skill, evaluated, side, nasty=nasty)
    write(folder, "uncertainty", result, arrays)
    paper = fake_classifier(top1 + 0.06, rng, calibrated=True)
    write(folder, "linear-paper", {name: part for name, part in paper.items() if name != "baselines"})
    write(folder, "lowshot", fake_shares(top1 - 0.2))
    write(folder, "semi", fake_shares(top1 - 0.15))
    write(folder, "transfer", fake_transfer(rng, top1, NASTY if nasty else "torchvision:CIFAR10"))
    write(folder, "corruption", fake_corruption(rng, skill, nasty=nasty))
    write(folder, "pictures", *fake_pictures(rng, arrays, evaluated, shown, side, nasty=nasty))
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


def change_result(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a stored result in place."""
    path = folder / "results" / f"{name}.json"
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))


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
            "on_gpu": 0,
        }
        if step % 65 == 0:
            line["knn_top1"] = 0.547 + 0.25 * skill * (1 - np.exp(-4 * done))
        lines.append(line)
    return lines


def fake_classifier(top1: float, rng: np.random.Generator, *, calibrated: bool = False) -> dict[str, Any]:
    def metrics(accuracy: float, ece: float) -> dict[str, float]:
        nll = 2.4 * (1 - accuracy) + 0.2
        found = {"top1": accuracy, "nll": nll, "ece": ece, "ece_low": ece - 0.009, "ece_high": ece + 0.011}
        found |= {"ece_floor": 0.0189, "adaptive_ece": ece * 0.97, "classwise_calibration_error": ece / 6}
        found |= {"brier": 1.3 * (1 - accuracy)}
        if not calibrated:
            return found | {"top1_k200": accuracy - 0.03}
        found |= {"nll_calibrated": nll * 0.93, "ece_calibrated": 0.021, "temperature": 1.31}
        return found | {"ece_low_calibrated": 0.015, "ece_high_calibrated": 0.033}

    result: dict[str, Any] = {
        "metrics": metrics(top1, 0.041),
        "baselines": {"raw pixels": metrics(0.336, 0.112), "untrained": metrics(0.547, 0.078)},
        "settings": {"k": 20, "temperature": 0.07, "similarity": "cosine"},
    }
    if calibrated:
        shift = {"reliability": 0.06, "reliability_calibrated": 0.01}
        result["curves"] = {name: fake_bins(rng, top1, over) for name, over in shift.items()}
    return result


def fake_shares(top1: float) -> dict[str, Any]:
    """Two shares of the labels, three draws each."""
    metrics: dict[str, float] = {}
    for share, gain in (("1pct", 0.0), ("10pct", 0.12)):
        one = {"top1": top1 + gain, "nll": 1.9 - gain, "ece": 0.09, "ece_low": 0.08, "ece_high": 0.1, "brier": 0.5}
        one |= {f"{name}_calibrated": value * 0.9 for name, value in one.items() if name != "top1"}
        one |= {"adaptive_ece": 0.08, "ece_floor": 0.02, "temperature": 1.2}
        metrics |= {f"{name}_{share}": value for name, value in one.items()}
        metrics |= {f"{name}_{share}_sd": 0.012 for name in one}
    return {"metrics": metrics, "settings": {"shares": {}}, "sets": {"1pct": {"draw 0": {"top1": top1}}}}


def fake_transfer(rng: np.random.Generator, top1: float, name: str) -> dict[str, Any]:
    """Two other sets, each with its diagrams."""
    rows = {name: {"top1": top1 + 0.1, "nll": 0.4, "ece": 0.02}, "photos": {"top1": top1, "nll": 0.7, "ece": 0.05}}
    return {
        "metrics": {key: sum(row[key] for row in rows.values()) / 2 for key in ("top1", "nll", "ece")},
        "settings": {},
        "sets": {spec: {"fine-tuned": row} for spec, row in rows.items()},
        "curves": {spec: {"reliability": fake_bins(rng, 0.8, 0.02)} for spec in rows},
    }


def fake_corruption(rng: np.random.Generator, skill: float, *, nasty: bool) -> dict[str, Any]:
    """Five corruptions by five severities; one number is missing."""
    names = ["gaussian_noise", "motion_blur", "fog", "contrast", NASTY if nasty else "jpeg_compression"]
    error = np.clip(0.2 + 0.1 * np.arange(1, 6) / (0.5 + skill) + 0.05 * rng.normal(size=(5, 5)), 0.05, 0.95)
    tables: dict[str, Any] = {"error": error.tolist(), "nll": (3 * error).tolist(), "ece": (0.4 * error).tolist()}
    tables["ece"][0][4] = None
    clean = {"error": 0.15, "nll": 0.5, "ece": 0.04}
    metrics = {"mean_error": float(error.mean()), "mean_nll": float(3 * error.mean()), "mean_ece": 0.1}
    for i in range(5):
        metrics |= {f"mean_error_severity_{i + 1}": float(error[:, i].mean()), f"ece_severity_{i + 1}": 0.1}
        metrics |= {f"nll_severity_{i + 1}": 1.0}
    return {
        "metrics": metrics | {f"clean_{name}": value for name, value in clean.items()},
        "settings": {"source": "generated", "left_out": {"frost": "needs a library"}},
        "curves": {"corruption": {"names": names, "severities": [1, 2, 3, 4, 5], "clean": clean, **tables}},
    }


def fake_bins(rng: np.random.Generator, top1: float, over: float) -> dict[str, list[float | None]]:
    """Bins of a classifier that says `over` more than it should; the lowest two are empty."""
    confidence = np.maximum(rng.beta(4 * top1, 1.4, size=840), 2.5 / 15)
    bin_of = np.minimum((confidence * 15).astype(int), 14)
    right = rng.random(840) < np.clip(confidence - over, 0, 1)
    masks = [bin_of == i for i in range(15)]
    return {
        "edges": np.linspace(0, 1, 16).tolist(),
        "confidence": [float(confidence[m].mean()) if m.any() else None for m in masks],
        "accuracy": [float(right[m].mean()) if m.any() else None for m in masks],
        "count": [int(m.sum()) for m in masks],
    }


def fake_ood(
    rng: np.random.Generator, skill: float, name: str, evaluated: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    arrays, scores = {}, {}
    for score, gap in SCORES.items():
        inside, outside = rng.normal(size=evaluated), rng.normal(loc=gap * skill, scale=1.2, size=240)
        arrays |= {f"in/{score}": inside, f"out/{name}/{score}": outside}
        auroc = float((inside[:840, None] < outside).mean())
        scores[score] = {"auroc": auroc, "aupr_in": auroc**0.5, "aupr_out": auroc**2, "fpr_at_95_tpr_in": 1 - auroc**3}
    metrics = {"auroc": scores["knn_distance"]["auroc"], **{f"auroc_{s}": v["auroc"] for s, v in scores.items()}}
    result = {
        "metrics": metrics,
        "baselines": {"raw pixels": {"auroc": 0.642}, "untrained": {"auroc": 0.781}},
        "settings": {"default_score": "knn_distance", "positive_class": "out of distribution"},
        "sets": {name: scores},
    }
    return result, arrays


def fake_uncertainty(
    rng: np.random.Generator, skill: float, evaluated: int, side: int, *, nasty: bool
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    correct = rng.random(evaluated) < 0.55 + 0.25 * skill
    uncertainty = -3.2 + 0.25 * rng.normal(size=evaluated) + 0.35 * skill * ~correct
    wrong = ~correct[np.argsort(uncertainty)]
    risk = np.cumsum(wrong) / np.arange(1, evaluated + 1)
    shown = np.linspace(0, evaluated - 1, 100).round().astype(int)
    result = {
        "metrics": {
            "recall_at_1": float(correct.mean()),
            "r_auroc": 0.5 + 0.3 * skill,
            "aurc": float(risk.mean()),
            "aurc_random": 0.2,
            "coverage_90": 0.84,
            "joint_coverage_90_reachable": 0.75,
            "pit_distance": 0.07,
            "spearman_crop": 0.4,
            "spearman_blur": 0.3,
            "spearman_noise": 0.5,
        },
        "settings": {"answer": "nearest training image"},
        "curves": {
            "risk_coverage": {"coverage": ((shown + 1) / evaluated).tolist(), "risk": risk[shown].tolist()},
            **fake_forecasts(skill),
        },
        "sets": {"test": {"uncertainty": {"r_auroc": 0.8, "aurc": 0.1}, "knn_distance": {"r_auroc": 0.7, "aurc": 0.2}}},
    }
    thumbnails = fake_thumbnails(rng, side, nasty=nasty)
    return result, {"uncertainty": uncertainty, "correct": correct, **thumbnails}


def fake_forecasts(skill: float) -> dict[str, Any]:
    """Forecasts a little too narrow, and an uncertainty that rises as images get worse."""
    nominal = np.linspace(0.05, 0.95, 19)
    severity = np.arange(6)
    mean = -3.5 + 0.05 * skill * severity
    worse = {name: values.tolist() for name, values in (("mean", mean), ("low", mean - 0.2), ("high", mean + 0.2))}
    return {
        "coverage": {
            name: (factor * nominal).tolist()
            for name, factor in {"nominal": 1.0, "coordinates": 0.93, "joint": 0.8}.items()
        },
        "pit": {"edges": np.linspace(0, 1, 5).tolist(), "share": [0.3, 0.2, 0.2, 0.3]},
        "severity": {kind: {"severity": severity.tolist(), **worse} for kind in ("crop", "blur", "noise")},
    }


def fake_thumbnails(rng: np.random.Generator, side: int, *, nasty: bool, each: int = 12) -> dict[str, np.ndarray]:
    """Three kinds of images for the galleries."""
    pictures, labels = fake_patches(rng, 3 * each, side)
    labels = [NASTY] * len(labels) if nasty else labels
    kinds = ["certain"] * each + ["uncertain"] * each + ["ood"] * each
    values = np.concatenate([rng.normal(-3.9, 0.1, each), rng.normal(-2.2, 0.1, each), rng.normal(1.1, 0.05, each)])
    return {
        "thumbnails": pictures,
        "thumbnail_uncertainty": values,
        "thumbnail_label": np.array(labels),
        "thumbnail_kind": np.array(kinds),
        "thumbnail_key": np.array([f"{label}/{i:04d}.png{HARMFUL}" for i, label in enumerate(labels)]),
    }


def fake_patches(rng: np.random.Generator, count: int, side: int) -> tuple[np.ndarray, list[str]]:
    """Patches from photographs that come with scikit-image, and whose they are."""
    photographs = [getattr(skimage.data, name)()[::4, ::4] for name in CLASSES]
    pictures, labels = [], []
    for _ in range(count):
        at = int(rng.integers(len(CLASSES)))
        height, width = photographs[at].shape[:2]
        top, left = int(rng.integers(height - side)), int(rng.integers(width - side))
        pictures.append(photographs[at][top : top + side, left : left + side])
        labels.append(CLASSES[at])
    return np.stack(pictures).astype(np.uint8), labels


def fake_pictures(
    rng: np.random.Generator, gallery: dict[str, np.ndarray], evaluated: int, shown: int, side: int, *, nasty: bool
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The galleries' images, some more, and a few named as neighbours alone; the first three have attention."""
    strange = gallery["thumbnail_kind"] == "ood"
    more, labels = fake_patches(rng, shown - int((~strange).sum()), side)
    tiles = [*gallery["thumbnails"][~strange], *more, *gallery["thumbnails"][strange]]
    named = min(5, evaluated - shown)
    count = len(tiles) + named
    others = [f"{NASTY if nasty else label}/{i:05d}.png" for i, label in enumerate([*labels, *labels[:named]])]
    keys = [*gallery["thumbnail_key"][~strange], *others[: len(more)], *gallery["thumbnail_key"][strange]]
    all_labels = [*gallery["thumbnail_label"][~strange], *labels, *gallery["thumbnail_label"][strange], *labels[:named]]
    thumbnails = sheet(tiles)
    neighbours = np.array([rng.permutation(count)[:8] for _ in tiles])
    neighbours[0, 7] = count - 1  # one without a thumbnail
    attention = rng.dirichlet(np.full(64, 0.3), size=(3, 2)).reshape(3, 2, 8, 8) * 0.9
    arrays = {
        "sheet": np.frombuffer(thumbnails.jpeg, dtype=np.uint8),
        "tile": np.array(thumbnails.tile),
        "columns": np.array(thumbnails.columns),
        "evaluated": np.array(evaluated),
        "map": rng.random((len(tiles), 2)).astype(np.float32),
        "neighbours": neighbours.astype(np.int32),
        "similarity": -np.sort(-rng.uniform(0.4, 1.0, size=neighbours.shape), axis=1).astype(np.float32),
        "key": np.array([*keys, *others[len(more) :]]),
        "label": np.array(all_labels),
        "set": np.array(["test"] * shown + [NASTY if nasty else "photos@ood"] * int(strange.sum()) + ["test"] * named),
        "value": rng.normal(-3.2, 0.3, size=count),
        "attention": attention.astype(np.float32),
        "attention_view": np.stack(tiles[:3]),
        "attention_of": np.arange(3, dtype=np.int32),
    }
    return {"metrics": {"map_neighbours_kept": 0.62}, "settings": {"shown": shown, "evaluated": evaluated}}, arrays
