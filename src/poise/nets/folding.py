"""Batch norms folded into the convolutions before them: the same function in eval mode, in fewer steps."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from poise.nets.branches import unscale_convolutions
from poise.nets.resnet import Backbone, Block


def fold_norms(net: Backbone) -> None:
    """Fold, in place, every batch norm of a network in eval mode; such a network cannot be trained any more.

    Parts that are folded already stay as they are.
    """
    unscale_convolutions(net)
    for module in list(net.modules()):
        if isinstance(module, Block):
            module.conv1, module.bn1 = _fold(module.conv1, module.bn1)
            module.conv2, module.bn2 = _fold(module.conv2, module.bn2)
        elif isinstance(module, nn.Sequential):
            for index in range(len(module) - 1):
                conv, norm = module[index], module[index + 1]
                if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    module[index], module[index + 1] = _fold(conv, norm)


def _fold(conv: nn.Module, norm: nn.Module) -> tuple[nn.Module, nn.Module]:
    assert isinstance(conv, nn.Conv2d)
    if isinstance(norm, nn.Identity):
        return conv, norm
    assert isinstance(norm, nn.BatchNorm2d)
    return fuse_conv_bn_eval(conv, norm), nn.Identity()
