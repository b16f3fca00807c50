"""The uncertainty protocol: what it measures for which method, and what it never looks at."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from coloured import coloured
from prosmin.data.image_sets import Pictures
from prosmin.data.views import make_views
from prosmin.encoder import UNCERTAINTY_VIEWS, Encoder
from prosmin.encoder.background import make_background
from prosmin.encoder.detectors import fit_knn_distance
from prosmin.encoder.neighbourhood import Neighbourhood
from prosmin.evaluation.context import Context, sample
from prosmin.evaluation.forecasts import make_forecasts, no_forecasts
from prosmin.evaluation.protocol import Result
from prosmin.evaluation.protocols import uncertainty
from prosmin.evaluation.protocols.gallery import Ranked, gallery
from prosmin.methods import METHODS, Observes, build_method
from prosmin.methods.output import Embedding
from tiny_methods import tiny_method

COVERAGE = {f"{kind}_{level}" for kind in ("coverage", "joint_coverage") for level in (50, 90, 95)}
COVERAGE |= {f"joint_coverage_{level}_reachable" for level in (50, 90, 95)}
SKILL = {"energy_score", "energy_skill", "energy_skill_low", "energy_skill_high"} | {
    f"energy_skill_{rival}" for rival in ("coordinates", "climatology")
}
ALWAYS = {"recall_at_1", "r_auroc", "aurc", "aurc_optimal", "aurc_random"} | {
    f"spearman_{what}" for what in ("sharpness", "feature_norm", "crop", "blur", "noise")
}
RIVALS = {"uncertainty", "knn_distance", "centred_distance", "neighbour_distance", "neighbour_dispersion"} | {
    "low_sharpness", "low_feature_norm"
}  # fmt: skip
LABELLED = {"recall_at_1", "r_auroc", "aurc", "aurc_optimal", "aurc_random"}


def encoder(name: str = "prosmin", **changes: str) -> Encoder:
    config = tiny_method(name, **changes)
    return Encoder(build_method(config), config)


def context(model: Encoder, **sets: Pictures) -> Context:
    pictures = {
        "train": coloured(80, side=32),
        "test": coloured(40, side=32, seed=1),
        "strange": coloured(30, side=32, seed=2),
    }
    return Context(model, pictures | sets, ood=("strange",))


@pytest.fixture(scope="module")
def result() -> Result:
    return uncertainty.run(context(encoder()))


def test_everything_is_measured_for_a_forecast_with_a_scale(result: Result) -> None:
    assert result.metrics.keys() > ALWAYS | COVERAGE | SKILL | {"pit_distance", "squared_error_ratio"}
    assert result.settings["uncertainty"] == "mean log scale"
    assert result.settings["calibration"]["pictures"] == 40
    assert result.settings["calibration"]["reference"].startswith("8 images")
    assert result.settings["severity"] == {"pictures": 40, "parameters": "cifar-10-c", "left_out": {}}
    assert set(result.curves) == {"risk_coverage", "coverage", "pit", "severity"}
    assert set(result.curves["severity"]) == {"crop", "blur", "noise"}
    assert set(result.sets["test"]) == RIVALS | {
        "mean_log_scale",
        "between_view_variance",
        "surprise",
        "standardised_error",
    }
    assert result.sets["test"]["uncertainty"]["aurc"] == result.metrics["aurc"]
    assert all(math.isfinite(value) for name, value in result.metrics.items() if name not in LABELLED)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [("dino", {}, "does not forecast"), ("prosmin", {"heads__scale": "zero"}, "no scale")],
)
def test_a_method_without_a_forecast_or_a_scale_says_so(name: str, changes: dict[str, str], reason: str) -> None:
    found = uncertainty.run(context(encoder(name, **changes)))
    assert set(found.metrics) == ALWAYS
    assert found.settings["calibration"].startswith("not measured: ")
    assert reason in found.settings["calibration"]
    assert found.settings["uncertainty"] == "variance between views"
    assert set(found.curves) == {"risk_coverage", "severity"}
    assert set(found.sets["test"]) == RIVALS  # and the variance between views is the uncertainty itself


def test_an_encoder_that_carries_training_images_is_judged_by_them() -> None:
    model = encoder()
    model = Encoder(
        model.method, model.config, background=make_background(model.features, model.features(coloured(60, side=32)))
    )
    found = uncertainty.run(context(model))
    assert found.settings["uncertainty"] == model.scores["uncertainty"]
    expected = model.uncertainty(coloured(40, side=32, seed=1))
    torch.testing.assert_close(torch.from_numpy(found.arrays["uncertainty"]), expected, rtol=1e-3, atol=1e-3)
    assert set(found.sets["test"]) == RIVALS | {
        "mean_log_scale",
        "between_view_variance",
        "surprise",
        "standardised_error",
    }


def test_rankings_by_the_training_images_around_each_image() -> None:
    given = context(encoder())
    found = uncertainty._around(given)
    train, test = (given.features(name) for name in ("train", "test"))
    around = Neighbourhood(features=train, space=given.encoder.background.space)
    expected = {
        "centred_distance": fit_knn_distance(train - train.mean(0))(test - train.mean(0)),
        "neighbour_distance": around(test),
        "neighbour_dispersion": around.dispersion(test),
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values)


def test_worsened_pictures_take_as_many_passes_with_and_without_a_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    model, passes = encoder("dino"), []
    whole = model.method.encode
    monkeypatch.setattr(model.method, "encode", lambda x: passes.append(len(x)) or whole(x))
    monkeypatch.setattr(uncertainty, "WORSENED", 30)
    _, settings, _ = uncertainty._severity(context(model), in_views=True)
    # An image as it is and as a whole, and at 5 severities of 3 kinds.
    assert 0.8 * 30 < sum(passes) / 17 <= 30
    assert settings["severity"]["pictures"] == 30 // (UNCERTAINTY_VIEWS + 1)


def test_test_labels_are_read_by_retrieval_and_risk_alone(result: Result) -> None:
    test = coloured(40, side=32, seed=1)
    shuffled = dataclasses.replace(test, labels=test.labels.roll(1))
    blind = uncertainty.run(context(encoder(), test=shuffled))
    for name, value in result.metrics.items():
        assert name in LABELLED or blind.metrics[name] == value, name
    assert blind.metrics["recall_at_1"] != result.metrics["recall_at_1"]
    assert blind.settings == result.settings
    assert {k: v for k, v in blind.curves.items() if k != "risk_coverage"} == {
        k: v for k, v in result.curves.items() if k != "risk_coverage"
    }


def test_without_labels_all_but_right_and_wrong_is_measured(result: Result) -> None:
    train, test = (dataclasses.replace(coloured(n, side=32, seed=s), labels=None) for n, s in ((80, 0), (40, 1)))
    found = uncertainty.run(context(encoder(), train=train, test=test))
    assert set(found.metrics) == set(result.metrics) - LABELLED
    # Held-out train is another tenth without labels, so what is fitted on it differs; what is not, does not.
    for name in COVERAGE | {"spearman_sharpness", "spearman_blur", "pit_distance"}:
        assert found.metrics[name] == result.metrics[name], name
    assert found.settings["answer"].endswith("R-AUROC, recall and risk need labels")
    assert (set(found.curves), found.sets) == ({"coverage", "pit", "severity"}, {})
    assert "correct" not in found.arrays
    np.testing.assert_array_equal(found.arrays["thumbnail_key"], result.arrays["thumbnail_key"])


def test_labels_of_a_tenth_that_is_no_test_are_not_judged_by(result: Result) -> None:
    found = uncertainty.run(dataclasses.replace(context(encoder()), own_tenth=True))
    assert set(found.metrics) == set(result.metrics) - LABELLED
    assert "has no test split" in found.settings["answer"]


def test_sets_are_embedded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features, uncertainties and views that other protocols have had computed are used."""
    model = encoder()
    here = context(model)
    for name in here.sets:
        here.features(name)
    here.view_scores("test")
    encode, embedded = model.method.encode, []

    def counted(x: torch.Tensor) -> Embedding:
        embedded.append(len(x))
        return encode(x)

    monkeypatch.setattr(model.method, "encode", counted)
    found = uncertainty.run(here)
    # Two views of 40 and of a tenth of train; 40 images as they are, as a whole and 15 times worse.
    assert sum(embedded) == 2 * (40 + 8) + 17 * 40
    score = fit_knn_distance(here.features("train"))(here.features("strange"))
    strange = found.arrays["thumbnail_uncertainty"][found.arrays["thumbnail_kind"] == "ood"]
    np.testing.assert_allclose(strange, score.sort(descending=True).values[:24].numpy())


class TestForecasts:
    def test_what_is_observed_is_the_target_s_centred_embedding_of_the_other_view(self) -> None:
        model, pictures = encoder(), coloured(6, side=32)
        model.method.target.load_state_dict(encoder(training__seed="1").method.target.state_dict())
        model.method.centre.value.fill_(0.05)  # online and target differ, and the centre is not 0
        got = make_forecasts(model, pictures, seed=3)
        config = dataclasses.replace(model.config.views, local=0)
        views = make_views(
            pictures.images, pictures.sizes, config, seed=3, step=0, positions=torch.arange(6)
        ).global_views
        for forecast, other in ((0, 1), (1, 0)):
            embedding = model.method.encode(views[forecast])
            torch.testing.assert_close(got.mean[forecast], embedding.mean)
            torch.testing.assert_close(got.scale[forecast], embedding.scale)
            raw = model.method.target([views[other]])[1]
            torch.testing.assert_close(got.observed[forecast], raw - 0.05)
        assert not torch.allclose(got.observed[0], got.observed[1], atol=1e-4)

    def test_a_set_in_batches_is_the_set_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, pictures = encoder(), coloured(7, side=32)
        whole = make_forecasts(model, pictures, seed=0)
        monkeypatch.setattr("prosmin.evaluation.forecasts._BATCH", 3)
        for a, b in zip(whole, make_forecasts(model, pictures, seed=0), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)

    @pytest.mark.parametrize("name", list(METHODS))
    def test_what_a_method_observes_fits_what_it_forecasts(self, name: str) -> None:
        model = encoder(name)
        assert (no_forecasts(model, has_scale=True) is None) == isinstance(model.method, Observes)
        if isinstance(model.method, Observes):
            x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
            assert model.method.observe(x).shape == model.method.encode(x).mean.shape


def test_a_gallery_of_sets_of_different_sizes() -> None:
    small, large = coloured(30, side=20), coloured(30, side=200)
    arrays = gallery(Ranked(small, torch.arange(30.0)), [Ranked(large, torch.arange(30.0))])
    assert arrays["thumbnails"].shape == (72, 96, 96, 3)
    assert arrays["thumbnail_key"][0] == "0.png"
    assert arrays["thumbnail_key"][24] == arrays["thumbnail_key"][48] == "29.png"
    only = gallery(Ranked(small, torch.arange(30.0)), [])["thumbnails"]
    assert np.array_equal(only[0], small.images[0].permute(1, 2, 0).numpy())  # small ones alone are left as they are


def test_a_sample_is_fixed_and_in_order() -> None:
    pictures = coloured(50)
    chosen = sample(pictures, 20, seed=0, purpose="test")
    numbers = [int(key.removesuffix(".png")) for key in chosen.keys]
    assert len(numbers) == 20
    assert numbers == sorted(numbers) != list(range(20))
    assert sample(pictures, 20, seed=0, purpose="test").keys == chosen.keys
    assert sample(pictures, 20, seed=1, purpose="test").keys != chosen.keys
    assert sample(pictures, 50, seed=0, purpose="test") is pictures
