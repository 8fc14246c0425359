"""PODNet (Douillard et al., ECCV 2020): ten proxies per class, and distillation of pooled maps of every level."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from poise import losses
from poise.actions import Action
from poise.data import cluster_centres, load_clustering
from poise.errors import UserError
from poise.methods.base import Growth, GrowthInputs, Known, Method, Stage, online_space, register
from poise.nets import Model, Output, ProxyHead

CLAMP = 5.0  # largest size of a value of a gradient
LAMBDA_BASE = 5.0  # LUCIR's


@register
class PODNet(Method):
    """L = NCA + ω · r (λ_c POD-spatial + λ_f POD-flat) + γ (λ_base r (1 − cos) + margin) + β KD, r = √(n / n_new).

    n is the number of classes seen so far, including new ones. PODNet itself is ω = 1 with λ_c = `spatial` = 3 and
    λ_f = `flat` = 1; the other two are the terms of LUCIR and iCaRL that AANets and RMM tune beside it.
    On ImageNet λ_c = 8 and λ_f = 10.

    `logits` says how old outputs are distilled: with `sigmoid`, as released, by the BCE of scores; with `softmax` by
    LUCIR's term, the KL divergence of softened logits (Eq. 1 of Liu et al., AAAI 2023). The BCE sees scores before the
    learned scale, in [−4, 0]: its gradient is some 650 times weaker than that of the KL divergence.
    """

    name = "podnet"
    variant = "pod"
    head = "proxies"
    brightness = 63 / 255
    default_action = Action(
        logit_kd=0.0,
        feature_kd=0.0,
        pod=1.0,
        adjustment=0.0,
        lr=0.1,
        classifier="fc",
        old_rows="frozen",
        balance="finetune",
    )
    choices: Mapping[str, tuple[str, ...]] = {"balance": ("none", "finetune")}  # the length of its rows has no effect
    spaces = online_space(
        {  # stable: maps are held, as PODNet does it
            "logit_kd": (0,),
            "feature_kd": (0,),
            "pod": (0.3, 1),
            "adjustment": (0, 0.5),
            "lr": (0.1, 0.05),
        },
        {  # plastic: only old outputs are held
            "logit_kd": (1,),
            "feature_kd": (0,),
            "pod": (0,),
            "old_rows": ("trained",),
            "adjustment": (1,),
            "lr": (0.1, 0.05),
        },
        favourite={"adjustment": 0.5},
    )
    #: 20 epochs (for 160) at a constant rate on the exemplars of all classes; only proxies are trained.
    balancing = replace(Method.balancing, milestones=(), lr=0.05, clamp=CLAMP, trains="rows", moves_statistics=True)
    options: Mapping[str, Known] = {"spatial": 3.0, "flat": 1.0, "logits": ("sigmoid", "softmax")}

    def __init__(self, **options: float | str) -> None:
        super().__init__(**options)
        load_clustering()

    def grow(self, model: Model, inputs: GrowthInputs) -> None:
        """Imprint new proxies: the centres of ten clusters of the unit features of their class."""
        super().grow(model, inputs)
        if inputs.growth.old and inputs.growth.new and isinstance(model.head, ProxyHead):
            features, classes = inputs.features()
            seeds = torch.randint(2**31, (inputs.growth.new,), generator=inputs.generator).tolist()
            units = [normalize(features[classes == number]) for number in range(inputs.growth.new)]
            centres = [
                cluster_centres(points, ProxyHead.PROXIES, seed) for points, seed in zip(units, seeds, strict=True)
            ]
            model.head.imprint(torch.stack(centres).to(model.head.new))

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        """A main stage with a cosine schedule; the action's `balance` adds the second stage."""
        return (Stage(milestones=(), cosine=True, clamp=CLAMP),)

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """NCA; from the second phase on also the three distillations."""
        if not student.maps:
            raise UserError(
                f"{self.name} compares maps, but your net returns none: return poise.nets.Features with maps"
            )
        terms = {"nca": losses.nca(student.adjusted, labels)}
        if teacher is not None:
            spatial, flat = float(self.settings["spatial"]), float(self.settings["flat"])
            adapted = math.sqrt(sum(growth.real_phase) / max(growth.real_phase.new, 1))
            turned = losses.feature_kd(student.features, teacher.features)
            moved = losses.pod_spatial(student.maps, teacher.maps)
            terms["pod"] = adapted * (spatial * moved + flat * turned)
            apart = losses.margin_ranking(student.scores, labels, growth.old, batch=student.batch_labels)
            terms["feature_kd"] = LAMBDA_BASE * adapted * turned + apart
            if self.settings["logits"] == "softmax":
                terms["logit_kd"] = losses.logit_kd(student.logits[:, : growth.old], teacher.logits)
            else:
                terms["logit_kd"] = losses.sigmoid_new(student.scores, labels, growth.old) + losses.sigmoid_kd(
                    student.scores, teacher.scores, growth.old
                )
        return terms
