"""Networks of other libraries as backbones: images [B, C, H, W] to features [B, d].

A network is recognised by its attributes, so none of these libraries is needed:

- open_clip: `encode_image` and `visual`; the image tower is used, with its `image_mean` and `image_std`.
- transformers: `config.hidden_size` (or `hidden_sizes`); outputs with `pooler_output` and `last_hidden_state`.
- timm: `forward_features`; the classifier is taken off by `reset_classifier(0)`, `pretrained_cfg` has the constants.
- torchvision, and what is built like it: a last linear layer in `fc`, `classifier`, `heads` or `head`, taken off.
- anything else must map images to features already; its attributes `mean`, `std` and `pretrained_on` are read.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from poise.data import Augmentation
from poise.errors import UserError, check_whole, first_line, shown
from poise.nets.info import NetInfo, constants, net_info
from poise.nets.layers import FULL
from poise.nets.outputs import Features
from poise.settings import LARGEST_SIZE

HEADS: Final = ("fc", "_fc", "classifier", "heads", "head")  # where a classifier's last linear layer is looked for
TRIED: Final = (224, 32)  # sizes of the dry pass where none is known

#: What the names of weights say about their data, more special ones first.
DATA: Final = (
    ("in22k", "ImageNet-22k"),
    ("in21k", "ImageNet-21k"),
    ("in12k", "ImageNet-12k"),
    ("imagenet22k", "ImageNet-22k"),
    ("imagenet21k", "ImageNet-21k"),
    ("in1k", "ImageNet-1k"),
    ("imagenet1k", "ImageNet-1k"),
    ("imagenet-1k", "ImageNet-1k"),
    ("laion2b", "LAION-2B"),
    ("laion400m", "LAION-400M"),
    ("lvd142m", "LVD-142M"),
)

Reader = Callable[[nn.Module, Tensor], Any]


class Adapted(nn.Module):
    """A network of another library as a backbone.

    Attributes:
        body: the network, without its classifier where that could be taken off.
        info: how it wants its images, and what it was trained on.
        width: the length of its features.
    """

    def __init__(self, body: nn.Module, info: NetInfo, read: Reader | None = None) -> None:
        super().__init__()
        self.body, self.info = body, info
        self._read = read or _read_output
        self.width = 0  # until the dry pass

    def forward(self, images: Tensor) -> Tensor | Features:
        """The features; grey images are repeated where the network takes colours."""
        if images.shape[1] == 1 and self.info.channels not in (None, 1):
            images = images.expand(-1, self.info.channels or 1, -1, -1)
        found = self._read(self.body, images)
        return found if isinstance(found, Features) else _pool_output(found)

    def freeze(self) -> Adapted:
        """Freeze all of it, in eval mode: it stays so, and its features can be computed once."""
        self.requires_grad_(False).eval()
        return self


def adapt(
    net: nn.Module | str,
    *,
    preprocess: object = None,
    size: int | None = None,
    channels: int | None = None,
    frozen: bool = False,
    pretrained_on: str | None = None,
) -> Adapted:
    """A network of another library as a backbone for `Learner(net=…)`. The given module stays as it is.

    >>> net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> adapt(net, preprocess={"mean": [0.5] * 3, "std": [0.5] * 3}).width
    5

    Args:
        net: a module, or a word for one (`package:name`, `file.py:function`, `efficientnet-lite0`).
        preprocess: what knows mean and std, if the module does not: a weight of torchvision, an image processor of
            transformers, a `Preprocessing`, or a dictionary.
        size: height and width of the images it was trained with, if the module does not say.
        channels: how many channels it takes, if the module does not say.
        frozen: freeze all of it, in eval mode; otherwise what is frozen in it stays so.
        pretrained_on: the data that it was trained on before, for the record.
    """
    if isinstance(net, str):
        from poise.nets.named import build_named  # which adapts what it finds

        adapted = build_named(net, seed=0)
    elif isinstance(net, nn.Module):
        adapted = copy.deepcopy(net) if isinstance(net, Adapted) else adapted_module(copy.deepcopy(net))
    else:
        raise UserError(f"net={net!r} is neither a word nor a module; a class of your own must be made first: Net()")
    _check_said(size, channels, pretrained_on)
    given = constants(preprocess) if preprocess is not None else {}
    if preprocess is not None and not {"mean", "std"} <= given.keys():
        raise UserError(f"preprocess={preprocess!r} has no mean and std; give a dictionary with both")
    given |= {"size": (size, size)} if size is not None else {}
    given |= {"channels": channels} if channels is not None else {}
    trained = pretrained_on or _data_of_weight(preprocess)
    given |= {"pretrained_on": trained} if trained is not None else {}
    adapted.info = replace(adapted.info, **given)
    adapted.info.preprocessing(Augmentation())  # refuses constants that do not fit together
    measure(adapted)
    return adapted.freeze() if frozen else adapted


def _check_said(size: object, channels: object, pretrained_on: object) -> None:
    if size is not None:
        check_whole("size", size, 1, LARGEST_SIZE)
    if channels is not None:
        check_whole("channels", channels, 1)
    if not isinstance(pretrained_on, str | None):
        raise UserError(f"pretrained_on={shown(pretrained_on)} must be a name, such as 'ImageNet-1k'")


def adapted_module(module: nn.Module) -> Adapted:
    """The module itself, changed in place, as a backbone; not measured yet."""
    for convention in (_open_clip, _transformers, _timm, _torchvision):
        found = convention(module)
        if found is not None:
            return found
    return plain_module(module)


def plain_module(module: nn.Module) -> Adapted:
    """The module itself as a backbone: it maps images to features, and may have `mean`, `std` and `pretrained_on`."""
    if isinstance(module, Adapted):
        return module
    return Adapted(module, net_info(module) or _make_info(module, constants(module), _find_pretrained_on(module)))


# The dry pass ---------------------------------------------------------------------------------------------------------


def measure(adapted: Adapted) -> None:
    """One dry pass for the width of the features, and one with smaller images: whether it takes other sizes."""
    info = adapted.info
    sizes: Sequence[tuple[int, int]] = [info.size] if info.size is not None else [(side, side) for side in TRIED]
    failures = []
    for size in sizes:
        shape = (info.channels or 3, *size)
        try:
            adapted.width = _dry_width(adapted, shape)
        except Exception as error:  # whatever the network raises
            failures.append(_explain_misfit(adapted, shape, error))
        else:
            if info.size is not None and not info.fixed:
                adapted.info = replace(info, fixed=not _takes_half(adapted, shape))
            return
    raise UserError(failures[0])


def _explain_misfit(adapted: Adapted, shape: tuple[int, int, int], error: Exception) -> str:
    reason = first_line(error)
    return (
        f"{type(adapted.body).__name__} does not map images {[1, *shape]} to features [1, width] ({reason}); "
        "say what it takes: adapt(net, size=…, channels=…)"
    )


def _takes_half(adapted: Adapted, shape: tuple[int, int, int]) -> bool:
    half = [max(32, 32 * round(side / 64)) for side in shape[1:]]
    if half == list(shape[1:]):
        return True  # too small to say
    try:
        return _dry_width(adapted, (shape[0], half[0], half[1])) == adapted.width
    except Exception:  # whatever the network raises
        return False


def _dry_width(adapted: Adapted, shape: tuple[int, int, int]) -> int:
    vector = dry_vector(adapted, shape)
    if vector.ndim != 2 or len(vector) != 1:
        raise ValueError(f"it returns {list(vector.shape)}")
    return int(vector.shape[1])


@torch.no_grad()
def dry_vector(net: nn.Module, shape: tuple[int, int, int]) -> Any:  # noqa: ANN401 - whatever the network returns
    """The feature vector of one black image in eval mode; all modules of the network keep their modes."""
    modes = {module: module.training for module in net.modules()}
    like = next(net.parameters(), torch.empty(0, dtype=FULL))  # it may be on a device, and in double precision
    net.eval()
    try:
        found = net(torch.zeros(1, *shape, device=like.device, dtype=like.dtype))
    finally:
        for module, training in modes.items():
            module.training = training
    return found.vector if isinstance(found, Features) else found


# Conventions ----------------------------------------------------------------------------------------------------------


def _open_clip(module: nn.Module) -> Adapted | None:
    tower = getattr(module, "visual", None)
    if not callable(getattr(module, "encode_image", None)) or not isinstance(tower, nn.Module):
        return None
    known = constants(getattr(tower, "preprocess_cfg", None) or tower) | constants(tower)
    side = getattr(tower, "input_resolution", None)
    if isinstance(side, int):
        known.setdefault("size", (side, side))
    return Adapted(tower.float(), _make_info(tower, known, _find_pretrained_on(module, tower)))


def _transformers(module: nn.Module) -> Adapted | None:
    config = getattr(module, "config", None)
    if not any(hasattr(config, name) for name in ("hidden_size", "hidden_sizes", "vision_config")):
        return None
    body = getattr(module, "base_model", module)  # without the classifier, where there is one
    body = body if isinstance(body, nn.Module) else module
    vision = getattr(config, "vision_config", None) or config
    known = {key: value for key, value in constants(vision).items() if key == "size"}
    channels = getattr(vision, "num_channels", None)
    known |= {"channels": channels} if isinstance(channels, int) else {}
    name = getattr(config, "_name_or_path", None)
    trained = _find_pretrained_on(module) or (
        data_name(name, f"the data of {name}") if isinstance(name, str) and name else None
    )
    return Adapted(body, _make_info(body, known, trained), _read_hidden)


def _timm(module: nn.Module) -> Adapted | None:
    if not callable(getattr(module, "forward_features", None)) or not hasattr(module, "num_features"):
        return None
    config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}
    tag = config.get("tag") if isinstance(config, dict) else getattr(config, "tag", None)
    trained = _find_pretrained_on(module) or (data_name(str(tag)) if tag else None)
    reset = getattr(module, "reset_classifier", None)
    read = _read_output if callable(reset) else _read_pre_logits
    if callable(reset):
        reset(0)
    return Adapted(module, _make_info(module, constants(config), trained), read)


def _torchvision(module: nn.Module) -> Adapted | None:
    for name in HEADS:
        part = getattr(module, name, None)
        if not isinstance(part, nn.Linear | nn.Sequential):
            continue
        inner = [inside for inside, each in part.named_modules() if isinstance(each, nn.Linear)]
        if not inner:
            continue
        path = ".".join(filter(None, (name, inner[-1])))
        parent, _, last = path.rpartition(".")
        setattr(module.get_submodule(parent), last, nn.Identity())
        return Adapted(module, _make_info(module, constants(module), _find_pretrained_on(module)))
    return None


def _make_info(module: nn.Module, known: dict[str, Any], pretrained_on: str | None) -> NetInfo:
    if not {"mean", "std"} <= known.keys():
        known = {key: value for key, value in known.items() if key not in ("mean", "std")}
    if "channels" not in known:
        first = next((each for each in module.modules() if isinstance(each, nn.Conv2d)), None)
        known["channels"] = (first.in_channels or None) if first is not None else len(known.get("mean", ())) or None
    return NetInfo(**known, pretrained_on=pretrained_on)


def _find_pretrained_on(*modules: nn.Module) -> str | None:
    found = (getattr(module, "pretrained_on", None) for module in modules)
    return next((said for said in found if isinstance(said, str)), None)


def _data_of_weight(weight: object) -> str | None:
    """The data of a weight of torchvision, by its name."""
    name = getattr(weight, "name", None)
    return data_name(name) if isinstance(name, str) and callable(getattr(weight, "transforms", None)) else None


def data_name(words: str, unknown: str | None = None) -> str:
    """The data that the name of some weights stands for.

    >>> data_name("augreg_in21k_ft_in1k"), data_name("IMAGENET1K_V2"), data_name("own_photos")
    ('ImageNet-21k, then ImageNet-1k', 'ImageNet-1k', 'own_photos')
    """
    lower = words.lower()
    found = {name: lower.index(part) for part, name in DATA if part in lower}
    return ", then ".join(sorted(found, key=found.__getitem__)) or unknown or words


# What a network returns -----------------------------------------------------------------------------------------------


def _read_output(body: nn.Module, images: Tensor) -> Any:  # noqa: ANN401 - whatever the network returns
    return body(images)


def _read_pre_logits(body: nn.Module, images: Tensor) -> Any:  # noqa: ANN401
    maps = body.forward_features(images)  # type: ignore[operator]
    return body.forward_head(maps, pre_logits=True) if hasattr(body, "forward_head") else maps  # type: ignore[operator]


def _read_hidden(body: nn.Module, images: Tensor) -> Any:  # noqa: ANN401
    """The pooled output; the class token instead where a linear layer makes it, which many checkpoints do not have."""
    if callable(getattr(body, "get_image_features", None)):
        return body.get_image_features(pixel_values=images)  # type: ignore[operator]
    found = body(pixel_values=images)
    hidden = getattr(found, "last_hidden_state", None)
    pooled = getattr(found, "pooler_output", None)
    pooler = getattr(body, "pooler", None)
    learned = isinstance(pooler, nn.Module) and any(isinstance(each, nn.Linear) for each in pooler.modules())
    if pooled is not None and not (learned and hidden is not None):
        return pooled
    return found if hidden is None else hidden


def _pool_output(found: Any) -> Tensor:  # noqa: ANN401 - whatever a network returns
    """A vector per image: maps are averaged; of tokens the first is taken, or their mean if they are a square grid."""
    while isinstance(found, tuple | list) and found:
        found = found[0]
    if not isinstance(found, Tensor):
        raise TypeError(f"it returns {type(found).__name__}")
    if found.ndim == 4:
        return found.mean(dim=(2, 3))
    if found.ndim == 3:
        grid = math.isqrt(found.shape[1]) ** 2 == found.shape[1]
        return found.mean(dim=1) if grid else found[:, 0]
    return found
