"""Mistakes in the terms of a method of one's own: one line each, found in the first step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from poise import Action, Learner
from poise.errors import UserError
from poise.methods import METHODS, Growth, Method, Stage, TrainedPhase
from poise.nets import Model, Output
from poise.training.events import EpochDone
from poise.training.step import _say_once
from poise.training.trainer import Trainer

MakeTrainer = Callable[..., Trainer]


class Mine(Method):
    """A method of one's own that returns what it is told to."""

    name = "mine"
    default_action = Action(logit_kd=1.0, lr=0.1, classifier="fc", old_rows="trained")

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.make(functional.cross_entropy(student.logits, labels, reduction="none"))
        return terms


class Balanced(Mine):
    """Its second term needs a teacher, whom the balancing at the end has not."""

    default_action = Action(logit_kd=1.0, lr=0.1, classifier="fc", old_rows="trained", balance="finetune")

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        terms = super().terms(student, teacher, labels, growth)
        return terms if teacher is not None else {"ce": terms["ce"]}


class Shortened(Mine):
    """The learning rate is also the share of the phase that is trained."""

    share = 1.0
    concluded = 0.0

    def configured_for(self, action: Action) -> Shortened:
        made = Shortened(self.make)
        made.share = action.lr
        return made

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        return (Stage(share=self.share),)

    def fit_head(self, model: Model, trained: TrainedPhase) -> None:
        Shortened.concluded = self.share


class Misspelt(Mine):
    default_action = Action(logit_dk=1.0, lr=0.1, classifier="fc", old_rows="trained")


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda losses: {"ce": losses}, r"returned ce of shape \[4\]; a term must be one number: take the mean"),
        (lambda losses: {}, "returned {}; it must return a dictionary of losses"),
        (lambda losses: None, "returned None; it must return a dictionary of losses"),
        (lambda losses: losses.mean(), "it must return a dictionary of losses"),
        (lambda losses: {"ce": losses.mean(), "kd": 0.5}, "returned kd=0.5; a term must be a tensor"),
        (lambda losses: {"ce": losses.mean(), "kd": None}, "returned kd=None; a term must be a tensor"),
        (lambda losses: {3: losses.mean()}, "returned a loss under 3; its name must be text"),
    ],
)
def test_what_is_no_loss_is_refused_with_its_name(
    make: Callable[[Tensor], Any], line: str, make_trainer: MakeTrainer
) -> None:
    with pytest.raises(UserError, match=f"method mine: terms {line}|method mine: terms .*{line}"):
        list(make_trainer(Mine(make)).run())


def test_losses_without_a_gradient_are_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(UserError, match=r"method mine: no term \(ce\) has a gradient; compute one from student"):
        list(make_trainer(Mine(lambda losses: {"ce": losses.mean().detach()})).run())


def test_a_term_may_lack_a_gradient_beside_another(make_trainer: MakeTrainer) -> None:
    list(make_trainer(Mine(lambda losses: {"ce": losses.mean(), "logit_kd": torch.ones(())})).run())


def test_a_weight_of_no_term_is_warned_of_once(make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture) -> None:
    _say_once.cache_clear()

    def both(losses: Tensor) -> dict[str, Tensor]:
        return {"ce": losses.mean(), "logit_kd": losses.square().mean()}

    with caplog.at_level(logging.WARNING, "poise"):
        list(make_trainer(Mine(both)).run())
        list(make_trainer(Balanced(both)).run())
        list(make_trainer(Misspelt(both), growth=Growth(0, 4)).run())
        assert not caplog.messages  # the terms of a first phase say nothing
        list(make_trainer(Misspelt(both)).run())
        list(make_trainer(Misspelt(both)).run())
    assert len(caplog.messages) == 1
    assert "mine: its action names 'logit_dk', which is no term" in caplog.text


def test_the_action_configures_stages_and_the_head_that_is_computed(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(Shortened(lambda losses: {"ce": losses.mean()}), lr=0.5, epochs=4)
    assert len([event for event in trainer.run() if isinstance(event, EpochDone)]) == 2
    assert Shortened.concluded == 0.5


def test_a_default_action_without_a_classifier_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(Misspelt):
        name = "without"
        default_action = Action(lr=0.1)

        def __init__(self) -> None:
            super().__init__(lambda losses: {"ce": losses.mean()})

    monkeypatch.setitem(METHODS, "without", Without)
    with pytest.raises(UserError, match="method without: its default_action lacks classifier; add one, such as"):
        _ = Learner("without").settings
