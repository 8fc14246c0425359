from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poise.data import ImageSet, Memory
from poise.methods import Growth
from poise.settings import TrialSettings
from poise.tuning.environments import Environment, draw_ahead, draw_environments, draw_local


def image_set(sizes: dict[int, int], first: int = 0) -> ImageSet:
    """So many images of each label; the origins are all different and start at `first`."""
    labels = torch.tensor([label for label, size in sizes.items() for _ in range(size)], dtype=torch.long)
    pixels = torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8)
    return ImageSet(pixels, labels, torch.arange(first, first + len(labels)))


def inputs_of(
    memory: Memory, new: ImageSet, reserve: ImageSet, old: int = 1, validation: int = 10, *, even: bool = True
) -> Any:
    """What an environment is drawn from."""
    context = SimpleNamespace(seed=0, phase=1, growth=Growth(old, 1))
    settings = TrialSettings(validation=validation, even=even, environment="both")
    return SimpleNamespace(context=context, memory=memory, new=new, reserve=reserve, settings=settings)


def drawn(
    memory: Memory, new: ImageSet, reserve: ImageSet, number: int = 0, per_class: int = 10, *, even: bool = True
) -> Environment | None:
    return draw_local(inputs_of(memory, new, reserve, validation=per_class, even=even), number)


def counts(images: ImageSet) -> dict[int, int]:
    return {label: int((images.labels == label).sum()) for label in sorted(set(images.labels.tolist()))}


NONE = image_set({})


@pytest.mark.parametrize(
    ("kept", "reserved", "new", "valid"),
    [
        ({0: 20, 1: 20}, {}, {2: 500, 3: 500}, {0: 10, 1: 10, 2: 10, 3: 10}),  # as in the paper
        ({0: 4, 1: 4}, {0: 2, 1: 2}, {2: 100}, {0: 2, 1: 2, 2: 10}),  # with a reserve all exemplars are trained on
        ({0: 5, 1: 20}, {}, {2: 50}, {0: 2, 1: 2, 2: 2}),  # never more than half of an old class's memory
        ({0: 20, 1: 20}, {}, {0: 20}, {0: 10, 1: 10}),  # new images of known classes alone
        ({0: 20, 1: 20}, {}, {0: 2, 2: 60}, {0: 10, 1: 10, 2: 10}),  # they count with the exemplars
        ({0: 20}, {}, {1: 1, 2: 20}, {0: 10, 2: 10}),  # one new class that can be judged is enough
        ({0: 6, 1: 6}, {0: 2}, {2: 40}, {0: 2, 1: 3, 2: 10}),  # a class without a reserve is judged on exemplars
        ({0: 1, 1: 1}, {}, {2: 50}, None),  # without an old class it would only reward forgetting
        ({0: 1}, {}, {1: 1}, None),
    ],
)
def test_what_is_validated(
    kept: dict[int, int], reserved: dict[int, int], new: dict[int, int], valid: dict[int, int] | None
) -> None:
    found = drawn(Memory(image_set(kept), image_set(reserved, first=50)), image_set(new, first=100), NONE)
    assert (counts(found.valid) if found else None) == valid


@given(
    old=st.dictionaries(st.integers(0, 4), st.integers(1, 30), min_size=1, max_size=5),
    new=st.dictionaries(st.integers(5, 8), st.integers(1, 60), min_size=1, max_size=4),
    per_class=st.integers(1, 30),
    reserved=st.integers(0, 3),
    even=st.booleans(),
)
def test_the_parts_are_disjoint_and_complete_and_each_class_validates_as_it_can(
    old: dict[int, int], new: dict[int, int], per_class: int, reserved: int, even: bool
) -> None:
    kept, arrived = image_set(old), image_set(new, first=1000)
    reserves = [image_set(dict.fromkeys(part, reserved), first=place) for part, place in ((old, 2000), (new, 3000))]
    found = drawn(Memory(kept, reserves[0]), arrived, reserves[1], per_class=per_class, even=even)
    can = {label: size // 2 for label, size in (new if reserved else {**old, **new}).items() if size > 1}
    if even and can and not reserved:
        per_class = min(per_class, *can.values())
    held_out = {label: min(per_class, most) for label, most in can.items()}
    if found is None:
        assert not reserved
        assert not can.keys() & old.keys() or not can.keys() & new.keys()
        return
    sizes = {**old, **new}
    valid = {label: reserved + held_out.get(label, 0) for label in sizes}
    assert counts(found.valid) == {label: count for label, count in sorted(valid.items()) if count}
    trained = counts(ImageSet.joined([found.kept, found.new]))
    assert trained == {label: size - held_out.get(label, 0) for label, size in sorted(sizes.items())}
    parts = [set(part.origins.tolist()) for part in (found.kept, found.new, found.valid)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == sum(map(len, [kept, arrived, *reserves]))
    assert {origin for part in reserves for origin in part.origins.tolist()} <= parts[2]


@pytest.mark.parametrize("sizes", [{2: 1}, {2: 1, 3: 1}, {0: 20, 2: 1}])
def test_where_no_class_that_arrived_can_be_judged_there_is_no_environment(sizes: dict[int, int]) -> None:
    """Validation on old classes alone would only reward standing still."""
    memory, new = Memory(image_set({0: 20, 1: 20}), NONE), image_set(sizes, first=100)
    assert drawn(memory, new, NONE) is None
    reserved = Memory(image_set({0: 20, 1: 20}), image_set({0: 2, 1: 2}, first=50))
    assert drawn(reserved, new, NONE) is None
    assert drawn(reserved, new, image_set({2: 2}, first=300)) is not None  # its reserve can judge it


# Looking ahead ------------------------------------------------------------------------------------------------------


def ahead(
    memory: Memory, new: ImageSet, reserve: ImageSet, old: int, number: int = 0, per_class: int = 10
) -> Environment | None:
    return draw_ahead(inputs_of(memory, new, reserve, old, per_class), number)


def real(images: ImageSet, rows: tuple[int, ...] | None) -> dict[int, int]:
    """The head row of each image, by its origin."""
    assert rows is not None
    pairs = zip(images.origins.tolist(), images.labels.tolist(), strict=True)
    return {origin: rows[label] for origin, label in pairs}


@given(
    kept=st.lists(st.integers(0, 12), max_size=4),
    arrived=st.lists(st.integers(2, 40), min_size=2, max_size=6),
    updated=st.integers(0, 15),
    reserved=st.integers(0, 3),
    per_class=st.integers(1, 12),
    number=st.integers(0, 20),
)
def test_a_look_aheads_parts_are_disjoint_complete_balanced_and_keep_their_classes(
    kept: list[int], arrived: list[int], updated: int, reserved: int, per_class: int, number: int
) -> None:
    old, sizes = len(kept), dict(enumerate(arrived, start=len(kept)))
    known = {old - 1: updated} if old else {}  # new images of a class that is known already
    memory = Memory(
        image_set(dict(enumerate(kept))), image_set(dict.fromkeys(range(old), reserved) if reserved else {}, first=2000)
    )
    new = image_set({**known, **sizes}, first=1000)
    reserve = image_set(dict.fromkeys(sizes, reserved) if reserved else {}, first=3000)
    found = ahead(memory, new, reserve, old, number, per_class)
    assert found is not None
    assert found.later is not None

    given_images = [memory.exemplars, memory.reserve, new, reserve]
    truth = {origin: label for images in given_images for origin, label in real(images, tuple(range(20))).items()}
    parts = [real(part, found.rows) for part in (found.kept, found.new, found.later, found.valid)]
    assert sum(map(len, parts)) == len(truth)
    assert {origin: label for part in parts for origin, label in part.items()} == truth

    reserves = {*memory.reserve.origins.tolist(), *reserve.origins.tolist()}
    judged = [label for origin, label in parts[3].items() if origin not in reserves]
    assert reserves <= parts[3].keys()
    assert {label: judged.count(label) for label in set(judged)} == {
        label: min(per_class, size // 2) for label, size in sizes.items()
    }

    first, later = set(parts[1].values()), set(parts[2].values())
    assert first | later == {*sizes, *(label for label, count in known.items() if count)}
    assert not first & later
    assert len(first & sizes.keys()) == len(sizes) // 2
    # the head grows in the order of arrival: rows of the first half lie before those of the second
    assert set(found.later.labels.tolist()) == set(range(old + len(sizes) // 2, old + len(sizes)))
    assert sum(label < old for label in parts[1].values()) == sum(known.values())


@pytest.mark.parametrize(
    ("sizes", "old"),
    [({}, 2), ({2: 50}, 2), ({0: 50, 1: 50, 2: 50}, 2), ({2: 50, 3: 1}, 2), ({0: 50, 1: 50}, 2)],
    ids=["nothing", "one class", "one new and known ones", "a class of one image", "known ones only"],
)
def test_where_there_are_not_two_classes_to_split_there_is_no_look_ahead(sizes: dict[int, int], old: int) -> None:
    assert ahead(Memory(image_set({0: 20, 1: 20}), NONE), image_set(sizes, first=100), NONE, old) is None


def test_a_round_is_always_the_same_and_another_one_is_not() -> None:
    memory, new = Memory(image_set({0: 20}), NONE), image_set(dict.fromkeys(range(1, 7), 30), first=50)
    for draw in (draw_local, draw_ahead):
        rounds = [draw(inputs_of(memory, new, NONE), number) for number in (0, 0, 1, 2)]
        found = [(each.rows, each.valid.origins.tolist()) for each in rounds if each is not None]
        assert found[0] == found[1]
        assert len({str(each) for each in found}) == 3


def test_where_no_look_ahead_is_possible_the_local_environment_stands_alone() -> None:
    memory, many, single = Memory(image_set({0: 20}), NONE), image_set({1: 30, 2: 30}, 50), image_set({1: 30}, 50)
    for new, aheads in ((many, [False, True]), (single, [False])):
        found = draw_environments(inputs_of(memory, new, NONE), 0)
        assert [environment.later is not None for environment in found] == aheads
    assert draw_environments(inputs_of(Memory(NONE, NONE), single, NONE), 0) == []  # it would only reward forgetting
