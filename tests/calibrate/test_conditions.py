"""Which views the forecasts of a calibrated encoder are told of."""

import pytest
import torch

import prosmin
from prosmin.calibrate import Request, calibrate
from prosmin.calibrate.views import view_features
from prosmin.data.image_sets import load_pictures
from prosmin.data.stream import Batch
from prosmin.data.views import PARAMETERS, draws_of_step, evaluation_parameters, typical_parameters, view_parameters
from prosmin.evaluation.forecasts import make_forecasts, view_scores
from prosmin.models.condition import condition
from prosmin.models.vit import encode

COUNT = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory, dino, data):
    out = tmp_path_factory.mktemp("made") / "calibrated"
    calibrate(dino, Request(data=data, out=out, views=2))
    return out


@pytest.fixture
def encoder(folder, monkeypatch):
    """A calibrated encoder that notes its conditions in `told`."""
    encoder = prosmin.load(folder, device="cpu")
    encoder.told = []
    original = encoder.method.encode

    def noting(x, condition=None):
        encoder.told.append(condition)
        return original(x, condition)

    monkeypatch.setattr(encoder.method, "encode", noting)
    return encoder


@pytest.fixture
def pictures(data):
    return load_pictures(data).subset(torch.arange(COUNT))


def random_parameters(encoder, pictures, *, seed, step=0):
    """Of the two global views of a step, (2, N, P)."""
    views = encoder.config.views
    draws = draws_of_step(views, seed=seed, step=step, positions=torch.arange(COUNT))
    return view_parameters(pictures.sizes, views, draws)[:2]


def test_views_are_made_with_their_own_parameters(encoder, pictures):
    batch = Batch(pictures.images, pictures.sizes, torch.arange(COUNT))
    found = view_features(encoder, batch, views=3, seed=4)
    features, parameters = found.tensor_split([-len(PARAMETERS)], dim=-1)
    assert features.shape[:2] == (COUNT, 5)
    backbone = encoder.method.get_submodule("online.backbone")
    for place, view in enumerate((encoder._evaluation_view(batch), encoder._typical_view(batch))):
        torch.testing.assert_close(features[:, place], encode(backbone, view))
    for place, (view, _) in enumerate(encoder._random_views(batch, count=3, seed=4)):
        torch.testing.assert_close(features[:, 2 + place], encode(backbone, view))
    views = encoder.config.views
    torch.testing.assert_close(parameters[:, 0], evaluation_parameters(pictures.sizes, views))
    torch.testing.assert_close(parameters[:, 1], typical_parameters(pictures.sizes, views))
    drawn = torch.cat([random_parameters(encoder, pictures, seed=4, step=step) for step in (0, 1)])[:3]
    torch.testing.assert_close(parameters[:, 2:], drawn.transpose(0, 1))


def test_views_are_encoded_one_by_one(encoder, pictures, monkeypatch):
    """All views of a batch at once do not fit into memory."""
    made, waiting = encoder._random_views, []

    def counting(*given, **more):
        for drawn in made(*given, **more):
            waiting.append(drawn)
            yield drawn
            waiting.pop()

    found = []
    backbone = encoder.method.get_submodule("online.backbone")
    backbone.register_forward_hook(lambda *_: found.append(len(waiting)))
    monkeypatch.setattr(encoder, "_random_views", counting)
    view_features(encoder, Batch(pictures.images, pictures.sizes, torch.arange(COUNT)), views=3, seed=4)
    assert found == [0, 0, 1, 1, 1]


def test_two_views_forecast_each_other(encoder, pictures):
    make_forecasts(encoder, pictures, seed=5)
    first, second = random_parameters(encoder, pictures, seed=5)
    (told,) = encoder.told
    torch.testing.assert_close(told, torch.cat([condition(first, second), condition(second, first)]))


@pytest.mark.parametrize("call", ["views", "view_scores"])
def test_random_views_forecast_the_typical_one(encoder, pictures, call):
    if call == "views":
        encoder.views(pictures, count=2, seed=6)
    else:
        view_scores(encoder, pictures, seed=6, count=2)
    typical = typical_parameters(pictures.sizes, encoder.config.views)
    expected = [condition(given, typical) for given in random_parameters(encoder, pictures, seed=6)]
    torch.testing.assert_close(torch.stack(encoder.told), torch.stack(expected))


def test_the_evaluation_view_forecasts_the_typical_one(encoder, pictures):
    found = encoder(pictures)
    assert encoder.told == [None]
    views, large = encoder.config.views, torch.tensor([[10_000, 10_000]])  # without rounding of boxes to pixels
    known = condition(evaluation_parameters(large, views), typical_parameters(large, views)).expand(COUNT, -1)
    heads = encoder.method.predictor
    mean, scale = heads(encoder.method.whiten(found.features), known)
    torch.testing.assert_close(found.mean, mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.scale, scale / heads.factor * heads.typical_factor, atol=1e-5, rtol=1e-4)
