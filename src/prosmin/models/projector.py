"""g: the projector, from features to the embedding in which online and target meet."""

from torch import Tensor, nn
from torch.nn import functional as F


class UnitLinear(nn.Module):
    """A linear layer whose rows have length one: the weight-normalised last layer of DINO's head.

    Only directions count, but a step turns a longer row less. `as_plain`: rows begin as long as those of nn.Linear.
    """

    def __init__(self, inputs: int, outputs: int, *, as_plain: bool = False) -> None:
        super().__init__()
        weight = nn.Linear(inputs, outputs, bias=False).weight.detach()
        self.weight = nn.Parameter(nn.init.trunc_normal_(weight, std=(3 * inputs) ** -0.5 if as_plain else 0.02))

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs): cosines, when x has length one."""
        return F.linear(x, F.normalize(self.weight, dim=1))


def mlp(widths: list[int], *, batchnorm: bool) -> nn.Sequential:
    """Linear layers with GELU between them, BatchNorm before each GELU by option."""
    layers: list[nn.Module] = []
    for i in range(1, len(widths)):
        hidden = i < len(widths) - 1
        linear = nn.Linear(widths[i - 1], widths[i], bias=not (batchnorm and hidden))
        nn.init.trunc_normal_(linear.weight, std=0.02)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
        layers.append(linear)
        if hidden:
            layers += [nn.BatchNorm1d(widths[i]), nn.GELU()] if batchnorm else [nn.GELU()]
    return nn.Sequential(*layers)


class Projector(nn.Module):
    """Three-layer MLP, l2-normalised bottleneck, unit rows to K: every output is a cosine."""

    def __init__(
        self,
        inputs: int,
        *,
        hidden: int,
        bottleneck: int,
        dim: int,
        batchnorm: bool,
        bottleneck_batchnorm: bool = False,
        fixed_last: bool = False,
        prototypes: bool = False,
    ) -> None:
        super().__init__()
        self.mlp = mlp([inputs, hidden, hidden, bottleneck], batchnorm=batchnorm)
        self.norm = nn.BatchNorm1d(bottleneck, affine=False) if bottleneck_batchnorm else nn.Identity()
        # Prototypes, which DINO and iBOT learn, begin as published.
        self.last = UnitLinear(bottleneck, dim, as_plain=prototypes).requires_grad_(not fixed_last)

    def forward(self, y: Tensor) -> Tensor:
        """(N, inputs) -> (N, K)."""
        return self.last(F.normalize(self.norm(self.mlp(y)), dim=-1))
