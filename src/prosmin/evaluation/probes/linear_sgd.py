"""Linear classifiers trained by SGD on augmented images through the frozen backbone, all rates at once.

Each learning rate has two heads: one learns from all of train, the other never sees the held-out tenth. The rate and
the temperature are chosen with the second, the first one predicts. Both share one pass of the encoder.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prosmin.data.image_sets import PictureSet
from prosmin.data.subsets import held_out_mask
from prosmin.encoder import Encoder
from prosmin.evaluation.batches import batch_size, evaluation_batches, half_precision, training_batches
from prosmin.evaluation.metrics.calibration import Predictions, choose_rate
from prosmin.models.vit import describe_probe, probe_features
from prosmin.training.schedules import cosine

RATES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Learning rates tried, for a batch of 256: DINO's ViT uses 0.001, ResNets need far larger ones."""
BATCH = 1024
MOMENTUM = 0.9


@torch.no_grad()
def train_linear_heads(
    encoder: Encoder, train: PictureSet, test: PictureSet, *, classes: int, epochs: int, seed: int
) -> Predictions:
    """Predictions for `test`, whose labels are not read, by the best head for `train`."""
    assert train.labels is not None  # checked by the protocol
    labels = train.labels.to(encoder.device)
    held_out = held_out_mask(train.labels.cpu(), train.keys, train.spec, seed=seed).to(encoder.device)
    choosing, final = _train(encoder, train, labels, held_out, classes=classes, epochs=epochs, seed=seed)
    logits = dict(zip(RATES, _predict(choosing, train.subset(held_out), encoder), strict=True))
    training = f"The linear classifier on {train.spec}"
    rate, temperature, settings = choose_rate(logits, labels[held_out].cpu(), training=training)
    settings |= {
        "epochs": epochs,
        "batch_size": batch_size(len(train), most=BATCH),
        "features": describe_probe(_backbone(encoder)),
        "held_out": "a tenth of train",
    }
    best = final[RATES.index(rate), None]
    return Predictions(logits=_predict(best, test, encoder)[0], temperature=temperature, settings=settings)


def _train(
    encoder: Encoder, train: PictureSet, labels: Tensor, held_out: Tensor, *, classes: int, epochs: int, seed: int
) -> Tensor:
    """Heads (2, R, C, F + 1): for choices and for predictions, one per rate; the last input is the bias's."""
    size = batch_size(len(train), most=BATCH)
    steps = epochs * (len(train) // size)
    rates = torch.tensor(RATES, device=labels.device).view(-1, 1, 1) * size / 256
    seen = torch.stack([~held_out, torch.ones_like(held_out)]).float()  # (2, N)
    heads = velocity = torch.zeros(0)
    for step, views, index in training_batches(
        train,
        encoder.config.views,
        size=size,
        epochs=epochs,
        seed=seed,
        device=encoder.device,
        title="linear classifiers",
    ):
        inputs = _inputs(encoder, views)  # (B, F + 1)
        if step == 0:
            heads = inputs.new_zeros(2, len(RATES), classes, inputs.shape[1])
            velocity = torch.zeros_like(heads)
        # The gradient of the mean cross-entropy by hand: two lines, and no graph is kept.
        error = (inputs @ heads.mT).softmax(-1)  # (2, R, B, C)
        error -= F.one_hot(labels[index], classes)
        weight = seen[:, index] / seen[:, index].sum(1, keepdim=True).clamp_min(1.0)  # (2, B)
        gradient = (error * weight[:, None, :, None]).mT @ inputs  # (2, R, C, F + 1)
        velocity = MOMENTUM * velocity + gradient
        heads = heads - cosine(step, steps, 1.0, 0.0) * rates * velocity
    return heads


def _predict(heads: Tensor, pictures: PictureSet, encoder: Encoder) -> Tensor:
    """Logits (R, N, C) of the evaluation views by heads (R, C, F + 1)."""
    views = evaluation_batches(pictures, encoder.config.views, device=encoder.device)
    return torch.cat([(_inputs(encoder, x) @ heads.mT).cpu() for x in views], dim=1)


def _inputs(encoder: Encoder, views: Tensor) -> Tensor:
    """What the heads read, float32, with a one for the bias: (B, 3, h, h) -> (B, F + 1)."""
    with half_precision(encoder.device):
        features = probe_features(_backbone(encoder), views).float()
    return F.pad(features, (0, 1), value=1.0)


def _backbone(encoder: Encoder) -> nn.Module:
    return encoder.method.get_submodule("online.backbone")
