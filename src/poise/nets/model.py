"""A model: backbone and head, what a phase trains and a prediction needs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from poise import draws
from poise.errors import UserError, suggestion
from poise.nets.branches import Branches
from poise.nets.folding import fold_norms
from poise.nets.heads import HEADS, Head, ScaledHead
from poise.nets.outputs import Features, Output
from poise.nets.resnet import Backbone, ResNet, cifar_resnet, imagenet_resnet18, initialise

Part = Literal["all", "head", "rows", "fusion"]  # of a model: what can be trained without the rest

VARIANTS = ("lucir", "ordinary", "pod")

BACKBONES: dict[str, Callable[[str, int], ResNet]] = {
    "small": lambda variant, channels: cifar_resnet(variant, channels, (1, 1, 1), (16, 32, 64)),
    "resnet32": lambda variant, channels: cifar_resnet(variant, channels, (5, 5, 5), (16, 32, 64)),
    "resnet18": imagenet_resnet18,
}


class Model(nn.Module):
    """A backbone that maps images to features, and a head that maps features to classes."""

    def __init__(self, backbone: nn.Module, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> Output:
        """Features, maps, scores and logits of normalised images."""
        found = self.backbone(images)
        features = found if isinstance(found, Features) else Features(found)
        vector = features.vector.float()
        scores, logits = self.head(vector)
        scale = self.head.scale if isinstance(self.head, ScaledHead) else None
        return Output(vector, features.maps, scores, logits, scale)

    def train_only(self, part: Part, *, old_rows: bool = True) -> None:
        """Say what is trained: `all` but the fusion of two branches; or only the `head`, its `rows`, or the `fusion`.

        Rows of old classes are trained only if `old_rows`.
        """
        self.backbone.requires_grad_(part == "all")
        self.head.requires_grad_(part != "fusion")
        self.head.freeze_old(part == "fusion" or not old_rows)
        self.head.freeze_scale(part in ("rows", "fusion"))
        if isinstance(self.backbone, Branches):
            self.backbone.alpha.requires_grad_(part == "fusion")

    @torch.no_grad()
    def settle(self) -> None:
        """Bring the shares of two branches back to between 0 and 1, should training have moved them out."""
        if isinstance(self.backbone, Branches):
            self.backbone.alpha.clamp_(0, 1)

    def placed(self, device: torch.device) -> Model:
        """The model itself, moved to the device and laid out channels last, as convolutions like it."""
        return self.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def teacher(self, dtype: torch.dtype = torch.float32) -> Model:
        """A frozen copy in eval mode; a network of poise's own has its norms folded, its weights in `dtype`."""
        copied = copy.deepcopy(self).eval()
        if isinstance(copied.backbone, Backbone):
            fold_norms(copied.backbone)
            copied.backbone.to(dtype)
        return copied.placed(self.head.old.device).requires_grad_(False)


def torch_generator(seed: int, purpose: str, *address: int | str) -> torch.Generator:
    """A CPU generator for the initial values at this address."""
    return torch.Generator().manual_seed(draws.key(seed, purpose, *address) % 2**63)


def check_backbone(name: str, variant: str) -> tuple[str, str]:
    """Family and variant of a named backbone; a name that `build_backbone` would not know is refused."""
    family, _, override = name.partition("/")
    variant = override or variant
    if family not in BACKBONES:
        raise UserError(f"unknown net '{family}'; {suggestion(family, BACKBONES)}")
    if variant not in VARIANTS:
        raise UserError(f"unknown net variant '{variant}'; {suggestion(variant, VARIANTS)}")
    if family == "resnet18" and variant == "pod":
        raise UserError("net resnet18 has no variant 'pod' yet; use resnet18/lucir or resnet18/ordinary")
    return family, variant


def build_backbone(name: str, variant: str, channels: int, seed: int) -> ResNet:
    """A named backbone with its initial weights; `NAME/VARIANT` overrides the method's variant."""
    family, variant = check_backbone(name, variant)
    with torch.random.fork_rng(devices=[]):  # modules draw first values of their own, soon overwritten
        net = BACKBONES[family](variant, channels)
    initialise(net, torch_generator(seed, "backbone", family, variant), zero_last_norm=variant == "pod")
    return net


def build_head(kind: str, width: int) -> Head:
    """An empty head of the given kind for features of the given width."""
    if kind not in HEADS:
        raise UserError(f"unknown head '{kind}'; {suggestion(kind, HEADS)}")
    return HEADS[kind](width)


@torch.no_grad()
def feature_width(backbone: nn.Module, shape: tuple[int, int, int]) -> int:
    """The length of the feature vector, asked of the backbone with one black image."""
    if isinstance(backbone, Backbone):
        return backbone.width
    training = backbone.training
    backbone.eval()
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    try:
        found = backbone(torch.zeros(1, *shape, device=device))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"your net does not take images of shape {shape} (channels, height, width): {reason}"
        ) from error
    finally:
        backbone.train(training)
    vector = found.vector if isinstance(found, Features) else found
    if not isinstance(vector, Tensor) or vector.ndim != 2 or len(vector) != 1:
        raise UserError("your net must return features of shape [batch, width] for images [batch, channels, h, w]")
    return int(vector.shape[1])
