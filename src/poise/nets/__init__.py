"""What learns: backbones, two branches of one, several side by side, heads, and the model made of both."""

from poise.nets.adapt import Adapted, NetInfo, adapt, feature_width, net_info
from poise.nets.base import FULL, Backbone, Features, Output, own_draws, torch_generator
from poise.nets.grown import Branches, Concatenated, Frozen, NewestHead, OldestHead, Specialised
from poise.nets.heads import HEADS, BoostedHead, CosineHead, Head, LinearHead, ProxyHead, RenewedHead, ScaledHead
from poise.nets.model import (
    BACKBONES,
    VARIANTS,
    Model,
    Part,
    build_backbone,
    build_head,
    build_net,
    check_backbone,
)
from poise.nets.resnet import BatchNorm, ResNet, ScaledConv

__all__ = [
    "BACKBONES",
    "FULL",
    "HEADS",
    "VARIANTS",
    "Adapted",
    "Backbone",
    "BatchNorm",
    "BoostedHead",
    "Branches",
    "Concatenated",
    "CosineHead",
    "Features",
    "Frozen",
    "Head",
    "LinearHead",
    "Model",
    "NetInfo",
    "NewestHead",
    "OldestHead",
    "Output",
    "Part",
    "ProxyHead",
    "RenewedHead",
    "ResNet",
    "ScaledConv",
    "ScaledHead",
    "Specialised",
    "adapt",
    "build_backbone",
    "build_head",
    "build_net",
    "check_backbone",
    "feature_width",
    "net_info",
    "own_draws",
    "torch_generator",
]
