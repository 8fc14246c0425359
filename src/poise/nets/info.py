"""What is known of a network that was not made here: how it wants its images, and what it was trained on before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from torch import Tensor, nn

from poise.data import Augmentation, Preprocessing
from poise.errors import UserError

SMALL: Final = 2  # images more than this many times smaller than those a network was trained with make poor features


@dataclass(frozen=True)
class NetInfo:
    """What a backbone says of itself, in its attribute `info`. None means that it is not known.

    Attributes:
        mean: what is subtracted from each channel of an image in 0..1.
        std: what it is divided by then.
        channels: how many it takes; grey images are repeated where it takes 3.
        size: height and width of the images it was trained with.
        fixed: whether it takes no other size.
        least: the smallest height or width that it takes.
        pretrained_on: the data that it was trained on before.
        word: by which it was made, such as `package:name`.
        digest: of the file that made it, if it was a file.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    channels: int | None = None
    size: tuple[int, int] | None = None
    fixed: bool = False
    least: int | None = None
    pretrained_on: str | None = None
    word: str | None = None
    digest: str | None = None

    def preprocessing(self, augmentation: Augmentation) -> Preprocessing | None:
        """The network's own normalisation, with this augmentation; None where it is not known."""
        if self.mean is None or self.std is None:
            return None
        return Preprocessing(self.mean, self.std, augmentation)

    @property
    def image_size(self) -> int | None:
        """The one square size of images that it takes, if there is no other."""
        return self.size[0] if self.fixed and self.size is not None and self.size[0] == self.size[1] else None

    def check(self, shape: tuple[int, int, int]) -> None:
        """Refuse images that the network cannot take, in one line that says which it can."""
        channels, height, width = shape
        if self.channels is not None and channels not in (1, self.channels):
            raise UserError(f"this net takes images with {self.channels} channels, yours have {channels}")
        if self.fixed and self.size is not None and (height, width) != self.size:
            wanted = f"{self.size[0]}×{self.size[1]} pixels"
            todo = f"give image_size={self.size[0]}, or resize them" if self.image_size else "resize them"
            raise UserError(f"this net takes images of {wanted} and no others, yours are {height}×{width}; {todo}")
        if self.least is not None and min(height, width) < self.least:
            raise UserError(
                f"this net takes images of at least {self.least}×{self.least} pixels, yours are {height}×{width}; "
                f"give image_size={self.least} or more, or resize them"
            )

    def doubts(self, shape: tuple[int, int, int]) -> str | None:
        """A line about images that it takes but was not made for."""
        side = min(shape[1:])
        if self.size is None or side * SMALL >= min(self.size):
            return None
        return (
            f"images of {side} pixels are small for this net, which was trained with {min(self.size)}; "
            f"image_size={min(self.size)} gives better features, and takes longer"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values: what is known."""
        return {key: value for key, value in asdict(self).items() if value not in (None, False)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NetInfo:
        """What `as_json` gave."""
        plain: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in values.items()}
        return cls(**plain)


def net_info(backbone: nn.Module | None) -> NetInfo | None:
    """What a backbone, or a network inside it, says of itself; None if it says nothing."""
    modules = backbone.modules() if backbone is not None else ()
    found = (getattr(module, "info", None) for module in modules)
    return next((info for info in found if isinstance(info, NetInfo)), None)


def set_info(backbone: nn.Module, info: NetInfo) -> None:
    """Let a backbone say this of itself, where it says something."""
    for module in backbone.modules():
        if isinstance(getattr(module, "info", None), NetInfo):
            module.info = info  # type: ignore[assignment]
            return


def constants(given: object) -> dict[str, Any]:
    """Mean, std and size as the well-known libraries write them: what `NetInfo` takes, as far as it is said.

    timm's `pretrained_cfg`, a weight of torchvision, an image processor of transformers, the `visual` of open_clip,
    `poise.Preprocessing`, or anything else with `mean` and `std`, by attributes or keys.
    """
    if callable(getattr(given, "transforms", None)):  # a weight of torchvision
        given = given.transforms()  # type: ignore[attr-defined]
    found: dict[str, Any] = {}
    for key in ("mean", "std"):
        value = _first(given, (key, f"image_{key}"))
        own = isinstance(given, nn.Module) and isinstance(value, Tensor)  # with which it normalises images itself
        if value is not None and not callable(value) and not own:
            found[key] = _numbers(key, value)
    if _first(given, ("do_normalize",)) is False:
        found |= {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    size = _size(_first(given, ("input_size", "crop_size", "image_size", "size")))
    if size is not None:
        found["size"] = size
    shape = _first(given, ("input_size",))
    if isinstance(shape, Sequence) and len(shape) == 3:
        found["channels"] = int(shape[0])
    least = _size(_first(given, ("min_input_size",)))
    if least is not None:
        found["least"] = min(least)
    if _first(given, ("fixed_input_size",)):
        found["fixed"] = True
    return found


def _first(given: object, names: Sequence[str]) -> Any:  # noqa: ANN401 - whatever a library keeps there
    """The first of these attributes, or keys, that says something."""
    for name in names:
        value = given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
        if value is not None:
            return value
    return None


def _numbers(key: str, value: Any) -> tuple[float, ...]:  # noqa: ANN401 - whatever a library keeps there
    listed = value.tolist() if hasattr(value, "tolist") else value
    listed = [listed] if isinstance(listed, int | float) else listed
    try:
        numbers = tuple(float(each) for each in listed)
    except (TypeError, ValueError) as error:
        raise UserError(f"{key}={value!r} of the net is not one number for each channel") from error
    if not numbers or not all(map(math.isfinite, numbers)):
        raise UserError(f"{key}={value!r} of the net is not one number for each channel")
    return numbers


def _size(value: object) -> tuple[int, int] | None:
    """Height and width, from any of the ways in which they are written."""
    if isinstance(value, Mapping) or hasattr(value, "shortest_edge"):
        sides = [_first(value, (key,)) for key in ("height", "width", "shortest_edge")]
        numbers = [side for side in sides if side is not None]
    else:
        numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    whole = [int(number) for number in numbers if isinstance(number, int) and not isinstance(number, bool)]
    return (whole[-2:][0], whole[-1]) if whole and len(whole) == len(numbers) else None
