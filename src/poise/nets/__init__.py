"""What learns: backbones, two branches of one, heads, and the model made of both."""

from poise.nets.adapt import Adapted, adapt
from poise.nets.branches import Branches, ScaledConv
from poise.nets.drawing import OwnDraws
from poise.nets.gaussians import GaussianHead
from poise.nets.heads import CosineHead, Head, LinearHead, ProxyHead, ScaledHead
from poise.nets.info import NetInfo, net_info, set_info
from poise.nets.layers import FULL, blank_layer
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
    torch_generator,
)
from poise.nets.named import absolute_word, changed_file, is_named, named_info, named_modules
from poise.nets.outputs import Features, Output
from poise.nets.resnet import Backbone, BatchNorm, ResNet
from poise.nets.ridge import RIDGES, RidgeHead

__all__ = [
    "BACKBONES",
    "FULL",
    "RIDGES",
    "VARIANTS",
    "Adapted",
    "Backbone",
    "BatchNorm",
    "Branches",
    "CosineHead",
    "Features",
    "GaussianHead",
    "Head",
    "LinearHead",
    "Model",
    "NetInfo",
    "Output",
    "OwnDraws",
    "Part",
    "ProxyHead",
    "ResNet",
    "RidgeHead",
    "ScaledConv",
    "ScaledHead",
    "absolute_word",
    "adapt",
    "blank_layer",
    "build_backbone",
    "build_head",
    "build_net",
    "changed_file",
    "check_backbone",
    "feature_width",
    "is_named",
    "named_info",
    "named_modules",
    "net_info",
    "set_info",
    "torch_generator",
]
