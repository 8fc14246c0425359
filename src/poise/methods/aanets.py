"""AANets (Liu et al., CVPR 2021): another method's losses on two branches, a stable and a plastic one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from poise.errors import UserError
from poise.methods.base import Growth, GrowthInputs, Known, Method, Stage, herd_evenly, register
from poise.methods.lucir import Lucir
from poise.methods.podnet import PODNet
from poise.nets import Branches, Model, Output, ResNet, ScaledHead

BASES: Mapping[str, type[Method]] = {"podnet": PODNet, "lucir": Lucir}
#: The rate is chosen so that α should move about as far in a phase of CIFAR-100 as in the paper's figure.
FUSION = Stage("fusion", lr=1e-4, select=herd_evenly, trains="fusion", moves_statistics=False, teacher=None)


@register
class AANets(Method):
    """The terms, head and stages of `base`; from the second phase on the network has two branches (`poise.nets`).

    Both start as copies of the first phase's network. `alpha` is the share of the stable one at every level, or
    `learned`: then the share of each level starts at 0.5 and is trained after each epoch, on a class-balanced set,
    within [0, 1]. `eta` says what becomes of the head's learned scale when the
    branches are made: it is `restarted` at 1, as released, or `kept`. Options of `base` are options of this method too.
    """

    name = "aanets"
    options: Mapping[str, Known] = {"base": tuple(BASES), "alpha": 0.5, "eta": ("restarted", "kept")}

    def __init__(self, **options: float | str) -> None:
        word = str(options.get("base", "podnet"))
        self.check_option("base", word)
        known = BASES[word].options
        self.base = BASES[word](**{name: value for name, value in options.items() if name in known})
        self.options = {**self.options, **known}
        super().__init__(**options)
        self.learned = self.settings["alpha"] == "learned"
        self.alpha = 0.5 if self.learned else float(self.settings["alpha"])
        for attribute in ("variant", "head", "brightness", "default_action", "choices", "spaces", "balancing"):
            setattr(self, attribute, getattr(self.base, attribute))

    def check_option(self, name: str, value: float | str) -> None:
        """α is a share between 0 and 1, or `learned`."""
        if name != "alpha":
            super().check_option(name, value)
        elif value != "learned" and (isinstance(value, str) or not 0 <= value <= 1):
            raise UserError(f"option alpha={value!r} must be a share between 0 and 1, or 'learned'")

    def expanded(self, backbone: nn.Module, growth: Growth) -> nn.Module:
        """Two branches in place of one."""
        return Branches(backbone, self.alpha) if isinstance(backbone, ResNet) else backbone

    def grow(self, model: Model, inputs: GrowthInputs) -> None:
        """Grow as `base` does; where the branches are new, the learned scale starts again."""
        self.refuse_other_nets(model)
        self.base.grow(model, inputs)
        restarts = self.settings["eta"] == "restarted" and len(model.growth_history) == 1
        if restarts and isinstance(model.head, ScaledHead):
            nn.init.ones_(model.head.scale)

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """The terms of PODNet, whose losses AANets trains with."""
        return self.base.terms(student, teacher, labels, growth)

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        """PODNet's stages; if α is learned, a pass over a balanced set follows each epoch of the first one."""
        first, *others = self.base.stages(growth)
        if self.learned and growth.old:
            first = replace(first, after=FUSION)
        return (first, *others)
