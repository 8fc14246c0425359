"""Replay and its neighbours: fine-tuning, joint training (an oracle), and distillation of outputs (iCaRL, LwF)."""

from __future__ import annotations

from torch import Tensor

from poise import losses
from poise.actions import Action
from poise.data import ALL_IMAGES
from poise.methods.base import Growth, Method, Stage, online_space, register
from poise.nets import Output


@register
class Replay(Method):
    """L = CE, on new images and exemplars. Nothing is distilled, and the whole network is trained."""

    name = "replay"
    default_action = Action(adjustment=0.0, lr=0.1, classifier="fc", old_rows="trained", balance="none")

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """Classification of all classes."""
        return {"ce": losses.cross_entropy(student.adjusted, labels)}

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        """A single stage without a teacher."""
        return (Stage(teacher=None),)


@register
class Finetune(Replay):
    """Training on what arrives alone: no image is kept, and nothing is done against forgetting."""

    name = "finetune"
    own_memory = 0


@register
class Joint(Replay):
    """An oracle: in every phase a new network is trained on all images of all phases so far, which are all kept."""

    name = "joint"
    own_memory = ALL_IMAGES
    starts_anew = True


@register
class ICaRL(Method):
    """iCaRL (Rebuffi et al., CVPR 2017): L = CE + β · KL at temperature 2, as LUCIR's repository runs it."""

    name = "icarl"
    uses_maps = False
    default_action = Action(logit_kd=1.0, adjustment=0.0, lr=0.1, classifier="ncm", old_rows="trained", balance="none")
    spaces = online_space(
        {"logit_kd": (1,), "old_rows": ("trained",), "adjustment": (0, 0.5, 1), "lr": (0.1, 0.05, 0.02)},
        {"logit_kd": (1,), "old_rows": ("trained",), "balance": ("align",), "lr": (0.1, 0.05)},
        favourite={"adjustment": 1.0},
    )

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """Classification of all classes, and distillation of the old classes' outputs."""
        terms = {"ce": losses.cross_entropy(student.adjusted, labels)}
        if teacher is not None:
            terms["logit_kd"] = losses.logit_kd(student.logits[:, : growth.old], teacher.logits)
        return terms


@register
class LwF(ICaRL):
    """LwF (Li and Hoiem, TPAMI 2018), with exemplars as in this line of work: iCaRL's training, FC classifier."""

    name = "lwf"
    default_action = ICaRL.default_action.replace(classifier="fc")
