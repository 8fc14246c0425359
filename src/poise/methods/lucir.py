"""LUCIR (Hou et al., CVPR 2019): cosine head, strong feature distillation, inter-class separation."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, nn

from poise import losses
from poise.actions import Action
from poise.methods.base import Growth, GrowthInputs, Method, online_space, register
from poise.nets import CosineHead, Model, Output


@register
class Lucir(Method):
    """L = CE + γ · λ_base √(n_old / n_new) · (1 − cos) + β · KL + margin ranking.

    LUCIR itself is γ = 1, β = 0; the feature weight multiplies the adaptive factor. `lambda_base` is 5 on
    CIFAR and 10 on ImageNet.
    """

    name = "lucir"
    variant = "lucir"
    uses_maps = False
    head = "cosine"
    default_action = Action(
        logit_kd=0.0,
        feature_kd=1.0,
        margin=1.0,
        adjustment=0.0,
        lr=0.1,
        classifier="fc",
        old_rows="frozen",
        balance="none",
    )
    choices: Mapping[str, tuple[str, ...]] = {"balance": ("none", "finetune")}  # the length of its rows has no effect
    spaces = online_space(
        {  # stable: old features and rows are held
            "logit_kd": (1,),
            "feature_kd": (0.5, 1),
            "margin": (1,),
            "old_rows": ("frozen",),
            "adjustment": (0, 0.5),
            "lr": (0.05, 0.02),
        },
        {  # plastic: only old outputs are held
            "logit_kd": (1,),
            "feature_kd": (0,),
            "margin": (0,),
            "old_rows": ("trained",),
            "adjustment": (1,),
            "lr": (0.1, 0.05, 0.02),
        },
        favourite={"logit_kd": 1.0, "feature_kd": 0.0, "margin": 0.0, "old_rows": "trained", "adjustment": 1.0},
    )
    options: Mapping[str, float | str] = {"lambda_base": 5.0}

    def grow(self, model: Model, inputs: GrowthInputs) -> None:
        """Imprint new rows: the mean direction of the features of their class, with the length of old rows."""
        super().grow(model, inputs)
        if inputs.growth.old and inputs.growth.new and isinstance(model.head, CosineHead):
            features, classes = inputs.features()
            members = nn.functional.one_hot(classes, inputs.growth.new).to(features.dtype)
            means = nn.functional.normalize(members.T @ nn.functional.normalize(features))
            model.head.imprint(means)

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """CE; from the second phase on also feature and logit distillation and the margin."""
        terms = {"ce": losses.cross_entropy(student.adjusted, labels)}
        if teacher is not None:
            real = growth.real_phase
            strength = float(self.settings["lambda_base"]) * math.sqrt(real.old / max(real.new, 1))
            terms["feature_kd"] = strength * losses.feature_kd(student.features, teacher.features)
            terms["logit_kd"] = losses.logit_kd(student.logits[:, : growth.old], teacher.logits)
            terms["margin"] = losses.margin_ranking(student.scores, labels, growth.old, batch=student.batch_labels)
        return terms
