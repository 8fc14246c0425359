"""Copies of networks. Every trial begins with one, so they are to be quick."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeVar

from torch import nn

N = TypeVar("N", bound=nn.Module)
_CONTAINERS: Final = (dict, OrderedDict, set)


def copy_network(net: N, shared: Iterable[object] = ()) -> N:
    """A deep copy; the modules and parameters that are `shared` are in it as they are.

    Half of the time of a plain `copy.deepcopy` goes to the dozen of empty dictionaries in which every layer would keep
    its hooks. Theirs are made here, and handed to it as copied already.
    """
    empty = {
        id(value): type(value)()
        for module in net.modules()
        for value in vars(module).values()
        if type(value) in _CONTAINERS and not value
    }
    return copy.deepcopy(net, {**empty, **{id(part): part for part in shared}})
