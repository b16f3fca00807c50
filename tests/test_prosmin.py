"""The method: what learns, what follows, and that its loss is the mean of the scores it says it is."""

import pytest
import torch

from prosmin.data.views import Views
from prosmin.methods import build_method
from prosmin.methods.output import Draws


def _views(pictures: int = 4, local: int = 1) -> Views:
    random = torch.Generator().manual_seed(0)
    globals_ = torch.randn(2, pictures, 3, 32, 32, generator=random)
    return Views(globals_, torch.randn(local, pictures, 3, 16, 16, generator=random) if local else None)


def _draws(pictures: int = 4) -> Draws:
    return Draws(0, 0, torch.arange(pictures), 0.0)


@pytest.mark.parametrize("start", ["copy", "independent"])
def test_gradients_reach_the_online_network_alone_and_all_of_it(tiny, start):
    method = build_method(tiny(target__start=start))
    method(_views(), _draws()).losses.mean().backward()
    for name, parameter in method.named_parameters():
        if name.startswith("target."):
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_online_and_target_share_no_parameter_and_no_buffer(tiny):
    method = build_method(tiny())
    own = {t.untyped_storage().data_ptr() for t in [*method.online.parameters(), *method.online.buffers()]}
    others = {t.untyped_storage().data_ptr() for t in [*method.target.parameters(), *method.target.buffers()]}
    assert not own & others
    assert any(p.requires_grad for p in method.online.backbone.parameters())


def test_the_target_changes_by_ema_alone(tiny):
    method = build_method(tiny(target__start="independent"))
    online = {name: p.clone() for name, p in method.online.named_parameters()}
    before = {name: p.clone() for name, p in method.target.named_parameters()}
    output = method(_views(), _draws())
    for name, p in method.target.named_parameters():
        assert torch.equal(p, before[name]), name
    method.update(output.statistics, momentum=0.8)
    for name, p in method.target.named_parameters():
        torch.testing.assert_close(p, 0.8 * before[name] + 0.2 * online[name])
    torch.testing.assert_close(method.centre.value, 0.1 * output.observed["target"].mean((0, 1)))


def test_the_loss_is_the_mean_over_views_and_targets(tiny):
    """Against a loop over pictures, views and targets, with the deterministic twin: |mean - target| at lam 1/2."""
    method = build_method(tiny(heads__scale="zero")).double()
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
        method = build_method(tiny(heads__scale="zero", **changes)).double()
        return method.score(mean, torch.zeros_like(mean), target, _draws(64))

    others = torch.tensor([[0, 1], [1, 0], [1, 1]], dtype=torch.float64)[..., None]
    torch.testing.assert_close(score(loss__same_view="false"), (others * distances).sum((0, 1)) / 4)
    one = score(loss__target_views="one")
    by_target = distances.mean(0)  # (G, B)
    is_first, is_second = (torch.isclose(one, by_target[g]) for g in range(2))
    assert bool((is_first | is_second).all())
    assert 16 < int(is_first.sum()) < 48  # a fair coin over 64 pictures leaves this range once in 20,000 seeds


def test_a_pictures_noise_depends_on_its_position_alone(tiny):
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
