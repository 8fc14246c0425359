"""What methods on a frozen network have in common: the network learns in the first phase or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn

from poise import losses
from poise.methods.base import Arrivals, Growth, Method, Stage, check_word
from poise.nets import Model, Output, make_layer

ADAPTER: Final = "adapter"  # the linear layer that the network is trained with
WORDS: Final = ("auto", "always", "never")


class FrozenMethod(Method):
    """A method that computes its head in closed form from the features of a frozen network.

    `adapt` says whether the network is trained before it is frozen, in the first phase, by cross-entropy through a
    linear layer that is dropped afterwards: `always`, `never`, or `auto`: one of poise's own, which starts from random
    weights, is; a network that a user hands over, pretrained perhaps, is not.
    """

    uses_maps = False
    options: Mapping[str, float | str] = {"adapt": "auto"}

    def __init__(self, **options: float | str) -> None:
        super().__init__(**options)
        check_word(self, "adapt", WORDS)

    def freezes(self, phase: int, *, given: bool) -> bool:
        """From the second phase on; before it where the network is not to be trained at all."""
        adapt = self.settings["adapt"]
        return phase > 0 or adapt == "never" or (adapt == "auto" and given)

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        """A training of the network, which is left out where it is frozen."""
        return (Stage(trains="backbone", teacher=None),)

    def grow(self, model: Model, arrivals: Arrivals) -> None:
        """Add rows; if the network is to be trained, also the layer to train it with."""
        super().grow(model, arrivals)
        if model.has("backbone"):
            layer = make_layer(nn.Linear, model.head.width, sum(arrivals.growth))
            for values in layer.parameters():
                nn.init.normal_(values, std=model.head.width**-0.5, generator=arrivals.generator)
            model.extras[ADAPTER] = layer

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """Plain classification."""
        return {"ce": losses.cross_entropy(student.extras.get(ADAPTER, student.logits), labels)}
