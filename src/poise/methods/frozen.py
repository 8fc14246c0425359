"""Methods on a frozen network, which learns in the first phase or not at all: SimpleCIL and RanPAC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, one_hot, relu

from poise import losses
from poise.actions import Action
from poise.methods.base import Growth, GrowthInputs, Method, Stage, TrainedPhase, register
from poise.nets import FULL, CosineHead, Model, Output, ScaledHead
from poise.nets.base import make_layer

ADAPTER: Final = "adapter"  # the linear layer that the network is trained with
#: With it, a softmax of cosines, or of scores between 0 and 1, is as steep as the probabilities of `ncm`.
SCALE: Final = 10.0
#: The strengths κ of ridge regression that are compared on held-out images.
RIDGES: Final = tuple(10.0**power for power in range(-8, 9))
LARGEST: Final = 1e12  # of a κ, and of an error that could not be computed any better


class FrozenMethod(Method):
    """A method that computes its head in closed form from the features of a frozen network.

    A network of poise's own, which starts from random weights, is trained in the first phase, by cross-entropy through
    a linear layer that is dropped afterwards. A network that a user hands over, pretrained perhaps, is not.
    """

    uses_maps = False

    def freezes(self, phase: int, *, given: bool) -> bool:
        """Freeze from the second phase on, and a network that was handed over from the first."""
        return phase > 0 or given

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        """A training of the network, which is left out where it is frozen."""
        return (Stage(trains="backbone", teacher=None),)

    def grow(self, model: Model, inputs: GrowthInputs) -> None:
        """Add rows; if the network is to be trained, also the layer to train it with."""
        super().grow(model, inputs)
        if model.has("backbone"):
            layer = make_layer(nn.Linear, model.head.width, sum(inputs.growth))
            for values in layer.parameters():
                nn.init.normal_(values, std=model.head.width**-0.5, generator=inputs.generator)
            model.extras[ADAPTER] = layer

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """Plain classification."""
        return {"ce": losses.cross_entropy(student.extras.get(ADAPTER, student.logits), labels)}


@register
class SimpleCIL(FrozenMethod):
    """SimpleCIL (Zhou et al., IJCV 2024): the nearest class mean by cosine; nothing is trained.

    The row of a class is the sum of the features of all of its images: it points where their mean points.
    The difference to the classifier `ncm` is that this one remembers the mean of the kept images.
    """

    name = "simplecil"
    head = "cosine"
    default_action = Action(lr=0.1, classifier="fc", old_rows="frozen")
    choices: Mapping[str, tuple[str, ...]] = {"lr": (), "old_rows": ("frozen",), "balance": ("none",)}

    @torch.no_grad()
    def fit_head(self, model: Model, trained: TrainedPhase) -> None:
        """Set the rows of new classes; add new images of known classes to theirs."""
        features, labels = trained.features()
        sums = one_hot(labels, sum(trained.growth)).to(features.dtype).T @ features
        old = trained.growth.old
        assert isinstance(model.head, CosineHead)
        model.head.old.add_(sums[:old])
        model.head.new.copy_(sums[old:])
        model.head.scale.fill_(SCALE)

    @torch.no_grad()
    def left_out(self, model: Model, features: Tensor, labels: Tensor, action: Action) -> Tensor:
        """The row of an image's own class without the image."""
        logits: Tensor = model.head(features)[1]
        own = cosine_similarity(features, model.head.rows()[labels] - features)
        return logits.scatter(1, labels[:, None], SCALE * own[:, None])


class RidgeHead(ScaledHead):
    """scores = h (G + κI)⁻¹ C with h = relu(f P), G = Σ hᵀh and C = Σ hᵀy over all images seen so far.

    P [d, M] is drawn once and not saved: its address is. G is kept as its lower triangle, M (M + 1) / 2 numbers of
    double precision. Both sums do not depend on the order of the images, so the scores do not either, up to rounding.
    They are replaced and never written into, so that copies share them.
    `held_out` is the squared error of every κ on held-out images, summed over phases.
    """

    shared = ("projection", "gram", "sums")
    breadth: int = 0  # M
    address: Tensor
    gram: Tensor
    sums: Tensor
    held_out: Tensor
    projection: Tensor

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("address", torch.zeros(2, dtype=torch.int64))  # of P: the seed of its draw, and M
        self.register_buffer("gram", torch.empty(0, dtype=torch.float64))
        self.register_buffer("sums", torch.empty(0, 0, dtype=torch.float64))
        self.register_buffer("held_out", torch.zeros(len(RIDGES), dtype=torch.float64))
        self.register_buffer("projection", torch.empty(width, 0, dtype=FULL), persistent=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The weights of a class: one for each projected feature."""
        return (self.breadth,)

    def draw_projection(self, seed: int, breadth: int) -> None:
        """Draw P, before the first class is known."""
        self._draw(seed, breadth)
        device = self.old.device
        self.gram = torch.zeros(breadth * (breadth + 1) // 2, dtype=torch.float64, device=device)
        self.sums = torch.zeros(0, breadth, dtype=torch.float64, device=device)
        self.old, self.new = (nn.Parameter(torch.empty(0, breadth, dtype=FULL, device=device)) for _ in range(2))
        with torch.no_grad():
            self.scale.fill_(SCALE)

    def _draw(self, seed: int, breadth: int) -> None:
        generator, device = torch.Generator().manual_seed(seed), self.old.device
        self.breadth, self.address = breadth, torch.tensor([seed, breadth], device=device)
        self.projection = torch.randn(self.width, breadth, generator=generator, dtype=FULL).to(device)

    def first_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """New classes score 0 until their images were added."""
        return torch.zeros(count, self.breadth, dtype=FULL)

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Add rows, and sums for them."""
        super().grow(count, generator)
        self.sums = torch.cat([self.sums, self.sums.new_zeros(count, self.breadth)])

    def keep(self, rows: Tensor) -> None:
        """Keep these classes; the images of the others stay in G, as images of none of them."""
        super().keep(rows)
        self.sums = self.sums[rows.to(self.sums.device)]

    def drop_unused(self) -> None:
        """Drop both sums, which are most of a saved learner."""
        self.gram, self.sums = self.gram.new_zeros(0), self.sums.new_zeros(0, 0)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *more: object) -> None:
        for name in ("gram", "sums"):  # another head may have the present ones, too
            given, own = state_dict.get(f"{prefix}{name}"), getattr(self, name)
            if given is not None and given.shape == own.shape:
                setattr(self, name, given.to(own))
        super()._load_from_state_dict(state_dict, prefix, *more)

    def adopt(self, state: Mapping[str, Tensor]) -> None:
        """Take over saved values; P is drawn again."""
        super().adopt(state)
        seed, breadth = self.address.tolist()
        if breadth:
            self._draw(seed, breadth)

    def scores(self, features: Tensor) -> Tensor:
        """Estimates of one-hot labels."""
        return relu(features @ self.projection) @ self.rows().T

    # Closed form ------------------------------------------------------------------------------------------------

    def _project(self, features: Tensor) -> Tensor:
        return relu(features @ self.projection).double()

    @torch.no_grad()
    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add these images to both sums."""
        projected = self._project(features)
        self.gram = self.gram + (projected.T @ projected)[self._triangle]
        self.sums = self.sums.index_add(0, labels, projected)

    @torch.no_grad()
    def held_out_errors(self, features: Tensor, labels: Tensor) -> Tensor:
        """The squared error of every κ on each class's every fifth image, after a regression on the others alone.

        Which images these are does not depend on the phase in which they came. All 0: there were too few.
        """
        nothing = torch.zeros_like(self.held_out)
        if not len(labels):
            return nothing
        targets = one_hot(torch.unique(labels, return_inverse=True)[1])
        numbers = (targets.cumsum(dim=0) * targets).sum(dim=1)  # of every image in its class, from 1
        is_held = numbers % 5 == 0
        if not bool(is_held.any()):
            return nothing
        projected, targets = self._project(features), targets.double()
        held, fitted = projected[is_held], projected[~is_held]
        wanted, given = targets[is_held], targets[~is_held]
        if len(fitted) < self.breadth:  # (HᵀH + κI)⁻¹ Hᵀ = Hᵀ (HHᵀ + κI)⁻¹, the smaller one to solve
            matrix, right, left = fitted @ fitted.T, given, held @ fitted.T
        else:
            matrix, right, left = fitted.T @ fitted, fitted.T @ given, held
        errors = [(left @ solve_ridge(matrix, right, ridge) - wanted).square().sum() for ridge in RIDGES]
        return torch.stack(errors).nan_to_num(LARGEST).clamp(max=LARGEST)

    @torch.no_grad()
    def solve(self, ridge: float) -> None:
        """Set all rows: (G + κI) W = C."""
        rows = solve_ridge(self._whole_gram, self.sums.T, ridge).T.float()
        self.old.copy_(rows[: len(self.old)])
        self.new.copy_(rows[len(self.old) :])

    def best_ridge(self) -> float:
        """The κ with the smallest error so far; where none was measured, about the mean of the eigenvalues of G."""
        if bool(self.held_out.any()):
            return RIDGES[int(self.held_out.argmin())]
        ends = torch.arange(1, self.breadth + 1, device=self.gram.device)
        mean = float(self.gram[ends * (ends + 1) // 2 - 1].mean())  # of the diagonal
        return min(RIDGES, key=lambda ridge: abs(ridge - mean))

    @torch.no_grad()
    def left_out(self, features: Tensor, labels: Tensor, ridge: float) -> Tensor:
        """The scores of images that are in both sums, each without its own share.

        With the leverage l = hᵀ (G + κI)⁻¹ h and the one-hot label y they are (s − l y) / (1 − l).
        """
        projected = self._project(features)
        leverage = (projected * solve_ridge(self._whole_gram, projected.T, ridge).T).sum(dim=1, keepdim=True)
        targets = one_hot(labels, self.classes)
        return ((self.scores(features) - leverage * targets) / (1 - leverage).clamp(min=1e-6)).float()

    @property
    def _whole_gram(self) -> Tensor:
        gram = self.gram.new_zeros(self.breadth, self.breadth)
        gram[self._triangle] = self.gram
        return gram + gram.tril(-1).T

    @property
    def _triangle(self) -> Tensor:
        return torch.ones(self.breadth, self.breadth, dtype=torch.bool, device=self.gram.device).tril()


def solve_ridge(matrix: Tensor, right: Tensor, ridge: float) -> Tensor:
    """(A + κI)⁻¹ B; where that is singular to rounding, with ten times the κ, until it is not."""
    regular = matrix.clone()
    regular.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(regular)
    if int(failed) and ridge < LARGEST:
        return solve_ridge(matrix, right, 10 * ridge)
    return torch.cholesky_solve(right, factor)


@register
class RanPAC(FrozenMethod):
    """RanPAC (McDonnell et al., NeurIPS 2023): a random projection and ridge regression.

    scores = h (G + κI)⁻¹ C with h = relu(f P), G = Σ hᵀh, C = Σ hᵀy: sums over phases, so no image need be kept.
    The axis `ridge` of the action is κ; 0 means the best of 10⁻⁸ … 10⁸ on a held-out fifth of each phase's images, by
    the squared errors of all phases together (the released code looks at the last phase alone, so that its result
    depends on the order of phases).
    """

    name = "ranpac"
    head = "ridge"
    own_head = RidgeHead
    default_action = Action(ridge=0.0, lr=0.1, classifier="fc")
    choices: Mapping[str, tuple[str, ...]] = {"lr": (), "old_rows": ("trained",), "balance": ("none",)}

    def grow(self, model: Model, inputs: GrowthInputs) -> None:
        """Draw the projection, once; add rows."""
        assert isinstance(model.head, RidgeHead)
        if not model.head.breadth:
            seed = torch.randint(2**62, (), generator=inputs.generator)
            # M: twice as many as features, from 1,000 to the paper's 10,000
            model.head.draw_projection(int(seed), min(10_000, max(1_000, 2 * model.head.width)))
        super().grow(model, inputs)

    def fit_head(self, model: Model, trained: TrainedPhase) -> None:
        """Add the new images to the sums and solve for all rows anew."""
        head, ridge = model.head, trained.action.ridge
        assert isinstance(head, RidgeHead)
        features, labels = trained.features()
        if not ridge:
            head.held_out += head.held_out_errors(features, labels)
        head.add(features, labels)
        head.solve(ridge or head.best_ridge())

    def left_out(self, model: Model, features: Tensor, labels: Tensor, action: Action) -> Tensor | None:
        """By the sums without an image; not known where they were dropped."""
        head = model.head
        assert isinstance(head, RidgeHead)
        if not len(head.gram):
            return None
        return SCALE * head.left_out(features, labels, action.ridge or head.best_ridge())
