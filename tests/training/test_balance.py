"""Balancing the head after training: a short training of it on as many images of each class, or weight alignment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from poise import Learner
from poise.data import ImageSet, herd
from poise.errors import UserError
from poise.methods import Growth, Method
from poise.nets import LinearHead
from poise.training.context import LocalPhase
from poise.training.events import EpochDone, Event, Progress, StageDone
from poise.training.trainer import Trainer

from .weights import TwoStages, assert_same, weights

MakeImages = Callable[..., ImageSet]
MakeTrainer = Callable[..., Trainer]
StopAnywhere = Callable[[Callable[[], Trainer]], None]
GROWTH = Growth(old=2, new=2)
UNEVEN = [0] * 4 + [1] * 3 + [2] * 8 + [3] * 6
SMALLEST = 3


@pytest.fixture
def make_trainer(make_trainer: MakeTrainer, make_images: MakeImages) -> MakeTrainer:
    """A phase of a method: two old classes with few images, two new ones with many."""
    return partial(make_trainer, growth=GROWTH, images=make_images(UNEVEN), batch=8)


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name, value in after.items() if not torch.equal(value, before[name])}


def run_until(trainer: Trainer, stage: str) -> Iterator[Event]:
    """Train until that stage has ended; what is returned goes on from there."""
    running = trainer.run()
    for event in running:
        if event == StageDone(1, stage):
            return running
    raise AssertionError(f"there is no stage {stage}")


@pytest.mark.parametrize("method", ["lucir", "icarl"])
@pytest.mark.parametrize("old_rows", ["frozen", "trained"])
def test_finetuning_trains_the_head_and_nothing_else_after_a_main_stage_as_without_it(
    method: str, old_rows: str, make_trainer: MakeTrainer
) -> None:
    trainer, plain = (make_trainer(method, balance=word, old_rows=old_rows) for word in ("finetune", "none"))
    before = weights(trainer)
    running = run_until(trainer, "main")
    main = weights(trainer)
    assert ("head.old" in moved(before, main)) is (old_rows == "trained")
    list(plain.run())
    assert_same(main, weights(plain))
    list(running)
    changed = moved(main, weights(trainer))
    assert {"head.old", "head.new"} <= changed
    assert {name for name in changed if not name.startswith("head.")} == set()  # batch statistics neither


@pytest.mark.parametrize(("method", "old_rows"), [("lucir", "frozen"), ("icarl", "trained")])
def test_stopped_anywhere_finetuning_goes_on_to_the_same_bytes(
    method: str, old_rows: str, make_trainer: MakeTrainer, stop_trainers_anywhere: StopAnywhere
) -> None:
    stop_trainers_anywhere(lambda: make_trainer(method, balance="finetune", old_rows=old_rows, epochs=1))


@pytest.mark.parametrize(("method", "old_rows"), [("lucir", "frozen"), ("icarl", "trained"), ("podnet", "frozen")])
def test_a_second_training_in_the_place_of_the_first_is_as_that(
    method: str, old_rows: str, make_trainer: MakeTrainer
) -> None:
    """What a lane keeps begins again from there: weights, momentum, images and what is frozen."""
    first = make_trainer(method, balance="finetune", old_rows=old_rows)
    images = first.feed.images()
    begun = LocalPhase(first.context, images, images, first.model.copy(), first.teacher, first.feed)
    list(first.run())
    end = weights(first)
    first._kept.load(begun)
    again = Trainer(first.context, first.model, first.teacher, first.action, first.feed, kept=first._kept)
    list(again.run())
    assert again.model is first.model
    assert_same(weights(again), end)


class TestWhatFinetuningTrainsOn:
    def test_as_many_images_of_each_class_as_the_smallest_has_chosen_by_herding(
        self, make_trainer: MakeTrainer, make_images: MakeImages
    ) -> None:
        trainer, images = make_trainer(balance="finetune", epochs=9), make_images(UNEVEN)
        running = run_until(trainer, "main")
        found = trainer.context.evaluator.extract(trainer.model, images.pixels)
        events = [next(event for event in running if isinstance(event, EpochDone))]
        picks = trainer.state()[0]["picks"]
        assert len(set(picks.tolist())) == len(picks)
        assert images.labels[picks].bincount().tolist() == [SMALLEST] * 4
        herded = herd(found.features, images.labels, SMALLEST)
        assert {int(pick) for pick in picks} == {int(pick) for ranks in herded.values() for pick in ranks}
        steps = [event for event in running if isinstance(event, Progress)]
        assert len(steps) == 2 == -(-4 * SMALLEST // 8), "the second epoch, in batches of 8"
        assert events[0].stage == "balance"

    def test_its_length_and_rates_do_not_depend_on_the_actions_rate(self, make_trainer: MakeTrainer) -> None:
        trainer = make_trainer(balance="finetune", lr=0.3, epochs=9)  # an eighth of it are two epochs
        events = [event for event in trainer.run() if isinstance(event, EpochDone)]
        balancing = [event for event in events if event.stage == "balance"]
        assert [event.lr for event in balancing] == pytest.approx([0.01, 0.001])
        assert [set(event.terms) for event in balancing] == [{"ce"}, {"ce"}]  # nothing is distilled

    def test_a_single_image_is_enough(self, make_trainer: MakeTrainer, make_images: MakeImages) -> None:
        trainer = make_trainer(balance="finetune", images=make_images([2]))
        assert [event.stage for event in trainer.run() if isinstance(event, StageDone)] == ["main", "balance"]


def lengths(head: torch.nn.Module) -> tuple[float, float]:
    assert isinstance(head, LinearHead)
    return head.old.norm(dim=1).mean().item(), head.new.norm(dim=1).mean().item()


class TestAlignment:
    @pytest.mark.parametrize("method", ["icarl", "lwf", TwoStages()], ids=["icarl", "lwf", "two stages"])
    def test_new_rows_become_as_long_as_old_ones_once(self, method: Method | str, make_trainer: MakeTrainer) -> None:
        plain, aligned = make_trainer(method), make_trainer(method, balance="align")
        assert len([event for event in plain.run() if isinstance(event, StageDone)]) == len(plain.stages)
        list(aligned.run())
        before, after = weights(plain), weights(aligned)
        assert moved(before, after) == {"head.new"}
        old, new = lengths(plain.model.head)
        assert abs(old / new - 1) > 0.01  # there was something to do
        assert torch.allclose(after["head.new"], before["head.new"] * (old / new), rtol=1e-5)
        assert lengths(aligned.model.head)[1] == pytest.approx(old, rel=1e-5)

    def test_stopped_anywhere_it_is_aligned_once(
        self, make_trainer: MakeTrainer, stop_trainers_anywhere: StopAnywhere
    ) -> None:
        def make() -> Trainer:
            trainer = make_trainer(TwoStages(), balance="align", old_rows="frozen", epochs=1)
            with torch.no_grad():
                trainer.model.head.new.mul_(3)  # a second alignment would be another number
            return trainer

        stop_trainers_anywhere(make)

    def test_it_is_refused_where_rows_have_no_length(self) -> None:
        for wrong in (
            {"action": {"balance": "align"}},
            {"policy": "grid", "space": {"balance": ["none", "align"]}},
            {"policy": "grid", "action": {"balance": "align"}, "space": {"lr": [0.1, 0.05]}},
        ):
            with pytest.raises(UserError, match=r"^balance=align means nothing to this method; [^\n]*$"):
                _ = Learner("lucir", device="cpu", **wrong).settings
        with pytest.raises(UserError, match="balance=align means nothing to this method"):
            Learner("lucir").settings.given_action({"balance": "align"}, phase=1)


@pytest.mark.parametrize("balance", ["finetune", "align"])
def test_there_is_nothing_to_balance_in_a_first_phase(balance: str, make_trainer: MakeTrainer) -> None:
    first, plain = (make_trainer("icarl", growth=Growth(0, 4), balance=each) for each in (balance, "none"))
    assert list(first.run()) == list(plain.run())
    assert_same(weights(first), weights(plain))
