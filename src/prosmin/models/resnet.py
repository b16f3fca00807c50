"""A small family of ResNets for small images: a 3x3 stem without pooling (He et al., 2016, section 4.2)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# widths of the stages, blocks per stage
RESNETS: dict[str, tuple[tuple[int, ...], int]] = {
    "resnet8_cifar": ((16, 32, 64), 1),
    "resnet14_cifar": ((16, 32, 64), 2),
    "resnet20_cifar": ((16, 32, 64), 3),
    "resnet8w_cifar": ((32, 64, 128), 1),
    "resnet10_cifar": ((64, 128, 256, 512), 1),
    "resnet18_cifar": ((64, 128, 256, 512), 2),
}


class Block(nn.Module):
    """Two 3x3 convolutions with a residual connection."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.carry = nn.Identity() if stride == 1 and inputs == width else _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, h, w) -> (B, width, h / stride, w / stride)."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.carry(x))


def _shortcut(inputs: int, width: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))


class SmallResNet(nn.Module):
    """Stem, stages that halve the side, global average: (B, 3, h, w) -> (B, last width)."""

    def __init__(self, widths: tuple[int, ...], blocks: int) -> None:
        super().__init__()
        self.num_features = widths[-1]
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        layers: list[nn.Module] = []
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                layers.append(Block(inputs, width, stride=2 if stage > 0 and block == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*layers)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """The layers from input to output as patterns of parameter names, as timm's networks give them."""
        return {"stem": r"^stem", "blocks": r"^blocks\.(\d+)"}

    def forward(self, x: Tensor) -> Tensor:
        """Features of a batch of images."""
        x = x.contiguous(memory_format=torch.channels_last)
        return self.blocks(self.stem(x)).mean(dim=(2, 3))
