from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from poise.data import Budget, ImageSet, Memory, draw_reserve, herd

MakeImages = Callable[..., ImageSet]
SHAPE = (3, 8, 8)


def some_features(count: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 16))) + 1


def origins(images: ImageSet, label: int) -> list[int]:
    return images.origins[images.labels == label].tolist()


class TestReserve:
    def test_it_is_drawn_from_every_class_without_repeats(self) -> None:
        labels = torch.tensor([0] * 10 + [3] * 20)
        picks = draw_reserve(labels, 4, np.random.default_rng(0))
        assert labels[picks].tolist() == [0] * 4 + [3] * 4
        assert len(set(picks.tolist())) == 8

    @pytest.mark.parametrize(("size", "expected"), [(1, 0), (2, 1), (3, 1), (7, 3), (8, 4), (20, 4)])
    def test_it_takes_at_most_half_of_a_class(self, size: int, expected: int) -> None:
        assert len(draw_reserve(torch.zeros(size, dtype=torch.long), 4, np.random.default_rng(0))) == expected


class TestUpdate:
    def test_new_classes_are_kept_in_the_order_of_herding(self, make_images: MakeImages) -> None:
        images, features = make_images([0, 1] * 10), some_features(20)
        memory = Memory.empty(SHAPE).updated(images, features, images.select(torch.empty(0, dtype=torch.long)), 4, 0)
        ranks = herd(features, images.labels, 4)
        assert [origins(memory.exemplars, label) for label in (0, 1)] == [ranks[0].tolist(), ranks[1].tolist()]
        assert memory.exemplars.labels.tolist() == [0] * 4 + [1] * 4
        assert torch.equal(memory.exemplars.pixels, images.pixels[memory.exemplars.origins])

    def test_a_smaller_quota_keeps_the_first_images_of_old_classes(self, make_images: MakeImages) -> None:
        memory = self.after(Memory.empty(SHAPE), make_images([0, 1] * 10), quota=6)
        before = {label: origins(memory.exemplars, label) for label in (0, 1)}
        later = self.after(memory, make_images([2] * 10, first=100, seed=1), quota=4)
        assert {label: origins(later.exemplars, label) for label in (0, 1)} == {
            label: kept[:4] for label, kept in before.items()
        }
        assert len(origins(later.exemplars, 2)) == 4

    def test_a_class_with_fewer_images_than_the_quota_keeps_them_all(self, make_images: MakeImages) -> None:
        memory = self.after(Memory.empty(SHAPE), make_images([0, 1, 1]), quota=20)
        assert memory.exemplars.labels.tolist() == [0, 1, 1]

    def test_candidates_of_a_known_class_refresh_it_and_only_it(self, make_images: MakeImages) -> None:
        memory = self.after(Memory.empty(SHAPE), make_images([0, 1] * 5), quota=3)
        more = make_images([0] * 8, first=100, seed=1)
        candidates = ImageSet.joined([memory.exemplars.of_labels([0]), more])
        features = some_features(11, seed=2)
        later = self.after(memory, candidates, quota=3, features=features)
        expected = candidates.origins[herd(features, candidates.labels, 3)[0]].tolist()
        assert origins(later.exemplars, 0) == expected
        assert origins(later.exemplars, 1) == origins(memory.exemplars, 1)

    def test_the_reserve_is_inside_the_budget_and_stays(self, make_images: MakeImages) -> None:
        images = make_images([0] * 10 + [1] * 10)
        reserve, rest = images.select(torch.tensor([0, 1, 10, 11])), images.select(torch.arange(2, 10))
        memory = Memory.empty(SHAPE).updated(rest, some_features(8), reserve, 5, 2)
        assert origins(memory.reserve, 0) == [0, 1]
        assert len(origins(memory.exemplars, 0)) == 3
        more = make_images([2] * 6, first=50, seed=3)
        none = more.select(torch.empty(0, dtype=torch.long))
        later = memory.updated(more, some_features(6), none, 4, 2)
        assert origins(later.reserve, 0) == [0, 1]
        assert origins(later.exemplars, 0) == origins(memory.exemplars, 0)[:2]
        assert len(later) == len(later.exemplars) + len(later.reserve)

    @settings(max_examples=15)
    @given(data=st.data())
    def test_no_class_ever_has_more_than_its_quota(self, make_images: MakeImages, data: st.DataObject) -> None:
        reserved = data.draw(st.integers(0, 3))
        budget = Budget(per_class=None, total=60, reserve=reserved)
        memory, classes = Memory.empty(SHAPE), 0
        for phase in range(data.draw(st.integers(1, 4))):
            labels = [
                label
                for label in range(classes, classes + data.draw(st.integers(1, 3)))
                for _ in range(data.draw(st.integers(1, 30)))
            ]
            classes = max(labels) + 1
            images = make_images(labels, seed=phase, first=1000 * phase)
            held = draw_reserve(images.labels, reserved, np.random.default_rng(phase))
            rest = torch.tensor([i for i in range(len(images)) if i not in held.tolist()])
            quota = budget.quota(classes)
            memory = memory.updated(
                images.select(rest), some_features(len(rest), phase), images.select(held), quota, reserved
            )
            assert len(memory) <= 60
            assert not set(memory.exemplars.origins.tolist()) & set(memory.reserve.origins.tolist())
            for label in range(classes):
                kept, aside = origins(memory.exemplars, label), origins(memory.reserve, label)
                assert 1 <= len(kept) <= quota - len(aside)
                assert len(aside) <= reserved
                assert len(set(kept)) == len(kept)

    @staticmethod
    def after(memory: Memory, candidates: ImageSet, quota: int, features: Tensor | None = None) -> Memory:
        none = candidates.select(torch.empty(0, dtype=torch.long))
        return memory.updated(
            candidates, some_features(len(candidates)) if features is None else features, none, quota, 0
        )
