"""Small networks that follow the conventions of other libraries: the same attributes, calls and outputs.

Each returns a simple function of the mean colour of its images, so that what an adapter must find is known.
"""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)


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
    """As timm has them: `forward` is `forward_head(forward_features(x))`, and `reset_classifier(0)` leaves features."""

    def __init__(self, config: Any = None, classes: int = 10) -> None:
        super().__init__()
        self.num_features, self.num_classes = 4, classes
        self.stem, self.global_pool = Stem(), nn.AdaptiveAvgPool2d(1)
        self.fc: nn.Module = nn.Linear(4, classes)
        self.pretrained_cfg = config if config is not None else timm_config()
        self.default_cfg = self.pretrained_cfg

    def forward_features(self, images: Tensor) -> Tensor:
        found: Tensor = self.stem(images)
        return found

    def forward_head(self, maps: Tensor, pre_logits: bool = False) -> Tensor:
        pooled: Tensor = self.global_pool(maps).flatten(1)
        if pre_logits:
            return pooled
        found: Tensor = self.fc(pooled)
        return found

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        self.fc = nn.Linear(4, num_classes) if num_classes else nn.Identity()


def timm_config(**changes: Any) -> dict[str, Any]:
    return {"mean": MEAN, "std": STD, "input_size": (3, 64, 64), "tag": "a1_in1k", "num_classes": 10, **changes}


class OldTimmNet(TimmNet):
    """Without `reset_classifier`: features by `forward_head(…, pre_logits=True)`."""

    reset_classifier = None  # type: ignore[assignment]


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
    """The preset that a weight of torchvision makes."""

    crop_size: list[int]
    mean: list[float]
    std: list[float]


class Weights(Enum):
    """A list of weights as torchvision has it."""

    IMAGENET1K_V1 = "https://weights"
    DEFAULT = IMAGENET1K_V1

    def transforms(self) -> ImageClassification:
        return ImageClassification([64], list(MEAN), list(STD))


class VisionTransformer(nn.Module):
    """A body of transformers: patches of 16 pixels and a class token, for images of one size only."""

    def __init__(self, pooler: nn.Module | None = None, *, class_token: bool = True) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=4, image_size=64, num_channels=3, _name_or_path="some/vit-in21k")
        self.stem, self.pooler, self.class_token = Stem(), pooler, class_token

    def forward(self, pixel_values: Tensor | None = None, **_: Any) -> SimpleNamespace:
        assert pixel_values is not None
        if pixel_values.shape[-1] != self.config.image_size:
            raise ValueError(f"Input image size doesn't match model ({self.config.image_size}).")
        patches = nn.functional.avg_pool2d(self.stem(pixel_values), 8).flatten(2).transpose(1, 2)
        first = 2 * patches.mean(dim=1, keepdim=True)
        hidden = torch.cat([first, patches], dim=1) if self.class_token else patches
        pooled = self.pooler(hidden[:, 0]) if self.pooler is not None else None
        return SimpleNamespace(last_hidden_state=hidden, pooler_output=pooled)


class ImageClassifier(nn.Module):
    """A model of transformers with a classifier on top, whose `base_model` is the body."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.vit, self.classifier, self.config = body, nn.Linear(4, 10), body.config

    @property
    def base_model(self) -> nn.Module:
        return self.vit

    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        hidden = self.vit(pixel_values=pixel_values).last_hidden_state
        return SimpleNamespace(logits=self.classifier(hidden[:, 0]))


class ImageProcessor:
    """An image processor of transformers."""

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


class Clip(nn.Module):
    """A model of open_clip: two towers."""

    def __init__(self) -> None:
        super().__init__()
        self.visual, self.transformer = Tower(), nn.Linear(512, 512)

    def encode_image(self, images: Tensor) -> Tensor:
        pooled: Tensor = self.visual(images)[0]
        return pooled
