"""A model: backbone and head, what a phase trains and a prediction needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, Self

import torch
from torch import Tensor, nn

from poise.errors import UserError, suggestion
from poise.nets.adapt import LITE, build_named, check_named, feature_width, is_named
from poise.nets.base import NOTHING, Backbone, Features, Output, copy_network, torch_generator
from poise.nets.heads import HEADS, Head
from poise.nets.resnet import ResNet, cifar_resnet, initialise, resnet18

#: Of a model, what can be trained without the rest.
Part = Literal["all", "backbone", "head", "rows", "fusion"]

#: Of a backbone (see `poise.nets.resnet`): LUCIR's, whose last block has no ReLU, the ordinary one, PODNet's, FOSTER's.
VARIANTS = ("lucir", "ordinary", "pod", "foster")

#: Every backbone by its name, with what makes it.
BACKBONES: dict[str, Callable[[str, int], ResNet]] = {
    "small": lambda variant, channels: cifar_resnet(variant, channels, (1, 1, 1), (16, 32, 64)),
    "small-wide": lambda variant, channels: cifar_resnet(variant, channels, (1, 1, 1), (32, 64, 128)),
    "small2": lambda variant, channels: cifar_resnet(variant, channels, (1, 1, 1), (16, 32, 64), stride=2),
    "small4": lambda variant, channels: cifar_resnet(variant, channels, (1, 1, 1, 1), (16, 32, 64, 128), stride=4),
    "resnet32": lambda variant, channels: cifar_resnet(variant, channels, (5, 5, 5), (16, 32, 64)),
    "resnet18": partial(resnet18, size=7, stride=2, pool=True),
    "pod-resnet18": partial(resnet18, size=3, stride=1, pool=True),
    "cifar-resnet18": partial(resnet18, size=3, stride=1, pool=False),
}
#: Those whose last batch norm of each block starts at zero in every variant, as their authors have it.
ZERO_LAST_NORM = ("pod-resnet18", "cifar-resnet18")


class Model(nn.Module):
    """A backbone that maps images to features, and a head that maps features to classes.

    What the backbone keeps frozen when it is handed over (parameters that need no gradient) stays frozen. A part of it
    that is frozen altogether and in eval mode stays in eval mode too, and copies of the model share it.

    Attributes:
        extras: modules that live as long as the phase, by name; each maps features to a tensor (an auxiliary head).
            They give their outputs while the backbone is trained, and not while a part of the head is.
        architecture: backbone, its variant and the head by name, as in `resnet32/lucir+cosine`; None: nobody said.
        growth_history: the classes known before and arriving in each phase in which the network was expanded.
    """

    def __init__(self, backbone: nn.Module, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.extras = nn.ModuleDict()
        self.architecture: str | None = None
        self.growth_history: tuple[tuple[int, int], ...] = ()
        self._frozen, self._still = _frozen_parts(backbone)
        self._fresh: tuple[str, ...] = ()  # of those that stay in eval mode, what the last expansion has frozen
        self._shows_extras = True

    def forward(self, images: Tensor) -> Output:
        """Features, maps, scores and logits of normalised images; in training also the outputs of the extras."""
        found = self.backbone(images)
        features = found if isinstance(found, Features) else Features(found)
        vector = features.vector.float()
        scores, logits = self.head(vector)
        extras = NOTHING
        if self.training and self._shows_extras and len(self.extras):
            with torch.autocast(vector.device.type, enabled=False):
                extras = {name: module(vector) for name, module in self.extras.items()}
        return Output(vector, features.maps, scores, logits, self.head.scale, extras)

    def expand(
        self, expanded: Callable[[nn.Module], nn.Module], growth: Iterable[int], shape: tuple[int, int, int]
    ) -> None:
        """Let a method make another backbone of the present one, before new classes are learned.

        Where its features for images of this shape have more values, the rows of the head are widened.
        """
        self.train()
        self.train_only("all")
        for share in self._fusion:
            share.requires_grad_(True)  # another stage may train it: it is not frozen for good
        before = {id(self.backbone.get_submodule(name)) for name in self._still}
        self.backbone = expanded(self.backbone)
        self._frozen, self._still = _frozen_parts(self.backbone)
        self._fresh = tuple(name for name in self._still if id(self.backbone.get_submodule(name)) not in before)
        old, new = growth
        self.growth_history = (*self.growth_history, (old, new))
        self.head.widen(feature_width(self.backbone, shape))

    def train(self, mode: bool = True) -> Self:
        """Training or eval mode, but for parts of the backbone that are frozen in eval mode."""
        super().train(mode)
        for name in self._still if mode else ():
            self.backbone.get_submodule(name).eval()
        return self

    def has(self, part: Part) -> bool:
        """Whether there is such a part to train: only two branches have a fusion, and a frozen backbone is none."""
        if part == "backbone":
            return not self.is_frozen
        return part != "fusion" or bool(self._fusion)

    @property
    def _fusion(self) -> Sequence[nn.Parameter]:
        return self.backbone.fusion if isinstance(self.backbone, Backbone) else ()

    @property
    def is_frozen(self) -> bool:
        """Whether nothing of the backbone ever changes: all of it is frozen, and in eval mode."""
        return "" in self._still

    def freeze_backbone(self) -> None:
        """Freeze all of the backbone for good, in eval mode."""
        self.backbone.requires_grad_(False)
        self.freeze([name for name, _ in self.backbone.named_parameters()], [""])

    def without_backbone(self) -> Model:
        """The head for itself, to be given features in the place of images (`poise.data.FeatureViews`)."""
        made = Model(PrecomputedFeatures(self.head.width), self.head)
        made._still = ("",)
        return self._with(made)

    def with_backbone_of(self, other: Model) -> Model:
        """The head and extras of this model on a copy of another's backbone; what is frozen is shared with it."""
        return self._with(other.copy())

    def _with(self, made: Model) -> Model:
        made.head, made.extras, made.growth_history = self.head, self.extras, self.growth_history
        return made.train(self.training)

    def train_only(self, part: Part, *, old_rows: bool = True, backbone: bool = True) -> None:
        """Say what is trained: `all` but the fusion of two branches; or only a part.

        The `backbone` is trained with the extras. Rows of old classes are trained only if `old_rows`, the backbone only
        if `backbone`, and nothing that it keeps frozen ever is.
        """
        below, no_head = part in ("all", "backbone"), part in ("backbone", "fusion")
        for name, parameter in self.backbone.named_parameters():
            parameter.requires_grad_(below and backbone and name not in self._frozen)
        for share in self._fusion:
            share.requires_grad_(part == "fusion")
        self.extras.requires_grad_(below)
        self._shows_extras = below
        self.head.requires_grad_(not no_head)
        self.head.freeze_old(no_head or not old_rows)
        if self.head.scale is not None and part == "rows":
            self.head.scale.requires_grad_(False)

    @property
    def frozen(self) -> tuple[list[str], list[str]]:
        """The parts that the backbone keeps frozen: names of parameters, and of modules that stay in eval mode too."""
        return sorted(self._frozen), list(self._still)

    def freeze(self, parameters: Collection[str], modules: Collection[str]) -> None:
        """Keep these frozen, and nothing else: as a saved model says, whatever network it was rebuilt with."""
        self._frozen, self._still = frozenset(parameters), tuple(modules)
        self.train_only("all")
        self.train(self.training)

    def changing(self) -> dict[str, Tensor]:
        """The values that a training may change, by name: all but what is frozen for good."""
        still = tuple(f"backbone.{name}." if name else "backbone." for name in self._still)
        frozen, values = {f"backbone.{name}" for name in self._frozen}, self.state_dict()
        return {name: value for name, value in values.items() if name not in frozen and not name.startswith(still)}

    def load_changing(self, values: Mapping[str, Tensor]) -> None:
        """Take over the values that `changing` gave of a model like this one."""
        other = self.changing().keys() ^ values.keys()
        if other:
            raise RuntimeError(f"the values are those of another network: {', '.join(sorted(other)[:3])}")
        self.load_state_dict(values, strict=False)

    @torch.no_grad()
    def clamp_fusion(self) -> None:
        """Bring the shares of two branches back to between 0 and 1, should training have moved them out."""
        for share in self._fusion:
            share.clamp_(0, 1)

    def placed(self, device: torch.device) -> Model:
        """The model itself, moved to the device and laid out channels last, as convolutions like it."""
        return self.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def load_fresh(self, other: Model) -> None:
        """Take over, in place, what the last expansion has frozen in a model like this one, which must own its own."""
        for name in self._fresh:
            self.backbone.get_submodule(name).load_state_dict(other.backbone.get_submodule(name).state_dict())

    def copy(self, *, owns_fresh: bool = False) -> Model:
        """A copy to be trained; what is frozen for good is shared with it, and what its head never writes into.

        With `owns_fresh` it has its own of what the last expansion has frozen, to be replaced by `load_fresh`.
        """
        own = tuple(f"{name}." for name in self._fresh) if owns_fresh else ()
        shared: list[object] = [getattr(self.head, name) for name in self.head.shared]
        shared += [self.backbone.get_submodule(name) for name in self._still if not f"{name}.".startswith(own)]
        shared += [self.backbone.get_parameter(name) for name in self._frozen if not name.startswith(own)]
        return copy_network(self, shared)

    def restricted_to(self, rows: Tensor) -> Model:
        """A copy that knows the classes of these rows, in ascending order, and no others; their scores are the same."""
        kept = self.copy()
        kept.head.keep(rows)
        return kept

    def teacher(self, dtype: torch.dtype = torch.float32) -> Model:
        """A frozen copy in eval mode; a network of poise's own has its norms folded, its weights in `dtype`."""
        own = isinstance(self.backbone, Backbone)
        copied = (copy_network(self) if own else self.copy()).eval()
        if isinstance(copied.backbone, Backbone):
            copied.backbone.fold()
            copied.backbone.to(dtype)
        copied.extras = nn.ModuleDict()
        return copied.placed(self.head.old.device).requires_grad_(False)


class PrecomputedFeatures(Backbone):
    """Stands for a frozen backbone whose features were computed before: what it is given are those, [B, d, 1, 1]."""

    def forward(self, features: Tensor) -> Features:
        """The features as they are."""
        return Features(features.flatten(1))


def _frozen_parts(backbone: nn.Module) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names of frozen parameters, and of the modules that are frozen altogether and in eval mode."""
    frozen = frozenset(name for name, parameter in backbone.named_parameters() if not parameter.requires_grad)
    still: list[str] = []
    for name, module in backbone.named_modules():
        inside = any(not outer or name.startswith(f"{outer}.") for outer in still)
        own = list(module.parameters())
        if not inside and own and not module.training and not any(each.requires_grad for each in own):
            still.append(name)
    return frozen, tuple(still)


def check_backbone(name: str, variant: str) -> tuple[str, str]:
    """Family and variant of a named backbone; a name that `build_net` would not know is refused."""
    if is_named(name):
        check_named(name)
        return name, ""
    if name.endswith(".py"):
        raise UserError(f"net {name}: say which function or class of this file makes the network: net={name}:NAME")
    family, _, override = name.partition("/")
    variant = override or variant
    if family not in BACKBONES:
        raise UserError(f"unknown net '{family}'; {suggestion(family, (*BACKBONES, LITE))}")
    if variant not in VARIANTS:
        raise UserError(f"unknown net variant '{variant}'; {suggestion(variant, VARIANTS)}")
    return family, variant


def build_net(name: str, variant: str, channels: int, seed: int, *, pretrained: bool = True) -> nn.Module:
    """The network of that name or word. Without `pretrained` its weights do not matter, since others are loaded."""
    if is_named(name):
        return build_named(name, seed, pretrained=pretrained)
    return build_backbone(name, variant, channels, seed)


def build_backbone(name: str, variant: str, channels: int, seed: int) -> ResNet:
    """One of poise's own backbones with its initial weights; `NAME/VARIANT` overrides the method's variant."""
    family, variant = check_backbone(name, variant)
    net = BACKBONES[family](variant, channels)
    zero_last_norm = variant == "pod" or family in ZERO_LAST_NORM
    initialise(net, torch_generator(seed, "backbone", family, variant), zero_last_norm=zero_last_norm)
    return net


def build_head(kind: str, width: int) -> Head:
    """An empty head of the given kind for features of the given width."""
    if kind not in HEADS:
        raise UserError(f"unknown head '{kind}'; {suggestion(kind, HEADS)}")
    return HEADS[kind](width)
