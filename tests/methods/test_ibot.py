"""iBOT against its paper's formulas, and the masks it draws."""

import math

import pytest
import torch

from dino_reference import reference_loss as class_loss
from dino_reference import softmax as _softmax
from prosmin.data.views import Views
from prosmin.errors import UsageError
from prosmin.methods import build_method
from prosmin.methods.ibot import PatchDistillation, build_vit
from prosmin.methods.output import Draws, as_scalar
from prosmin.models.masking import BlockMasks
from prosmin.models.vit import vit_tokens
from tiny_methods import tiny_draws, tiny_method, tiny_views


def patch_loss(online, target, centre, mask, *, temperature: float, target_temperature: float) -> list[float]:
    """The masked-image loss of the paper for G views of P patches, in plain Python."""
    G, B, P, K = online.shape
    losses = []
    for b in range(B):
        total = 0.0
        for g in range(G):
            entropies = []
            for i in range(P):
                if mask[g, b, i]:
                    z = [(float(target[g, b, i, k]) - float(centre[k])) / target_temperature for k in range(K)]
                    p_target = _softmax(z)
                    p_online = _softmax([float(online[g, b, i, k]) / temperature for k in range(K)])
                    entropies.append(-sum(p_target[k] * math.log(p_online[k]) for k in range(K)))
            total += sum(entropies) / max(len(entropies), 1)
        losses.append(total / G)
    return losses


def test_the_patch_loss_is_the_papers():
    random = torch.Generator().manual_seed(0)
    online, target = (torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=random) / 3 for _ in range(2))
    centre = torch.randn(5, dtype=torch.float64, generator=random) / 3
    mask = torch.rand(2, 3, 4, generator=random) < 0.5
    mask[0, 1] = False  # a view with nothing hidden counts as 0
    found = PatchDistillation(0.1)(online, target - centre, mask, as_scalar(0.05, torch.device("cpu")))
    expected = patch_loss(online, target, centre, mask, temperature=0.1, target_temperature=0.05)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("shared", ["true", "false"])
def test_a_step_of_the_method_is_the_reference_of_its_networks_outputs(shared):
    """Masks on the online side alone, both centres, both temperatures at the epoch, the patches' weight."""
    fields = {
        "heads__shared": shared,
        "loss__target_temperature_start": "0.03",
        "loss__target_temperature": "0.09",
        "loss__patch_temperature_start": "0.05",
        "loss__patch_temperature": "0.07",
        "loss__temperature_warmup_epochs": "4",
        "loss__patch_weight": "0.7",
        "heads__batchnorm": "false",  # its statistics depend on which patches are embedded
    }
    config = tiny_method("ibot", target__start="independent", **fields)
    method = build_method(config).double()
    torch.nn.init.normal_(method.online.mask_token, generator=torch.Generator().manual_seed(3))
    centre, patch_centre = torch.zeros(2, 24, dtype=torch.float64)
    for step, (temperature, patch_temperature) in enumerate([(0.03, 0.05), (0.045, 0.055)]):
        views = Views(*(x.double() for x in tiny_views(config, pictures=3, seed=step).groups))
        draws = tiny_draws(pictures=3, step=step, epoch=float(step))
        output = method(views, draws)

        mask, _ = method.hide(2, draws)
        groups = [x.flatten(0, 1) for x in views.groups]
        _, online, patches = (x.detach() for x in method.online(groups, mask))
        _, target, target_patches = method.target(groups[:1])
        online, target = online.unflatten(0, (3, 3)), target.unflatten(0, (2, 3))
        patches, target_patches = patches.unflatten(0, (2, 3)), target_patches.unflatten(0, (2, 3))
        assert 0 < int(mask.sum()) < mask.numel()
        first = class_loss(online, target, centre, temperature=0.1, target_temperature=temperature)
        second = patch_loss(
            patches, target_patches, patch_centre, mask.unflatten(0, (2, 3)),
            temperature=0.1, target_temperature=patch_temperature,
        )  # fmt: skip
        expected = torch.tensor(first, dtype=torch.float64) + 0.7 * torch.tensor(second, dtype=torch.float64)
        torch.testing.assert_close(output.losses.detach(), expected)

        method.update(output.statistics, momentum=0.5)
        centre = 0.9 * centre + 0.1 * target.mean((0, 1))
        patch_centre = 0.9 * patch_centre + 0.1 * target_patches.mean((0, 1, 2))
        torch.testing.assert_close(method.centre.value, centre)
        torch.testing.assert_close(method.patch_centre.value, patch_centre)


def test_tokens_without_a_mask_are_the_vits_own_and_hidden_patches_are_not_seen():
    config = tiny_method("ibot")
    torch.manual_seed(0)
    vit = build_vit(config).eval()
    x, token = torch.randn(2, 3, 32, 32), torch.randn(vit.num_features)
    features, patches = vit_tokens(vit, x, None, token)
    torch.testing.assert_close(features, vit(x))
    torch.testing.assert_close(patches, vit.forward_features(x)[:, 1:])
    mask = torch.zeros(2, 16, dtype=torch.bool)
    mask[:, 5] = True  # row 1, column 1 of a grid of 4 x 4 patches
    changed = x.clone()
    changed[:, :, 8:16, 8:16] += 10.0
    seen, hidden = vit_tokens(vit, x, mask, token), vit_tokens(vit, changed, mask, token)
    torch.testing.assert_close(seen, hidden)
    assert not torch.allclose(vit_tokens(vit, changed, None, token)[0], features)
    assert not torch.allclose(seen[0], features)


def _masks(grid: tuple[int, int], *, count: int = 2000, **settings: object) -> tuple[torch.Tensor, torch.Tensor]:
    masks = BlockMasks(grid, **({"ratio": (0.1, 0.5), "probability": 0.5} | settings))
    numbers = torch.rand(count, masks.numbers, generator=torch.Generator().manual_seed(0))
    return masks(numbers), numbers


@pytest.mark.parametrize("grid", [(14, 14), (8, 8), (4, 6)])
def test_masks_hide_at_most_what_the_ratio_asks_for_and_nearly_all_of_it(grid):
    mask, numbers = _masks(grid)
    patches = grid[0] * grid[1]
    hidden = mask.sum(1)
    asked = ((0.1 + 0.4 * numbers[:, 1]) * patches).floor() * (numbers[:, 0] < 0.5)
    assert bool((hidden <= asked).all())
    assert int(hidden.max()) <= BlockMasks(grid, ratio=(0.1, 0.5), probability=0.5).most
    assert float(hidden.sum() / asked.sum()) > 0.97
    half = float((hidden > 0).double().mean())
    assert abs(half - 0.5) < 0.045  # four standard deviations of 2,000 coins


def test_masks_are_blocks():
    """Hidden patches touch: of the neighbours of a hidden patch far more are hidden than of any patch."""
    mask = _masks((14, 14), probability=1.0)[0].view(-1, 14, 14)
    beside = (mask[:, :, 1:] & mask[:, :, :-1]).sum() / mask[:, :, :-1].sum()
    assert float(beside) > 0.75
    assert float(mask.double().mean()) < 0.31


def test_a_first_block_is_the_rectangle_its_numbers_say():
    masks = BlockMasks((6, 9), ratio=(0.3, 0.3), probability=1.0)
    numbers = torch.zeros(1, masks.numbers)
    # Area 16 of the 16 patches asked for, height = width = 4, in the middle of the rows and at the right end.
    numbers[0, 2:6] = torch.tensor([1.0, 0.5, 0.5, 0.999])
    expected = torch.zeros(6, 9, dtype=torch.bool)
    expected[1:5, 5:9] = True
    assert torch.equal(masks(numbers).view(6, 9), expected)


def test_an_images_mask_depends_on_its_position_and_step_alone():
    method = build_method(tiny_method("ibot"))
    whole, chosen = method.hide(2, tiny_draws(pictures=6))
    assert bool((whole.gather(1, chosen).sum(1) == whole.sum(1)).all())  # what is hidden is among what is scored
    draws = Draws(0, 0, torch.arange(4, 6), 0.0)
    assert torch.equal(whole.view(2, 6, -1)[:, 4:], method.hide(2, draws)[0].view(2, 2, -1))
    assert not torch.equal(whole, method.hide(2, tiny_draws(pictures=6, step=1))[0])


@pytest.mark.parametrize("name", ["resnet8_cifar", "resnet18"])
def test_a_resnet_is_refused_with_what_works(name):
    changes = dict.fromkeys(("backbone__patch_size", "backbone__width", "backbone__depth", "backbone__heads"), "null")
    with pytest.raises(UsageError, match=rf"{name}.*vit_tiny_patch16_224"):
        build_method(tiny_method("ibot", backbone__name=name, **changes))


def test_a_ratio_that_hides_nothing_is_refused():
    with pytest.raises(UsageError, match=r"loss.mask_ratio is \[0.0, 0.05\].*4 x 4"):
        build_method(tiny_method("ibot", loss__mask_ratio="0,0.05"))
