"""What learns: backbones, two branches of one, several side by side, heads, and the model made of both."""

from poise.nets.adapt import Adapted, adapt
from poise.nets.branches import Branches, ScaledConv
from poise.nets.concatenated import Concatenated, Frozen, NewestHead, OldestHead
from poise.nets.drawing import OwnDraws, torch_generator
from poise.nets.heads import HEADS, BoostedHead, CosineHead, Head, LinearHead, ProxyHead, RenewedHead, ScaledHead
from poise.nets.info import NetInfo, net_info, set_info
from poise.nets.layers import FULL, make_layer
from poise.nets.model import (
    BACKBONES,
    VARIANTS,
    Model,
    Part,
    build_backbone,
    build_head,
    build_net,
    check_backbone,
    feature_width,
)
from poise.nets.named import (
    absolute_word,
    adapted_again,
    changed_file,
    file_digest,
    is_named,
    named_info,
    named_modules,
)
from poise.nets.outputs import Features, Output
from poise.nets.resnet import Backbone, BatchNorm, ResNet

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
    "OwnDraws",
    "Part",
    "ProxyHead",
    "RenewedHead",
    "ResNet",
    "ScaledConv",
    "ScaledHead",
    "absolute_word",
    "adapt",
    "adapted_again",
    "build_backbone",
    "build_head",
    "build_net",
    "changed_file",
    "check_backbone",
    "feature_width",
    "file_digest",
    "is_named",
    "make_layer",
    "named_info",
    "named_modules",
    "net_info",
    "set_info",
    "torch_generator",
]
