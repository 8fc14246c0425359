"""Extras of a model: modules that a method adds for one phase, such as an auxiliary head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from poise import Learner, store
from poise.actions import Action
from poise.data import ImageSet
from poise.methods import METHODS, Growth, GrowthInputs, ICaRL
from poise.nets import Model, Output, build_backbone, build_head, torch_generator
from poise.training import EpochDone, StageDone, Trainer

from .conftest import SETTINGS, learned

MakeImages = Callable[..., ImageSet]
MakeTrainer = Callable[..., Trainer]


class Assisted(ICaRL):
    """An auxiliary head, in phases that bring new classes, tells those apart from all old ones."""

    name = "assisted"
    default_action = Action(**ICaRL.default_action, auxiliary=1.0)

    def grow(self, model: Model, inputs: GrowthInputs) -> None:
        super().grow(model, inputs)
        if inputs.growth.new:
            auxiliary = nn.Linear(model.head.width, inputs.growth.new + 1)
            for values in auxiliary.parameters():
                nn.init.normal_(values, std=0.01, generator=inputs.generator)
            model.extras["auxiliary"] = auxiliary

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        terms = super().terms(student, teacher, labels, growth)
        if "auxiliary" in student.extras:
            target = (labels - growth.old + 1).clamp(min=0)
            terms["auxiliary"] = nn.functional.cross_entropy(student.extras["auxiliary"], target)
        return terms


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, Assisted.name, Assisted)


TRYING: dict[str, Any] = {"policy": "grid", "space": {"auxiliary": [0.5, 1]}, "trials": {"validation": 2}}


def model_with_extra() -> Model:
    model = Model(build_backbone("small", "ordinary", 3, 0), build_head("linear", 64))
    model.head.grow(2, torch_generator(0, "head", 0))
    model.extras["auxiliary"] = nn.Linear(64, 3)
    return model


class TestModel:
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def test_their_outputs_are_there_only_while_it_is_trained(self) -> None:
        model = model_with_extra()
        trained, evaluated = model.train()(self.images), model.eval()(self.images)
        assert {name: tuple(value.shape) for name, value in trained.extras.items()} == {"auxiliary": (4, 3)}
        assert not evaluated.extras
        torch.testing.assert_close(trained.extras["auxiliary"], model.extras["auxiliary"](trained.features))

    def test_copies_have_them_and_teachers_do_not(self) -> None:
        model = model_with_extra()
        copied, teacher = model.copy(), model.teacher()
        assert not teacher.extras
        here, there = (each.state_dict()["extras.auxiliary.weight"] for each in (model, copied))
        assert torch.equal(here, there)
        assert copied.extras["auxiliary"] is not model.extras["auxiliary"]

    def test_they_are_trained_with_everything_and_never_with_a_part(self) -> None:
        model = model_with_extra()
        for part in ("all", "head", "rows", "all"):
            model.train_only(part)
            assert all(value.requires_grad is (part == "all") for value in model.extras.parameters())

    def test_they_compute_in_full_precision(self) -> None:
        model = model_with_extra().train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert model(self.images).extras["auxiliary"].dtype == torch.float32


class TestTrainer:
    @pytest.fixture
    def make(self, make_trainer: MakeTrainer, make_images: MakeImages) -> Callable[[], Trainer]:
        """A trainer of a model that the method grew itself."""

        def made() -> Trainer:
            plain = make_trainer(Assisted(), balance="finetune")
            model = plain.situation.grow_model(make_images([2, 3] * 3, seed=1))
            return Trainer(plain.situation, model, plain.teacher, plain.action, plain.feed)

        return made

    def test_the_auxiliary_head_is_trained_in_the_main_stage(self, make: Callable[[], Trainer]) -> None:
        trainer = make()
        before = {name: value.clone() for name, value in trainer.model.extras.state_dict().items()}
        seen: dict[str, set[str]] = {}
        for event in trainer.run():
            if isinstance(event, EpochDone):
                seen[event.stage] = set(event.terms)
            if event == StageDone(1, "main"):
                main = {name: value.clone() for name, value in trainer.model.extras.state_dict().items()}
        assert seen["main"] == {"ce", "logit_kd", "auxiliary"}
        assert before.keys() == main.keys() == {"auxiliary.weight", "auxiliary.bias"}
        assert all(not torch.equal(value, before[name]) for name, value in main.items())
        after = trainer.model.extras.state_dict()
        assert all(torch.equal(value, after[name]) for name, value in main.items())  # not with the head alone

    def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
        self, make: Callable[[], Trainer], stop_trainers_anywhere: Callable[[Callable[[], Trainer]], None]
    ) -> None:
        stop_trainers_anywhere(make)


class TestLearner:
    def test_after_the_phase_they_are_gone(self, arriving: list[ImageSet], tmp_path: Path) -> None:
        learner = Learner("assisted", **SETTINGS)
        for number, images in enumerate(arriving):
            for event in learner.fitting(images.pixels, images.labels):
                if isinstance(event, EpochDone):
                    names = learner.state().tensors(images=False)[0]
                    assert "pending.student.model.extras.auxiliary.weight" in names
                    assert len(names["pending.student.model.extras.auxiliary.weight"]) == 3
            assert learner.model is not None
            assert not learner.model.extras
            learner.save(tmp_path / str(number))
            tensors, _ = store.read_tensors(tmp_path / str(number), kind="learner")
            assert not [name for name in tensors if "extras" in name]

    @pytest.mark.parametrize("changes", [{}, TRYING], ids=["fixed", "trying"])
    def test_stopped_in_a_phase_it_goes_on_to_the_same_bytes(
        self,
        changes: dict[str, Any],
        arriving: list[ImageSet],
        stop_learners_anywhere: Callable[[Learner, ImageSet, int], None],
    ) -> None:
        learner = Learner("assisted", **{**SETTINGS, **changes})
        stop_learners_anywhere(learned(learner, arriving[0]), arriving[1], 2)

    def test_a_local_phase_begins_without_those_of_the_one_before(
        self, arriving: list[ImageSet], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A second training in a trial brings no new classes: as in a real phase, there is no auxiliary head."""
        seen: list[tuple[int, bool]] = []
        terms = Assisted.terms

        def noted(
            self: Assisted, student: Output, teacher: Output | None, labels: Tensor, growth: Growth
        ) -> dict[str, Tensor]:
            seen.append((growth.new, "auxiliary" in student.extras))
            return terms(self, student, teacher, labels, growth)

        monkeypatch.setattr(Assisted, "terms", noted)
        changes = {**TRYING, "trials": {"validation": 2, "horizon": 1}}
        learned(Learner("assisted", **{**SETTINGS, **changes}), *arriving[:2])
        assert set(seen) == {(2, True), (0, False)}
