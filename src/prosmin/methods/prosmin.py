"""ProSMIN: the online network forecasts the target's embedding as a Gaussian; the loss is a proper scoring rule.

Vahidi et al., Probabilistic Self-supervised Learning via Scoring Rules Minimization, 2023. docs/scoring.md explains
where this differs from the paper and why.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prosmin.config import Config, ProsminLoss
from prosmin.data.views import Views
from prosmin.methods.identification import Identification, constant
from prosmin.methods.output import Draws, Embedding, Output
from prosmin.models.batchnorm import gather_rows
from prosmin.models.heads import Embedder, build_predictor
from prosmin.models.radius import RadiusForecast
from prosmin.models.target import make_target, update_target
from prosmin.models.whitening import Whitening, make_centre, unit_variance
from prosmin.randomness import Streams, box_muller
from prosmin.scoring import median_bandwidth, noise_count, view_scores


class ForecastNoise(nn.Module):
    """The normal numbers of the samples, as a module so that it is compiled with the networks."""

    def forward(self, streams: Streams, shape: tuple[int, int, int]) -> Tensor:
        """The streams of B images, shape (V, S', K) -> (V, B, S', K)."""
        return box_muller(streams, shape).transpose(0, 1)


class ForecastScore(nn.Module):
    """The scoring rule over all views and targets of a batch, as a module so that it is compiled with the networks."""

    def __init__(self, loss: ProsminLoss) -> None:
        super().__init__()
        names = ("rule", "norm", "pairs", "estimator", "beta", "lam", "samples", "antithetic", "absolute")
        self.settings = {name: getattr(loss, name) for name in names}

    def forward(
        self,
        mean: Tensor,
        scale: Tensor,
        target: Tensor,
        noise: Tensor | None,
        weights: Tensor,
        bandwidth: float | Tensor | None = None,
    ) -> Tensor:
        """mean, scale (V, B, K), target (G, B, K), noise (V, B, S', K), weights (V, G, B) -> mean scores (B,)."""
        scores = view_scores(mean, scale, target, noise=noise, bandwidth=bandwidth, **self.settings)
        return (weights * scores).sum((0, 1)) / weights.sum((0, 1))


class ProSMIN(nn.Module):
    """Online: f, g and q. Target: f, g and the centre, or the whitening that generalises it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.loss: ProsminLoss = config.loss
        # Without a given bandwidth the kernel uses the median distance between the batch's targets.
        self.bandwidth_from_batch = config.loss.rule == "kernel" and config.loss.bandwidth is None
        whitens = config.heads.last == "whiten"
        self.spans_batch = self.bandwidth_from_batch or config.loss.identification > 0 or whitens
        self.noise = ForecastNoise()
        self.scorer = ForecastScore(config.loss)
        self.identification = Identification(config.loss.temperature)
        self.online = Embedder(config)
        self.predictor = build_predictor(config.heads)
        self.target = make_target(self.online if config.target.start == "copy" else Embedder(config))
        self.centre = make_centre(config.target, config.heads.dim)
        unit = 1.0 if config.target.has_unit_variance(config.heads) else config.heads.initial_scale
        has_radius = config.heads.radius and config.heads.scale == "learned" and config.loss.score_weight > 0
        self.radius = RadiusForecast(config.heads.dim, unit=unit) if has_radius else None
        self.is_whitened = config.target.is_whitened(config.heads)
        self.normalise = config.target.normalise

    def forward(self, views: Views, draws: Draws) -> Output:
        """The score of every view's forecast against the target's embeddings of the global views."""
        G, B = views.global_views.shape[:2]
        groups = [group.flatten(0, 1) for group in views if group is not None]
        features, t = self.online(groups)  # (V B, D), (V B, K)
        mean, scale = (x.unflatten(0, (-1, B)) for x in self.predictor(t))  # (V, B, K)
        with torch.no_grad():
            raw = self.target(groups[:1])[1].unflatten(0, (G, B))  # (G, B, K)
            centred = self.centre(raw)
            target = unit_variance(centred) if self.normalise else centred
        losses = self.loss.score_weight * self.score(mean, scale, target, draws)
        if self.radius is not None:
            weights = self.pairs(len(mean), target)
            losses = losses + (weights * self.radius.score(mean, scale, target)).sum((0, 1)) / weights.sum((0, 1))
        if self.loss.identification:
            losses = losses + self.loss.identification * self.identify(t, mean, target)
        observed = {"features": features[: G * B].detach(), "target": raw}
        if self.loss.score_weight:
            observed["scale"] = scale.detach()
        if self.is_whitened:
            observed |= {"mean": mean.detach(), "whitened": centred, "scored": target}
        if isinstance(self.centre, Whitening):
            observed["covariance"] = self.centre.covariance
        return Output(losses, observed, statistics={"centre": self.centre.batch_statistics(raw)})

    def score(self, mean: Tensor, scale: Tensor, target: Tensor, draws: Draws) -> Tensor:
        """mean, scale (V, B, K) against target (G, B, K) -> one loss per image, (B,)."""
        loss = self.loss
        count = noise_count(loss.estimator, loss.samples, loss.antithetic)
        noise = None
        if count:
            shape = (len(mean), count, mean.shape[-1])
            noise = self.noise(draws.normal("forecast", shape), shape).to(mean.dtype)
        weights = self.pairs(len(mean) if loss.pairs == "within" else 1, target)  # (V or 1, G, B)
        if loss.target_views == "one":
            chosen = (draws.uniform("target view", 1)[:, 0] * len(target)).long()  # (B,)
            weights = weights * F.one_hot(chosen, len(target)).T.to(weights)
        bandwidth: float | Tensor | None = loss.bandwidth
        if self.bandwidth_from_batch:
            bandwidth = median_bandwidth(gather_rows(target)[0], validate=False)
        return self.scorer(mean, scale, target, noise, weights, bandwidth)

    def identify(self, t: Tensor, mean: Tensor, target: Tensor) -> Tensor:
        """The identification loss: t (V B, K), its forecast's mean (V, B, K), target (G, B, K) -> (B,)."""
        if self.loss.score_weight:  # then the score alone trains the predictor, so that its forecast stays proper
            with constant(self.predictor):
                mean = self.predictor(t)[0].unflatten(0, (-1, target.shape[1]))
        targets, first = gather_rows(target)  # (G, N, K)
        rows = torch.arange(first, first + target.shape[1], device=t.device)
        weights = self.pairs(len(mean), target)
        return (weights * self.identification(mean, targets, rows)).sum((0, 1)) / weights.sum((0, 1))

    def pairs(self, views: int, target: Tensor) -> Tensor:
        """Weights (V, G, B) of pairs of views and targets: 1, or 0 for the same view if `same_view` is false."""
        weights = torch.ones(views, *target.shape[:2], dtype=target.dtype, device=target.device)
        if self.loss.same_view:
            return weights
        return weights - torch.eye(views, len(target), dtype=target.dtype, device=target.device)[..., None]

    def update(self, statistics: dict[str, Tensor], *, momentum: float) -> None:
        """Move the target towards the online network, the centre towards the batch mean."""
        update_target(self.target, self.online, momentum=momentum)
        self.centre.update(statistics["centre"])

    def encode(self, x: Tensor) -> Embedding:
        """Evaluation views, (N, 3, h, h)."""
        features, t = self.online([x])
        mean, scale = self.predictor(t)
        return Embedding(features, mean, scale if self.loss.score_weight else None)

    def observe(self, x: Tensor) -> Tensor:
        """The embeddings that forecasts are scored against: views (N, 3, h, h) -> centred or whitened (N, K)."""
        z = self.centre(self.target([x])[1])
        return unit_variance(z) if self.normalise else z
