"""DINO: the online network predicts which of K prototypes the target sees in another view of the image.

Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021. The target's outputs are
centred, so that no prototype wins everywhere, and sharpened, so that they are not uniform: together the two
prevent collapse.
"""

import torch
from torch import Tensor, nn

from prosmin.config import Config, DinoLoss
from prosmin.data.views import Views
from prosmin.methods.output import Draws, Embedding, Output
from prosmin.models.centre import Centre, batch_mean
from prosmin.models.heads import Embedder
from prosmin.models.target import Frozen, freeze, make_target, restore, update_target


def warmed_up(epoch: float, *, start: float, end: float, epochs: float) -> float:
    """From `start` to `end` in a straight line over the first `epochs`, then constant."""
    return end if epoch >= epochs else start + (end - start) * epoch / epochs


def softmax_of(target: Tensor, temperature: Tensor) -> Tensor:
    """The target's probabilities, in float32 or wider: (..., K) -> (..., K)."""
    return torch.softmax(target.to(wide_dtype(target)) / temperature, dim=-1)


def cross_entropies(online: Tensor, probabilities: Tensor, *, temperature: float) -> Tensor:
    """-sum_k p_tk log softmax(z_v / temperature)_k for all views v and targets t.

    online z (V, B, K), probabilities p (G, B, K) -> (V, G, B). As p sums to one this is
    logsumexp(z / temperature) - p . z / temperature, which needs no array of V G B K numbers.
    """
    z = online.to(wide_dtype(online)) / temperature
    return z.logsumexp(-1)[:, None] - torch.einsum("vbk,gbk->vgb", z, probabilities)


class ViewDistillation(nn.Module):
    """DINO's loss, as a module so that it is compiled with the networks."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, online: Tensor, target: Tensor, target_temperature: Tensor) -> Tensor:
        """The mean over pairs of two different views: (V, B, K), centred (G, B, K), () -> (B,)."""
        with torch.autocast(online.device.type, enabled=False):
            probabilities = softmax_of(target, target_temperature)  # (G, B, K)
            pairs = cross_entropies(online, probabilities, temperature=self.temperature)  # (V, G, B)
            V, G = pairs.shape[:2]  # the first G online views are those the target sees
            different = 1.0 - torch.eye(V, G, dtype=pairs.dtype, device=pairs.device)[..., None]
            return (different * pairs).sum((0, 1)) / (V * G - G)


class DINO(nn.Module):
    """Online: f and g. Target: f, g and the centre."""

    spans_batch = False

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.loss: DinoLoss = config.loss
        self.freeze_epochs: float = config.heads.freeze_last_epochs
        self.online = Embedder(config)
        self.target = make_target(self.online if config.target.start == "copy" else Embedder(config))
        self.centre = Centre(config.heads.dim, momentum=config.target.centre_momentum)
        self.distillation = ViewDistillation(config.loss.temperature)
        self.frozen: Frozen | None = None

    def forward(self, views: Views, draws: Draws) -> Output:
        """Cross-entropy of every online view with the target's probabilities of the other global views."""
        G, B = views.global_views.shape[:2]
        groups = [group.flatten(0, 1) for group in views.groups]
        self.frozen = freeze_for(self.freeze_epochs, self.online.projector.last_weights(), draws)
        features, online = self.online(groups)  # (V B, D), (V B, K)
        with torch.no_grad():
            raw = self.target(groups[:1])[1].unflatten(0, (G, B))  # (G, B, K)
            target = self.centre(raw)
        temperature = draws.scalar("target temperature", self.target_temperature)
        return Output(
            losses=self.distillation(online.unflatten(0, (-1, B)), target, temperature),
            observed={"features": features[: G * B].detach(), "target": raw},
            statistics={"centre": batch_mean(raw)},
        )

    def target_temperature(self, epoch: float) -> float:
        """The target's temperature at an epoch."""
        ends = {"start": self.loss.target_temperature_start, "end": self.loss.target_temperature}
        return warmed_up(epoch, **ends, epochs=self.loss.temperature_warmup_epochs)

    def update(self, statistics: dict[str, Tensor], *, momentum: float) -> None:
        """Move the target towards the online network, the centre towards the batch mean."""
        restore(self.frozen)
        update_target(self.target, self.online, momentum=momentum)
        self.centre.update(statistics["centre"])

    def encode(self, x: Tensor) -> Embedding:
        """Evaluation views, (N, 3, h, h)."""
        features, embedding = self.online([x])
        return Embedding(features, embedding, None)


def freeze_for(epochs: float, weights: list[nn.Parameter], draws: Draws) -> Frozen | None:
    """The current weights, to be restored after each step of the first epochs."""
    if not epochs:
        return None
    return freeze(weights, draws.scalar("last layer frozen", lambda epoch: float(epoch < epochs)))


def wide_dtype(x: Tensor) -> torch.dtype:
    """float32, or float64 where the tensor has it."""
    return torch.promote_types(x.dtype, torch.float32)
