from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor

from poise.data import cluster_centres, herd, herding

Array = npt.NDArray[np.float64]


def slow_reference(features: Array, labels: npt.NDArray[np.int64], count: int) -> dict[int, list[int]]:
    """One class and one image at a time; scores are rounded so that equal images tie, and the first is taken."""
    return {
        int(label): [int(np.flatnonzero(labels == label)[j]) for j in _one_class(features[labels == label], count)]
        for label in np.unique(labels)
    }


def _one_class(features: Array, count: int) -> list[int]:
    d = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    mu = d.mean(axis=0)
    w = mu.copy()
    chosen: list[int] = []
    tries = 0
    while len(chosen) < min(count, len(d)) and tries < 1000:
        j = int(np.argmax(np.round(d @ w, 9)))
        w = w + mu - d[j]
        if j not in chosen:
            chosen.append(j)
        tries += 1
    return chosen


def some_features(count: int, width: int, seed: int, distinct: int | None = None) -> Array:
    """Random points around a common direction, as features are; `distinct` of them, repeated."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count if distinct is None else distinct, width)) + 1
    points = points.astype(np.float32).astype(np.float64)
    return points if distinct is None else points[rng.integers(0, distinct, count)]


def fast(features: Array, labels: npt.NDArray[np.int64], count: int) -> dict[int, list[int]]:
    ranks = herd(torch.from_numpy(features), torch.from_numpy(labels), count)
    return {label: picks.tolist() for label, picks in ranks.items()}


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 25))
def test_classes_of_any_sizes_equal_the_slow_reference(seed: int, sizes: list[int], count: int) -> None:
    labels = np.repeat(np.arange(len(sizes)) * 3, sizes)  # labels need not be 0, 1, 2 …
    labels = np.random.default_rng(seed).permutation(labels)
    features = some_features(len(labels), 16, seed)
    assert fast(features, labels, count) == slow_reference(features, labels, count)


@settings(max_examples=6)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 12))
def test_many_equal_images(seed: int, distinct: int, count: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 3, 40)
    features = some_features(40, 8, seed, distinct)
    found, slow = fast(features, labels, count), slow_reference(features, labels, count)
    for label, picks in found.items():
        assert picks[: len(slow[label])] == slow[label]
        assert len(set(picks)) == len(picks) == min(count, int((labels == label).sum()))


def test_where_1000_tries_do_not_suffice_the_nearest_to_the_mean_fill_up() -> None:
    features = np.array([[1.0, 0.0]] * 5 + [[1.0, 0.1]] + [[0.0, 1.0]] * 3)
    labels = np.zeros(9, dtype=np.int64)
    found = fast(features, labels, 9)[0]
    slow = slow_reference(features, labels, 9)[0]
    assert len(slow) < 9, "the reference is meant to give up here"
    assert found[: len(slow)] == slow
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    closeness = np.round(unit @ unit.mean(axis=0), 9)
    rest = [j for j in range(9) if j not in slow]
    assert found[len(slow) :] == sorted(rest, key=lambda j: (-closeness[j], j))


def test_lengths_of_features_do_not_matter_and_zero_features_do_no_harm() -> None:
    labels = np.random.default_rng(0).integers(0, 2, 30)
    features = some_features(30, 16, 0)
    lengths = np.random.default_rng(1).uniform(0.1, 10, (30, 1))
    assert fast(features * lengths, labels, 6) == fast(features, labels, 6)
    features[3] = 0
    assert fast(features, labels, 6) == slow_reference(features, labels, 6)


def test_groups_of_classes_one_after_the_other_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(0).integers(0, 7, 120)
    features = some_features(120, 16, 0, distinct=60)
    together = fast(features, labels, 10)
    for cells in (1, 16 * 30 * 2):
        monkeypatch.setattr(herding, "_CELLS", cells)
        assert fast(features, labels, 10) == together


@pytest.mark.gpu
def test_a_gpu_chooses_the_same() -> None:
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 10, 500))
    features = torch.from_numpy(some_features(500, 64, 0))
    on_cpu, on_gpu = herd(features, labels, 20), herd(features.cuda(), labels.cuda(), 20)
    assert {label: picks.tolist() for label, picks in on_cpu.items()} == {
        label: picks.cpu().tolist() for label, picks in on_gpu.items()
    }


# Clusters -------------------------------------------------------------------------------------------------------------


def groups(sizes: list[int], width: int = 3) -> Tensor:
    """Points around far corners, in a random order."""
    rng = np.random.default_rng(0)
    corners = 10 * np.eye(len(sizes), width)
    points = np.concatenate(
        [corner + 0.1 * rng.normal(size=(n, width)) for corner, n in zip(corners, sizes, strict=True)]
    )
    return torch.from_numpy(rng.permutation(points)).float()


def test_the_centres_are_the_means_of_well_separated_groups() -> None:
    points = groups([30, 5, 12])
    expected = torch.stack([points[points.argmax(dim=1) == corner].mean(dim=0) for corner in range(3)])
    centres = cluster_centres(points, 3, seed=5)
    assert centres.dtype == points.dtype
    assert torch.allclose(centres[centres.argmax(dim=1).argsort()], expected, atol=1e-5)


def test_the_seed_is_the_only_chance() -> None:
    points = torch.from_numpy(np.random.default_rng(1).normal(size=(200, 4)))
    np.random.seed(0)  # noqa: NPY002 - the global generator must not matter
    one = cluster_centres(points, 10, seed=1)
    before = np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
    assert torch.equal(one, cluster_centres(points, 10, seed=1))
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index] # noqa: NPY002
    assert not torch.equal(one, cluster_centres(points, 10, seed=2))


def test_the_number_of_threads_does_not_matter_and_is_as_before() -> None:
    points = torch.from_numpy(np.random.default_rng(1).normal(size=(3000, 16)))
    found = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads):
            before = threadpool_info()
            found.append(cluster_centres(points, 10, seed=0))
            assert threadpool_info() == before
    assert torch.equal(*found)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_points_take_turns(count: int) -> None:
    points = torch.eye(2).repeat(4, 1)  # two distinct ones
    centres = cluster_centres(points, count, seed=0)
    assert centres.shape == (count, 2)
    if count > 1:
        assert centres.tolist() == [points[(place + 1) % 2].tolist() for place in range(count)]


def test_points_that_all_but_coincide_are_no_trouble() -> None:
    points = torch.ones(30, 4, dtype=torch.float64) + 1e-17 * torch.arange(30)[:, None]
    nearly = points * (1 + 1e-16 * torch.arange(30)[:, None])
    assert torch.allclose(cluster_centres(nearly, 10, seed=0), torch.ones(10, 4, dtype=torch.float64))
