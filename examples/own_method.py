"""A method of one's own: learning without forgetting from its formula, L = CE + β · KL(old answers ‖ new answers).

    python examples/own_method.py run digits/lwf method=my-lwf

As a command this file is `poise` with one more method; imported, it makes `Learner("my-lwf")` work.
"""

import torch.nn.functional as F
from torch import Tensor

from poise import Action
from poise.methods import Growth, Method, register
from poise.nets import Output


@register
class MyLwF(Method):
    """Cross-entropy over all classes, and the old model's answers on old classes kept."""

    name = "my-lwf"
    variant = "ordinary"
    head = "linear"
    default_action = Action(logit_kd=1.0, lr=0.1, classifier="fc", old_rows="trained")
    options = {"temperature": 2.0}

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """Loss terms before weighting; there is no teacher in the first phase."""
        terms = {"ce": F.cross_entropy(student.logits, labels)}
        if teacher is not None:
            t = float(self.settings["temperature"])
            now = F.log_softmax(student.logits[:, : growth.old] / t, dim=1)
            before = F.log_softmax(teacher.logits / t, dim=1)
            terms["logit_kd"] = F.kl_div(now, before, reduction="batchmean", log_target=True)
        return terms


if __name__ == "__main__":
    from poise.cli import main

    main()
