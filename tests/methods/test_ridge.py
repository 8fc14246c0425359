from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise.methods import RidgeHead
from poise.nets import Model, torch_generator


def head_for(classes: int, breadth: int = 40) -> RidgeHead:
    head = RidgeHead(6)
    head.draw_projection(7, breadth)
    head.grow(classes, torch_generator(0, "head"))
    return head


@pytest.fixture
def points() -> tuple[Tensor, Tensor]:
    """Three classes of 20 features each, around centres of their own."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat(20)
    return torch.randn(3, 6, generator=generator)[labels] + 0.3 * torch.randn(60, 6, generator=generator), labels


def test_the_scores_are_those_of_ridge_regression(points: tuple[Tensor, Tensor]) -> None:
    features, labels = points
    head = head_for(3)
    head.add(features, labels)
    head.solve(0.5)
    lifted = np.maximum(features.double().numpy() @ head.projection.double().numpy(), 0)
    targets = np.eye(3)[labels.numpy()]
    weights = np.linalg.solve(lifted.T @ lifted + 0.5 * np.eye(40), lifted.T @ targets)
    scores, logits = head(features)
    np.testing.assert_allclose(scores.detach().numpy(), lifted @ weights, atol=1e-4)
    assert torch.equal(logits.argmax(dim=1), scores.argmax(dim=1))


def test_the_ridge_is_the_one_with_the_smallest_held_out_error(points: tuple[Tensor, Tensor]) -> None:
    """Labels without any meaning want a large one, those that follow from the features a small one."""
    features, labels = points
    noise = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(1))
    for breadth in (20, 100):  # fewer and more random features than images: both forms of the solution
        head = head_for(3, breadth)
        head.held_out += head.held_out_errors(features, noise)
        clear = head_for(3, breadth)
        clear.held_out += clear.held_out_errors(features, labels)
        assert clear.best_ridge() < head.best_ridge()


def test_a_singular_sum_is_solved_with_a_larger_ridge() -> None:
    head = head_for(2)
    head.add(1e4 * torch.ones(4, 6), torch.tensor([0, 1, 0, 1]))
    head.solve(1e-8)
    assert head.rows().isfinite().all()


def test_the_projection_is_not_stored_and_drawn_again(points: tuple[Tensor, Tensor]) -> None:
    head = head_for(3)
    head.add(*points)
    head.solve(1.0)
    state = head.state_dict()
    assert "projection" not in state
    assert state["gram"].numel() == 40 * 41 // 2
    restored = RidgeHead(6)
    restored.adopt(state)
    restored.load_state_dict(state)
    assert torch.equal(restored.projection, head.projection)
    assert torch.equal(restored(points[0])[1], head(points[0])[1])


def test_classes_that_are_kept_keep_their_scores(points: tuple[Tensor, Tensor]) -> None:
    head = head_for(3)
    head.add(*points)
    head.solve(1.0)
    before = head.scores(points[0]).detach()
    head.keep(torch.tensor([0, 2]))
    assert torch.equal(head.scores(points[0]).detach(), before[:, [0, 2]])
    head.solve(1.0)  # the next phase solves for the rows again
    assert torch.allclose(head.scores(points[0]).detach(), before[:, [0, 2]], atol=1e-5)


def test_copies_share_the_sums_and_what_is_added_to_one_is_not_in_the_other(points: tuple[Tensor, Tensor]) -> None:
    model = Model(nn.Identity(), head_for(3))
    assert isinstance(model.head, RidgeHead)
    model.head.add(*points)
    first, second = (model.copy().head for _ in range(2))
    assert isinstance(first, RidgeHead)
    assert isinstance(second, RidgeHead)
    assert first.gram.data_ptr() == second.gram.data_ptr()
    before, kept = model.head.gram.clone(), model.head.sums.clone()
    first.add(*points)
    assert torch.allclose(first.gram, 2 * before)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.gram, first.gram)
    assert torch.equal(second.sums, first.sums)
    assert torch.equal(model.head.gram, before)
    assert torch.equal(model.head.sums, kept)


def test_left_out_is_a_regression_on_all_other_images(points: tuple[Tensor, Tensor]) -> None:
    features, labels = points
    whole = head_for(3)
    whole.add(features, labels)
    whole.solve(0.5)
    found = whole.left_out(features, labels, 0.5)
    for image in (0, 31, 59):
        others, rest = torch.arange(60) != image, head_for(3)
        rest.add(features[others], labels[others])
        rest.solve(0.5)
        torch.testing.assert_close(found[image], rest.scores(features[image][None])[0], rtol=1e-3, atol=1e-3)
