from __future__ import annotations

import pytest
import torch
from torch import Tensor

from poise.methods import GaussianHead
from poise.nets import torch_generator


def head_for(classes: int, rank: int = 64) -> GaussianHead:
    head = GaussianHead(5)
    head.grow(classes, torch_generator(0, "head"))
    head.remember(classes, rank)
    return head


@pytest.fixture
def points() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 3 + torch.randn(40, 5, generator=generator) @ torch.randn(5, 5, generator=generator)


def covariance(head: GaussianHead, label: int) -> Tensor:
    return head.factors[label].T @ head.factors[label] + head.rest[label].diag()


@pytest.mark.parametrize("rank", [5, 64])
def test_mean_and_covariance_are_those_of_the_features(points: Tensor, rank: int) -> None:
    head = head_for(2, rank=rank)
    head.describe(points, torch.ones(40, dtype=torch.long))
    assert torch.allclose(head.means[1], points.mean(dim=0), atol=1e-5)
    assert torch.allclose(covariance(head, 1), torch.cov(points.T, correction=0), atol=1e-4)
    assert head.counts.tolist() == [0, 40]


def test_fewer_directions_keep_every_variance(points: Tensor) -> None:
    head = head_for(1, rank=2)
    head.describe(points, torch.zeros(40, dtype=torch.long))
    full = torch.cov(points.T, correction=0)
    assert torch.allclose(covariance(head, 0).diag(), full.diag(), atol=1e-4)
    largest = torch.linalg.eigvalsh(full)[-2:]
    assert torch.allclose(torch.linalg.eigvalsh(head.factors[0].T @ head.factors[0])[-2:], largest, rtol=1e-4)


def test_more_images_of_a_class_give_the_gaussian_of_all(points: Tensor) -> None:
    once, apart, labels = head_for(1), head_for(1), torch.zeros(40, dtype=torch.long)
    once.describe(points, labels)
    apart.describe(points[:13], labels[:13])
    apart.describe(points[13:], labels[13:])
    assert torch.allclose(once.means, apart.means, atol=1e-5)
    assert torch.allclose(covariance(once, 0), covariance(apart, 0), atol=1e-4)
    assert apart.counts.tolist() == [40]


def test_draws_have_the_mean_and_covariance_of_the_class(points: Tensor) -> None:
    for rank in (2, 64):
        head = head_for(2, rank=rank)
        head.describe(torch.cat([points, -points]), torch.arange(2).repeat_interleave(40))
        features, labels = head.draw(40_000, torch_generator(0, "draws"))
        assert labels.bincount().tolist() == [40_000, 40_000]
        drawn = features[labels == 1]
        spread = float(covariance(head, 1).diag().max())
        assert torch.allclose(drawn.mean(dim=0), -points.mean(dim=0), atol=0.03 * spread)
        assert torch.allclose(torch.cov(drawn.T), covariance(head, 1), atol=0.05 * spread)


def test_classes_that_are_kept_keep_their_gaussians(points: Tensor) -> None:
    head = head_for(3)
    head.describe(points, torch.arange(40) % 3)
    before = covariance(head, 2)
    head.keep(torch.tensor([1, 2]))
    assert torch.equal(covariance(head, 1), before)
    assert head.counts.tolist() == [13, 13]
    assert head.classes == 2
