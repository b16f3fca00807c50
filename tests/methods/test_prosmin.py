"""ProSMIN: its loss is the mean of the scores it names, its randomness depends on seed, step and position."""

import warnings

import pytest
import torch

from prosmin import config as configs
from prosmin.data.views import Views
from prosmin.errors import UsageError
from prosmin.methods import build_method
from prosmin.methods.output import Draws
from prosmin.methods.prosmin import ForecastScore
from prosmin.models.heads import build_predictor
from prosmin.scoring import ProprietyWarning


def _views(pictures: int = 4, local: int = 1) -> Views:
    random = torch.Generator().manual_seed(0)
    globals_ = torch.randn(2, pictures, 3, 32, 32, generator=random)
    return Views(globals_, torch.randn(local, pictures, 3, 16, 16, generator=random) if local else None)


def _draws(pictures: int = 4) -> Draws:
    return Draws(0, 0, torch.arange(pictures), 0.0)


def test_an_independent_target_gets_no_gradient_and_the_centre_follows_the_batch(tiny):
    method = build_method(tiny(target__start="independent", target__whitening="centre"))
    output = method(_views(), _draws())
    output.losses.mean().backward()
    for name, parameter in method.named_parameters():
        assert (parameter.grad is None) == name.startswith("target."), name
    method.update(output.statistics, momentum=0.8)
    torch.testing.assert_close(method.centre.value, 0.1 * output.observed["target"].mean((0, 1)))


def test_the_loss_is_the_mean_over_views_and_targets(tiny):
    """Against a loop over images, views and targets, with the deterministic twin: |mean - target| at lam 1/2."""
    method = build_method(tiny(heads__scale="zero", loss__same_view="true", loss__beta="1")).double()
    mean, target = (
        torch.randn(n, 4, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (3, 2)
    )
    found = method.score(mean, torch.zeros_like(mean), target, _draws())
    for b in range(4):
        distances = [torch.dist(mean[v, b], target[g, b]) for v in range(3) for g in range(2)]
        torch.testing.assert_close(found[b], sum(distances) / 6)


def test_same_view_pairs_can_be_left_out_and_one_target_view_chosen(tiny):
    mean, target = (
        torch.randn(n, 64, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (3, 2)
    )
    distances = (mean[:, None] - target[None]).norm(dim=-1)  # (V, G, B)

    def score(**changes: str) -> torch.Tensor:
        method = build_method(tiny(heads__scale="zero", loss__beta="1", **changes)).double()
        return method.score(mean, torch.zeros_like(mean), target, _draws(64))

    others = torch.tensor([[0, 1], [1, 0], [1, 1]], dtype=torch.float64)[..., None]
    torch.testing.assert_close(score(loss__same_view="false"), (others * distances).sum((0, 1)) / 4)
    one = score(loss__same_view="true", loss__target_views="one")
    by_target = distances.mean(0)  # (G, B)
    is_first, is_second = (torch.isclose(one, by_target[g]) for g in range(2))
    assert bool((is_first | is_second).all())
    assert 16 < int(is_first.sum()) < 48  # a fair coin over 64 images leaves this range once in 20,000 seeds


def test_an_images_noise_depends_on_its_position_alone(tiny):
    method = build_method(tiny())
    mean, target = (torch.randn(n, 4, 24, generator=torch.Generator().manual_seed(n)) for n in (3, 2))
    scale = torch.full_like(mean, 0.3)
    whole = method.score(mean, scale, target, _draws())
    half = method.score(mean[:, 2:], scale[:, 2:], target[:, 2:], Draws(0, 0, torch.arange(2, 4), 0.0))
    torch.testing.assert_close(whole[2:], half)
    assert not torch.equal(whole, method.score(mean, scale, target, Draws(0, 1, torch.arange(4), 0.0)))


def test_weights_depend_on_the_seed_alone(tiny):
    torch.manual_seed(1)
    one = build_method(tiny())
    torch.manual_seed(2)
    same, other = build_method(tiny()), build_method(tiny(training__seed="1"))
    for a, b in zip(one.state_dict().values(), same.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.online.backbone.stem[0].weight, other.online.backbone.stem[0].weight)


def _recipe_loss(name: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProprietyWarning)
        return configs.resolve(recipe=name).loss


def _small_case() -> tuple[torch.Tensor, ...]:
    """mean, scale (V, B, K), target (G, B, K), noise (V, B, S, K)."""
    random = torch.Generator().manual_seed(0)
    mean, scale = (torch.randn(3, 2, 5, generator=random, dtype=torch.float64) for _ in range(2))
    target = torch.randn(2, 2, 5, generator=random, dtype=torch.float64)
    return mean, scale.abs(), target, torch.randn(3, 2, 4, 5, generator=random, dtype=torch.float64)


def test_recipe_paper_is_equation_2():
    """All samples of all views in one pool, Euclidean, the absolute value around it, one target view an image."""
    loss = _recipe_loss("paper")
    mean, scale, target, noise = _small_case()
    chosen = torch.zeros(1, 2, 2, dtype=torch.float64)
    chosen[:, 1] = 1.0
    found = ForecastScore(loss)(mean, scale, target, noise, chosen)
    for b in range(2):
        z = [mean[v, b] + scale[v, b] * noise[v, b, s] for v in range(3) for s in range(4)]
        r = len(z)
        to_target = sum(torch.dist(a, target[1, b]) for a in z)
        apart = sum(torch.dist(z[j], z[k]) for j in range(r) for k in range(r) if j != k)
        expected = abs(2 * loss.lam / r * to_target - (1 - loss.lam) / (r * (r - 1)) * apart)
        torch.testing.assert_close(found[b], expected)


SMALL_RELEASE = {
    "backbone.patch_size": "8", "backbone.width": "12", "backbone.depth": "1", "backbone.heads": "2",
    "backbone.drop_path": "0", "views.global_size": "32", "views.local_size": "16", "views.local": "1",
    "heads.hidden": "16", "heads.bottleneck": "8", "heads.dim": "20", "heads.predictor_hidden": "20",
    "compute.precision": "64-true", "compute.compile": "none", "compute.accelerator": "cpu", "training.batch_size": "3",
}  # fmt: skip
"""The recipe with small networks. What makes it the released objective stays as it is."""


def _published_loss(mean: torch.Tensor, scale: torch.Tensor, target: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The loss of the published code as loops: l = 2.4, four samples, mean absolute differences, ten times the sum.

    mean, scale (V, B, K), target (G, B, K) centred, noise (V, B, S, K) -> (). The published program adds 9e-6 to both
    parts, which has no gradient and is left out.
    """
    V, _, S, _ = noise.shape
    samples = [[mean[v] + scale[v] * noise[v, :, s] for s in range(S)] for v in range(V)]  # each (B, K)
    first, count = torch.zeros((), dtype=mean.dtype), 0
    for s in range(S):
        for g in range(len(target)):
            for v in range(V):
                first, count = first + 2 * (samples[v][s] - target[g]).abs().mean(), count + 1
    second = torch.zeros((), dtype=mean.dtype)
    for i in range(S):
        for j in range(i + 1, S):
            apart = torch.stack([(samples[v][i] - samples[v][j]).abs() for v in range(V)]).mean()
            second = second - apart / (S - 1)
    return 10 * (first / count + 2.4 * second / S)


def _published_forecast(predictor: torch.nn.Module, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The published predictor, written with matrices: linear, GELU, linear, l2, ReLU, two branches without bias."""
    one, _, two = predictor.body
    x = t @ one.weight.T + one.bias
    x = 0.5 * x * (1 + torch.erf(x / 2**0.5))
    x = x @ two.weight.T + two.bias
    x = torch.relu(x / x.square().sum(-1, keepdim=True).sqrt())
    return x @ predictor.mean.weight.T, torch.exp((x @ predictor.log_variance.weight.T) * 0.5)


def test_recipe_release_is_the_published_codes_objective():
    """Loss and gradient of the whole method, against a loop over the published formula, up to its factor of 22."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProprietyWarning)
        config = configs.resolve(recipe="release", overrides=SMALL_RELEASE)
    method = build_method(config).double()
    method.centre.value.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.01)
    views = Views(*(group.double() for group in _views(3).groups))
    draws = _draws(3)
    ours = method(views, draws).losses.mean()
    parameters = dict(method.online.named_parameters(prefix="online")) | dict(method.predictor.named_parameters())
    found = dict(zip(parameters, torch.autograd.grad(ours, list(parameters.values())), strict=True))

    groups = [group.flatten(0, 1) for group in views.groups]
    mean, scale = (x.unflatten(0, (3, 3)) for x in _published_forecast(method.predictor, method.online(groups)[1]))
    target = method.target(groups[:1])[1].detach().unflatten(0, (2, 3)) - method.centre.value
    shape = (3, 4, 20)  # views, samples, K
    noise = method.noise(draws.normal("forecast", shape), shape).double()
    published = _published_loss(mean, scale, target, noise)
    torch.testing.assert_close(22 * ours, published)
    expected = torch.autograd.grad(published, list(parameters.values()))
    for (name, gradient), other in zip(found.items(), expected, strict=True):
        torch.testing.assert_close(22 * gradient, other, msg=name)
    assert scale.detach().log().abs().max() < 0.5  # it starts near 1, whatever the width
    assert "online.projector.last.gain" in parameters  # a free last layer


def test_recipe_release_has_the_published_sizes_and_limit():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProprietyWarning)
        config = configs.resolve(recipe="release")
    assert (config.heads.dim, config.heads.predictor_hidden) == (12000, 12000)
    assert (config.optimizer.clip_each, config.optimizer.clip) == (True, pytest.approx(3 / 22))
    assert config.loss.lam == pytest.approx(1 / (1 + 2.4 / 2))
    with torch.device("meta"):
        weights = sum(p.numel() for p in build_predictor(config.heads).parameters())
    assert weights == 4 * 12000**2 + 2 * 12000
    for wrong in ({"heads.batchnorm": "true"}, {"heads.predictor": "false"}):
        with pytest.raises(UsageError, match=r"heads\.predictor_form"):
            configs.resolve(recipe="release", overrides=wrong)
