"""DER (Yan, Xie and He, CVPR 2021), without pruning: one more network in every phase; MEMO: one more last level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from poise import losses
from poise.actions import Action
from poise.errors import check_number
from poise.methods.base import Growth, GrowthInputs, Known, Method, Stage, draw_evenly, online_space, register
from poise.nets import Concatenated, Model, NewestHead, Output, RenewedHead, ResNet, Specialised

AUXILIARY = "auxiliary"
EPOCHS = 170  # of the representation stage as released for CIFAR; what follows is in proportion to them
#: The rate rises for 10 epochs, then heads are drawn anew and the milestones begin to count: 110 and 130 of 170.
WARMUP = 10 / EPOCHS
REPRESENTATION = Stage(milestones=(110 / EPOCHS, 130 / EPOCHS), warmup=WARMUP, teacher=None)
#: How the released code trains a first phase of half of the classes: 200 epochs, ×0.1 at 60, 120 and 160.
PLAIN = Stage(share=200 / EPOCHS, milestones=(0.3, 0.6, 0.8), keeps_milestones=True, teacher=None)


@register
class DER(Method):
    """L = CE + λ_a · CE of an auxiliary classifier, which sees the newest features and tells new classes from all old.

    A phase adds a network that starts as a copy of the newest one; the others are frozen. Features are concatenated.
    The classifier is drawn anew. With `balance=finetune`, its default, it is drawn and trained once more on a balanced
    set, alone, with logits divided by `temperature` (5 on CIFAR, 1 on ImageNet). `first` says how the first phase is
    trained: `warm`, as the others, as released for phases of equal size; or `plain`, as released where it has half of
    all classes, for `first_share` of the epochs of a phase. `warmup` is the share of a phase in which the learning rate
    rises, and after which heads are drawn anew; `brightness` is the range of its jitter.
    """

    name = "der"
    head = "renewed"
    brightness = 63 / 255
    uses_maps = False
    default_action = Action(auxiliary=1.0, adjustment=0.0, lr=0.1, classifier="fc", balance="finetune")
    spaces = online_space(
        {"auxiliary": (0.5, 1), "balance": ("finetune",), "lr": (0.1, 0.05, 0.02)},
        {"auxiliary": (1,), "balance": ("align",), "lr": (0.1, 0.05)},
    )
    options: Mapping[str, Known] = {
        "temperature": 5.0,
        "first": ("warm", "plain"),
        "first_share": PLAIN.share,
        "warmup": WARMUP,
        "brightness": brightness,
    }

    def __init__(self, **options: float | str) -> None:
        super().__init__(**options)
        for name in ("temperature", "first_share"):
            check_number(f"option {name}", self.settings[name], positive=True)
        for name in ("warmup", "brightness"):
            check_number(f"option {name}", self.settings[name], below=1)
        self.brightness = float(self.settings["brightness"])
        self.balancing = replace(
            Method.balancing,
            share=30 / EPOCHS,
            lr=None,
            select=draw_evenly,
            prepare=renew_heads,
            temperature=float(self.settings["temperature"]),
        )

    def expanded(self, backbone: nn.Module, growth: Growth) -> nn.Module:
        """One more network, and all that were there before frozen."""
        return Concatenated.expanding(backbone) if isinstance(backbone, ResNet | Concatenated) else backbone

    def grow(self, model: Model, inputs: GrowthInputs) -> None:
        """A new classifier and, from the second phase on, an auxiliary one."""
        self.refuse_other_nets(model)
        super().grow(model, inputs)
        if isinstance(model.backbone, Concatenated | Specialised) and inputs.growth.new:
            auxiliary = RenewedHead(model.backbone.newest.width)
            auxiliary.grow(inputs.growth.new + 1, inputs.generator)
            model.extras[AUXILIARY] = NewestHead(auxiliary)

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        """The training of the representation; the action's `balance` adds that of the classifier."""
        if not growth.old and self.settings["first"] == "plain":
            return (replace(PLAIN, share=float(self.settings["first_share"])),)
        warmup = float(self.settings["warmup"])
        return (replace(REPRESENTATION, warmup=warmup, prepare=renew_heads, prepare_at=warmup),)

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """Classification of all classes, and of new ones by the newest network: to it, all old classes are one."""
        terms = {"ce": losses.cross_entropy(student.adjusted, labels)}
        if AUXILIARY in student.extras:
            merged = (labels - growth.old + 1).clamp(min=0)
            terms[AUXILIARY] = losses.cross_entropy(student.extras[AUXILIARY], merged)
        return terms


@register
class MEMO(DER):
    """MEMO (Zhou et al., ICLR 2023): DER that adds only a last level in every phase; the levels before are shared.

    Shallow levels learn much the same in every phase, so one copy of them is shared and trained on. The last level is
    added anew in every phase, as a copy of the newest one; the others are frozen, in eval mode. The classifier sees the
    features of all last levels. Terms, stages and options are DER's.
    """

    name = "memo"

    def expanded(self, backbone: nn.Module, growth: Growth) -> nn.Module:
        """One more last level, and those that were there before frozen."""
        return Specialised.expanding(backbone) if isinstance(backbone, ResNet | Specialised) else backbone


def renew_heads(model: Model, generator: torch.Generator) -> None:
    """Draw the classifiers anew that are trained in the stage."""
    for head in (model.head, *(extra.head for extra in model.extras.values() if isinstance(extra, NewestHead))):
        if isinstance(head, RenewedHead) and head.new.requires_grad:
            head.renew(generator)
