"""The network of a learner: which one the settings name, how it is built, and how a saved one is built again."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from poise import store
from poise.data import suitable_net
from poise.errors import UserError
from poise.learner.settings import Settings
from poise.methods import Growth, is_registered
from poise.nets import Model, build_head, build_net, feature_width, net_info, own_draws
from poise.nets.adapt import is_named

Shape = tuple[int, int, int]  # channels, height, width


class SavedModel(BaseModel):
    """The description of a model in a file, beside its weights: how it is built again."""

    net: str
    grown: list[tuple[int, int]]
    expands: bool
    frozen: tuple[list[str], list[str]]


def architecture(settings: Settings, shape: Shape | None, *, own_net: bool) -> str:
    """Backbone, its variant and the head, as in `resnet32/lucir+cosine`."""
    method = settings.made_method
    if own_net:
        return f"own net+{method.head}"
    name = settings.net or (suitable_net(min(shape[1:])) if shape else "auto")
    if is_named(name):
        return f"{name}+{method.head}"
    return f"{name if '/' in name else f'{name}/{method.variant}'}+{method.head}"


def build_model(
    settings: Settings,
    shape: Shape,
    net: nn.Module | None = None,
    grown: Sequence[Sequence[int]] = (),
    described: str | None = None,
    *,
    pretrained: bool = True,
) -> Model:
    """Build an untrained model for images of this shape, its network expanded as it was in these growths.

    The network is the user's own, else the one that is `described`, else the one that the settings name. With
    `pretrained=False` other weights are loaded into it later.
    """
    described = described or architecture(settings, shape, own_net=net is not None)
    name, _, head = described.rpartition("+")
    if net is not None:
        backbone = copy.deepcopy(net).float()
    else:
        variant = "" if is_named(name) else name.partition("/")[2]
        backbone = build_net(name, variant, shape[0], settings.seed, pretrained=pretrained)
    info = net_info(backbone)
    if info is not None:
        info.check(shape)
    model = Model(backbone, build_head(head, feature_width(backbone, shape)))
    model.architecture = described
    for old, new in grown:
        growth = Growth(old, new)
        expanded = partial(settings.made_method.expanded, growth=growth) if expands(settings) else lambda same: same
        with own_draws(torch.Generator()):  # values of layers that a method adds; they are overwritten
            model.expand(expanded, growth, shape)
    return model


def expands(settings: Settings) -> bool:
    """Whether the method makes another network of the present one; one that is not registered here does not."""
    return is_registered(settings.method) and settings.made_method.expands


def restore_model(
    settings: Settings, shape: Shape, described: SavedModel, weights: Mapping[str, Tensor], net: nn.Module | None
) -> Model:
    """A saved model, from how it is described and its weights."""
    if not is_registered(settings.method) and described.grown and described.expands:
        raise UserError(
            f"the network of this learner was expanded by the method '{settings.method}', which is not registered "
            "here; import the module that registers it first"
        )
    model = build_model(settings, shape, net, described.grown, described.net, pretrained=False)
    try:
        model.head.adopt(store.under("head", weights))
        model.load_state_dict(weights)
    except RuntimeError as error:
        if net is None:
            raise
        raise UserError("the net does not fit the saved weights; pass one made like the net that was saved") from error
    model.freeze(*described.frozen)
    return model
