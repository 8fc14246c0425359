"""The network of a learner: which one the settings name, how it is built, and how a saved one is built again."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from poise import store
from poise.data import suitable_net
from poise.errors import Malformed, UserError
from poise.learner.contents import check_head, check_types
from poise.learner.settings import Settings
from poise.methods import Growth, is_registered
from poise.nets import Model, build_head, build_net, feature_width, is_named, net_info, own_draws
from poise.schema import refuse

Shape = tuple[int, int, int]  # channels, height, width


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
    most: int | None = None,
) -> Model:
    """A model for images of this shape that has learned nothing, its network expanded as it was in these growths.

    The network is the user's own, else the one that is `described`, else the one that the settings name. With
    `pretrained=False` other weights are loaded into it later, and `most` says how many there are: a network that grows
    far beyond is refused.
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
        expanded = partial(settings.made_method.expanded, growth=growth) if expands(settings) else _keep_backbone
        with own_draws(torch.Generator()):  # values of layers that a method adds; they are overwritten
            model.expand(expanded, growth, shape)
        if most is not None and sum(part.numel() for part in model.backbone.parameters()) > 4 * most + 2**20:
            refuse("the network", f"one of {most} weights", "one that grows far beyond")
    return model


def expands(settings: Settings) -> bool:
    """Whether the method makes another network of the present one; one that is not registered here does not."""
    return is_registered(settings.method) and settings.made_method.expands


def _keep_backbone(backbone: nn.Module) -> nn.Module:
    return backbone


def restore_model(
    settings: Settings, shape: Shape, described: Mapping[str, Any], weights: Mapping[str, Tensor], net: nn.Module | None
) -> Model:
    """A saved model, from how it is described and its weights."""
    if not is_registered(settings.method) and described["grown"] and described.get("expands", True):
        raise UserError(
            f"the network of this learner was expanded by the method '{settings.method}', which is not registered "
            "here; import the module that registers it first"
        )
    most = sum(tensor.numel() for tensor in weights.values())
    model = build_model(settings, shape, net, described["grown"], described["net"], pretrained=False, most=most)
    try:
        check_head(model.head, store.under("head", weights))
        model.head.adopt(store.under("head", weights))
        check_types(model.state_dict(), weights)
        model.load_state_dict(weights)
    except (Malformed, RuntimeError) as error:
        if net is None and isinstance(error, Malformed):
            raise
        raise UserError("the net does not fit the saved weights; pass one made like the net that was saved") from error
    for each in described["frozen"][0]:
        model.backbone.get_parameter(each)
    for each in described["frozen"][1]:
        model.backbone.get_submodule(each)
    model.freeze(*described["frozen"])
    return model
