"""Fine-tuning, replay and joint training: what each keeps, what it trains, and what it starts from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from poise import Budget, Learner
from poise.data import ImageSet
from poise.errors import UserError
from poise.runs import load_recipe, make_recipe

from .conftest import SETTINGS, learned


def learner_of(method: str, **settings: Any) -> Learner:
    return Learner(method, **{**SETTINGS, "memory": None, **settings})


def weights(learner: Learner) -> torch.Tensor:
    return torch.cat([value.flatten().float() for value in learner.model.state_dict().values()])


class TestFinetune:
    def test_it_keeps_nothing_unless_told(self, arriving: list[ImageSet]) -> None:
        assert learner_of("finetune").settings.memory == Budget(0)
        assert make_recipe({"method": "finetune"}).settings.memory == Budget(0)
        assert not learned(learner_of("finetune"), *arriving[:2]).knowledge.memory


class TestJoint:
    def test_every_image_is_kept(self, arriving: list[ImageSet]) -> None:
        learner = learned(learner_of("joint"), *arriving[:2])
        assert learner.memory_.exemplars.labels.bincount().tolist() == [6] * 4
        assert learner.held_ == learner.budget_ == 24

    def test_every_network_is_new(self, arriving: list[ImageSet]) -> None:
        """What an earlier phase learned leaves no trace: with garbage in its place the result is the same."""
        learner = learned(learner_of("joint"), arriving[0])
        state = learner.state()
        model = learner.model
        garbage = model.copy()
        garbage.load_state_dict({name: torch.zeros_like(value) for name, value in garbage.state_dict().items()})
        other = Learner.from_state(
            state.replace(knowledge=replace(state.knowledge, start=garbage, predictor=garbage)), device="cpu"
        )
        one, two = learned(learner, arriving[1]), learned(other, arriving[1])
        assert torch.equal(weights(one), weights(two))

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"memory": 20}, "trains on every image seen so far; leave memory out, or set memory=all"),
            ({"memory": 0}, "trains on every image seen so far"),
            ({"memory": Budget(20, rule="rmm")}, "trains on every image seen so far"),
            ({"policy": "offline-rl"}, "policy=offline-rl continues a network, and joint starts anew"),
            ({"policy": "grid", "trials": {"environment": "both"}}, "trials.environment=both continues a network"),
            ({"policy": "grid", "trials": {"horizon": 2}}, "trials.horizon=2 needs"),
        ],
    )
    def test_what_it_cannot_do_is_refused(self, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(UserError, match=rf"^[^\n]*({words})[^\n]*$"):
            _ = learner_of("joint", **settings).settings


class TestAllImages:
    """`memory=all`, which `joint` needs and every method can have: labelled as an oracle wherever it appears."""

    def test_in_a_recipe(self) -> None:
        for name, words in (("digits/joint", ()), ("digits/lucir", ("memory=all",)), ("digits/rmm", ("memory=all",))):
            assert load_recipe(name, words).settings.memory.rule == "all"
        assert load_recipe("digits/joint", ["method=lucir", "memory.total=40"]).settings.memory == Budget(None, 40)
