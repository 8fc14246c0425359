from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from poise.actions import Action
from poise.errors import UserError
from poise.policies import Policy, Setup, make_policy
from poise.policies.simulate import Table, replay_on_table
from poise.spaces import make_space

from .tables import smooth_table

BASE = Action(logit_kd=0, feature_kd=1, lr=0.1)
SPACE = make_space("paper", BASE)


def made(name: str, **options: bool | float | str) -> Callable[[Setup], Policy]:
    return lambda setup: make_policy(name, setup, options)


def like_the_measured_one(phases: int = 5) -> Table:
    """As in the prototype's TFH: the default 64.2, the best 67, a random arm far below."""
    places = SPACE.coordinates()
    best = places[SPACE.index(BASE.replace(logit_kd=0.5, feature_kd=1, lr=0.05))]
    distance = (((places - best) / np.ptp(places, axis=0)) ** 2).sum(axis=1)
    truth = 0.67 - 0.28 * distance / distance.max()
    truth[SPACE.default] = 0.642
    difficulty = np.linspace(-0.2, 0.2, 40)
    return Table(SPACE, ((truth[:, None] + difficulty)[None],) * phases, (16,), np.tile(truth, (phases, 1)))


@pytest.fixture(scope="module")
def table() -> Table:
    return like_the_measured_one()


@pytest.mark.parametrize("xi", [0.01, 0.1, 1.0])
def test_eq_8_as_printed_is_worse_than_leaving_the_default(table: Table, xi: float) -> None:
    found = replay_on_table(made("exp3", xi=xi), table, runs=20)
    own = table.truth[0, SPACE.default]
    assert found.truth[:, -1].mean() < own - 0.01
    assert found.below_default()[-1] > 0.4


def test_full_feedback_is_better_than_the_default_safe_or_not(table: Table) -> None:
    own = table.truth[0, SPACE.default]
    for options in ({}, {"safe": 1.0}):
        found = replay_on_table(made("hedge", **options), table, runs=15)
        assert found.truth[:, -1].mean() > own + 0.01
        assert found.below_default()[-1] == 0


def test_centring_the_reward_is_what_exp3_lacked(table: Table) -> None:
    plain = replay_on_table(made("exp3", xi=1.0), table, runs=20)
    centred = replay_on_table(made("exp3", xi=1.0, centred=True), table, runs=20)
    assert centred.truth[:, -1].mean() > plain.truth[:, -1].mean() + 0.02


def test_the_summary_is_plain_values(table: Table) -> None:
    found = replay_on_table(made("grid"), table, runs=5)
    summary = json.loads(json.dumps(found.summary()))
    assert summary["runs"] == 5
    assert summary["trials"] == [50.0] * 5
    assert summary["epochs"] == [800.0] * 5
    assert len(summary["truth"]) == len(summary["regret"]) == len(summary["below_default"]) == 5
    assert sum(summary["last_decided"].values()) == pytest.approx(1, abs=1e-3)
    assert summary["default"][0] == pytest.approx(64.2)
    assert -1 <= summary["rank_correlation_of_ten_best"] <= 1


def test_the_fixed_policy_is_the_default_and_costs_nothing(table: Table) -> None:
    summary = replay_on_table(made("fixed"), table, runs=2).summary()
    assert summary["truth"] == pytest.approx([64.2] * 5)
    assert summary["trials"] == [0.0] * 5
    assert summary["rank_correlation_of_ten_best"] is None


def test_without_noise_the_grid_finds_the_best_and_ranks_all() -> None:
    space = make_space({"feature_kd": [1, 2, 3, 4]}, BASE)
    hits = np.array([[0.0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]])
    table = Table(space, (hits[None],) * 2, (4,), np.tile(hits.mean(axis=1), (2, 1)))
    found = replay_on_table(made("grid"), table, runs=3)
    assert (found.decided == 3).all()
    assert found.regret().tolist() == [0, 0]
    np.testing.assert_allclose(found.ranks, 1)


def test_checkpoints_and_finalists_are_looked_up() -> None:
    space = make_space({"lr": [0.1, 0.05]}, BASE)
    early, late = np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 1.0], [1.0, 1.0]])
    full = np.array([[1.0, 1.0], [0.0, 0.0]])
    table = Table(space, (np.stack([early, late]),), (2, 4), np.array([[1.0, 0.0]]), full=(full,))
    assert replay_on_table(made("race", rungs=2), table, runs=2).decided.tolist() == [[1], [1]]
    finals = replay_on_table(made("race", rungs=2, finalists=1), table, runs=2, full=40)
    assert finals.decided.tolist() == [[0], [0]]
    assert finals.epochs.tolist() == [[4 + 4 + 80]] * 2, "continued trials are not paid twice"


def test_a_finalist_cannot_be_replayed_without_its_rewards() -> None:
    table = smooth_table(make_space({"lr": [0.1, 0.05]}, BASE), phases=1)
    with pytest.raises(UserError, match="no trial of full length"):
        replay_on_table(made("race", finalists=1), table, runs=1)


def test_the_same_seed_gives_the_same_simulation(table: Table) -> None:
    first, again, other = (replay_on_table(made("thompson", trials=10), table, 4, seed=seed) for seed in (1, 1, 2))
    assert (first.decided == again.decided).all()
    assert (first.ranks == again.ranks).all()
    assert (first.ranks != other.ranks).any()


def test_validation_noise_is_binomial() -> None:
    space = make_space({}, BASE)
    table = Table(space, (np.full((1, 1, 50), 0.3),), (4,), np.array([[0.3]]), images=10)
    kept: list[Policy] = []

    def make(setup: Setup) -> Policy:
        kept.append(make_policy("grid", setup, {"rounds": 40}))
        return kept[-1]

    replay_on_table(make, table, runs=1)
    per_class = np.array([each.per_class for each in kept[0].told.values()])
    assert per_class.mean() == pytest.approx(0.3, abs=0.01)
    assert per_class.var() == pytest.approx(0.3 * 0.7 / 10, rel=0.1)


def test_paired_noise_is_the_same_for_arms_that_are_worth_the_same() -> None:
    space = make_space({"feature_kd": [1, 2, 3]}, BASE)
    table = Table(space, (np.full((1, 3, 6), 0.5),), (4,), np.full((1, 3), 0.5))
    rewards = {}
    for paired in (False, True):
        kept: list[Policy] = []

        def make(setup: Setup, kept: list[Policy] = kept) -> Policy:
            kept.append(make_policy("grid", setup))
            return kept[-1]

        replay_on_table(make, table, runs=1, paired=paired)
        rewards[paired] = {each.reward for each in kept[0].told.values()}
    assert (len(rewards[False]), len(rewards[True])) == (3, 1)
    better = Table(space, (np.array([[[0.5] * 6, [0.55] * 6, [0.5] * 6]]),), (4,), np.array([[0.5, 0.55, 0.5]]))
    found = {paired: replay_on_table(made("grid"), better, 100, paired=paired).regret()[0] for paired in (False, True)}
    assert found[True] < found[False] / 2


def test_classes_may_have_different_numbers_of_images() -> None:
    space = make_space({}, BASE)
    images = ((1, 4, 10), (2, 2, 2))
    table = Table(space, (np.full((1, 1, 3), 0.3),) * 2, (4,), np.full((2, 1), 0.3), images=images)
    kept: list[Policy] = []

    def make(setup: Setup) -> Policy:
        kept.append(make_policy("grid", setup, {"rounds": 200, "every": "first"}))
        return kept[-1]

    replay_on_table(make, Table(space, table.rewards[:1], (4,), table.truth[:1], images=images[:1]), runs=1)
    per_class = np.array([each.per_class for each in kept[0].told.values()])
    for accuracies, count in zip(per_class.T, images[0], strict=True):
        assert set(np.round(accuracies * count, 9)) <= set(range(count + 1))
        assert accuracies.mean() == pytest.approx(0.3, abs=0.1)
        assert accuracies.var() == pytest.approx(0.3 * 0.7 / count, rel=0.3)
    assert [table.counts(phase).tolist() for phase in (1, 2)] == [list(counts) for counts in images]


def test_a_table_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(UserError, match="checkpoints × arms × classes"):
        Table(SPACE, (np.zeros((1, 3, 4)),), (16,), np.zeros((1, 50)))
    with pytest.raises(UserError, match="at least one validation image of each class"):
        Table(SPACE, (np.zeros((1, 50, 2)),), (16,), np.zeros((1, 50)), images=((3,),))
    with pytest.raises(UserError, match="at least one validation image of each class"):
        Table(SPACE, (np.zeros((1, 50, 2)),), (16,), np.zeros((1, 50)), images=((3, 0),))
