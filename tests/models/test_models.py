import pytest
import torch
import torch.distributed as dist
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from prosmin import config as configs
from prosmin.config import BackboneConfig, ProsminHeads
from prosmin.errors import UsageError
from prosmin.models.backbones import build_backbone, is_vit
from prosmin.models.batchnorm import GlobalBatchNorm, GlobalBatchNormAct, synchronise_batchnorm
from prosmin.models.centre import Centre
from prosmin.models.heads import GaussianPredictor, Projector, UnitLinear
from prosmin.models.resnet import RESNETS
from prosmin.models.target import make_target, update_target
from prosmin.training.pretrain import build


@pytest.mark.parametrize("name", [*RESNETS, "resnet18", "vit_tiny_patch16_224", "deit_tiny_patch16_224"])
def test_backbones_give_features_at_both_view_sizes(name):
    options = {"patch_size": 8, "width": 48, "depth": 2, "heads": 3} if is_vit(name) else {}
    backbone = build_backbone(BackboneConfig(name=name, **options), image_size=32).eval()
    for side in (32, 16):
        assert backbone(torch.randn(2, 3, side, side)).shape == (2, backbone.num_features)


def test_unknown_backbone_and_options_that_do_nothing_are_refused():
    with pytest.raises(UsageError, match="resnet8_cifar"):
        build_backbone(BackboneConfig(name="resnet19"), image_size=32)
    with pytest.raises(UsageError, match="patch_size"):
        build_backbone(BackboneConfig(name="resnet8_cifar", patch_size=4), image_size=32)
    with pytest.raises(UsageError, match="drop_path"):
        build_backbone(BackboneConfig(name="resnet8_cifar", drop_path=0.1), image_size=32)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backbone.name": "vit_tiny_patch16_224", "backbone.patch_size": "4", "views.local_size": "15"},
         r"15 pixels \(views\.local_size\)"),
        ({"backbone.name": "mobilenetv3_small_050"}, r"mobilenetv3_small_050.*\(1, 1024\).*288"),
        ({"backbone.name": "swin_tiny_patch4_window7_224"}, r"32 pixels \(views\.global_size\)"),
    ],
)  # fmt: skip
def test_a_network_that_cannot_take_the_views_is_refused_before_the_first_step(fields, message):
    config = configs.resolve(recipe="demo", overrides=fields)
    with pytest.raises(UsageError, match=message):
        build(config)


def test_a_network_that_timm_cannot_build_is_refused():
    with pytest.raises(UsageError, match=r"vgg11.*drop_path_rate"):
        build_backbone(BackboneConfig(name="vgg11", drop_path=0.1), image_size=32)


@pytest.fixture
def alone_in_a_group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone_in_a_group")
@pytest.mark.parametrize("kind", [nn.BatchNorm2d, BatchNormAct2d])
def test_a_shared_batchnorm_computes_what_a_plain_one_does(kind):
    """Also where the variance is small compared with the mean: E[x^2] - E[x]^2 would lose its digits."""
    torch.manual_seed(0)
    plain, shared = nn.Sequential(kind(3)), nn.Sequential(kind(3))
    synchronise_batchnorm(shared)
    assert type(shared[0]) in (GlobalBatchNorm, GlobalBatchNormAct)
    for mean, spread in ((0.0, 1.0), (300.0, 0.05)):
        x = (mean + spread * torch.randn(16, 3, 4, 4)).requires_grad_()
        y = x.detach().clone().requires_grad_()
        one, two = plain(x), shared(y)
        torch.testing.assert_close(two, one, rtol=2e-3, atol=2e-3)  # 300 has 3e-5 in float32, of a spread of 0.05
        weight = torch.randn_like(one)
        for value in (one, two):
            (value * weight).sum().backward()
        torch.testing.assert_close(y.grad, x.grad, rtol=2e-2, atol=2e-2 / spread)
    torch.testing.assert_close(dict(shared.named_buffers()), dict(plain.named_buffers()), rtol=1e-3, atol=1e-3)


def test_a_batchnorm_that_cannot_be_shared_is_refused():
    with pytest.raises(UsageError, match="BatchNorm3d"):
        synchronise_batchnorm(nn.Sequential(nn.BatchNorm3d(2)))


def test_projector_outputs_are_cosines():
    torch.manual_seed(0)
    projector = Projector(8, hidden=16, bottleneck=6, dim=10, batchnorm=False)
    y = torch.randn(5, 8)
    bottleneck = projector.mlp(y)
    expected = nn.functional.cosine_similarity(bottleneck[:, None], projector.last.weight[None], dim=-1)
    torch.testing.assert_close(projector(y), expected)


def test_prototypes_begin_as_long_as_those_of_a_plain_layer():
    torch.manual_seed(0)
    found, plain = UnitLinear(64, 500, as_plain=True).weight, nn.Linear(64, 500, bias=False).weight
    assert found.norm(dim=1).mean().item() == pytest.approx(plain.norm(dim=1).mean().item(), rel=0.02)


def test_a_free_last_layer_starts_as_a_normalised_one_and_multiplies_each_row_by_its_gain():
    def build(**options: bool) -> Projector:
        torch.manual_seed(0)
        return Projector(8, hidden=16, bottleneck=6, dim=10, batchnorm=False, prototypes=True, **options)

    normalised, free = build(), build(normalise_last=False)
    y = torch.randn(5, 8)
    assert torch.equal(free(y), normalised(y))
    assert free.last.gain.shape == (10, 1)  # a matrix, on which weight decay acts, as published
    assert free.state_dict().keys() - normalised.state_dict().keys() == {"last.gain"}
    with torch.no_grad():
        free.last.gain[3] = 2.5
    expected = normalised(y).detach()
    expected[:, 3] *= 2.5
    torch.testing.assert_close(free(y), expected)


def test_scale_starts_where_it_should_and_the_twin_has_none():
    torch.manual_seed(0)
    t = 0.05 * torch.randn(64, 12)
    for predictor in (True, False):
        heads = ProsminHeads(dim=12, predictor_hidden=32, initial_scale=0.05, predictor=predictor)
        mean, scale = GaussianPredictor(heads)(t)
        assert mean.shape == scale.shape == (64, 12)
        torch.testing.assert_close(scale, torch.full_like(scale, 0.05), rtol=0.2, atol=0)
    twin = GaussianPredictor(ProsminHeads(dim=12, predictor_hidden=32, scale="zero"))
    assert not twin(t)[1].any()
    assert not any("log_variance" in name for name, _ in twin.named_parameters())


def test_a_step_of_adam_moves_the_forecast_by_a_fraction_of_the_target():
    """A wide head needs this: without the unit it moved by twenty times the target's standard deviation."""
    torch.manual_seed(0)
    unit = 0.05
    predictor = GaussianPredictor(ProsminHeads(dim=512, predictor_hidden=1024, initial_scale=unit))
    t, aim = torch.randn(64, 512), unit * torch.randn(64, 512)
    optimizer = torch.optim.AdamW(predictor.mean.parameters(), lr=1e-3)
    before = predictor(t)[0].detach()
    (predictor(t)[0] - aim).square().mean().backward()
    optimizer.step()
    assert before.std() == pytest.approx(unit, rel=0.5)
    assert (predictor(t)[0] - before).std() < 0.5 * unit


def test_weights_of_a_predictor_without_a_unit_are_refused():
    predictor = GaussianPredictor(ProsminHeads(dim=12, predictor_hidden=32))
    old = {name: tensor for name, tensor in predictor.state_dict().items() if name != "unit"}
    with pytest.raises(RuntimeError, match="unit"):
        predictor.load_state_dict(old)


def test_the_target_shares_nothing_and_follows_by_ema():
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    target = make_target(online)
    own = {t.untyped_storage().data_ptr() for t in [*online.parameters(), *online.buffers()]}
    assert not own & {t.untyped_storage().data_ptr() for t in [*target.parameters(), *target.buffers()]}
    assert all(not p.requires_grad for p in target.parameters())
    assert all(p.requires_grad for p in online.parameters())
    before = [p.clone() for p in target.parameters()]
    with torch.no_grad():
        for p in online.parameters():
            p.add_(1.0)
    update_target(target, online, momentum=0.75)
    for old, new in zip(before, target.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25)


def test_the_centre_settles_at_the_mean_of_the_raw_outputs():
    centre = Centre(2, momentum=0.9)
    raw = torch.tensor([[1.0, -3.0], [3.0, -1.0]])
    for _ in range(200):
        centre.update(raw.mean(0))
    torch.testing.assert_close(centre(raw).mean(0), torch.zeros(2), atol=1e-6, rtol=0)
