"""The budget: the plain rule, RMM's allocation under a causal rule, and the rule of its released code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poise.data import Budget, ImageSet, Memory
from poise.data.budget import sample
from poise.errors import UserError

MakeImages = Callable[..., ImageSet]
SHAPE = (3, 8, 8)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class TestBudget:
    def test_per_class_does_not_depend_on_the_number_of_classes(self) -> None:
        assert [Budget(per_class=20).quota(classes) for classes in (1, 10, 1000)] == [20, 20, 20]

    def test_a_total_is_shared_and_never_exceeded(self) -> None:
        budget = Budget(per_class=None, total=2000)
        assert [budget.quota(classes) for classes in (10, 30, 100)] == [200, 66, 20]

    @pytest.mark.parametrize(
        ("budget", "words"),
        [
            ({"per_class": 20, "total": 100}, "either per_class or total"),
            ({"per_class": None}, "either per_class or total"),
            ({"per_class": -1}, "per_class=-1 must be a whole number, at least 0"),
            ({"per_class": 0, "reserve": 1}, "reserve=1 must be below"),
            ({"per_class": 0, "rule": "rmm"}, "memory=0 keeps none"),
            ({"rule": "all"}, "leave the other keys"),
            ({"per_class": None, "rule": "all", "reserve": 1}, "leave the other keys"),
            ({"per_class": None, "total": -1}, "total=-1 must be a whole number, at least 1"),
            ({"per_class": 5, "reserve": 5}, "reserve=5 must be below"),
            ({"reserve": -1}, "reserve=-1"),
        ],
    )
    def test_impossible_budgets_are_refused(self, budget: dict[str, int | str | None], words: str) -> None:
        with pytest.raises(UserError, match=words):
            Budget(**budget)  # type: ignore[arg-type]

    def test_no_image_and_every_image_are_budgets_too(self, make_images: MakeImages) -> None:
        none, every = Budget.of(0), Budget.of("all")
        assert (none.keeps_images, none.keeps_all, none.quota(3), none.after(3, 50, 0.0)) == (False, False, 0, 0)
        assert (every.keeps_images, every.keeps_all) == (True, True)
        assert every.of_phase(2, 10, kept=40) == 50
        assert none.of_phase(2, 10, kept=0) == 10
        phases = [[100, 80], [60], [500, 1]]
        assert every.planned(phases) == [(0, 180), (180, 60), (240, 501)]
        assert none.planned(phases) == [(0, 180), (0, 60), (0, 501)]
        images = make_images([0] * 30 + [1] * 3)
        kept = Memory.empty(SHAPE).updated(
            images, images.pixels.flatten(1).float(), Memory.empty(SHAPE).reserve, 2**40, 0
        )
        assert sorted(kept.exemplars.origins.tolist()) == list(range(33))

    @pytest.mark.parametrize(("total", "reserve", "enough"), [(9, 0, 10), (29, 2, 30)])
    def test_a_total_too_small_says_what_would_do(self, total: int, reserve: int, enough: int) -> None:
        with pytest.raises(UserError, match=f"memory.total={total} leaves .* use at least {enough}"):
            Budget(per_class=None, total=total, reserve=reserve).quota(10)
        assert Budget(per_class=None, total=enough, reserve=reserve).quota(10) == reserve + 1


class TestCausalRule:
    """What is stored, computed here by hand for CIFAR-100's sizes."""

    rmm = Budget(20, rule="rmm", allocation=(0.8, 0.8, 0.6))

    def test_after_a_phase_the_last_increment_stands_for_the_next(self) -> None:
        assert self.rmm.after(50, 25_000, self.rmm.rho(0)) == 20  # nothing is known of increments yet
        assert self.rmm.after(60, 5000, self.rmm.rho(1)) == (20 * 60 + 4000) // 60
        assert self.rmm.after(70, 5000, self.rmm.rho(2)) == (20 * 70 + 3000) // 70
        assert self.rmm.after(80, 5000, self.rmm.rho(7)) == (20 * 80 + 3000) // 80  # the last one stays

    @pytest.mark.parametrize(
        ("kept", "images", "rho", "left", "stored"),
        [
            (5, 40, 0.0, 5, 40),  # plain: nothing is discarded
            (25, 40, 0.5, 15, 20),  # (5 · 2 + 20) / 2 each, 10 + 40 in all
            (25, 40, 0.75, 20, 10),
            (9, 40, 0.5, 9, 32),  # exemplars that are not there leave their room to new images
            (40, 40, 1.0, 24, 2),  # each of the two new classes keeps an image
            (25, 2, 0.5, 5, 2),  # a small increment needs the room back
        ],
    )
    def test_on_arrival_exemplars_are_cut_first_and_new_images_get_the_rest(
        self, kept: int, images: int, rho: float, left: int, stored: int, make_images: MakeImages
    ) -> None:
        memory = Memory.of(make_images([0] * kept + [1] * kept))
        new = make_images([2, 3] * (images // 2), first=1000)
        found = Budget(5, rule="rmm").arriving(memory, new, 3, 2, rho, rng())
        assert torch.bincount(found.memory.exemplars.labels).tolist() == [left, left]
        assert found.memory.exemplars.of_labels([1]).origins.tolist() == list(range(kept, kept + left))  # the first
        assert len(found.new) == stored
        assert set(found.new.origins.tolist()) <= set(new.origins.tolist())
        assert len(found.unstored) == 0

    @settings(max_examples=60)
    @given(data=st.data())
    def test_no_stream_ever_holds_more_than_its_budget(self, make_images: MakeImages, data: st.DataObject) -> None:
        reserve = data.draw(st.integers(0, 2))
        kind = {"per_class": 4} if data.draw(st.booleans()) else {"per_class": None, "total": 60}
        budget = Budget(**kind, reserve=reserve, rule="rmm")
        memory, classes, rho = Memory.empty(SHAPE), 0, 0.0
        for phase in range(data.draw(st.integers(2, 5))):
            sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=3))
            labels = [classes + place for place, size in enumerate(sizes) for _ in range(size)]
            new = make_images(labels, seed=phase, first=1000 * phase)
            found = budget.arriving(memory, new, phase, classes, rho, rng(phase))
            allowed = (budget.quota(classes) * classes if classes else 0) + len(labels)
            assert allowed == budget.of_phase(classes, len(labels))
            assert len(found.memory) + len(found.new) <= allowed
            assert set(found.new.labels.tolist()) == set(labels)
            again = budget.arriving(found.memory, new, phase, classes, rho, rng(phase))  # as after a resume
            assert again.memory.exemplars.origins.tolist() == found.memory.exemplars.origins.tolist()
            assert again.new.origins.tolist() == found.new.origins.tolist()
            classes += len(sizes)
            rho = data.draw(st.floats(0, 1)) if phase else budget.rho(0)
            features = torch.from_numpy(rng(phase).normal(size=(len(found.new), 4)))
            none = new.select(torch.empty(0, dtype=torch.long))
            quota = budget.after(classes, len(labels), rho)
            memory = found.memory.updated(found.new, features, none, quota, reserve)
            assert len(memory) <= min(allowed, budget.quota(classes) * classes + rho * len(labels))

    def test_the_sample_is_random_nested_and_leaves_no_class_out(self) -> None:
        labels = torch.tensor([0] * 100 + [1] * 100 + [2])
        small, large = (set(sample(labels, count, rng()).tolist()) for count in (10, 60))
        assert small < large
        assert (len(small), len(large)) == (10, 60)
        assert {labels[place].item() for place in small} == {0, 1, 2}
        assert sample(labels, 10, rng(1)).tolist() != sorted(small)
        assert len(sample(labels, 0, rng())) == 3

    def test_a_plan_says_what_will_be_held(self) -> None:
        plain = Budget(5).planned([[30] * 4, [30] * 2, [30] * 2])
        assert plain == [(0, 120), (20, 60), (30, 60)]
        rmm = Budget(5, rule="rmm", allocation=0.5).planned([[30] * 4, [30] * 2, [30] * 2])
        assert rmm[:2] == plain[:2]  # after phase 0 the memory is plain
        assert rmm[2] == (4 * 5 + 2 * 10, 50)
        released = Budget(5, rule="rmm", allocation=0.5, knows_increment=True).planned([[30] * 4, [30] * 2, [30] * 2])
        assert released == [(0, 120), (4 * 12, 30), (6 * 10, 30)]


class TestReleasedRule:
    """Known figures of the released code: TFH with 5 phases on CIFAR-100."""

    shares = (0.8, 0.8, 0.6, 0.6, 0.6, 0.6)
    budget = Budget(20, rule="rmm", allocation=shares, knows_increment=True)

    def test_exemplars_of_each_class_after_every_phase(self) -> None:
        found = [
            self.budget.after(50 + 10 * phase, 25_000 if phase == 0 else 5000, self.budget.rho(phase), 5000)
            for phase in range(6)
        ]
        assert found == [100, 86, 62, 57, 53, 50]

    def test_new_images_of_every_phase_and_a_budget_that_is_not_kept(self) -> None:
        planned = self.budget.planned([[500] * 50, *([[500] * 10] * 5)])
        assert [new for _, new in planned] == [25_000, 999, 2000, 2000, 2000, 2000]
        assert sum(planned[2]) == 60 * 86 + 2000 == 7160 > self.budget.of_phase(60, 5000) == 6200

    def test_tfs(self) -> None:
        half = Budget(20, rule="rmm", allocation=0.5, knows_increment=True)
        assert [half.after(20 * seen, 10_000, 0.5, 10_000) for seen in range(1, 6)] == [270, 145, 103, 82, 70]

    def test_it_cuts_nothing_on_arrival_and_goes_on_using_what_it_discarded(self, make_images: MakeImages) -> None:
        memory, new = Memory.of(make_images([0] * 40)), make_images([1, 2] * 20, first=100)
        found = Budget(5, rule="rmm", allocation=(0.0, 0.75), knows_increment=True).arriving(
            memory, new, 1, 1, 0.0, rng()
        )
        assert found.memory is memory
        assert (len(found.new), len(found.unstored)) == (10, 30)
        assert sorted([*found.new.origins.tolist(), *found.unstored.origins.tolist()]) == new.origins.tolist()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rule": "rrm"}, "did you mean 'rmm'"),
        ({"allocation": 0.5}, "go with memory.rule=rmm"),
        ({"knows_increment": True}, "go with memory.rule=rmm"),
        ({"rule": "rmm", "allocation": 1.5}, "share between 0 and 1"),
        ({"rule": "rmm", "allocation": (0.5, -0.1)}, "allocation=-0.1 must be a number"),
        ({"rule": "rmm", "allocation": "half"}, "allocation='half' must be a number"),
        ({"rule": "rmm", "allocation": ()}, "empty list"),
        ({"rule": "rmm", "knows_increment": 1}, "must be true or false"),
    ],
)
def test_impossible_rules_are_refused(keys: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Budget(**keys)  # type: ignore[arg-type]
