"""Networks of a few hundred weights, so that stored files are small; these name them, as in `stored_net:grey`."""

from __future__ import annotations

from torch import nn


def grey() -> nn.Module:
    """Eight features of an image with one channel."""
    return _tiny(1)


def colour() -> nn.Module:
    """Eight features of an image with three channels."""
    return _tiny(3)


def _tiny(channels: int) -> nn.Module:
    convolution = nn.Conv2d(channels, 8, 3, stride=2, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
