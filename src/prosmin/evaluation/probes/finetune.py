"""Fine-tuning: the whole backbone with a linear layer on top, on labelled images.

AdamW with warm-up and cosine decay, random resized crops and flips. The learning rate and the temperature are chosen
on held-out labels; then one network is trained on all labels with that rate.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from prosmin.data.image_sets import PictureSet
from prosmin.data.subsets import deal_folds, groups_of, held_out_mask
from prosmin.encoder import Encoder
from prosmin.errors import ProsminError
from prosmin.evaluation.batches import batch_size, evaluation_batches, half_precision, training_batches
from prosmin.evaluation.metrics.calibration import Predictions, choose_rate
from prosmin.models.target import make_target
from prosmin.training.schedules import warmup_cosine

RATES = (1e-4, 5e-4, 2e-3)
"""Learning rates of the backbone that are tried."""
HEAD_FACTOR = 10.0  # the new layer starts at zero and learns faster
WEIGHT_DECAY = 0.05
CLIP = 3.0
BATCH = 256
STEPS, EPOCHS = 600, (10, 100)
"""By default about this many steps, in this range of epochs."""
WARMUP = 0.1  # share of the steps
FOLDS, FEW = 5, 500
"""With fewer labels than this, a tenth is too few to choose on: choices are then made by cross-validation."""


def fine_tune(
    encoder: Encoder, train: PictureSet, test: PictureSet, *, classes: int, seed: int, epochs: int | None = None
) -> Predictions:
    """Fine-tune a copy of the encoder's backbone on all of `train` and predict `test`, whose labels are not read."""
    labels = _labels(train)
    epochs = default_epochs(len(train)) if epochs is None else epochs

    def predict(some: PictureSet, others: PictureSet, rate: float) -> Tensor:
        network = _train(encoder, some, classes=classes, rate=rate, epochs=epochs, seed=seed)
        return _predict(network, others, encoder)

    masks = _held_out(train, labels, seed)
    held_out = {
        rate: torch.cat([predict(train.subset(~mask), train.subset(mask), rate) for mask in masks]) for rate in RATES
    }
    unseen = torch.cat([labels[mask] for mask in masks])
    rate, temperature, settings = choose_rate(held_out, unseen, training=f"Fine-tuning on {train.spec}")
    settings |= {
        "epochs": epochs,
        "batch_size": batch_size(len(train), most=BATCH),
        "held_out": "a tenth of the labels" if len(masks) == 1 else f"{FOLDS} folds of the labels",
    }
    return Predictions(logits=predict(train, test, rate), temperature=temperature, settings=settings)


def check_held_out(train: PictureSet) -> None:
    """An error for a set that is too small to choose on, before anything is trained."""
    _held_out(train, _labels(train), seed=0)  # the seed decides which images are held out, not whether any are


def default_epochs(pictures: int) -> int:
    """Epochs for a set of this size."""
    steps_per_epoch = pictures // batch_size(pictures, most=BATCH)
    return min(max(math.ceil(STEPS / steps_per_epoch), EPOCHS[0]), EPOCHS[1])


class Classifier(nn.Module):
    """A copy of a backbone, all of it trainable and without stochastic depth, and a linear layer that starts at 0."""

    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        self.backbone = make_target(backbone).requires_grad_(True)
        features: int = backbone.num_features  # type: ignore[assignment]
        self.head = nn.Linear(features, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Views (B, 3, h, h) -> logits (B, C)."""
        return self.head(self.backbone(x))


def _train(encoder: Encoder, train: PictureSet, *, classes: int, rate: float, epochs: int, seed: int) -> Classifier:
    device, labels = encoder.device, _labels(train).to(encoder.device)
    network = Classifier(encoder.method.get_submodule("online.backbone"), classes).to(device).train()
    optimizer = AdamW(_groups(network), lr=rate, fused=device.type == "cuda")
    size = batch_size(len(train), most=BATCH)
    steps = epochs * (len(train) // size)
    for step, views, index in training_batches(
        train,
        encoder.config.views,
        size=size,
        epochs=epochs,
        seed=seed,
        device=device,
        title=f"fine-tuning at {rate:g}",
    ):
        lr = warmup_cosine(step, steps, round(WARMUP * steps), rate, 0.0)
        for group in optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        with half_precision(device):
            logits = network(views)
        F.cross_entropy(logits.float(), labels[index]).backward()
        nn.utils.clip_grad_norm_(network.parameters(), CLIP, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return network


def _groups(network: Classifier) -> list[dict[str, Any]]:
    """Weight decay on matrices and filters only; the head learns faster."""
    return [
        {
            "params": [p for p in part.parameters() if (p.ndim > 1) == decays],
            "weight_decay": WEIGHT_DECAY if decays else 0.0,
            "factor": factor,
        }
        for part, factor in ((network.backbone, 1.0), (network.head, HEAD_FACTOR))
        for decays in (True, False)
    ]


@torch.inference_mode()
def _predict(network: Classifier, pictures: PictureSet, encoder: Encoder) -> Tensor:
    """Logits (N, C) of the evaluation views, in float32."""
    network.eval()
    views = evaluation_batches(pictures, encoder.config.views, device=encoder.device)
    return torch.cat([network(x).float().cpu() for x in views])


def _held_out(train: PictureSet, labels: Tensor, seed: int) -> list[Tensor]:
    """The images held out from each network that choices are made with; an error if there are none."""
    groups = groups_of(train.keys, train.spec)
    if len(labels) >= FEW:
        masks = [held_out_mask(labels, train.keys, train.spec, seed=seed)]
    elif (len(labels) if groups is None else len(torch.unique(groups))) >= FOLDS:
        fold = deal_folds(labels, FOLDS, seed=seed, groups=groups)
        masks = [fold == i for i in range(FOLDS)]
    else:
        masks = []
    if not masks or not all(bool(mask.any()) for mask in masks):
        raise ProsminError(
            f"{train.spec} has {len(labels)} labelled images of {len(torch.unique(labels))} classes, too few to hold "
            f"some out and choose the learning rate on them; allowed: {FOLDS} or more, with two images of most "
            "classes. Add images, or leave this set out."
        )
    return masks


def _labels(pictures: PictureSet) -> Tensor:
    assert pictures.labels is not None  # checked by the protocol
    return pictures.labels.cpu()
