"""FOSTER (Wang, Zhou, Ye and Zhan, ECCV 2022): a second network boosts the first, then both become one again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn

from poise import losses
from poise.actions import Action
from poise.methods.base import MODEL, PREVIOUS, Growth, GrowthInputs, Method, Stage, online_space, register
from poise.methods.der import AUXILIARY
from poise.nets import BoostedHead, Concatenated, Model, NewestHead, OldestHead, Output, ResNet

COMPRESSED: Final = "compressed"
OLD: Final = "old"  # the last phase's classifier on the frozen features
BETA2 = 0.97
EPOCHS = 170  # of boosting as released; the other stages are in proportion to them
FIRST = Stage(share=200 / EPOCHS, milestones=(), cosine=True, teacher=None)
BOOSTING = Stage(milestones=(), cosine=True, teacher=None)
COMPRESSION = Stage(
    "compression",
    share=130 / EPOCHS,
    milestones=(),
    cosine=True,
    weight_decay=0.0,
    student=COMPRESSED,
    teacher=MODEL,
)
UPDATE = Stage(milestones=(), cosine=True)


@register
class FOSTER(Method):
    """Boosting: L = CE(z / v(β₁)) + CE of the new network alone + KD of old classes. Then both networks become one.

    The old network is frozen, a new one starts as its copy, and the classifier sees both. v(β) are weights of
    classes by their numbers of images (`poise.losses.class_weights`). The second stage trains a single network, which
    starts as the old one, by balanced distillation with v(β₂). The two networks predict, the single one starts the next
    phase.

    β₁ is an axis of the action. It falls by `beta1_falls` each time that as many classes are known as arrive: in equal
    phases, from phase to phase. New classes see all of the old network's features, as released.
    """

    name = "foster"
    variant = "foster"
    head = "boosted"
    brightness = 63 / 255
    uses_maps = False
    starts_from = COMPRESSED
    default_action = Action(auxiliary=1.0, logit_kd=1.0, beta1=0.96, lr=0.1, classifier="fc")
    choices: Mapping[str, tuple[str, ...]] = {"balance": ("none",)}  # it is balanced by β₁ and β₂
    spaces = online_space(
        {"beta1": (0.9, 0.94, 0.97), "logit_kd": (1,), "lr": (0.1, 0.05)},
        {"beta1": (0.94,), "logit_kd": (0.5, 2), "lr": (0.1,)},
        {"auxiliary": (0.5, 2), "beta1": (0.94,), "logit_kd": (1,), "lr": (0.1,)},
    )
    options: Mapping[str, float | str] = {"beta1_falls": 0.0}

    def expanded(self, backbone: nn.Module, growth: Growth) -> nn.Module:
        """The old network, frozen, and a copy of it to train."""
        return Concatenated.expanding(backbone) if isinstance(backbone, ResNet) else backbone

    def grow(self, model: Model, inputs: GrowthInputs) -> None:
        """Rows of old classes go on from the last phase's; a classifier of the new network; the last phase's, fixed."""
        self.refuse_other_nets(model)
        head = model.head
        super().grow(model, inputs)
        if not isinstance(model.backbone, Concatenated) or not isinstance(head, BoostedHead):
            return
        known = head.width - model.backbone.newest.width
        model.extras[OLD] = OldestHead(head.old[:, :known], head.old_bias)
        head.boost(known, inputs.generator)
        auxiliary = BoostedHead(model.backbone.newest.width)
        auxiliary.grow(sum(inputs.growth), inputs.generator)
        model.extras[AUXILIARY] = NewestHead(auxiliary)

    def student(self, name: str, models: Mapping[str, Model], inputs: GrowthInputs) -> Model:
        """The single network of the last phase, with rows for the new classes."""
        single = models[PREVIOUS]
        single.head.grow(inputs.growth.new, inputs.generator)
        return single

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        """Boosting and compression; where no classes arrive, the single network is trained further."""
        if not growth.old:
            return (FIRST,)
        return (BOOSTING, COMPRESSION) if growth.new else (UPDATE,)

    def class_values(self, stage: Stage, action: Action, counts: Tensor, growth: Growth) -> Tensor | None:
        """v(β₁) in boosting, v(β₂) in compression; nothing in the first phase."""
        if not growth.old:
            return None
        beta = BETA2
        if stage.student == MODEL:
            old, new = growth.real_phase
            beta = action.beta1 - float(self.settings["beta1_falls"]) * (old / new - 1 if new else 0)
        return losses.class_weights(counts, min(max(beta, 0.0), 1.0))

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """The terms of boosting or, where the teacher knows the new classes, of compression."""
        weights, old = student.class_values, growth.old
        if teacher is not None and growth.new and teacher.logits.shape[1] == sum(growth):
            weights = student.logits.new_ones(sum(growth)) if weights is None else weights
            return {"compression": losses.balanced_kd(student.logits, teacher.logits, weights)}
        logits = student.logits if weights is None else student.logits / weights
        terms = {"ce": losses.cross_entropy(logits, labels)}
        if AUXILIARY in student.extras:
            terms[AUXILIARY] = losses.cross_entropy(student.extras[AUXILIARY], labels)
        before = student.extras.get(OLD, teacher.logits if teacher is not None else None)
        if before is not None:
            terms["logit_kd"] = losses.logit_kd(student.logits[:, :old], before)
        return terms
