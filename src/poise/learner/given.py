"""What a learner is made with, looked at before anything is made of it: every mistake is one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from poise.data import Preprocessing
from poise.errors import UserError, shown
from poise.training import Event

P = ParamSpec("P")
R = TypeVar("R")
Callback = Callable[[Event], object]

_LONGEST: Final = 200  # characters of a word; longer ones are not names of anything


def with_names_of_sklearn(method: Callable[P, R]) -> Callable[P, R]:
    """A method that also takes `images` as `X` and `labels` as `y`, as scikit-learn calls them."""

    @wraps(method)
    def renamed(*args: P.args, **kwargs: P.kwargs) -> R:
        for theirs, ours in (("X", "images"), ("y", "labels")):
            if theirs in kwargs and ours in kwargs:
                raise UserError(f"{theirs} and {ours} are two names for the same; pass one of them")
            if theirs in kwargs:
                kwargs[ours] = kwargs.pop(theirs)
        return method(*args, **kwargs)

    return renamed


def check_given(given: Mapping[str, Any]) -> None:
    """Refuse parameters of another kind than the constructor takes."""
    for name, value in given.items():
        if isinstance(value, np.ndarray | Tensor):
            raise UserError(f"{name} is {_kind(value)} of shape {list(value.shape)}; give plain values")
        name_like = isinstance(value, str) and not value.isdigit()  # digits are told apart where a number is meant
        if name_like and (len(value) > _LONGEST or not value.isprintable()):
            raise UserError(f"{name}={shown(value)} is no name; give a short word on one line")
    _check_net(given.get("net"))
    if not isinstance(given.get("preprocessing"), Preprocessing | None):
        raise UserError(f"preprocessing={shown(given['preprocessing'])} must be a poise.Preprocessing, or left out")
    if not isinstance(given.get("device", "auto"), str | torch.device):
        raise UserError(f"device={shown(given['device'])} is no device; use auto, cpu, cuda or cuda:N")
    for name, kinds in (("deterministic", bool), ("verbose", bool | int)):  # scikit-learn's users say verbose=1
        if not isinstance(given.get(name, False), kinds):
            raise UserError(f"{name}={shown(given[name])} must be True or False")
    checked_callbacks(given.get("callbacks"))


def _check_net(net: object) -> None:
    if not isinstance(net, str | nn.Module | None):
        raise UserError(
            f"net={shown(net)} is neither a name nor a module; a class of your own must be made first: net=Net()"
        )
    if isinstance(net, nn.Module) and any(each.is_meta for each in (*net.parameters(), *net.buffers())):
        raise UserError("net was made on the device 'meta' and has no values; make it on the CPU")


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:  # noqa: ANN401 - checked here
    """The functions that are told every event."""
    if callable(callbacks):
        raise UserError("callbacks must be a list of callables; pass callbacks=[callback]")
    if callbacks is not None and (isinstance(callbacks, str | bytes) or not isinstance(callbacks, Sequence)):
        raise UserError(f"callbacks={shown(callbacks)} must be a list of callables; pass callbacks=[callback]")
    for callback in callbacks or ():
        if not callable(callback):
            raise UserError(f"callbacks has {shown(callback)}, which cannot be called with an event; pass functions")
    return tuple(callbacks or ())


def _kind(value: object) -> str:
    return "a tensor" if isinstance(value, Tensor) else "an array"
