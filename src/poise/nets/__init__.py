"""What learns: backbones, two branches of one, heads, and the model made of both."""

from poise.nets.branches import Branches, ScaledConv
from poise.nets.gaussians import GaussianHead
from poise.nets.heads import CosineHead, Head, LinearHead, ProxyHead, ScaledHead
from poise.nets.model import (
    BACKBONES,
    VARIANTS,
    Model,
    Part,
    build_backbone,
    build_head,
    check_backbone,
    feature_width,
    torch_generator,
)
from poise.nets.outputs import Features, Output
from poise.nets.resnet import Backbone, BatchNorm, ResNet
from poise.nets.ridge import RIDGES, RidgeHead

__all__ = [
    "BACKBONES",
    "RIDGES",
    "VARIANTS",
    "Backbone",
    "BatchNorm",
    "Branches",
    "CosineHead",
    "Features",
    "GaussianHead",
    "Head",
    "LinearHead",
    "Model",
    "Output",
    "Part",
    "ProxyHead",
    "ResNet",
    "RidgeHead",
    "ScaledConv",
    "ScaledHead",
    "build_backbone",
    "build_head",
    "check_backbone",
    "feature_width",
    "torch_generator",
]
