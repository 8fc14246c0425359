"""Several networks side by side, whose features are concatenated; all but the newest are frozen (DER, FOSTER)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn

from poise.nets.copying import copy_network
from poise.nets.folding import fold_norms
from poise.nets.heads import Head
from poise.nets.outputs import Features
from poise.nets.resnet import Backbone


class Frozen(Backbone):
    """A network that is never trained again, for inference alone: in eval mode, its norms folded.

    Its weights are kept in full precision. Where networks compute in another format, there is a copy in that format,
    made once, and shared by all models that share this module; it is no part of the module's state.
    """

    def __init__(self, net: Backbone) -> None:
        super().__init__(net.width)
        self.net = copy_network(net).eval()
        fold_norms(self.net)
        self.requires_grad_(False).eval()
        self._cast: dict[torch.dtype, Backbone] = {}  # not a submodule: it is neither saved nor counted
        self.register_load_state_dict_post_hook(_cast_again)  # type: ignore[no-untyped-call]

    def train(self, mode: bool = True) -> Self:
        """It stays in eval mode."""
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
        """What comes after this one: all of it frozen, and a copy of its newest part to train."""
        before, last = (net.frozen, net.newest) if isinstance(net, Concatenated) else ((), net)
        return cls([*before, Frozen(last)], copy_network(last))

    def forward(self, images: Tensor) -> Features:
        """The concatenated vector; in eval mode made of the maps of the last level, which are concatenated too."""
        found = [net(images) for net in (*self.frozen, self.newest)]
        if self.training:
            return Features(torch.cat([each.vector for each in found], dim=1))
        last = torch.cat([each.maps[-1] for each in found], dim=1)
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
