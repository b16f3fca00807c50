"""iBOT: DINO on class tokens and on patches that are hidden from the online network.

Zhou et al., iBOT: Image BERT Pre-Training with Online Tokenizer, 2022. Global views reach the online network
with blocks of patches hidden; for each hidden patch it predicts the prototypes of the target, which sees
all patches.
"""

from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from prosmin.config import Config, IbotLoss
from prosmin.data.views import Views
from prosmin.errors import UsageError
from prosmin.methods.dino import ViewDistillation, freeze_for, softmax_of, warmed_up, wide_dtype
from prosmin.methods.output import Draws, Embedding, Output
from prosmin.models.backbones import build_backbone
from prosmin.models.centre import Centre, batch_mean
from prosmin.models.heads import build_projector
from prosmin.models.masking import BlockMasks
from prosmin.models.target import Frozen, make_target, restore, update_target
from prosmin.models.vit import encode, vit_tokens


class TokenEmbedder(nn.Module):
    """f and g of class and patch tokens, and the token that replaces a hidden patch."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.backbone = build_vit(config)
        width = self.backbone.num_features
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.projector = build_projector(width, config)
        self.patch_projector = None if config.heads.shared else build_projector(width, config)

    def forward(
        self, groups: list[Tensor], mask: Tensor | None = None, chosen: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Groups of views -> features (N, D), embedding (N, K), patch embeddings of the first group (n, M, K).

        mask (n, P): the hidden patches of the first group. chosen (n, M): the patches to embed (default: all P).
        """
        first, patches = vit_tokens(self.backbone, groups[0], mask, self.mask_token)  # (n, D), (n, P, D)
        features = torch.cat([first, *(encode(self.backbone, x) for x in groups[1:])])  # (N, D)
        if chosen is not None:
            patches = _take(patches, chosen)  # (n, M, D)
        n, M = patches.shape[:2]
        tokens = patches.flatten(0, 1)
        if self.patch_projector is not None:
            return features, self.projector(features), self.patch_projector(tokens).unflatten(0, (n, M))
        # One pass for both, so that BatchNorm has one set of statistics.
        embedding, projected = self.projector(torch.cat([features, tokens])).split([len(features), n * M])
        return features, embedding, projected.unflatten(0, (n, M))

    def last_weights(self) -> list[nn.Parameter]:
        """The weights that are frozen during the first epochs."""
        projectors = [self.projector, self.patch_projector]
        return [weight for projector in projectors if projector is not None for weight in projector.last_weights()]


class PatchDistillation(nn.Module):
    """The loss of hidden patches, as a module so that it is compiled with the networks."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, online: Tensor, target: Tensor, hidden: Tensor, target_temperature: Tensor) -> Tensor:
        """The mean over a view's hidden patches, then over views; a view without any counts as 0.

        online, centred target (G, B, M, K), hidden (G, B, M), () -> (B,).
        """
        with torch.autocast(online.device.type, enabled=False):
            z = online.to(wide_dtype(online)) / self.temperature
            entropies = z.logsumexp(-1) - (softmax_of(target, target_temperature) * z).sum(-1)  # (G, B, M)
            weights = hidden.to(z.dtype)
            return ((weights * entropies).sum(-1) / weights.sum(-1).clamp_min(1.0)).mean(0)


class IBOT(nn.Module):
    """Online: f and g. Target: f, g, one centre for class tokens and one for patch tokens."""

    spans_batch = False

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.loss: IbotLoss = config.loss
        self.freeze_epochs: float = config.heads.freeze_last_epochs
        self.online = TokenEmbedder(config)
        self.target = make_target(self.online if config.target.start == "copy" else TokenEmbedder(config))
        self.centre = Centre(config.heads.dim, momentum=config.target.centre_momentum)
        self.patch_centre = Centre(config.heads.dim, momentum=config.target.centre_momentum)
        self.masks = _build_masks(self.online.backbone.patch_embed.grid_size, config.loss)
        self.distillation = ViewDistillation(config.loss.temperature)
        self.patch_distillation = PatchDistillation(config.loss.temperature)
        self.frozen: Frozen | None = None

    def forward(self, views: Views, draws: Draws) -> Output:
        """DINO's loss of the class tokens plus the loss of the patches hidden from the online network."""
        G, B = views.global_views.shape[:2]
        groups = [group.flatten(0, 1) for group in views.groups]
        self.frozen = freeze_for(self.freeze_epochs, self.online.last_weights(), draws)
        mask, chosen = self.hide(G, draws)  # (G B, P), (G B, M)
        features, online, patches = self.online(groups, mask, chosen)  # (V B, D), (V B, K), (G B, M, K)
        with torch.no_grad():
            _, raw, raw_patches = self.target(groups[:1])  # (G B, K), (G B, P, K)
            target, target_patches = self.centre(raw), self.patch_centre(_take(raw_patches, chosen))
        temperature = draws.scalar("target temperature", self.target_temperature)
        patch_temperature = draws.scalar("patch temperature", self.patch_temperature)
        losses = self.distillation(online.unflatten(0, (-1, B)), target.unflatten(0, (G, B)), temperature)
        patch_losses = self.patch_distillation(
            patches.unflatten(0, (G, B)),
            target_patches.unflatten(0, (G, B)),
            mask.gather(1, chosen).unflatten(0, (G, B)),
            patch_temperature,
        )
        return Output(
            losses=losses + self.loss.patch_weight * patch_losses,
            observed={"features": features[: G * B].detach(), "target": raw.unflatten(0, (G, B))},
            statistics={"centre": batch_mean(raw), "patch_centre": batch_mean(raw_patches)},
        )

    def hide(self, views: int, draws: Draws) -> tuple[Tensor, Tensor]:
        """The mask of each global view, (G B, P), and M patches that include all hidden ones, (G B, M).

        M is the largest number a view can hide: the loss then works on few patches, and no shape depends on the masks.
        """
        numbers = draws.uniform("masks", views * self.masks.numbers)  # (B, G n)
        mask = self.masks(numbers.unflatten(1, (views, -1)).transpose(0, 1).flatten(0, 1))  # (G B, P)
        order = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
        return mask, order[:, : self.masks.most]

    def target_temperature(self, epoch: float) -> float:
        """The target's temperature for class tokens at an epoch."""
        ends = {"start": self.loss.target_temperature_start, "end": self.loss.target_temperature}
        return warmed_up(epoch, **ends, epochs=self.loss.temperature_warmup_epochs)

    def patch_temperature(self, epoch: float) -> float:
        """The target's temperature for patch tokens at an epoch."""
        ends = {"start": self.loss.patch_temperature_start, "end": self.loss.patch_temperature}
        return warmed_up(epoch, **ends, epochs=self.loss.temperature_warmup_epochs)

    def update(self, statistics: dict[str, Tensor], *, momentum: float) -> None:
        """Move the target towards the online network, the centres towards the batch means."""
        restore(self.frozen)
        update_target(self.target, self.online, momentum=momentum)
        self.centre.update(statistics["centre"])
        self.patch_centre.update(statistics["patch_centre"])

    def encode(self, x: Tensor) -> Embedding:
        """Evaluation views, (N, 3, h, h), nothing hidden."""
        features = self.online.backbone(x)
        return Embedding(features, self.online.projector(features), None)


def _build_masks(grid: tuple[int, int], loss: IbotLoss) -> BlockMasks:
    masks = BlockMasks(grid, ratio=loss.mask_ratio, probability=loss.mask_probability)
    if masks.most < 1:
        raise UsageError(
            f"loss.mask_ratio is {list(loss.mask_ratio)}, which hides none of the {grid[0]} x {grid[1]} "
            "patches of a view. Use a larger ratio, a larger views.global_size or a smaller backbone.patch_size."
        )
    return masks


class _Take(torch.autograd.Function):
    """The chosen tokens of each view, none twice: (n, P, D), (n, M) -> (n, M, D).

    As no token is chosen twice, the gradient only moves back: a lookup too. That of `gather` is a scatter, whose
    deterministic form waits for the host.
    """

    @staticmethod
    def forward(tokens: Tensor, chosen: Tensor) -> Tensor:
        return tokens.gather(1, _wide(chosen, tokens))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        tokens, chosen = inputs
        ctx.count = tokens.shape[1]
        ctx.save_for_backward(chosen)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (chosen,) = ctx.saved_tensors
        is_own = chosen[:, None] == torch.arange(ctx.count, device=chosen.device)[:, None]  # (n, P, M)
        place = is_own.to(torch.uint8).argmax(-1)  # (n, P): of each token among the chosen, 0 for others
        moved = gradient.gather(1, _wide(place, gradient))
        return moved.masked_fill_(~is_own.any(-1)[..., None], 0.0), None


def _wide(rows: Tensor, tokens: Tensor) -> Tensor:
    """Row numbers (n, M) for all columns of tokens (n, P, D): (n, M, D)."""
    return rows[..., None].expand(-1, -1, tokens.shape[-1])


def _take(tokens: Tensor, chosen: Tensor) -> Tensor:
    taken: Tensor = _Take.apply(tokens, chosen)
    return taken


def build_vit(config: Config) -> VisionTransformer:
    """The backbone of a method that needs patch tokens."""
    vit = build_backbone(config.backbone, image_size=config.views.global_size)
    if isinstance(vit, VisionTransformer):
        return vit
    raise UsageError(
        f"method.name {config.method.name!r} needs the patch tokens of a ViT; backbone.name is "
        f"{config.backbone.name!r}. Choose a vit_* name, such as vit_tiny_patch16_224, or another method."
    )
