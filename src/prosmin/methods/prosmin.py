"""ProSMIN: the online network forecasts the target's embedding as a Gaussian; the loss is a proper scoring rule.

Vahidi et al., Probabilistic Self-supervised Learning via Scoring Rules Minimization, 2023. docs/scoring.md explains
where this differs from the paper and why.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prosmin.config import Config, ProsminLoss
from prosmin.data.views import Views
from prosmin.methods.identification import Identification, constant
from prosmin.methods.output import Draws, Embedding, Output
from prosmin.models.batchnorm import gather_rows
from prosmin.models.condition import condition, typical_condition
from prosmin.models.heads import Embedder, build_predictor
from prosmin.models.radius import RadiusForecast
from prosmin.models.target import make_target, update_target
from prosmin.models.whitening import Whitening, make_centre, unit_variance
from prosmin.randomness import Streams, box_muller
from prosmin.scoring import median_bandwidth, noise_count, view_scores


def at_targets(score: Callable[..., Tensor], *forecast: Tensor, target: Tensor) -> Tensor:
    """`score(*forecast, target)` of forecasts (V, B, K) at targets (G, B, K): (V, G, B).

    Where there is one forecast for each target, (V, G, B, K), it is scored at this target alone.
    """
    if forecast[0].ndim == target.ndim:
        return score(*forecast, target)
    parts = [score(*(x[:, g] for x in forecast), target[g : g + 1]) for g in range(len(target))]
    return torch.cat(parts, dim=1)


def at_pairs(rows: Tensor, pairs: Sequence[tuple[int, int]], shape: Sequence[int]) -> Tensor:
    """Forecasts of some pairs of views, (P B, K), among all: (V, G, B, K), with 1 where there is none."""
    found = dict(zip(pairs, rows.unflatten(0, (len(pairs), shape[2])), strict=True))
    none = torch.ones_like(found[pairs[0]])
    every = [found.get((v, g), none) for v in range(shape[0]) for g in range(shape[1])]
    return torch.stack(every).unflatten(0, shape[:2])


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
        """mean, scale (V, B, K), target (G, B, K), noise (V, B, S', K), weights (V, G, B) -> mean scores (B,).

        A view's forecasts have the same noise for every target, also where there is one for each, (V, G, B, K).
        """
        score = partial(view_scores, noise=noise, bandwidth=bandwidth, **self.settings)
        scores = at_targets(score, mean, scale, target=target)
        return (weights * scores).sum((0, 1)) / weights.sum((0, 1))


class ProSMIN(nn.Module):
    """Online: f, g and q. Target: f, g and the centre, or the whitening that generalises it."""

    typical: Tensor

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
        self.is_conditional = config.heads.condition  # forecasts depend on which view is forecast
        if self.is_conditional:
            self.register_buffer("typical", typical_condition(config.views), persistent=False)

    def forward(self, views: Views, draws: Draws) -> Output:
        """The score of every view's forecast against the target's embeddings of the global views."""
        G, B = views.global_views.shape[:2]
        groups = [group.flatten(0, 1) for group in views.groups]
        features, t = self.online(groups)  # (V B, D), (V B, K)
        told = self.told(views)
        mean, scale = self.forecast(t.unflatten(0, (-1, B)), told)  # (V, B, K); told of the target (V, G, B, K)
        with torch.no_grad():
            raw = self.target(groups[:1])[1].unflatten(0, (G, B))  # (G, B, K)
            centred = self.centre(raw)
            target = unit_variance(centred) if self.normalise else centred
        losses = self.loss.score_weight * self.score(mean, scale, target, draws)
        if self.radius is not None:
            weights = self.pairs(len(mean), target)
            scores = at_targets(self.radius.score, mean, scale, target=target)
            losses = losses + (weights * scores).sum((0, 1)) / weights.sum((0, 1))
        if self.loss.identification:
            losses = losses + self.loss.identification * self.identify(t, mean, target, told)
        if told is not None:  # of the global views each forecast of the other
            mean, scale = (torch.stack([x[g, G - 1 - g] for g in range(G)]) for x in (mean, scale))
        observed = {"features": features[: G * B].detach(), "target": raw}
        if self.loss.score_weight:
            observed["scale"] = scale.detach()
        if self.is_whitened:
            observed |= {"mean": mean.detach(), "whitened": centred, "scored": target}
        if isinstance(self.centre, Whitening):
            observed["covariance"] = self.centre.covariance
        return Output(losses, observed, statistics={"centre": self.centre.batch_statistics(raw)})

    def told(self, views: Views) -> Tensor | None:
        """What every view's forecast of every target is told, (V, G, B, C); None if it is told nothing."""
        if not self.is_conditional:
            return None
        assert views.parameters is not None
        return condition(views.parameters[:, None], views.parameters[: len(views.global_views)])

    def forecast(self, t: Tensor, told: Tensor | None) -> tuple[Tensor, Tensor]:
        """t (V, B, K) -> mean and scale (V, B, K); told of each target, (V, G, B, C), (V, G, B, K).

        Pairs that are not scored are not forecast, since they would count in the BatchNorm of q.
        """
        if told is None:
            mean, scale = self.predictor(t.flatten(0, 1))
            return mean.unflatten(0, t.shape[:2]), scale.unflatten(0, t.shape[:2])
        views, targets = told.shape[:2]
        pairs = [(v, g) for v in range(views) for g in range(targets) if self.loss.same_view or v != g]
        mean, scale = self.predictor(torch.cat([t[v] for v, _ in pairs]), torch.cat([told[pair] for pair in pairs]))
        return at_pairs(mean, pairs, told.shape[:3]), at_pairs(scale, pairs, told.shape[:3])

    def score(self, mean: Tensor, scale: Tensor, target: Tensor, draws: Draws) -> Tensor:
        """mean, scale (V, B, K) or (V, G, B, K) against target (G, B, K) -> one loss per image, (B,)."""
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

    def identify(self, t: Tensor, mean: Tensor, target: Tensor, told: Tensor | None = None) -> Tensor:
        """The identification loss: t (V B, K), its forecasts' mean (V, B, K), target (G, B, K) -> (B,)."""
        if self.loss.score_weight:  # then the score alone trains the predictor, so that its forecast stays proper
            with constant(self.predictor):
                mean, _ = self.forecast(t.unflatten(0, (-1, target.shape[1])), told)
        targets, first = gather_rows(target)  # (G, N, K)
        rows = torch.arange(first, first + target.shape[1], device=t.device)
        weights = self.pairs(len(mean), target)
        scores = at_targets(partial(self.identification, rows=rows), mean, target=targets)
        return (weights * scores).sum((0, 1)) / weights.sum((0, 1))

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

    def encode(self, x: Tensor, condition: Tensor | None = None) -> Embedding:
        """Views (N, 3, h, h); where forecasts are told of their view (N, C), by default of the typical view."""
        features, t = self.online([x])
        if self.is_conditional and condition is None:
            condition = self.typical.expand(x.shape[0], -1)
        mean, scale = self.predictor(t) if condition is None else self.predictor(t, condition)
        return Embedding(features, mean, scale if self.loss.score_weight else None)

    def observe(self, x: Tensor) -> Tensor:
        """The embeddings that forecasts are scored against: views (N, 3, h, h) -> centred or whitened (N, K)."""
        z = self.centre(self.target([x])[1])
        return unit_variance(z) if self.normalise else z
