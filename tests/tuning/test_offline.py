from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from poise import draws
from poise.actions import Action, ActionSpace, make_space
from poise.data import Feed, ImageSet, Memory
from poise.errors import UserError
from poise.methods import Growth, make_method
from poise.policies.reinforce import state_of
from poise.training.context import PhaseContext
from poise.training.device import Backend, make_backend
from poise.tuning.environments import TrialInputs
from poise.tuning.offline import OfflineOptions, PseudoTasks, StreamState, phase_sizes, pseudo_stream, reinforce_after
from poise.tuning.results import Episode

from .learners import ended, phase_context, tiny_net

T = TypeVar("T")

CLASSES, QUOTA = 6, 3
FEW = OfflineOptions(episodes=4, phases=2, rate=5.0)  # a rate at which what was learned soon matters
GRID: Mapping[str, Sequence[float]] = {"logit_kd": [0, 1], "lr": [0.1, 0.01]}


def situation_of(backend: Backend, name: str = "lucir") -> PhaseContext:
    return phase_context(make_method(name), backend, Growth(0, CLASSES), net=tiny_net(), epochs=20)


@pytest.fixture
def context(cpu: Backend) -> PhaseContext:
    return situation_of(cpu)


@pytest.fixture(scope="module")
def images() -> ImageSet:
    """Every class is a pattern of its own with some noise; the classes are not of one size."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(CLASSES).repeat_interleave(torch.arange(12, 12 + 2 * CLASSES, 2))
    patterns = torch.randint(0, 2, (CLASSES, 1, 8, 8), generator=generator) * 180
    pixels = patterns[labels] + torch.randint(0, 70, (len(labels), 1, 8, 8), generator=generator)
    return ImageSet(pixels.to(torch.uint8), labels, torch.arange(len(labels)))


def space_of(context: PhaseContext, grid: Mapping[str, Sequence[float]] = GRID) -> ActionSpace:
    return make_space(grid, context.method.default_action)


def tasks_of(
    context: PhaseContext,
    images: ImageSet,
    options: OfflineOptions = FEW,
    *,
    space: ActionSpace | None = None,
    first: Action | None = None,
    **rhos: Any,
) -> PseudoTasks:
    nothing = images.select(torch.empty(0, dtype=torch.long))
    sizes = {"arrived": len(images), "planned": context.schedule.epochs, **rhos}
    inputs = TrialInputs(context, Memory.of(nothing), images, nothing, QUOTA, **sizes)
    return PseudoTasks(inputs, space or space_of(context), options, first or context.method.default_action)


def played(
    context: PhaseContext,
    images: ImageSet,
    options: OfflineOptions = FEW,
    done: Sequence[Episode] = (),
    **others: Any,
) -> list[Episode]:
    going = tasks_of(context, images, options, **others).episodes(done)
    return [found for found in going if isinstance(found, Episode)]


@pytest.fixture(scope="module")
def whole(images: ImageSet) -> list[Episode]:
    """All episodes from the usual start."""
    return played(situation_of(make_backend("cpu", "fp32", deterministic=False)), images)


# What is played -------------------------------------------------------------------------------------------------------


def test_arms_come_from_the_policy_as_it_was_before_the_episode(whole: list[Episode], context: PhaseContext) -> None:
    for number, episode in enumerate(whole):
        policy = reinforce_after(space_of(context), FEW, whole[:number])
        for phase, (state, arm, _) in enumerate(episode.steps, start=1):
            assert arm == policy.sample(state, draws.generator(context.seed, "offline", number, phase))


def test_the_state_tells_classes_and_memory(whole: list[Episode]) -> None:
    grown = [[(3, 2), (5, 1)], [(2, 2), (4, 2)]]  # old and new classes, from half and in even slices
    expected = [[tuple(state_of(old, new, old * QUOTA).tolist()) for old, new in phases] for phases in grown]
    assert [episode.number for episode in whole] == [0, 1, 2, 3]
    played_from = [[state for state, _, _ in episode.steps] for episode in whole]
    assert all(states in expected for states in played_from)
    assert all(states in played_from for states in expected), "both kinds of streams are drawn"
    assert all(0 <= reward <= 1 for episode in whole for _, _, reward in episode.steps)


def test_a_learned_policy_prefers_the_better_arm(cpu: Backend, images: ImageSet) -> None:
    context = situation_of(cpu, "lwf")  # whose new rows are not imprinted: a tiny rate learns nothing new
    space = space_of(context, {"lr": [1e-6, 0.1]})
    # As long as a phase: in a short one the larger rate forgets before it has learned, and really is the worse arm.
    options = OfflineOptions(episodes=8, phases=2, rate=1.0, length=1.0)
    found = played(context, images, options, space=space)
    rewards = [[reward for episode in found for _, arm, reward in episode.steps if arm == one] for one in (0, 1)]
    assert np.mean(rewards[1]) > np.mean(rewards[0]) + 0.2
    policy = reinforce_after(space, options, found)
    assert all(policy.decide(state_of(known, 2, known * QUOTA)) == 1 for known in (2, 3, 4, 5, 6))


def test_a_diverging_action_gets_reward_0_and_stops_only_its_episode(context: PhaseContext, images: ImageSet) -> None:
    space = space_of(context, {"lr": [0.1, 1e30]})
    found = played(context, images, FEW.replace(episodes=6), space=space)
    assert [episode.number for episode in found] == list(range(6))
    taken = {arm for episode in found for _, arm, _ in episode.steps}
    assert taken == {0, 1}
    for episode in found:
        for place, (_, arm, reward) in enumerate(episode.steps, start=1):
            assert (reward == 0) is (arm == 1)
            assert arm == 0 or place == len(episode.steps)


def test_a_first_phase_that_diverges_teaches_nothing(context: PhaseContext, images: ImageSet) -> None:
    first = context.method.default_action.replace(lr=1e30)
    assert played(context, images, first=first) == [Episode(number, ()) for number in range(4)]


# Pseudo streams -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "phases", "half", "even"),
    [
        (4, 3, [2, 1, 1], [2, 2]),
        (5, 3, [3, 1, 1], [3, 2]),
        (10, 3, [5, 2, 2, 1], [3, 3, 2, 2]),
        (10, 1, [5, 5], [5, 5]),
        (50, 3, [25, 9, 8, 8], [13, 13, 12, 12]),
    ],
)
def test_sizes_are_as_even_as_possible(classes: int, phases: int, half: list[int], even: list[int]) -> None:
    assert phase_sizes(classes, phases, from_half=True) == half
    assert phase_sizes(classes, phases, from_half=False) == even


def test_a_pseudo_stream_has_every_image_once_and_rows_in_the_order_of_arrival(images: ImageSet) -> None:
    orders = set()
    for number in range(10):
        phases, valid = pseudo_stream(images, 2, generator(number))
        parts = [*phases, valid]
        origins = torch.cat([part.origins for part in parts])
        assert sorted(origins.tolist()) == images.origins.tolist()
        assert torch.bincount(images.labels[valid.origins]).tolist() == [1, 1, 1, 1, 2, 2], "a tenth, at least one"
        labels = torch.cat([part.labels for part in parts])
        rows = dict(zip(labels.tolist(), images.labels[origins].tolist(), strict=True))
        assert sorted(rows) == list(range(CLASSES))
        assert [rows[row] for row in labels.tolist()] == images.labels[origins].tolist()
        arrived = [int(row) for phase in phases for row in torch.unique(phase.labels)]
        assert arrived == list(range(CLASSES))
        orders.add(tuple(rows[row] for row in range(CLASSES)))
    assert len(orders) == 10


def generator(number: int) -> np.random.Generator:
    return draws.generator(0, "test", number)


def test_fewer_than_4_classes_are_refused_before_anything_is_played(context: PhaseContext, images: ImageSet) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*at least 4 classes[^\n]*has 3; use another policy[^\n]*$"):
        next(iter(tasks_of(context, images.of_labels([0, 1, 2])).episodes([])))


def test_a_class_of_one_image_is_left_out(context: PhaseContext, images: ImageSet) -> None:
    single = images.select(torch.cat([torch.tensor([0]), (images.labels > 0).nonzero().flatten()]))
    playable = tasks_of(context, single).images
    assert torch.unique(playable.labels).tolist() == [0, 1, 2, 3, 4]
    assert 0 not in playable.origins
    assert len(played(context, single, FEW.replace(episodes=1))[0].steps) > 0


@pytest.mark.parametrize("by_action", [False, True], ids=["the memory says it", "the action says it"])
def test_pseudo_phases_store_and_discard_as_the_allocation_says(
    by_action: bool, context: PhaseContext, images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, sizes = context.method.default_action, list[tuple[int, int]]()
    real = PhaseContext.feed

    def feed(self: PhaseContext, kept: ImageSet, new: ImageSet) -> Feed:
        sizes.append((len(kept), len(new)))
        return real(self, kept, new)

    monkeypatch.setattr(PhaseContext, "feed", feed)
    tasks = tasks_of(context, images, rho=0.2 if by_action else 0.5)
    action = Action(**own, allocation=0.5) if by_action else own
    phases = [images.of_labels(group) for group in ([0, 1], [2, 3], [4, 5])]  # 26, 34 and 42 images
    at: StreamState = tasks.begin(0)
    for new, taken in zip(phases, (own, action, action), strict=True):
        at = ended(tasks.learn(at, new, taken))
    assert sizes[:2] == [(0, 26), (2 * QUOTA, 34)]
    kept = 2 * QUOTA + 2 * ((4 * QUOTA + 17) // 4)  # half of the room of 34 images for four classes
    assert sizes[2] == (kept, 4 * QUOTA + 42 - kept)
    epochs = (20, 2, 2)  # only the first one is as long as a real phase
    assert tasks.trained == sum(many * sum(images) for many, images in zip(epochs, sizes, strict=True))


def test_after_its_first_phase_a_pseudo_stream_keeps_what_a_real_one_keeps(
    context: PhaseContext, images: ImageSet
) -> None:
    for first_rho, kept in ((0.0, [3, 3]), (0.25, [6, 6]), (0.75, [12, 12])):
        tasks, new = tasks_of(context, images, rho=0.5, first_rho=first_rho), images.of_labels([0, 1])
        at = ended(tasks.learn(tasks.begin(0), new, context.method.default_action))
        assert (at.rho, torch.bincount(at.kept.labels).tolist()) == (first_rho, kept)
