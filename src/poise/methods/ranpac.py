"""RanPAC (McDonnell et al., NeurIPS 2023): a frozen network, a random projection and ridge regression."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from poise.actions import Action
from poise.errors import UserError, shown
from poise.methods.base import Arrivals, Correction, Learned, register
from poise.methods.frozen import FrozenMethod
from poise.nets import Model, RidgeHead

WIDEST = 100_000  # of all that can be chosen
LEAST, MOST = 1_000, 10_000  # the width of a projection that nobody chose


@register
class RanPAC(FrozenMethod):
    """scores = h (G + κI)⁻¹ C with h = relu(f P), G = Σ hᵀh, C = Σ hᵀy: sums over phases, so no image need be kept.

    `projection` is M, the number of random features; `auto` is twice the network's, at least 1,000 and at most the
    paper's 10,000. The axis `ridge` of the action is κ; 0 means the best of 10⁻⁸ … 10⁸ on a held-out fifth of each
    phase's images, by the squared errors of all phases together (the released code looks at the last phase alone, so
    that its result depends on the order of phases).
    """

    name = "ranpac"
    head = "ridge"
    default_action = Action(ridge=0.0, lr=0.1, classifier="fc")
    choices: Mapping[str, tuple[str, ...]] = {"lr": (), "old_rows": ("trained",), "balance": ("none",)}
    options: Mapping[str, float | str] = {**FrozenMethod.options, "projection": "auto"}

    def __init__(self, **options: float | str) -> None:
        super().__init__(**options)
        width = self.settings["projection"]
        if width != "auto" and (
            isinstance(width, bool) or not isinstance(width, int | float) or not 1 <= width <= WIDEST or width % 1
        ):
            raise UserError(
                f"option projection={shown(width)} must be 'auto' or a whole number of random features up to {WIDEST}"
            )

    def breadth(self, width: int) -> int:
        """M for a network with so many features.

        >>> [RanPAC().breadth(width) for width in (64, 768, 8192)]
        [1000, 1536, 10000]
        """
        chosen = self.settings["projection"]
        return min(MOST, max(LEAST, 2 * width)) if isinstance(chosen, str) else int(chosen)

    def grow(self, model: Model, arrivals: Arrivals) -> None:
        """Draw the projection, once; add rows."""
        head = _ridge_head(model)
        if not head.breadth:
            seed = torch.randint(2**62, (), generator=arrivals.generator)
            head.draw_projection(int(seed), self.breadth(head.width))
        super().grow(model, arrivals)

    def conclude(self, model: Model, learned: Learned) -> None:
        """Add the new images to the sums and solve for all rows anew.

        Trials differ in κ alone: they share errors, sums and equations, and the rows of the same κ. Solving for each κ
        costs less than the eigenvectors of G, for fewer than about a dozen of them.
        """
        head, ridge = _ridge_head(model), learned.action.ridge
        if not ridge:
            head.held_out += learned.once("errors", lambda: head.held_out_errors(*learned.features()))
        head.gram, head.sums = learned.once("sums", lambda: head.sums_with(*learned.features()))
        ridge = ridge or head.best_ridge()
        system = learned.once("system", lambda: head.system(reduce=learned.shares))
        head.set_rows(learned.once(("rows", ridge), lambda: head.rows_of(system, ridge)))

    def correct(self, model: Model, correction: Correction) -> None:
        """Take these images out of the sums, or move them to their new classes, and solve anew.

        The errors by which κ was chosen stay: they are sums that no single image can be taken out of.
        """
        head = _ridge_head(model)
        head.gram, head.sums = head.sums_corrected(correction.features(), correction.before, correction.after)
        ridge = max(correction.action.ridge or head.best_ridge(), head.least_ridge())
        head.set_rows(head.rows_of(head.system(), ridge))


def _ridge_head(model: Model) -> RidgeHead:
    assert isinstance(model.head, RidgeHead)
    return model.head
