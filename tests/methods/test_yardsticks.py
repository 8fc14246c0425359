"""Fine-tuning, replay and joint training: what each keeps, what it trains, and what it starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from poise import Budget, Learner, store
from poise.data import ImageSet
from poise.errors import UserError
from poise.methods import Growth
from poise.report import Report, comparison_table, run_of_result, run_table
from poise.report.reading import read_run
from poise.runs import Plan, Run, RunFolder, load_recipe, make_recipe
from poise.training import Event, TrialDone

MakeImages = Callable[..., ImageSet]
MakePlan = Callable[..., Plan]


@pytest.fixture
def arriving(make_images: MakeImages) -> list[ImageSet]:
    return [make_images([0, 1] * 6), make_images([2, 3] * 6, seed=1)]


def learner_of(method: str, **settings: Any) -> Learner:
    return Learner(method, **{"policy": "fixed", "net": "small", "epochs": 2, "batch": 8, "device": "cpu", **settings})


def learn(learner: Learner, *phases: ImageSet) -> Learner:
    for images in phases:
        learner.partial_fit(images.pixels, images.labels)
    return learner


def weights(learner: Learner) -> torch.Tensor:
    assert learner.model is not None
    return torch.cat([value.flatten().float() for value in learner.model.state_dict().values()])


class TestReplay:
    def test_nothing_is_distilled_and_all_rows_are_trained(self, arriving: list[ImageSet]) -> None:
        learner = learn(learner_of("replay", memory=3), arriving[0])
        assert learner.model is not None
        before = learner.model.head.rows().detach().clone()
        phase = learner.phase_of(arriving[1].pixels, arriving[1].labels)
        assert phase.situation.growth == Growth(2, 2)
        assert phase.situation.teacher() is None, "no model is asked besides the one that is trained"
        learn(learner, arriving[1])
        assert not (learner.model.head.rows()[:2] == before).any()
        assert (learner.held_, len(learner.memory_ or ())) == (18, 12)

    def test_it_keeps_twenty_images_of_each_class_unless_told(self) -> None:
        assert learner_of("replay").settings.memory == learner_of("lucir").settings.memory == Budget(20)


class TestFinetune:
    def test_it_keeps_nothing_unless_told(self, arriving: list[ImageSet]) -> None:
        assert learner_of("finetune").settings.memory == Budget(0)
        assert make_recipe({"method": "finetune"}).settings.memory == Budget(0)
        assert len(learn(learner_of("finetune"), *arriving).memory or ()) == 0

    def test_with_a_memory_it_is_replay(self, arriving: list[ImageSet]) -> None:
        one, other = (learn(learner_of(name, memory=3), *arriving) for name in ("finetune", "replay"))
        assert torch.equal(weights(one), weights(other))


class TestJoint:
    def test_every_image_is_kept(self, arriving: list[ImageSet]) -> None:
        learner = learn(learner_of("joint"), *arriving)
        assert learner.memory_ is not None
        assert learner.memory_.exemplars.labels.bincount().tolist() == [6] * 4
        assert learner.held_ == learner.budget_ == 24

    def test_every_network_is_new(self, arriving: list[ImageSet]) -> None:
        """What an earlier phase learned leaves no trace: with garbage in its place the result is the same."""
        learner = learn(learner_of("joint"), arriving[0])
        state = learner.state()
        model = learner.model
        assert model is not None
        garbage = model.copy()
        garbage.load_state_dict({name: torch.zeros_like(value) for name, value in garbage.state_dict().items()})
        other = Learner.from_state(
            replace(state, knowledge=replace(state.knowledge, start=garbage, predictor=garbage)), device="cpu"
        )
        one, two = learn(learner, arriving[1]), learn(other, arriving[1])
        assert torch.equal(weights(one), weights(two))

    @pytest.mark.parametrize("policy", ["online", "bilevel"])
    def test_actions_are_tried_on_held_out_images_of_all_classes(self, policy: str, arriving: list[ImageSet]) -> None:
        options = {"rounds": 2, "steps": 2} if policy == "bilevel" else None
        learner = learn(learner_of("joint", policy=policy, policy_options=options), arriving[0])
        events: list[Event] = list(learner.fitting(arriving[1].pixels, arriving[1].labels))
        trials = [event for event in events if isinstance(event, TrialDone)]
        assert trials
        for event in trials:
            assert event.record["split"]["environment"] == "local"
            assert event.record["classes"] == [0, 1, 2, 3]

    def test_a_phase_stopped_anywhere_goes_on_to_the_same_bytes(
        self, arriving: list[ImageSet], stop_learners_anywhere: Callable[..., None]
    ) -> None:
        space = {"lr": [0.1, 0.05], "classifier": ["fc", "ncm"]}
        learner = learner_of("joint", policy="grid", space=space, trials={"length": 0.5}, epochs=1, batch=24)
        stop_learners_anywhere(learn(learner, arriving[0]), arriving[1], 2)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"memory": 20}, "trains on every image seen so far; leave memory out, or set memory=all"),
            ({"memory": 0}, "trains on every image seen so far"),
            ({"memory": Budget(20, rule="rmm")}, "trains on every image seen so far"),
            ({"policy": "offline-rl"}, "policy=offline-rl continues a network, and joint starts anew"),
            ({"trials": {"environment": "both"}}, "trials.environment=both continues a network"),
            ({"policy": "grid", "trials": {"horizon": 2}}, "trials.horizon=2 needs"),
        ],
    )
    def test_what_it_cannot_do_is_refused(self, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(UserError, match=words) as refused:
            learner_of("joint", **settings)
        assert "\n" not in str(refused.value)


class TestAllImages:
    """`memory=all`, which `joint` needs and every method can have: labelled as an oracle wherever it appears."""

    def test_in_a_recipe(self) -> None:
        for name, words in (("digits/joint", ()), ("digits/lucir", ("memory=all",)), ("digits/rmm", ("memory=all",))):
            assert load_recipe(name, words).settings.memory.keeps_all
        assert load_recipe("digits/joint", ["method=lucir", "memory.total=40"]).settings.memory == Budget(None, 40)
        for words in (("memory.rule=all",), ("memory={rule='all', reserve=2}",)):
            with pytest.raises(UserError, match="leave the other keys of memory out"):
                load_recipe("digits/lucir", words)

    @pytest.mark.parametrize(
        "keys", [{"method": "joint"}, {"method": "finetune"}, {"method": "lucir", "memory": "all"}]
    )
    def test_what_the_method_keeps_is_written_out(self, keys: dict[str, Any]) -> None:
        recipe = make_recipe(keys)
        saved = recipe.resolved().model_dump(mode="json")
        assert make_recipe(saved).settings == recipe.settings
        assert make_recipe({**saved, "method": "lwf"}).settings.memory == recipe.settings.memory

    def test_it_is_an_oracle_in_results_tables_and_pages(self, plan: MakePlan, tmp_path: Path) -> None:
        runs = []
        for name in ("replay", "joint"):
            job = Run(plan(name=f"digits/{name}"), RunFolder(tmp_path / name))
            result = job.start()
            assert result.get("oracle_all_images", False) is (name == "joint")
            runs.append(read_run(tmp_path / name))
        honest, oracle = runs
        assert (honest.labels, honest.informed) == ((), False)
        assert (oracle.labels, oracle.informed, oracle.fixed) == (("oracle: all images",), True, False)
        assert "fixed (oracle: all images)" in comparison_table(runs)
        assert "oracle: all images: every image" in run_table(
            run_of_result(store.read_json(tmp_path / "joint/result.json"))
        )
        page = Report(runs).write(tmp_path / "page").read_text(encoding="utf-8")
        assert '<span class="badge">oracle: all images</span>' in page
        assert "every image of every phase was kept" in page
        (tmp_path / "joint" / "result.json").unlink()
        assert read_run(tmp_path / "joint").labels == oracle.labels, "while it is unfinished, too"
