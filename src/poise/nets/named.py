"""Networks by name, imported only when asked for: `package:name`, `file.py:function`, or one that poise knows.

`package` is an importable module and `name` a callable in it, dots allowed. It is called with `pretrained=True` or
`weights="DEFAULT"` if it has such a parameter, else without arguments. Three packages make networks by name:
`timm:NAME`, `transformers:NAME` and `open_clip:NAME:WEIGHTS`. The network is adapted (see `adapt`).

`function` is one of your own, called without arguments. What it returns is a backbone as it stands, as in
`Learner(net=module)`; a network with a classifier is adapted there: `return poise.nets.adapt(…)`.

`WORD/frozen` freezes the network, `WORD/trainable` trains all of it.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from torch import nn

from poise import files
from poise.errors import UserError, suggestion
from poise.files import expand_user
from poise.nets.adapt import Adapted, adapt, adapted_module, measure, plain_module
from poise.nets.drawing import OwnDraws, torch_generator
from poise.nets.info import NetInfo, net_info
from poise.nets.pretrained import HOMES, PRETRAINED

log = logging.getLogger(__name__)

_FILE: Final = re.compile(r"(?P<file>.+\.py):(?P<name>[\w.]+)")
_ENDINGS: Final = ("frozen", "trainable")


@dataclass(frozen=True)
class Word:
    """The parts of a word for a network.

    Attributes:
        text: all of it.
        place: a package or a file; empty for a network that poise knows.
        name: what is called there.
        ending: `frozen`, `trainable`, or empty: as it comes.
    """

    text: str
    place: str
    name: str
    ending: str

    @classmethod
    def of(cls, text: str) -> Word | None:
        """The parts of a word; None if it is not one of these."""
        start, _, ending = text.rpartition("/")
        plain, ending = (start, ending) if ending in _ENDINGS and start else (text, "")
        if plain in PRETRAINED:
            return cls(text, "", plain, ending)
        if found := _FILE.fullmatch(plain):
            return cls(text, found["file"], found["name"], ending)
        place, colon, name = plain.partition(":")
        return cls(text, place, name, ending) if colon else None

    @property
    def file(self) -> Path | None:
        """The file, if it names one."""
        return expand_user(self.place) if self.place.endswith(".py") else None

    @property
    def short(self) -> str:
        """The word without the folder of its file: the same network wherever it lies."""
        return self.text if self.file is None else self.text.replace(self.place, self.file.name, 1)

    def digest(self) -> str | None:
        """Of the file's bytes, if it is a file."""
        if self.file is None:
            return None
        try:
            return files.digest_of_text(self.file)
        except OSError as error:
            raise UserError(f"net {self.text}: {self.file} cannot be read ({error.strerror}); {_AGAIN}") from error


_AGAIN = "restore it, or give the module itself: net=…"


def is_named(name: str | None) -> bool:
    """Whether this is a word for a network that is not one of poise's own ResNets."""
    return name is not None and Word.of(name) is not None


def absolute_word(name: str) -> str:
    """The word with the full path of its file, so that it means the same from anywhere."""
    word = Word.of(name)
    if word is None or word.file is None:
        return name
    return name.replace(word.place, str(word.file.absolute()), 1)


def check_named(name: str) -> None:
    """Refuse a word whose package or file is missing; nothing is imported yet."""
    word = _parse_name(name)
    if word.file is not None:
        word.digest()
    elif word.place:
        top = word.place.partition(".")[0]
        if not word.name or not all(part.isidentifier() for part in word.place.split(".")):
            raise UserError(f"net {name} is neither package:name nor file.py:function")
        if top not in sys.modules and importlib.util.find_spec(top) is None:
            raise UserError(f"net {name}: there is no package '{top}' here; install it, or check the word")


def build_named(name: str, seed: int, *, pretrained: bool = True) -> Adapted:
    """The network of that word, a copy of its own. Without `pretrained` its weights mean nothing: others follow."""
    word = _parse_name(name)
    return copy.deepcopy(_build(word, word.digest(), seed, pretrained))


def named_info(name: str | None, seed: int) -> NetInfo | None:
    """What is known of the network of that word; None if it is one of poise's own."""
    word = Word.of(name) if name is not None else None
    return _build(word, word.digest(), seed, True).info if word is not None else None


def named_modules(name: str | None) -> tuple[str, ...]:
    """The modules that the network of that word comes from; none if poise makes it itself, or a file does."""
    word = Word.of(name) if name is not None else None
    if word is None or word.file is not None:
        return ()
    return (word.place,) if word.place else HOMES[word.name]


def file_digest(name: str | None) -> str | None:
    """A digest of the file that the network of that word comes from; None if it comes from none."""
    word = Word.of(name) if name is not None else None
    return word.digest() if word is not None else None


def adapted_again(net: nn.Module, info: NetInfo | None, name: str | None) -> nn.Module:
    """A module that is given in place of a saved network: adapted if that one was, unless it already is.

    `info` is what was known of the saved network, None if it was not adapted; `name` is its word, if it had one.
    """
    if info is None or net_info(net) is not None:
        return net
    word = Word.of(name or info.word or "")
    by_file = word is not None and word.file is not None
    adapted = (plain_module if by_file else adapted_module)(copy.deepcopy(net))
    adapted.info = replace(info, word=None, digest=None)
    measure(adapted)
    return adapted


def changed_file(info: NetInfo) -> str | None:
    """The file that a network was made with, if it is there and has other contents now."""
    word = Word.of(info.word) if info.word is not None else None
    if word is None or word.file is None or info.digest is None or not word.file.is_file():
        return None
    return str(word.file) if word.digest() != info.digest else None


def _parse_name(name: str) -> Word:
    word = Word.of(name)
    if word is None:
        raise UserError(f"unknown net '{name}'; {suggestion(name, PRETRAINED)}")
    return word


@lru_cache(maxsize=2)  # a run asks for the same network a few times
def _build(word: Word, digest: str | None, seed: int, pretrained: bool) -> Adapted:
    with _failing_in_one_line(word), OwnDraws(torch_generator(seed, "backbone", word.short)):
        if not word.place:
            adapted = PRETRAINED[word.name](pretrained)
        elif word.file is not None:
            adapted = plain_module(_check_module(word, _find_function(word, _import_file(word.file, digest or ""))()))
        else:
            adapted = _of_package(word, pretrained)
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


def _of_package(word: Word, pretrained: bool) -> Adapted:
    top = word.place.partition(".")[0]
    try:
        package = importlib.import_module(word.place)
    except ModuleNotFoundError as error:
        if error.name is None or not word.place.startswith(error.name):
            raise  # something that the package needs
        raise UserError(f"net {word.text}: there is no module '{word.place}' here; install {top}") from error
    if word.place in _MAKERS:
        return _MAKERS[word.place](package, word.name, pretrained)
    function = _find_function(word, package)
    weights = _torchvision_weights(package, word.name) if pretrained else None
    module = _check_module(word, function(**_arguments(function, pretrained)))
    return adapt(module, preprocess=weights) if weights is not None else adapted_module(module)


def _arguments(function: Callable[..., Any], pretrained: bool) -> dict[str, Any]:
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a function that is not written in Python
        return {}
    if "pretrained" in known:
        return {"pretrained": pretrained}
    return {"weights": "DEFAULT" if pretrained else None} if "weights" in known else {}


def _torchvision_weights(package: ModuleType, name: str) -> object:
    """The weights that `weights="DEFAULT"` means, which know mean and std; None where there is no such list."""
    listed = getattr(package, "get_model_weights", None)
    return getattr(listed(name), "DEFAULT", None) if callable(listed) else None


def _find_function(word: Word, package: ModuleType) -> Callable[..., Any]:
    found: Any = package
    for part in word.name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        known = [name for name, value in vars(package).items() if callable(value) and not name.startswith("_")]
        hint = suggestion(word.name, known) if len(known) <= 20 or word.file is not None else "check the name"
        raise UserError(f"net {word.text}: {word.place} has no function '{word.name}'; {hint}")
    function: Callable[..., Any] = found
    return function


def _check_module(word: Word, made: object) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise UserError(f"net {word.text}: '{word.name}' returns {type(made).__name__}, it must return a torch module")
    return made


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


# Packages that make networks by name ----------------------------------------------------------------------------------


def _of_timm(package: ModuleType, name: str, pretrained: bool) -> Adapted:
    return adapted_module(package.create_model(name, pretrained=pretrained, num_classes=0))


def _of_transformers(package: ModuleType, name: str, pretrained: bool) -> Adapted:
    processor = package.AutoImageProcessor.from_pretrained(name) if pretrained else None
    return adapt(package.AutoModel.from_pretrained(name), preprocess=processor)


def _of_open_clip(package: ModuleType, name: str, pretrained: bool) -> Adapted:
    model, _, weights = name.partition(":")
    if not weights:
        raise UserError(f"net open_clip:{name} does not say which weights; use open_clip:NAME:WEIGHTS")
    adapted = adapted_module(package.create_model(model, pretrained=weights if pretrained else None))
    adapted.info = replace(adapted.info, pretrained_on=adapted.info.pretrained_on or weights)
    return adapted


_MAKERS: Final[dict[str, Callable[[ModuleType, str, bool], Adapted]]] = {
    "timm": _of_timm,
    "transformers": _of_transformers,
    "open_clip": _of_open_clip,
}
