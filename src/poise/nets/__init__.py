"""What learns: backbones, heads, and the model made of both."""

from poise.nets.heads import CosineHead, Head, LinearHead, ProxyHead, ScaledHead
from poise.nets.model import (
    BACKBONES,
    VARIANTS,
    Model,
    build_backbone,
    build_head,
    check_backbone,
    feature_width,
    torch_generator,
)
from poise.nets.outputs import Features, Output
from poise.nets.resnet import BatchNorm, ResNet

__all__ = [
    "BACKBONES",
    "VARIANTS",
    "BatchNorm",
    "CosineHead",
    "Features",
    "Head",
    "LinearHead",
    "Model",
    "Output",
    "ProxyHead",
    "ResNet",
    "ScaledHead",
    "build_backbone",
    "build_head",
    "check_backbone",
    "feature_width",
    "torch_generator",
]
