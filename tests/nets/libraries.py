"""Small networks that follow the conventions of other libraries, and modules in which those are found.

Each returns a simple function of the mean colour of its images, so that what an adapter must find is known.
"""

from __future__ import annotations

from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
calls: list[Any] = []  # for which weights the libraries were asked


class Stem(nn.Module):
    """Maps [B, 4, H / 2, W / 2] with a known value: the sum of the colours, times 1, 2, 3 and 4."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 2, 2, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.arange(1.0, 5.0).view(4, 1, 1, 1).expand_as(self.conv.weight) / 4)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.conv(images)
        return found


def known_features(images: Tensor) -> Tensor:
    """What the stem makes of images, averaged."""
    return images.sum(dim=1).mean(dim=(1, 2))[:, None] * torch.arange(1.0, 5.0)


class TimmNet(nn.Module):
    def __init__(self, config: dict[str, Any] | None = None, classes: int = 10) -> None:
        super().__init__()
        self.stem, self.fc = Stem(), nn.Linear(4, classes) if classes else nn.Identity()
        known = {"mean": MEAN, "std": STD, "input_size": (3, 64, 64), "tag": "a1_in1k"}
        self.pretrained_cfg = {**known, **(config or {})}

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.fc(self.stem(images).mean(dim=(2, 3)))
        return found


class TorchvisionNet(nn.Module):
    """A classifier of torchvision: the attribute `name` is a linear layer, or a sequence that ends with one."""

    def __init__(self, name: str, head: nn.Module) -> None:
        super().__init__()
        self.features, self.avgpool, self.name = Stem(), nn.AdaptiveAvgPool2d(1), name
        setattr(self, name, head)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = getattr(self, self.name)(torch.flatten(self.avgpool(self.features(images)), 1))
        return found


class ImageClassification(NamedTuple):
    crop_size: list[int]
    mean: list[float]
    std: list[float]


class Weights(Enum):
    IMAGENET1K_V1 = "https://weights"
    DEFAULT = IMAGENET1K_V1

    def transforms(self) -> ImageClassification:
        return ImageClassification([64], list(MEAN), list(STD))


class VisionTransformer(nn.Module):
    """A body of transformers: patches of 16 pixels and a class token, for images of one size only."""

    def __init__(self, pooler: nn.Module | None = None, *, class_token: bool = True) -> None:
        super().__init__()
        self.config = SimpleNamespace(image_size=64, num_channels=3)
        self.stem, self.pooler, self.class_token = Stem(), pooler, class_token

    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        if pixel_values.shape[-1] != self.config.image_size:
            raise ValueError(f"Input image size doesn't match model ({self.config.image_size}).")
        patches = nn.functional.avg_pool2d(self.stem(pixel_values), 8).flatten(2).transpose(1, 2)
        first = 2 * patches.mean(dim=1, keepdim=True)
        hidden = torch.cat([first, patches], dim=1) if self.class_token else patches
        pooled = self.pooler(hidden[:, 0]) if self.pooler is not None else None
        return SimpleNamespace(last_hidden_state=hidden, pooler_output=pooled)


class ImageProcessor:
    image_mean: ClassVar[list[float]] = list(MEAN)
    image_std: ClassVar[list[float]] = list(STD)
    size: ClassVar[dict[str, int]] = {"height": 64, "width": 64}
    do_normalize = True


class Tower(nn.Module):
    """The image tower of open_clip."""

    def __init__(self) -> None:
        super().__init__()
        self.image_mean, self.image_std, self.image_size = MEAN, STD, (64, 64)
        self.stem = Stem()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.stem(images)
        return maps.mean(dim=(2, 3)), maps.flatten(2).transpose(1, 2)


TimmNet.__module__, TorchvisionNet.__module__ = "timm.models", "torchvision.models"


def modules() -> dict[str, ModuleType]:
    """The libraries, by the names under which they are imported."""

    def create(name: str, pretrained: bool = False, num_classes: int = 1000) -> nn.Module:
        calls.append(pretrained)
        if name not in ("tiny", "strict", "least"):
            raise RuntimeError(f"Unknown model ({name})")
        sizes = {"strict": {"fixed_input_size": True}, "least": {}}.get(name)
        return TimmNet({} if sizes is None else {**sizes, "min_input_size": (3, 48, 48)}, classes=num_classes)

    def get_model(name: str, weights: Any = None) -> nn.Module:
        calls.append(weights)
        return TorchvisionNet("fc", nn.Linear(4, 10))

    parts: dict[str, dict[str, Any]] = {
        "timm": {"create_model": create},
        "torchvision": {},
        "torchvision.models": {"get_model": get_model, "get_model_weights": lambda name: Weights},
        "transformers": {
            "AutoModel": SimpleNamespace(from_pretrained=lambda name: VisionTransformer()),
            "AutoImageProcessor": SimpleNamespace(from_pretrained=lambda name: ImageProcessor()),
        },
        "open_clip": {"create_model": lambda name, pretrained=None: SimpleNamespace(visual=Tower())},
    }
    made = {name: ModuleType(name) for name in parts}
    for name, module in made.items():
        vars(module).update(parts[name])
    return made
