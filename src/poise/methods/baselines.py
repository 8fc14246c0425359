"""What everybody compares with: fine-tuning, replay, and joint training, which is an oracle."""

from __future__ import annotations

from torch import Tensor

from poise import losses
from poise.actions import Action
from poise.data import ALL_IMAGES
from poise.methods.base import Growth, Method, Stage, register
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
        """One, without a teacher."""
        return (Stage(teacher=None),)


@register
class Finetune(Replay):
    """The same on what arrives alone: no image is kept, and nothing is done against forgetting."""

    name = "finetune"
    own_memory = 0


@register
class Joint(Replay):
    """An oracle: in every phase a new network is trained on all images of all phases so far, which are all kept."""

    name = "joint"
    own_memory = ALL_IMAGES
    starts_anew = True
