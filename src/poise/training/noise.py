"""Networks of one's own that draw random numbers in their forward pass: found out, said, and given addresses.

Poise draws from generators of its own and leaves the global ones of torch, numpy and Python alone. Dropout and the like
read the global ones and can be told no other. For such a network, and only for it, the generators that it draws from
are set to the address of each pass and set back after it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from poise.nets import Backbone, Model

log = logging.getLogger(__name__)

NOTHING: Final = frozenset[str]()
ALL: Final = frozenset(("torch", "numpy", "python"))
LOOKS: Final = 2  # passes in which a generator must have moved: another thread may have moved it in one of them
_said: set[type] = set()


def drawn_from(model: Model, images: Tensor, *, training: bool) -> frozenset[str]:
    """Which global generators the network draws from in that mode: `torch`, `numpy`, `python`.

    It is looked at once in each mode, with a few prepared images; of its copies it is known, too.
    """
    if isinstance(model.backbone, Backbone):  # poise's own draw nothing
        return NOTHING
    if training not in model.drawn:
        model.drawn[training] = _look(model, images, training)
        if model.drawn[training] and type(model.backbone) not in _said:
            _said.add(type(model.backbone))
            _say(model, model.drawn[training])
    return model.drawn[training]


def _say(model: Model, drawn: frozenset[str]) -> None:
    named = type(getattr(model.backbone, "body", model.backbone)).__name__
    which = " and ".join(sorted(name.capitalize() if name == "python" else name for name in drawn))
    log.warning(
        "%s draws random numbers in its forward pass (dropout, for instance): the global generator of %s is set for "
        "each pass and set back, so other threads that draw from it meanwhile are disturbed",
        named,
        which,
    )


@torch.no_grad()
def _look(model: Model, images: Tensor, training: bool) -> frozenset[str]:
    """Pass images through the network and see what moves; through a copy where a pass may move its statistics."""
    tried = model.copy().train().backbone if training else model.backbone  # which is in eval mode
    before, moved = _states(images.device), dict.fromkeys(ALL, 0)
    for _ in range(LOOKS):
        last = _states(images.device)
        try:
            tried(images[:2])
        except Exception:  # what is wrong with it is said where it is trained
            return NOTHING
        now = _states(images.device)
        for name in ALL:
            same = str(now[name]) == str(last[name]) if name != "torch" else torch.equal(now[name], last[name])
            moved[name] += not same
    drawn = frozenset(name for name, count in moved.items() if count == LOOKS)
    _set_back(drawn, before, images.device)
    return drawn


def seeding(drawn: frozenset[str], key: int, device: torch.device) -> AbstractContextManager[None]:
    """Set the generators that are drawn from to this address for one pass; nothing is touched where there is none."""
    return _seed_and_restore(drawn, key, device) if drawn else nullcontext()


@contextmanager
def _seed_and_restore(drawn: frozenset[str], key: int, device: torch.device) -> Iterator[None]:
    before = _states(device, drawn)
    try:
        if "torch" in drawn:
            torch.default_generator.manual_seed(key % 2**63)  # not `torch.manual_seed`, which reseeds every GPU
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(key % 2**63)
        if "numpy" in drawn:
            np.random.seed(key % 2**32)  # noqa: NPY002 - the one that the network draws from
        if "python" in drawn:
            random.seed(key)
        yield
    finally:
        _set_back(drawn, before, device)


def _states(device: torch.device, names: frozenset[str] = ALL) -> dict[str, Any]:
    """The states of these global generators, in forms that can be compared and set; reading moves none of them."""
    states: dict[str, Any] = {}
    if "torch" in names:
        states["torch"] = torch.get_rng_state()
        states["cuda"] = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    if "numpy" in names:
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - the global one
        states["numpy"] = (kind, tuple(np.asarray(keys).tolist()), *rest)
    if "python" in names:
        states["python"] = random.getstate()
    return states


def _set_back(drawn: frozenset[str], states: dict[str, Any], device: torch.device) -> None:
    if "torch" in drawn:
        torch.set_rng_state(states["torch"])
        if states["cuda"] is not None:
            torch.cuda.set_rng_state(states["cuda"], device)
    if "numpy" in drawn:
        np.random.set_state(states["numpy"])  # noqa: NPY002 - the one that the network draws from
    if "python" in drawn:
        random.setstate(states["python"])
