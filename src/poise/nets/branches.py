"""Two branches of one network, fused after every level (AANets, Liu et al., CVPR 2021).

The stable branch keeps the convolutions it was made with and learns one scale per kernel; the plastic branch learns
everything. Both see what was fused before:

    x_l = α_l · stable_l(x_{l−1}) + (1 − α_l) · plastic_l(x_{l−1}),

where the first level includes the stem and x_0 is the image.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from poise.nets.copying import copy_network
from poise.nets.layers import FULL, make_layer
from poise.nets.outputs import Features
from poise.nets.resnet import Backbone, ResNet, convolve


class ScaledConv(nn.Module):
    """A convolution with frozen weights and one learned scale, initially 1, for each of its out × in kernels."""

    weight: Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        assert conv.bias is None
        self.register_buffer("weight", conv.weight.detach().clone())
        self.scale = nn.Parameter(torch.ones_like(self.weight[:, :, :1, :1]))
        self.stride, self.padding = conv.stride[0], conv.padding[0]

    def forward(self, x: Tensor) -> Tensor:
        """The convolution with its scaled kernels."""
        return convolve(x, self.scale * self.weight, self.stride, int(self.padding))

    def plain(self) -> nn.Conv2d:
        """An ordinary convolution with the same output."""
        width, width_in, size, _ = self.weight.shape
        conv = make_layer(nn.Conv2d, width_in, width, size, self.stride, self.padding, bias=False)
        conv.weight = nn.Parameter((self.scale * self.weight).detach())
        return conv.train(self.training)


class Branches(Backbone):
    """A stable and a plastic copy of a network, and the share α of the stable one at each level."""

    def __init__(self, net: ResNet, alpha: float = 0.5) -> None:
        super().__init__(net.width)
        self.stable, self.plastic = copy_network(net), copy_network(net)
        scale_convolutions(self.stable)
        device = next(net.parameters()).device
        self.alpha = nn.Parameter(torch.full((len(net.levels),), alpha, dtype=FULL, device=device))

    def forward(self, x: Tensor) -> Features:
        """The pooled vector and the fused map of each level."""
        maps = []
        for number, alpha in enumerate(self.alpha):
            plastic, stable = self.plastic.level(number, x), self.stable.level(number, x)
            x = torch.lerp(plastic, stable, alpha.to(plastic.dtype))
            maps.append(x)
        return Features(x.mean(dim=(2, 3)), tuple(maps))


def scale_convolutions(net: nn.Module) -> None:
    """Freeze, in place, every convolution of a network and give its kernels scales to learn."""
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Conv2d):
                setattr(module, name, ScaledConv(child))


def unscale_convolutions(net: nn.Module) -> None:
    """Replace, in place, every scaled convolution by an ordinary one with the same output."""
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, ScaledConv):
                setattr(module, name, child.plain())
