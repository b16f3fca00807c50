"""ProSMIN with whitened targets: what is scored, what a user gets, what is refused."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import prosmin
from prosmin import config as configs
from prosmin.data.stream import open_feed
from prosmin.errors import ProsminError, UsageError
from prosmin.files import file_hash
from prosmin.methods import build_method
from prosmin.methods.prosmin import ProSMIN
from prosmin.models.centre import batch_mean
from prosmin.models.heads import Projector
from prosmin.models.whitening import inverse_root, unit_variance
from prosmin.training import health
from prosmin.training.launch import make_fabric
from prosmin.training.pretrain import prepare, pretrain
from prosmin.training.schedules import Values
from prosmin.training.step import TrainingStep
from tiny_methods import WHITENED, WHITENED_HEADS, tiny_draws, tiny_method, tiny_views
from tiny_run import assert_same_run, metrics


def _updated(config: configs.Config, *, images: int = 32, steps: int = 3) -> ProSMIN:
    """A method whose averages have seen some batches of noise."""
    method = build_method(config)
    for step in range(steps):
        output = method(tiny_views(config, pictures=images, seed=step), tiny_draws(pictures=images, step=step))
        method.update(output.statistics, momentum=1.0)
    return method


@pytest.mark.parametrize("whitening", ["none", "centre", "whiten"])
def test_each_kind_removes_what_it_says(whitening):
    config = tiny_method("prosmin", **WHITENED | {"target__whitening": whitening, "target__centre_momentum": "0"})
    config = configs.build(configs.merge(configs.to_tree(config), {"target": {"whitening_momentum": 0.0}}))
    method = _updated(config, steps=1).eval()
    raw = 2.0 + method.train()(tiny_views(config, pictures=32), tiny_draws(pictures=32)).observed["target"].double()
    method.update({"centre": method.centre.batch_statistics(raw)}, momentum=1.0)
    seen = method.centre(raw).double().flatten(0, 1)
    plain = raw.flatten(0, 1)
    if whitening == "none":
        assert torch.equal(seen, plain)
        return
    torch.testing.assert_close(seen.mean(0), torch.zeros(24, dtype=torch.float64), atol=1e-6, rtol=0)
    covariance, before = seen.T.cov(correction=0), plain.T.cov(correction=0)
    if whitening == "centre":
        torch.testing.assert_close(covariance, before, atol=1e-5, rtol=1e-5)
    else:
        values = torch.linalg.eigvalsh(before)
        expected = values / (values + 1e-3 * values.mean())
        torch.testing.assert_close(torch.linalg.eigvalsh(covariance), expected.sort()[0], atol=1e-6, rtol=1e-6)


def test_the_centre_of_before_is_the_default():
    method = build_method(tiny_method("prosmin"))
    raw = torch.randn(2, 4, 24, generator=torch.Generator().manual_seed(0))
    assert torch.equal(method.centre.batch_statistics(raw), batch_mean(raw))
    assert [name for name in method.state_dict() if name.startswith("centre.")] == ["centre.value"]


def test_the_loss_scores_forecasts_at_whitened_targets():
    """The deterministic forecast: |mean - whitened target|, averaged over pairs of different views."""
    config = tiny_method("prosmin", **WHITENED, heads__scale="zero", loss__same_view="false", views__local="0")
    method = _updated(config)
    observed = (output := method(tiny_views(config), tiny_draws())).observed
    torch.testing.assert_close(observed["whitened"], method.centre(observed["target"]))
    distances = (observed["mean"] - observed["whitened"].flip(0)).norm(dim=-1)
    torch.testing.assert_close(output.losses, distances.mean(0))


def test_normalised_targets_are_scored_with_the_length_of_variance_one():
    fields = WHITENED_HEADS | {"heads__scale": "zero", "loss__same_view": "false", "views__local": "0"}
    config = tiny_method("prosmin", **fields)
    observed = (output := _updated(config)(tiny_views(config), tiny_draws())).observed
    torch.testing.assert_close(observed["scored"], unit_variance(observed["whitened"]))
    distances = (observed["mean"] - observed["scored"].flip(0)).norm(dim=-1)
    torch.testing.assert_close(output.losses, distances.mean(0))


def test_the_projector_can_end_in_whitening():
    method = build_method(tiny_method("prosmin", **WHITENED_HEADS))
    z = method.online.projector(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.eigvalsh(z.double().T.cov(correction=0))
    assert values.min() > 0.8  # less than 1 by eps = 1e-3 of the mean eigenvalue before
    assert values.max() < 1.001
    assert method.target.projector.norm[1].averages.covariance.shape == (24, 24)


def test_bfloat16_does_not_drown_small_directions_in_the_rounding_of_a_large_one():
    """Whitening enlarges the rounding of the projector's last layer with the directions that it enlarges."""
    torch.manual_seed(0)
    projector = Projector(64, hidden=64, bottleneck=16, dim=24, batchnorm=True, last="whiten")
    y, direction = torch.randn(256, 64), torch.nn.functional.normalize(torch.randn(24), dim=0)
    weight = projector.mlp[-1].weight.data
    weight += 999 * torch.outer(direction, direction @ weight)
    with torch.no_grad():
        exact = projector(y)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        found, rounded = projector(y), projector.norm(projector.mlp(y).float())
        compiled = torch.compile(projector.forward, dynamic=False, fullgraph=True, backend="aot_eager")(y)
    noise, before = ((z - exact).square().mean() / exact.square().mean() for z in (found, rounded))
    # Seen with four seeds: .002 to .009, and .07 to .13 where the layer's output is rounded.
    assert noise < 0.02
    assert before > 0.04
    torch.testing.assert_close(compiled, found)


def test_one_image_far_from_all_others_does_not_take_their_variance():
    torch.manual_seed(0)
    projector = Projector(64, hidden=64, bottleneck=16, dim=24, batchnorm=False, last="whiten")
    y = torch.randn(256, 64)
    y[0] *= 1e4
    with torch.no_grad():
        others = projector(y)[1:].double()
        without = projector.norm[1](projector.mlp(y))[1:].double()
    smallest, lost = (torch.linalg.eigvalsh(z.T.cov(correction=0)).min() for z in (others, without))
    # Seen with four seeds: .77 to .91, and 1e-8 to 5e-8 without the normalisation before.
    assert smallest > 0.5
    assert lost < 1e-4


def test_the_projector_ends_in_batchnorm_without_weights():
    method = build_method(tiny_method("prosmin", **WHITENED))
    z = method.online.projector(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(z.mean(0), torch.zeros(24), atol=1e-5, rtol=0)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(24), atol=1e-2, rtol=0)
    names = [name for name, _ in method.online.projector.named_parameters()]
    assert not any(name.startswith(("norm.", "last.")) for name in names)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert method.online.projector(torch.randn(64, 64)).dtype == torch.float32


def test_the_forecast_starts_about_as_wide_as_the_climatology():
    method = build_method(tiny_method("prosmin", **WHITENED))
    scale = method.predictor(torch.randn(64, 24, generator=torch.Generator().manual_seed(0)))[1]
    assert scale.mean().item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heads__last": "learned"}, ["heads.last", "heads.bottleneck = 16", "heads.dim = 24"]),
        ({"heads__initial_scale": "0.05"}, ["heads.initial_scale 1", "0.05"]),
        ({"heads__dim": "512"}, ["heads.dim", "320", "512"]),
        ({"heads__last": "whiten", "heads__dim": "24"}, ["heads.dim", "16", "24", "training.batch_size"]),
        ({"heads__last": "whiten", "heads__whitening_eps": "2"}, ["heads.whitening_eps", "1e-9"]),
        (
            {"target__normalise": "true", "target__whitening": "centre", "heads__initial_scale": "0.05"},
            ["target.normalise", "heads.initial_scale 1"],
        ),
        ({"target__whitening_eps": "0"}, ["target.whitening_eps", "1e-9"]),
        ({"target__whitening_momentum": "1"}, ["target.whitening_momentum"]),
        ({"loss__score_weight": "0"}, ["loss.score_weight", "loss.identification"]),
        ({"loss__score_weight": "-1"}, ["loss.score_weight", "-1"]),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_would_work(changes, named):
    with pytest.raises(UsageError) as error:
        tiny_method("prosmin", **WHITENED | changes)
    for part in named:
        assert part in str(error.value)


def test_fields_that_do_not_count_are_not_checked():
    """There is no moving average without target.whitening whiten, and the released predictor has no initial scale."""
    tiny_method("prosmin", target__normalise="true", target__whitening_momentum="0", heads__initial_scale="1")
    released = {"heads__predictor_form": "released", "heads__batchnorm": "false", "heads__initial_scale": "0.05"}
    tiny_method("prosmin", **WHITENED_HEADS | released)


def test_a_batch_that_is_whitened_cannot_be_computed_in_parts(tmp_path):
    config = tiny_method("prosmin", **WHITENED_HEADS, training__accumulate="2")
    with pytest.raises(UsageError, match=r"training\.accumulate"):
        pretrain(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_cosines_can_be_whitened_where_the_bottleneck_has_room():
    config = tiny_method("prosmin", **WHITENED | {"heads__last": "learned", "heads__dim": "12"})
    observed = _updated(config)(tiny_views(config), tiny_draws()).observed
    assert health.numbers(health.measure(observed))["target_rank"] > 2


def test_identification_alone_trains_all_but_the_scale():
    config = tiny_method("prosmin", loss__score_weight="0", loss__identification="1")
    method = build_method(config)
    output = method(tiny_views(config), tiny_draws())
    assert "scale" not in output.observed
    output.losses.mean().backward()
    gradients = {name: p.grad.abs().sum() for name, p in method.named_parameters() if p.requires_grad}
    assert all(total > 0 for name, total in gradients.items() if "log_variance" not in name)
    assert all(total == 0 for name, total in gradients.items() if "log_variance" in name)
    assert method.encode(torch.zeros(2, 3, 32, 32)).scale is None


def test_the_weight_of_the_score_multiplies_it():
    one, double = (
        build_method(config)(tiny_views(config), tiny_draws()).losses
        for config in (tiny_method("prosmin", loss__score_weight=weight) for weight in ("1", "2"))
    )
    torch.testing.assert_close(double, 2 * one)


def test_the_radius_changes_nothing_else():
    """Without clipping, which is by the gradient of all networks together."""
    changes = WHITENED_HEADS | {"optimizer__clip": "null"}
    plain, with_radius = (
        tiny_method("prosmin", **changes, heads__radius=str(radius).lower()) for radius in (False, True)
    )
    one, other = build_method(plain), build_method(with_radius)
    assert {n for n, _ in other.named_parameters()} - {n for n, _ in one.named_parameters()} == {
        f"radius.layers.{layer}" for layer in ("0.weight", "0.bias", "2.weight", "2.bias")
    }
    other.load_state_dict(one.state_dict(), strict=False)
    losses = [m(tiny_views(plain), tiny_draws()).losses for m in (one, other)]
    for loss in losses:
        loss.mean().backward()
    assert (losses[1] > losses[0]).all()  # a CRPS is positive
    shared = dict(other.named_parameters())
    for name, parameter in one.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(shared[name].grad, parameter.grad)
    assert shared["radius.layers.2.bias"].grad.abs().min() > 0


def test_a_loaded_encoder_gives_the_radius_of_joint_regions(tmp_path):
    config = tiny_method("prosmin", **WHITENED_HEADS, heads__radius="true", training__max_steps="2")
    encoder = prosmin.load(pretrain(config, tmp_path / "run"), device="cpu")
    images = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    half, most = (encoder.joint_radius(images, level=level) for level in (0.5, 0.9))
    assert half.shape == (5,)
    assert (most > half).all()
    with pytest.raises(ProsminError, match=r"0\.9"):
        encoder.joint_radius(images, level=1.0)
    with pytest.raises(ProsminError, match=r"heads\.radius"):
        prosmin.encoder.untrained(tiny_method("prosmin")).joint_radius(images)
    for without in ({"heads__scale": "zero"}, {"loss__score_weight": "0", "loss__identification": "1"}):
        assert build_method(tiny_method("prosmin", heads__radius="true", **without)).radius is None
    with pytest.raises(ProsminError, match="level"):
        encoder.joint_radius(images, level="a")


def test_titles_say_what_was_trained():
    def title(**loss: float) -> str:
        return configs.method_title({"method": {"name": "prosmin"}, "loss": loss})

    assert title() == title(identification=0.0) == "ProSMIN"
    assert title(identification=0.5) == title(identification=0.5, score_weight=1.0) == "ProSMIN + identification"
    assert title(identification=0.5, score_weight=0.0) == "Identification alone"
    assert configs.method_title({"method": {"name": "dino"}, "loss": {}}) == "DINO"


def test_runs_made_before_keep_their_fingerprint():
    run = Path(__file__).parents[1] / "written_by_0_1_0/run"
    config = configs.build(configs.read_yaml(run / "config.yaml"))
    state = json.loads(next(run.glob("checkpoints/*/state.json")).read_text())
    assert configs.fingerprint(config) == state["fingerprint"]
    changed = configs.build(configs.merge(configs.to_tree(config), {"target": {"whitening": "none"}}))
    assert configs.fingerprint(changed) != state["fingerprint"]


@pytest.fixture(scope="module", params=[WHITENED, WHITENED_HEADS], ids=["averages", "heads"])
def run(request, tmp_path_factory):
    """A whitened run of six steps."""
    fields = request.param | {"training__max_steps": "6", "training__batch_size": "32"}
    config = tiny_method("prosmin", **fields)
    return pretrain(config, tmp_path_factory.mktemp("whitened") / "run"), config


def test_a_whitened_run_continues_exactly(run, tmp_path):
    whole, config = run
    half = configs.to_tree(config) | {"training": configs.to_tree(config)["training"] | {"max_steps": 4}}
    pretrain(configs.build(half), tmp_path / "run")
    pretrain(config, tmp_path / "run")
    assert_same_run(whole, tmp_path / "run")


def test_a_loaded_encoder_has_the_matrices_of_its_file(run, tmp_path):
    """Not those that this machine would compute from the covariance, which differ by rounding: they are its hash."""
    folder = shutil.copytree(run[0], tmp_path / "run")
    tensors = load_file(folder / "encoder.safetensors")
    matrices = [name for name in tensors if name.endswith("matrix")]
    assert matrices
    for name in matrices:
        tensors[name] *= 1 + 1e-9
    save_file(tensors, folder / "encoder.safetensors")
    card = json.loads((folder / "encoder.json").read_text()) | {"hash": file_hash(folder / "encoder.safetensors")}
    (folder / "encoder.json").write_text(json.dumps(card))
    found = prosmin.load(folder, device="cpu").method.state_dict()
    assert all(torch.equal(found[name], tensors[name]) for name in matrices)


def test_a_loaded_encoder_is_in_whitened_units(run):
    folder, config = run
    encoder = prosmin.load(folder, device="cpu")
    centre = encoder.method.centre
    assert centre.updates == 6
    assert not torch.equal(centre.covariance, torch.eye(24, dtype=torch.float64))
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    raw = encoder.method.target([x])[1]
    expected = ((raw.double() - centre.mean) @ centre.matrix).float()
    if config.target.normalise:
        expected = unit_variance(expected)
    torch.testing.assert_close(encoder.method.observe(x), expected)


def test_the_saved_matrices_are_those_of_the_saved_averages(run):
    """Also of heads that end in whitening, whose training does not use them."""
    folder, config = run
    saved = load_file(folder / "encoder.safetensors")
    covariances = [name for name in saved if name.endswith(".covariance")]
    assert len(covariances) == (3 if config.heads.last == "whiten" else 1)  # of the centre and of two networks
    for name in covariances:
        matrix = saved[name.replace(".covariance", ".matrix")]
        torch.testing.assert_close(matrix, inverse_root(saved[name], eps=1e-3))


def test_metrics_tell_rank_and_skill(run):
    """Six steps learn nothing yet. Seen with two seeds: rank 16 to 24 of 24, skill -.24 to -.07, variance 1 to 4."""
    for row in metrics(run[0]):
        assert 12 < row["target_rank"] <= 24
        assert -0.5 < row["skill"] < 0.1
        assert 0.5 < row["whitened_variance"] < 8


SMALL_DEMO = {
    "backbone.name": "resnet8_cifar",
    "heads.hidden": "128",
    "heads.predictor_hidden": "128",
    "heads.dim": "32",
    "views.global_size": "16",
    "views.local": "0",
    "training.batch_size": "64",
    "compute.accelerator": "cpu",
}
NOT_WHITENED = {"heads.last": "none", "target.whitening": "centre", "target.normalise": "false"}


def _rank_of_scored_target(changes: dict[str, str], *, steps: int = 30) -> float:
    """Effective rank, by the spectrum of the covariance, after steps that are large for a network this small."""
    config = configs.resolve(recipe="demo", overrides=SMALL_DEMO | changes)
    fabric = make_fabric(config, Path())
    model, optimizer = prepare(fabric, config, build_method(config))
    take = TrainingStep(fabric, config, model, optimizer, epoch_of=lambda step: 0.0)
    feed, random = open_feed("photos", device="cpu"), torch.Generator().manual_seed(0)
    orders = [torch.randint(len(feed), (64,), generator=random) for _ in range(steps)]
    for step, batch in enumerate(feed.batches(orders)):
        rate = 2e-3 * min(1.0, (step + 1) / 10)
        observed = take(step, batch, Values(lr=rate, weight_decay=0.01, momentum=0.9)).output.observed
    scored = observed["scored"] if "scored" in observed else observed["target"]  # centring does not change its rank
    return math.exp(torch.special.entr(_shares(scored.flatten(0, 1).double())).sum())


def _shares(z: torch.Tensor) -> torch.Tensor:
    """The share of the variance in each principal direction: (N, K) -> (K,)."""
    values = torch.linalg.eigvalsh(z.T.cov()).clamp_min(0.0)
    return values / values.sum()


def test_training_loses_the_rank_of_a_centred_target_and_keeps_that_of_a_whitened_one():
    """The recipe `demo` with small networks, real views and the real step; K is 32.

    The limits are safe: with six seeds the centred target ended at rank 1.9 to 3.6, the whitened one at 27.9 to 30.6.
    """
    assert _rank_of_scored_target(NOT_WHITENED) < 5
    assert _rank_of_scored_target({}) > 20


def test_unexplained_is_the_expected_score_relative_to_climatology(run):
    encoder = prosmin.load(run[0], device="cpu")
    images = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    scale = encoder(images).scale.double()
    noise = torch.randn(20000, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([(row * noise).norm(dim=1).mean() for row in scale]) / noise.norm(dim=1).mean()
    torch.testing.assert_close(encoder.unexplained(images).double(), expected, atol=5e-3, rtol=0)


@pytest.mark.parametrize(
    "config",
    [tiny_method("prosmin"), tiny_method("dino"), tiny_method("prosmin", **WHITENED, heads__scale="zero")],
)
def test_unexplained_needs_a_scale_and_whitened_targets(config):
    encoder = prosmin.encoder.untrained(config)
    with pytest.raises(ProsminError, match=r"target\.whitening"):
        encoder.unexplained(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
