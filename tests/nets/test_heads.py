from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from poise.nets import CosineHead, Head, LinearHead, ProxyHead, ScaledHead, build_head, torch_generator

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
    def test_growth_keeps_old_rows_exactly_and_old_logits(self, kind: str) -> None:
        head = grown(kind, 3, 2)
        rows = head.rows().detach().clone()
        _, logits = head(some_features())
        head.grow(4, torch_generator(0, "head", 2))
        assert head.classes == 9
        assert torch.equal(head.rows()[:5], rows)
        assert torch.allclose(head(some_features())[1][:, :5], logits, atol=1e-6)

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

    def test_new_rows_depend_on_the_generator_only(self, kind: str) -> None:
        torch.manual_seed(1)
        one = grown(kind, 3, 2)
        torch.manual_seed(2)
        other = grown(kind, 3, 2)
        assert torch.equal(one.rows(), other.rows())
        if kind != "proxies":
            assert one.rows().abs().max() <= 1 / math.sqrt(WIDTH)

    @pytest.mark.parametrize("frozen", [True, False])
    def test_old_rows_move_unless_they_are_frozen(self, kind: str, frozen: bool) -> None:
        head = grown(kind, 3, 2)
        head.freeze_old(not frozen)
        head.freeze_old(frozen)
        before = {name: value.clone() for name, value in head.state_dict().items()}
        loss = torch.nn.functional.cross_entropy(head(some_features())[1], torch.arange(20) % head.classes)
        trained = [parameter for parameter in head.parameters() if parameter.requires_grad]
        loss.backward()  # type: ignore[no-untyped-call]
        torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=0.1).step()
        still = {name for name, value in head.state_dict().items() if torch.equal(value, before[name])}
        assert still == ({name for name in before if name.startswith("old")} if frozen else set())
        head.grow(1, torch_generator(0, "head", 2))
        assert all(parameter.requires_grad for parameter in head.parameters())

    def test_no_new_classes_at_all(self, kind: str) -> None:
        head = grown(kind, 3)
        head.grow(0, torch_generator(0, "head", 1))
        head.freeze_old(True)
        assert head(some_features())[1].shape == (20, 3)

    def test_adopt_takes_over_any_number_of_classes(self, kind: str) -> None:
        saved, head = grown(kind, 3, 2), build_head(kind, WIDTH)
        head.adopt(saved.state_dict())
        head.load_state_dict(saved.state_dict())
        assert torch.equal(head(some_features())[1], saved(some_features())[1])

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

    def test_imprinted_rows_point_to_the_mean_and_are_as_long_as_old_ones(self) -> None:
        head = CosineHead(2)
        head.grow(2, torch_generator(0, "head", 0))
        with torch.no_grad():
            head.new.copy_(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))  # lengths 5 and 1: on average 3
        head.grow(2, torch_generator(0, "head", 1))
        head.imprint(torch.nn.functional.normalize(torch.tensor([[10.0, 0.0], [1.0, 1.0]])))
        expected = torch.tensor([[3.0, 0.0], [3 / math.sqrt(2), 3 / math.sqrt(2)]])
        assert torch.allclose(head.new, expected)
        assert head.new.requires_grad


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

    def test_imprinted_proxies_are_as_given_times_the_mean_length_of_old_ones(self) -> None:
        head = grown("proxies", 1, 2)
        with torch.no_grad():
            head.old.copy_(torch.eye(10, WIDTH)[None])  # six of length 1, four of length 0
        given_rows = some_features(20).view(2, 10, WIDTH)
        assert isinstance(head, ProxyHead)
        head.imprint(given_rows)
        assert torch.allclose(head.new, 0.6 * given_rows)


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
