"""Networks that grow: two branches of one (AANets), several side by side (DER, FOSTER)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from poise.nets.base import FULL, Backbone, Features, copy_network
from poise.nets.heads import Head
from poise.nets.resnet import ResNet, ScaledConv

M = TypeVar("M", bound=nn.Module)

# Two branches (Liu et al., CVPR 2021) ---------------------------------------------------------------------------------


class Branches(Backbone):
    """A stable and a plastic copy of a network, and the share α of the stable one at each level.

    The stable branch keeps the convolutions it was made with and learns one scale per kernel; the plastic branch learns
    everything. Both see what was fused before:

        x_l = α_l · stable_l(x_{l−1}) + (1 − α_l) · plastic_l(x_{l−1}),

    where the first level includes the stem and x_0 is the image.
    """

    def __init__(self, net: ResNet, alpha: float = 0.5) -> None:
        super().__init__(net.width)
        self.stable, self.plastic = copy_network(net), copy_network(net)
        _replace_modules(self.stable, nn.Conv2d, ScaledConv)
        device = next(net.parameters()).device
        self.alpha = nn.Parameter(torch.full((len(net.levels),), alpha, dtype=FULL, device=device))

    @property
    def fusion(self) -> Sequence[nn.Parameter]:  # type: ignore[override]
        """The shares α."""
        return (self.alpha,)

    def fold(self) -> None:
        """Fold the norms of both branches into ordinary convolutions."""
        _replace_modules(self.stable, ScaledConv, ScaledConv.plain)
        self.stable.fold()
        self.plastic.fold()

    def forward(self, x: Tensor) -> Features:
        """The pooled vector and the fused map of each level."""
        plastic, stable, maps = self.plastic.stem(x), self.stable.stem(x), []
        for alpha, *levels in zip(self.alpha, self.plastic.levels, self.stable.levels, strict=True):
            plastic, stable = levels[0](plastic), levels[1](stable)
            plastic = stable = x = torch.lerp(plastic, stable, alpha.to(plastic.dtype))
            maps.append(x)
        return Features(x.mean(dim=(2, 3)), tuple(maps))


def _replace_modules(net: nn.Module, kind: type[M], other: Callable[[M], nn.Module]) -> None:
    """Put, in place, another module in the place of every one of a kind."""
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, kind):
                setattr(module, name, other(child))


# Several side by side -------------------------------------------------------------------------------------------------


class Frozen(Backbone):
    """A network that is never trained again, for inference alone: in eval mode, its norms folded.

    Its weights are kept in full precision. Where networks compute in another format, there is a copy in that format,
    made once, and shared by all models that share this module; it is no part of the module's state.
    """

    def __init__(self, net: Backbone) -> None:
        super().__init__(net.width)
        self.net = copy_network(net).eval()
        self.net.fold()
        self.requires_grad_(False).eval()
        self._cast: dict[torch.dtype, Backbone] = {}  # not a submodule: it is neither saved nor counted
        self.register_load_state_dict_post_hook(_cast_again)  # type: ignore[no-untyped-call]

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode, whatever is asked."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Features:
        """The features of the network, without gradients."""
        found: Features = self._in_format_of(images.device)(images)
        return found

    def _in_format_of(self, device: torch.device) -> Backbone:
        """The network with its weights in the format that is computed in."""
        computed = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        if computed is None or computed is next(self.net.parameters()).dtype:
            return self.net
        if computed not in self._cast:
            self._cast[computed] = copy_network(self.net).to(computed)
            if device.type == "cuda":  # other streams use it, too
                torch.cuda.current_stream(device).synchronize()
        return self._cast[computed]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the network; copies in other formats are made again only where something moved: steps may use them."""
        before = [value.data_ptr() for value in self.net.parameters()]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before != [value.data_ptr() for value in self.net.parameters()]:
            self._cast.clear()
        return self


def _cast_again(module: nn.Module, _: Any) -> None:  # noqa: ANN401 - torch's own
    """After other weights were loaded: bring the copies in other formats up to date, in place."""
    assert isinstance(module, Frozen)
    for net in module._cast.values():
        net.load_state_dict(module.net.state_dict())


class Concatenated(Backbone):
    """Frozen networks and a new one beside them. Its features are theirs, one after the other, the newest last."""

    def __init__(self, frozen: Iterable[Frozen], newest: Backbone) -> None:
        nets = list(frozen)
        super().__init__(sum(net.width for net in nets) + newest.width)
        self.frozen, self.newest = nn.ModuleList(nets), newest

    @classmethod
    def expanding(cls, net: Backbone) -> Concatenated:
        """The backbone of the next phase: all of this one frozen, and a copy of its newest part to train."""
        before, last = (net.frozen, net.newest) if isinstance(net, Concatenated) else ((), net)
        return cls([*before, Frozen(last)], copy_network(last))

    def fold(self) -> None:
        """Fold the norms of the newest network; those of the others are folded."""
        self.newest.fold()

    def forward(self, images: Tensor) -> Features:
        """The concatenated vector; in eval mode made of the maps of the last level, which are concatenated too."""
        found = [net(images) for net in (*self.frozen, self.newest)]
        if self.training:
            return Features(torch.cat([each.vector for each in found], dim=1))
        last = torch.cat([each.maps[-1] for each in found], dim=1)
        return Features(last.mean(dim=(2, 3)), (last,))


class Specialised(Backbone):
    """One network whose last level is there once for each phase: all but the newest frozen, the levels before shared.

    Features are those of all last levels, one after the other, the newest last. Shared levels are trained on, so that
    gradients pass through frozen ones; their norms keep their statistics.
    """

    def __init__(self, shared: ResNet, frozen: Sequence[nn.Module], newest: ResNet) -> None:
        super().__init__(newest.width * (len(frozen) + 1))
        self.shared, self.frozen, self.newest = shared, nn.ModuleList(frozen), newest

    @classmethod
    def expanding(cls, net: ResNet | Specialised) -> Specialised:
        """The backbone of the next phase: the last levels of this one frozen, and a copy of the newest to train."""
        if isinstance(net, ResNet):
            copied = copy_network(net)
            *levels, last = copied.levels
            net = cls(ResNet(copied.stem, levels, net.width), (), ResNet(nn.Identity(), [last], net.width))
        kept = copy_network(net.newest).requires_grad_(False).eval()
        return cls(copy_network(net.shared), (*net.frozen, kept), copy_network(net.newest))

    def fold(self) -> None:
        """Fold the norms of all levels."""
        for part in (self.shared, *self.frozen, self.newest):
            part.fold()

    def forward(self, images: Tensor) -> Features:
        """The concatenated vector, made of the maps of the last levels, which are concatenated too."""
        below = self.shared(images).maps[-1]
        last = torch.cat([part(below).maps[-1] for part in (*self.frozen, self.newest)], dim=1)
        return Features(last.mean(dim=(2, 3)), (last,))


class OldestHead(nn.Module):
    """A copy of the head that the oldest network had, on its features; never trained. A teacher at no other cost."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().clone())
        self.register_buffer("bias", bias.detach().clone())

    def forward(self, features: Tensor) -> Tensor:
        """The logits of the classes that the oldest network knew."""
        return nn.functional.linear(features[:, : self.weight.shape[1]].detach(), self.weight, self.bias)


class NewestHead(nn.Module):
    """A head that looks at the features of the newest network alone: an auxiliary classifier for the phase."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        """The head's logits."""
        logits: Tensor = self.head(features[:, -self.head.width :])[1]
        return logits
