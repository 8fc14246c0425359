from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from poise.nets import Head, LinearHead, ProxyHead, ScaledHead, build_head, torch_generator

KINDS = ("cosine", "linear", "proxies")
WIDTH = 6


def grown(kind: str, *sizes: int) -> Head:
    head = build_head(kind, WIDTH)
    for phase, size in enumerate(sizes):
        head.grow(size, torch_generator(0, "head", phase))
    return head


def some_features(count: int = 20, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
class TestEveryHead:
    @pytest.mark.parametrize("kept", [[0], [4], [1, 3], [0, 2, 3, 4], [0, 1, 2], [3, 4]], ids=str)
    def test_kept_rows_score_as_before_and_stay_old_or_new(self, kind: str, kept: list[int]) -> None:
        head = grown(kind, 3, 2)
        scores, logits = head(some_features())
        head.keep(torch.tensor(kept))
        found, scaled = head(some_features())
        assert torch.allclose(found, scores[:, kept], atol=1e-6)
        assert torch.allclose(scaled, logits[:, kept], atol=1e-6)
        assert (len(head.old), len(head.new)) == (sum(row < 3 for row in kept), sum(row >= 3 for row in kept))
        head.grow(2, torch_generator(0, "head", 2))
        assert head.classes == len(kept) + 2
        assert torch.allclose(head(some_features())[1][:, :-2], scaled, atol=1e-6)

    def test_logits_are_full_precision_inside_autocast(self, kind: str) -> None:
        head = grown(kind, 3)
        with torch.autocast("cpu", torch.bfloat16):
            logits = head(some_features())[1]
        assert logits.dtype == torch.float32
        assert torch.equal(logits, head(some_features())[1])


class TestCosine:
    @given(st.integers(0, 1000), st.floats(1e-3, 1e3))
    def test_scores_are_cosines_whatever_the_lengths(self, seed: int, length: float) -> None:
        head = grown("cosine", 3, 2)
        features = some_features(5, seed)
        scores, _ = head(features * length)
        assert scores.abs().max() <= 1 + 1e-6
        rows, points = head.rows().detach().double().numpy(), features.double().numpy()
        slow = [[point @ row / np.linalg.norm(point) / np.linalg.norm(row) for row in rows] for point in points]
        np.testing.assert_allclose(scores.detach().numpy(), slow, atol=1e-6)

    @pytest.mark.parametrize("kind", ["cosine", "proxies"])
    def test_the_scale_starts_at_one_multiplies_logits_only_and_is_carried_over(self, kind: str) -> None:
        head = grown(kind, 3)
        assert isinstance(head, ScaledHead)
        assert head.scale.item() == 1
        with torch.no_grad():
            head.scale.fill_(7.0)
        head.grow(2, torch_generator(0, "head", 1))
        scores, logits = head(some_features())
        assert torch.equal(logits, 7 * scores)


class TestProxies:
    @given(st.integers(0, 1000), st.floats(1e-3, 1e3))
    def test_scores_are_the_soft_nearest_of_ten_similarities(self, seed: int, length: float) -> None:
        head = grown("proxies", 3, 2)
        features = some_features(4, seed)
        scores, _ = head(features * length)
        rows = head.rows().detach().double().numpy()
        assert rows.shape == (5, 10, WIDTH)
        for point, found in zip(features.double().numpy(), scores.tolist(), strict=True):
            for proxies, score in zip(rows, found, strict=True):
                gaps = [point / np.linalg.norm(point) - proxy / np.linalg.norm(proxy) for proxy in proxies]
                near = np.array([-np.sum(gap**2) for gap in gaps])
                assert score == pytest.approx(float((np.exp(near) * near).sum() / np.exp(near).sum()), abs=1e-5)
        assert -4 <= scores.min() <= scores.max() <= 0

    def test_first_proxies_are_normal_with_the_variance_of_the_width(self) -> None:
        head = ProxyHead(64)
        head.grow(50, torch_generator(0, "head", 0))
        assert head.rows().mean().item() == pytest.approx(0, abs=0.002)
        assert head.rows().var().item() == pytest.approx(1 / 64, rel=0.02)


def test_a_linear_head_is_a_linear_map_with_bias() -> None:
    head = LinearHead(WIDTH)
    head.grow(3, torch_generator(0, "head", 0))
    head.grow(2, torch_generator(0, "head", 1))
    bias = torch.cat([head.old_bias, head.new_bias]).detach().numpy()
    assert np.abs(bias).min() > 0
    scores, logits = head(some_features())
    assert torch.equal(scores, logits)
    expected = some_features().numpy() @ head.rows().detach().numpy().T + bias
    np.testing.assert_allclose(logits.detach().numpy(), expected, atol=1e-6)
