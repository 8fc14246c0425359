"""The budget: the plain rule, RMM's allocation under a causal rule, and the rule of its released code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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

    def test_no_image_and_every_image_are_budgets_too(self, make_images: MakeImages) -> None:
        none, every = Budget(0), Budget(rule="all")
        assert none.quota(3) == none.after(3, 50, 0.0) == 0
        assert every.of_phase(2, 10, kept=40) == 50
        assert none.of_phase(2, 10, kept=0) == 10
        phases = [[100, 80], [60], [500, 1]]
        assert every.images_per_phase(phases) == [(0, 180), (180, 60), (240, 501)]
        assert none.images_per_phase(phases) == [(0, 180), (0, 60), (0, 501)]
        assert Budget(90).images_per_phase(phases) == [(0, 180), (170, 60), (230, 501)]
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

    @settings(max_examples=15)
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
            rho = data.draw(st.floats(0, 1))
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


class TestReleasedRule:
    def test_it_cuts_nothing_on_arrival_and_goes_on_using_what_it_discarded(self, make_images: MakeImages) -> None:
        memory, new = Memory.of(make_images([0] * 40)), make_images([1, 2] * 20, first=100)
        found = Budget(5, rule="rmm", allocation=(0.0, 0.75), knows_increment=True).arriving(
            memory, new, 1, 1, 0.0, rng()
        )
        assert found.memory is memory
        assert (len(found.new), len(found.unstored)) == (10, 30)
        assert sorted([*found.new.origins.tolist(), *found.unstored.origins.tolist()]) == new.origins.tolist()


class Row(NamedTuple):
    """What a phase holds: exemplars of the first class and of the newest old one, new images, and all of it."""

    first: int
    newest: int
    new: int
    held: int


# CIFAR-100, 20 images per class, RMM's own shares; the last number is the budget of the phase.
SHARES: dict[str, Any] = {
    "TFH 25": (0.7,) * 10 + (0.8,) * 5 + (0.9,) * 11,
    "TFH 5": (0.8, 0.8, 0.6),
    "TFS 5": 0.5,
    "TFS 25": 0.5,
}
SIZES = {"TFH 5": [50, *[10] * 5], "TFS 5": [20] * 5, "TFH 25": [50, *[2] * 25], "TFS 25": [4] * 25}
TABLE: dict[tuple[str, int], Any] = {  # released, plain after phase 0, the causal rule after phase 0 too
    ("TFH 5", 1): ((100, 100, 1000, 6000), (20, 20, 5000, 6000), (100, 100, 1000, 6000), 6000),
    ("TFH 5", 2): ((86, 86, 2000, 7160), (20, 86, 4340, 6200), (86, 86, 1040, 6200), 6200),
    ("TFH 5", 3): ((62, 62, 2000, 6340), (20, 62, 4160, 6400), (62, 62, 2060, 6400), 6400),
    ("TFH 5", 5): ((53, 53, 2000, 6770), (20, 53, 3680, 6800), (53, 53, 2030, 6800), 6800),
    ("TFS 5", 1): ((270, 270, 5000, 10400), (20, 20, 10000, 10400), (270, 270, 5000, 10400), 10400),
    ("TFS 5", 2): ((145, 145, 5000, 10800), (20, 145, 7500, 10800), (145, 145, 5000, 10800), 10800),
    ("TFS 5", 4): ((82, 82, 5000, 11560), (20, 82, 6280, 11600), (82, 82, 5040, 11600), 11600),
    ("TFH 25", 1): ((34, 34, 300, 2000), (20, 20, 1000, 2000), (34, 34, 300, 2000), 2000),
    ("TFH 25", 10): ((30, 30, 200, 2240), (20, 30, 820, 2360), (30, 30, 320, 2360), 2360),
    ("TFS 25", 1): ((270, 270, 1000, 2080), (20, 20, 2000, 2080), (270, 270, 1000, 2080), 2080),
    ("TFS 25", 10): ((45, 45, 1000, 2800), (20, 45, 1100, 2800), (45, 45, 1000, 2800), 2800),
}
RULES: tuple[dict[str, Any], ...] = ({"knows_increment": True}, {"after_phase_0": "plain"}, {})
#: The released code computes int((1 - ρ) · m) in floating point: with ρ = 0.8 an image less than the table says.
ROUNDED = {("TFH 5", 1), ("TFH 25", 10)}


def walk(budget: Budget, sizes: list[int]) -> list[tuple[Row, int]]:
    """What each phase after the first really holds, and how many images its old classes lack to their quota."""
    none = torch.empty(0, dtype=torch.long)
    memory, classes, rows, rho = Memory.empty((1, 1, 1)), 0, list[tuple[Row, int]](), 0.0
    for phase, size in enumerate(sizes):
        labels = torch.arange(classes, classes + size).repeat_interleave(500)
        new = ImageSet(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels, torch.arange(len(labels)))
        found = budget.arriving(memory, new, phase, classes, rho, rng(phase))
        counts = torch.bincount(found.memory.exemplars.labels, minlength=classes).tolist()
        if phase:
            newest = counts[-sizes[phase - 1] :]
            held = len(found.memory) + len(found.new)
            rows.append((Row(counts[0], max(newest), len(found.new), held), sum(max(newest) - each for each in newest)))
        classes, rho = classes + size, budget.rho(phase)
        following = 500 * sizes[phase + 1] if phase + 1 < len(sizes) else 0
        candidates = ImageSet.joined([found.memory.exemplars, found.new, found.unstored])
        memory = Memory(candidates, candidates.select(none)).cut(budget.after(classes, len(new), rho, following))
    return rows


@pytest.mark.parametrize("column", range(3), ids=["released", "plain", "rmm"])
@pytest.mark.parametrize("stream", SIZES)
def test_what_every_phase_holds_by_each_rule(stream: str, column: int) -> None:
    budget = Budget(20, rule="rmm", allocation=SHARES[stream], **RULES[column])
    rows, plan = walk(budget, SIZES[stream]), budget.images_per_phase([[500] * size for size in SIZES[stream]])
    for (name, phase), listed in TABLE.items():
        if name == stream:
            expected, old = Row(*listed[column]), sum(SIZES[stream][:phase])
            if column == 0 and (name, phase) in ROUNDED:
                expected = expected._replace(new=expected.new - 1, held=expected.held - 1)
            found, missing = rows[phase - 1]
            # where the random sample left a class less than its quota, new images have its room
            assert found._replace(new=found.new - missing) == expected
            assert plan[phase] == (expected.held - expected.new, expected.new)
            assert budget.of_phase(old, 500 * SIZES[stream][phase]) == listed[-1]
            assert (found.held > listed[-1]) is (column == 0 and (name, phase) == ("TFH 5", 2))


def test_between_phase_0_and_phase_1_more_is_held_and_then_cut() -> None:
    budget = Budget(20, rule="rmm", allocation=SHARES["TFH 5"])
    assert budget.after(50, 25_000, budget.rho(0)) == 420
    assert budget.replace(after_phase_0="plain").after(50, 25_000, 0.0) == 20
    assert Budget(20, rule="rmm", allocation=0.0).after(50, 25_000, 0.0) == 20
    assert [budget.rho(phase, chosen=0.3) for phase in (0, 1)] == [0.3, 0.3]
    assert [budget.replace(after_phase_0="plain").rho(phase, chosen=0.3) for phase in (0, 1)] == [0.0, 0.3]


def before_and_after() -> list[Budget]:
    return [Budget(5, rule="rmm", **keys) for keys in RULES]


def test_which_budgets_keep_the_same_after_phase_0() -> None:
    released, plain, rmm = before_and_after()
    assert plain.storing_phase_0() == Budget(5) == Budget(5, rule="rmm", allocation=(0.0, 0.9)).storing_phase_0()
    assert rmm.storing_phase_0() == Budget(5, rule="rmm", allocation=(0.5, 0.9)).storing_phase_0() != Budget(5)
    assert rmm.storing_phase_0() != Budget(5, rule="rmm", allocation=0.4).storing_phase_0()
    assert released.storing_phase_0() not in (plain.storing_phase_0(), rmm.storing_phase_0())
