"""iCaRL (Rebuffi et al., CVPR 2017): logit distillation, a linear head, nearest class mean."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from poise import losses
from poise.actions import Action
from poise.methods.base import Growth, Method, check_word, register
from poise.nets import Output
from poise.spaces import Named


@register
class ICaRL(Method):
    """L = CE + β · KL at temperature 2, as LUCIR's repository runs its iCaRL baseline.

    `loss="sigmoid"` is the original one: binary cross-entropy over all outputs, with one-hot targets for new
    classes and the old model's outputs for old ones. Its mean over outputs is small: the original trains
    it with a learning rate of 2.
    """

    name = "icarl"
    variant = "ordinary"
    uses_maps = False
    head = "linear"
    default_action = Action(logit_kd=1.0, adjustment=0.0, lr=0.1, classifier="ncm", old_rows="trained", balance="none")
    spaces: Mapping[str, Named] = {
        "online": Named(
            "online",
            (
                {"logit_kd": (1,), "old_rows": ("trained",), "adjustment": (0, 0.5, 1), "lr": (0.1, 0.05, 0.02)},
                {"logit_kd": (1,), "old_rows": ("trained",), "balance": ("align",), "lr": (0.1, 0.05)},
            ),
            favourite={"adjustment": 1.0},
        )
    }
    options: Mapping[str, float | str] = {"loss": "softmax"}

    def __init__(self, **options: float | str) -> None:
        super().__init__(**options)
        check_word(self, "loss", ("softmax", "sigmoid"))
        if self.settings["loss"] == "sigmoid":  # its classes do not compete, so there are no counts to adjust for
            own = self.default_action
            self.default_action = Action(**{axis: own[axis] for axis in own if axis != "adjustment"})

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """Classification of all classes, and distillation of the old classes' outputs."""
        old = growth.old if teacher is not None else 0
        if self.settings["loss"] == "sigmoid":
            terms = {"ce": losses.sigmoid_new(student.logits, labels, old)}
            if teacher is not None:
                terms["logit_kd"] = losses.sigmoid_kd(student.logits, teacher.logits, old)
            return terms
        terms = {"ce": losses.cross_entropy(student.adjusted, labels)}
        if teacher is not None:
            terms["logit_kd"] = losses.logit_kd(student.logits[:, :old], teacher.logits)
        return terms
