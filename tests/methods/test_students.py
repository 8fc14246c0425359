"""Phases with more than one student: a stage may train another model, and another one may predict or start the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from poise import Learner, losses, store
from poise.data import ImageSet
from poise.methods import METHODS, MODEL, PREVIOUS, Finished, Growth, GrowthInputs, ICaRL, Method, Stage
from poise.nets import Model, Output
from poise.training import EpochDone, LocalPhase, StageDone, Trainer

from .conftest import SETTINGS, learned

MakeImages = Callable[..., ImageSet]
MakeTrainer = Callable[..., Trainer]
StopAnywhere = Callable[[Callable[[], Trainer]], None]
PUPIL = "pupil"


class Distilling(ICaRL):
    """Distils whatever its teacher knows."""

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        terms = {"ce": losses.cross_entropy(student.logits, labels)}
        if teacher is not None:
            terms["logit_kd"] = losses.logit_kd(student.logits[:, : teacher.logits.shape[1]], teacher.logits)
        return terms


class Compressing(Distilling):
    """A second stage trains a pupil of the phase's own model. The pupil predicts, the model starts the next phase."""

    name = "compressing"

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        return Stage(), Stage("compress", share=0.5, student=PUPIL, teacher=MODEL)

    def student(self, name: str, models: Mapping[str, Model], inputs: GrowthInputs) -> Model:
        assert name == PUPIL
        assert {MODEL, PREVIOUS} <= set(models)
        pupil = models[PREVIOUS].copy()
        pupil.head.grow(inputs.growth.new, inputs.generator)
        return pupil

    def finish(self, models: Mapping[str, Model]) -> Finished:
        return Finished(predicts=models[PUPIL], starts=models[MODEL])


class BornAgain(Distilling):
    """A second stage distils from the model as it was when the stage began, while it trains that model further."""

    name = "born-again"

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        return Stage(), Stage("again", teacher=MODEL)


TOYS: dict[str, type[Method]] = {method.name: method for method in (Compressing, BornAgain)}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toys, for as long as the test."""
    for name, method in TOYS.items():
        monkeypatch.setitem(METHODS, name, method)


def values(model: Model) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def differ(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return any(not torch.equal(value, other[name]) for name, value in one.items())


class TestTrainer:
    def test_each_stage_trains_its_student_alone(self, make_trainer: MakeTrainer) -> None:
        trainer = make_trainer(Compressing())
        start = values(trainer.model)
        running = trainer.run()
        for event in running:
            if event == StageDone(1, "main"):
                break
        model, pupil = values(trainer.model), values(trainer.students[PUPIL])
        assert differ(start, model)
        last = list(running)
        assert [event.stage for event in last if isinstance(event, StageDone)] == ["compress"]
        assert all(set(event.terms) == {"ce", "logit_kd"} for event in last if isinstance(event, EpochDone))
        assert_same(values(trainer.model), model)
        assert differ(pupil, values(trainer.students[PUPIL]))

    def test_the_pupil_is_made_when_its_stage_begins(self, make_trainer: MakeTrainer) -> None:
        trainer = make_trainer(Compressing())
        for event in trainer.run():
            assert (PUPIL in trainer.students) is (trainer.stage > 0 or event == StageDone(1, "main"))

    def test_its_teacher_is_the_model_as_the_first_stage_left_it(self, make_trainer: MakeTrainer) -> None:
        trainer = make_trainer(Compressing())
        images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        for event in trainer.run():
            if event == StageDone(1, "main"):
                teacher = trainer._engine.step.teacher
                assert teacher is not None
                assert teacher is not trainer.teacher
                with torch.no_grad():
                    wanted, found = trainer.model.eval()(images).logits, teacher(images).logits
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)

    def test_the_model_is_looked_at_until_the_end_and_then_what_predicts(self, make_trainer: MakeTrainer) -> None:
        trainer = make_trainer(Compressing())
        for event in trainer.run():
            ended = event == StageDone(1, "compress")
            assert trainer.predictor is (trainer.students[PUPIL] if ended else trainer.model)
        assert trainer.finish() == (trainer.students[PUPIL], trainer.model)

    @pytest.mark.parametrize("method", [Compressing(), BornAgain()], ids=list(TOYS))
    def test_from_anywhere_it_gives_the_same_bytes(
        self, method: Method, make_trainer: MakeTrainer, stop_trainers_anywhere: StopAnywhere
    ) -> None:
        stop_trainers_anywhere(lambda: make_trainer(method))

    @pytest.mark.parametrize("method", [Compressing(), BornAgain()], ids=list(TOYS))
    def test_a_second_training_is_as_the_first_one(
        self, method: Method, make_trainer: MakeTrainer, beginning: Callable[[Trainer], LocalPhase]
    ) -> None:
        trainer = make_trainer(method)
        begun = beginning(trainer)
        events = list(trainer.run())
        first = {name: values(student) for name, student in trainer.students.items()}
        trainer.restart(begun, trainer.action, None, trainer.address)
        assert list(trainer.run()) == events
        for name, found in first.items():
            assert_same(values(trainer.students[name]), found)

    def test_a_second_stage_of_the_same_student_continues(self, make_trainer: MakeTrainer) -> None:
        class Twice(Compressing):
            def stages(self, growth: Growth) -> tuple[Stage, ...]:
                return *super().stages(growth), Stage("tune", share=0.5, student=PUPIL, teacher=None, trains="head")

        trainer = make_trainer(Twice())
        for event in trainer.run():
            if event == StageDone(1, "compress"):
                compressed = values(trainer.students[PUPIL])
        tuned = values(trainer.students[PUPIL])
        convolutions = [name for name in tuned if name.endswith("conv1.weight")]
        assert convolutions
        assert all(torch.equal(tuned[name], compressed[name]) for name in convolutions)
        assert differ(compressed, tuned)

    def test_started_again_from_another_model_a_student_is_made_of_that(
        self, make_trainer: MakeTrainer, beginning: Callable[[Trainer], LocalPhase]
    ) -> None:
        """A lane keeps its trainer for the next attempt, whose local phase may start from another model."""

        class Watched(Compressing):
            def student(self, name: str, models: Mapping[str, Model], inputs: GrowthInputs) -> Model:
                seen.append(values(models[PREVIOUS]))
                return super().student(name, models, inputs)

        seen: list[dict[str, Tensor]] = []
        trainer = make_trainer(Watched())
        begun = beginning(trainer)
        other = begun.situation.model.copy()
        with torch.no_grad():
            other.head.new.add_(1)
        list(trainer.run())
        trainer.restart(replace(begun, situation=replace(begun.situation, model=other)), trainer.action, None, ())
        list(trainer.run())
        assert_same(seen[0], values(begun.situation.model))
        assert_same(seen[1], values(other))
        assert differ(*seen)

    def test_a_student_that_nobody_makes_is_named(self, make_trainer: MakeTrainer) -> None:
        class Careless(Compressing):
            student = Method.student

        with pytest.raises(NotImplementedError, match="has a stage with the student 'pupil' and no way to make it"):
            list(make_trainer(Careless()).run())


TRYING: dict[str, Any] = {
    "policy": "grid",
    "space": {"lr": [0.1, 0.05]},
    "trials": {"length": 0.5, "validation": 2, "horizon": 1},
}


class TestLearner:
    def test_one_model_predicts_and_the_next_phase_starts_from_the_other(self, arriving: list[ImageSet]) -> None:
        learner = Learner("compressing", **SETTINGS)
        for images in arriving[:2]:
            learner.partial_fit(images.pixels, images.labels)
            predictor, start = learner.knowledge.predictor, learner.knowledge.start
            assert learner.model is predictor
            assert predictor is not None
            assert start is not None
            assert predictor is not start
            assert differ(values(predictor), values(start))
            assert predictor.head.classes == start.head.classes == len(learner.knowledge.classes)
        assert learner.model is not None
        expected = learner.evaluator.extract(learner.model, arriving[0].pixels).logits.softmax(dim=1)
        found = learner.predict_proba(arriving[0].pixels, classifier="fc")
        torch.testing.assert_close(torch.from_numpy(found), expected)
        phase = learner.phase_of(arriving[2].pixels, arriving[2].labels)
        assert phase.situation.model is start

    def test_exemplars_and_class_means_are_those_of_the_model_that_predicts(self, arriving: list[ImageSet]) -> None:
        learner = learned(Learner("compressing", **SETTINGS), *arriving[:2])
        assert learner.model is not None
        assert learner.memory_ is not None
        means = learner.evaluator.class_means(learner.model, learner.memory_.exemplars, 4)
        assert learner.means_ is not None
        assert torch.equal(means, learner.means_)

    def test_saved_and_loaded_it_learns_on_to_the_same_bytes(self, arriving: list[ImageSet], tmp_path: Path) -> None:
        learner = learned(Learner("compressing", **SETTINGS), *arriving[:2])
        learner.save(tmp_path / "two")
        tensors, _ = store.read_tensors(tmp_path / "two", kind="learner")
        assert {name.split(".")[0] for name in tensors} == {"predictor", "start", "means", "memory"}
        loaded = Learner.load(tmp_path / "two", device="cpu")
        assert loaded.predict_proba(arriving[0].pixels).tolist() == learner.predict_proba(arriving[0].pixels).tolist()
        for each, name in ((learner, "whole"), (loaded, "loaded")):
            each.partial_fit(arriving[2].pixels, arriving[2].labels).save(tmp_path / name)
        assert (tmp_path / "whole").read_bytes() == (tmp_path / "loaded").read_bytes()

    @pytest.mark.parametrize("method", list(TOYS))
    @pytest.mark.parametrize("changes", [{}, TRYING], ids=["fixed", "trying"])
    def test_stopped_anywhere_in_a_phase_it_goes_on_to_the_same_bytes(
        self,
        method: str,
        changes: dict[str, Any],
        arriving: list[ImageSet],
        stop_learners_anywhere: Callable[[Learner, ImageSet, int], None],
    ) -> None:
        learner = Learner(method, **{**SETTINGS, **changes})
        learner.partial_fit(arriving[0].pixels, arriving[0].labels)
        stop_learners_anywhere(learner, arriving[1], 1 if not changes else 5)

    def test_a_learner_that_only_predicts_is_saved_with_no_other_model(
        self, arriving: list[ImageSet], tmp_path: Path
    ) -> None:
        learner = Learner("compressing", **SETTINGS).partial_fit(arriving[0].pixels, arriving[0].labels)
        learner.save(tmp_path / "light", memory=False)
        assert not [name for name in store.read_tensors(tmp_path / "light", kind="learner")[0] if "start" in name]
        light = Learner.load(tmp_path / "light", device="cpu")
        assert light.predict_proba(arriving[0].pixels).tolist() == learner.predict_proba(arriving[0].pixels).tolist()
