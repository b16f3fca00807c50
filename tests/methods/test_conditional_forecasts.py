"""ProSMIN with `heads.condition`: each forecast is told which two views it is of."""

import pytest
import torch
from torch import Tensor, nn

import prosmin
from prosmin.data.image_sets import load_pictures
from prosmin.data.views import (
    PARAMETERS,
    Views,
    draw,
    draws_of_step,
    evaluation_view,
    render,
    render_told,
    view_parameters,
)
from prosmin.errors import UsageError
from prosmin.evaluation.forecasts import make_forecasts, radius_forecasts, view_scores
from prosmin.methods import build_method
from prosmin.methods.prosmin import ProSMIN
from prosmin.models.condition import CONDITION, condition, typical_condition
from prosmin.scoring import noise_count
from prosmin.scoring import view_scores as scores_of_views
from prosmin.training.pretrain import pretrain
from prosmin.training.step import graph_inputs
from tiny_methods import WHITENED_HEADS, tiny_draws, tiny_method, tiny_views
from tiny_run import assert_same_run

TOLD = {"heads__condition": "true"}
RUN = WHITENED_HEADS | TOLD | {"heads__dim": "8", "heads__radius": "true", "loss__same_view": "false"}
SOLARISE = PARAMETERS.index("solarise")


def random_parameters(views: int, images: int) -> Tensor:
    """Of views of photographs of different sizes, (V, B, P)."""
    config = tiny_method("prosmin", views__local=str(views - 2)).views
    sizes = torch.stack([torch.arange(images) + 32, torch.arange(images) * 3 + 40], dim=1)
    return view_parameters(sizes, config, draws_of_step(config, seed=1, step=2, positions=torch.arange(images)))


class TestViews:
    def test_views_come_with_the_parameters_of_each(self):
        config = tiny_method("prosmin", views__local="2").views
        images = torch.randint(256, (5, 3, 40, 48), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
        sizes = torch.tensor([[40, 48], [32, 48], [40, 40], [20, 20], [40, 30]])
        draws = draw(config, tiny_draws(pictures=5).uniform)
        told, plain = render_told(images, sizes, config, draws), render(images, sizes, config, draws)
        assert plain.parameters is None
        assert all(torch.equal(one, other) for one, other in zip(told.groups, plain.groups, strict=True))
        assert told.parameters.shape == (4, 5, len(PARAMETERS))
        area = told.parameters[..., 2] * told.parameters[..., 3]
        assert area[:2].min() > 0.35  # global views have 0.4 to 1 of the area, local ones 0.1 to 0.4, but for rounding
        assert area[2:].max() < 0.45
        only_global = view_parameters(sizes, tiny_method("prosmin", views__local="0").views, draws)
        assert torch.equal(told.parameters[:2], only_global)

    def test_a_recorded_step_copies_the_parameters_too(self):
        views = tiny_views(tiny_method("prosmin", **TOLD))
        assert Views(**graph_inputs([views])) == views
        assert list(graph_inputs([views._replace(local_views=None)])) == ["global_views", "parameters"]


class TestUnconditional:
    def test_the_field_adds_nothing_to_the_state_and_does_nothing_where_it_is_false(self):
        plain, told = (build_method(tiny_method("prosmin", heads__condition=value)) for value in ("false", "true"))
        assert plain.state_dict().keys() == told.state_dict().keys()
        assert not hasattr(plain, "typical")
        wider = [name for name, x in told.state_dict().items() if x.shape != plain.state_dict()[name].shape]
        assert wider == ["predictor.body.0.weight"]
        views = tiny_views(tiny_method("prosmin"))
        with_parameters = views._replace(parameters=random_parameters(3, 4))
        assert torch.equal(plain(views, tiny_draws()).losses, plain(with_parameters, tiny_draws()).losses)

    def test_its_run_is_told_nothing(self, monkeypatch, tmp_path):
        monkeypatch.setattr("prosmin.data.views.view_parameters", None)  # an error where it is called
        pretrain(tiny_method("prosmin", training__max_steps="1"), tmp_path / "run")


def slow_loss(method: ProSMIN, views: Views, weight: float) -> Tensor:
    """The loss of each image, (B,): one forecast at a time."""
    G, B = views.global_views.shape[:2]
    t = method.online([group.flatten(0, 1) for group in views.groups])[1].unflatten(0, (-1, B))
    target = method.centre(method.target([views.global_views.flatten(0, 1)])[1]).unflatten(0, (G, B))
    loss, settings = method.loss, method.scorer.settings
    count = noise_count(loss.estimator, loss.samples, loss.antithetic)
    shape = (len(t), count, t.shape[-1])
    noise = None if not count else method.noise(tiny_draws(pictures=B).normal("forecast", shape), shape)
    found = []
    for b in range(B):
        pairs = []
        for v in range(len(t)):
            for g in range(G):
                if v == g and not loss.same_view:
                    continue
                told = condition(views.parameters[v, b], views.parameters[g, b])
                mean, scale = (x[None] for x in method.predictor(t[v, b, None], told[None]))  # (1, 1, K)
                own, seen = None if noise is None else noise[v, b][None, None].to(mean), target[g, b][None, None]
                score = scores_of_views(mean, scale, seen, noise=own, bandwidth=None, **settings).squeeze()
                score = score + method.radius.score(mean, scale, seen).squeeze()
                cosines = torch.cosine_similarity(mean[0], target[g], dim=-1) / loss.temperature
                pairs.append(score - weight * torch.log_softmax(cosines, dim=0)[b])
        found.append(torch.stack(pairs).mean())
    return torch.stack(found)


@pytest.mark.parametrize(
    "fields",
    [
        {"loss__rule": "crps", "loss__norm": "coordinate", "loss__estimator": "closed", "loss__same_view": "false"},
        {"loss__same_view": "true"},
    ],
    ids=["closed", "samples"],
)
def test_each_forecast_is_told_of_its_own_pair_and_scored_at_its_own_target(fields):
    """Score, radius and identification against a loop over images, views and targets."""
    fields |= TOLD | {"heads__radius": "true", "loss__identification": "0.3", "views__local": "2"}
    config = tiny_method("prosmin", **fields, heads__batchnorm="false", target__start="independent")
    method = build_method(config).double().eval()
    nn.init.normal_(method.radius.layers[-1].weight, std=0.1, generator=torch.Generator().manual_seed(0))
    made = tiny_views(config, pictures=3)
    views = Views(*(group.double() for group in made.groups), random_parameters(4, 3).double())
    with torch.no_grad():
        output = method(views, tiny_draws(pictures=3))
        torch.testing.assert_close(output.losses, slow_loss(method, views, 0.3))
        mean, scale = method.predictor(
            method.online([views.global_views[1]])[1], condition(views.parameters[1], views.parameters[0])
        )
    torch.testing.assert_close(output.observed["scale"][1], scale)  # the second view's forecast of the first
    assert mean.shape == scale.shape == (3, config.heads.dim)


@pytest.mark.parametrize(("same_view", "pairs"), [("true", 6), ("false", 4)])
def test_only_pairs_that_are_scored_are_forecast(same_view, pairs):
    """Three views and two targets. Others would change the statistics of the predictor's BatchNorm."""
    method = build_method(tiny_method("prosmin", **RUN | {"loss__same_view": same_view}))
    seen = []
    method.predictor.register_forward_hook(lambda module, given, made: seen.append(len(given[0])))
    random = torch.Generator().manual_seed(0)
    t, told = torch.randn(3, 32, 8, generator=random), torch.randn(3, 2, 32, CONDITION, generator=random)
    found = method.forecast(t, told)
    assert seen == [32 * pairs]
    assert all(x.shape == (3, 2, 32, 8) for x in found)
    if same_view == "false":
        rows = [(0, 1), (1, 0), (2, 0), (2, 1)]
        expected = method.predictor(torch.cat([t[v] for v, _ in rows]), torch.cat([told[row] for row in rows]))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.cat([one[row] for row in rows]), other)


def test_gradients_reach_all_that_learns():
    config = tiny_method("prosmin", **RUN, loss__identification="0.5")
    method = build_method(config)
    views = tiny_views(config, pictures=32)._replace(parameters=random_parameters(3, 32))
    method(views, tiny_draws(pictures=32)).losses.mean().backward()
    for name, parameter in method.named_parameters():
        assert (parameter.grad is None) == name.startswith("target."), name
    told = method.predictor.body[0].weight.grad[:, -CONDITION:]
    assert told[:, :7].abs().amax(0).min() > 0


class Pixels(nn.Module):
    """An embedder that changes nothing, so that a toy's views are its embeddings: (N, 3, h, h) -> twice (N, K)."""

    def forward(self, groups: list[Tensor]) -> tuple[Tensor, Tensor]:
        found = torch.cat([group.flatten(1) for group in groups])
        return found, found


def toy_views(images: int, random: torch.Generator) -> Views:
    """Views of 12 values: the image's own plus noise, which is large where a view is solarised."""
    solarised = torch.rand(2, images, generator=random) < 0.5
    noise = torch.where(solarised, 0.9, 0.2)[..., None, None, None]
    made = torch.randn(images, 3, 2, 2, generator=random) + noise * torch.randn(2, images, 3, 2, 2, generator=random)
    parameters = torch.zeros(2, images, len(PARAMETERS))
    parameters[..., 2:4] = 1.0
    parameters[..., SOLARISE] = solarised.float()
    return Views(made, None, parameters)


def fitted_to_toy(*, told: bool) -> tuple[float, dict[bool, float]]:
    """The score of other images' forecasts, and the share of their 90 % intervals that holds, by what is forecast."""
    fields = {"heads__dim": "12", "heads__initial_scale": "1", "heads__batchnorm": "false", "loss__same_view": "false"}
    fields |= {"heads__condition": str(told).lower(), "views__local": "0", "target__whitening": "none"}
    method = build_method(tiny_method("prosmin", **fields))
    method.online, method.target = Pixels(), Pixels()
    random = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-2)
    for step in range(300):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / 300)
        method(toy_views(128, random), tiny_draws(pictures=128, step=step)).losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    views = toy_views(4_000, random)
    with torch.no_grad():
        score = method(views, tiny_draws(pictures=4_000)).losses.mean().item()
        known = condition(*views.parameters) if told else None
        _, mean, scale = method.encode(views.global_views[0], known)
    inside = ((method.observe(views.global_views[1]) - mean) / scale).abs() < 1.645
    solarised = views.parameters[1, :, SOLARISE] == 1
    return score, {kind: inside[solarised == kind].float().mean().item() for kind in (False, True)}


def test_a_forecast_that_is_told_scores_better_and_holds_as_often_for_hard_views():
    """Half of the views are solarised, and noisy."""
    (score, shares), (blind, blind_shares) = (fitted_to_toy(told=told) for told in (True, False))
    assert score < 0.97 * blind
    # 2,000 forecasts of 12 coordinates of each kind: a standard error of .002. How far training went decides.
    assert shares == {kind: pytest.approx(0.9, abs=0.05) for kind in shares}
    assert shares[False] - shares[True] < 0.5 * (blind_shares[False] - blind_shares[True])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps."""
    return pretrain(tiny_method("prosmin", **RUN), tmp_path_factory.mktemp("told") / "run")


@pytest.fixture
def encoder(run):
    return prosmin.load(run, device="cpu")


@pytest.fixture(scope="module")
def pictures():
    return load_pictures("photos@test").subset(torch.arange(6))


class TestRun:
    def test_a_resumed_run_is_the_same(self, run, tmp_path):
        for steps in ("2", "4"):
            pretrain(tiny_method("prosmin", **RUN | {"training__max_steps": steps}), tmp_path / "run")
        assert_same_run(run, tmp_path / "run")

    def test_a_saved_encoder_forecasts_the_typical_view(self, encoder, pictures, tmp_path):
        assert encoder.is_conditional
        found, again = encoder(pictures), prosmin.load(encoder.save(tmp_path / "encoder"), device="cpu")(pictures)
        assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
        views = encoder.config.views
        typical = typical_condition(views).expand(len(pictures), -1)
        expected = encoder.method.encode(evaluation_view(pictures.images, pictures.sizes, views), typical)
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.scale, expected.scale)
        assert encoder.joint_radius(pictures).shape == encoder.unexplained(pictures).shape == (len(pictures),)

    def test_evaluation_tells_the_forecasts_their_views(self, encoder, pictures, monkeypatch):
        told, plain = [], encoder.method.encode
        monkeypatch.setattr(encoder.method, "encode", lambda x, known=None: told.append(known) or plain(x, known))
        forecasts = make_forecasts(encoder, pictures, seed=5)
        draws = draws_of_step(encoder.config.views, seed=5, step=0, positions=torch.arange(len(pictures)))
        first, second = view_parameters(pictures.sizes, encoder.config.views, draws)[:2]
        torch.testing.assert_close(told.pop(), torch.cat([condition(first, second), condition(second, first)]))
        assert [x.shape for x in radius_forecasts(encoder, forecasts)] == [(2, len(pictures))] * 2
        made = view_scores(encoder, pictures, seed=0, count=2)
        assert {"surprise", "standardised_error"} <= made.keys()
        assert all(x is not None for x in told)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"loss__pairs": "pooled", "loss__estimator": "ustat", "loss__same_view": "true"}, ["loss.pairs", "within"]),
        ({"heads__predictor": "false"}, ["heads.condition", "heads.predictor"]),
        ({"heads__predictor_form": "released", "heads__batchnorm": "false"}, ["heads.condition", "released", "scaled"]),
    ],
)
def test_what_cannot_be_told_is_refused_with_what_would_work(changes, named):
    with pytest.raises(UsageError) as error:
        tiny_method("prosmin", **TOLD | changes)
    for part in named:
        assert part in str(error.value)
