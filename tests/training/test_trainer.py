from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from poise.actions import Action
from poise.data import ImageSet
from poise.errors import Diverged
from poise.methods import Growth, ICaRL, Method, Stage
from poise.nets import Output, build_backbone
from poise.training.capture import CapturedRunner
from poise.training.events import EpochDone, Progress, StageDone
from poise.training.trainer import Trainer

from .weights import TwoStages, assert_same, weights

MakeImages = Callable[..., ImageSet]
StopAnywhere = Callable[[Callable[[], Trainer]], None]
STEPS = 3  # 12 images in batches of 4


class Exploding(ICaRL):
    """Its loss, or only its gradient, is infinite in the step of that number, counted over all epochs."""

    def __init__(self, at: int, *, gradient_only: bool = False) -> None:
        super().__init__()
        self.left, self.gradient_only = at, gradient_only

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        terms = super().terms(student, teacher, labels, growth)
        self.left -= 1
        if self.left == 0:
            nothing = (student.logits * 0).sum()
            terms["ce"] = terms["ce"] + (nothing.sqrt() if self.gradient_only else nothing + torch.inf)
        return terms


class TestResume:
    @pytest.mark.parametrize("method", ["lucir", TwoStages()], ids=["lucir", "two stages"])
    def test_from_anywhere_it_gives_the_same_bytes(
        self, method: Method | str, make_trainer: Callable[..., Trainer], stop_trainers_anywhere: StopAnywhere
    ) -> None:
        stop_trainers_anywhere(lambda: make_trainer(method))

    def test_images_that_stream_are_trained_on_in_the_same_way(self, make_trainer: Callable[..., Trainer]) -> None:
        resident, streamed = make_trainer(resident=True), make_trainer(resident=False)
        assert list(resident.run()) == list(streamed.run())
        assert_same(weights(resident), weights(streamed))

    def test_each_stage_starts_without_momentum(self, make_trainer: Callable[..., Trainer]) -> None:
        trainer, begun = make_trainer(TwoStages()), []
        for event in trainer.run():
            if isinstance(event, EpochDone):
                momentum = [value for name, value in trainer.state()[0].items() if name.startswith("momentum.")]
                begun.append(any(bool(value.any()) for value in momentum))
            elif isinstance(event, StageDone):
                assert not [name for name in trainer.state()[0] if name.startswith("momentum.")]
        assert begun == [True] * 3


class Aside:
    """Stands for the stream of the teacher: writes down who waits for whom."""

    device = torch.device("cpu")

    def __init__(self, waits: list[str]) -> None:
        self.waits = waits

    def wait_stream(self, _: object) -> None:
        self.waits.append("the teacher")


class Main(Aside):
    """Stands for the stream of the step."""

    def wait_stream(self, _: object) -> None:
        self.waits.append("the step")


class TestTheTeachersStream:
    @pytest.fixture
    def waits(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        found: list[str] = []
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Main(found))
        return found

    @pytest.mark.parametrize("captures", [False, True])
    def test_what_it_returned_is_its_own_again_when_the_step_has_read_it(
        self, captures: bool, waits: list[str], make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures)
        trainer = make_trainer()
        trainer._begin_stage(trainer.stages[0]).step._aside = Aside(waits)  # type: ignore[assignment]
        next(trainer.run())
        assert waits == ["the teacher", "the step", *["the teacher"] * (not captures)]

    def test_it_is_waited_for_where_the_student_fails(
        self, waits: list[str], make_trainer: Callable[..., Trainer]
    ) -> None:
        trainer = make_trainer()
        trainer._begin_stage(trainer.stages[0]).step._aside = Aside(waits)  # type: ignore[assignment]
        trainer.model.register_forward_pre_hook(lambda _module, _inputs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(trainer.run())
        assert waits == ["the teacher", "the step"]


class TestDivergence:
    @pytest.mark.parametrize(
        ("at", "words"),
        [
            (1, "epoch 1, step 1 .*; its term 'ce' is not finite from the start"),
            (3, "epoch 1, step 3 .*; lower the learning rate"),
            (5, "epoch 2, step 2 "),
        ],
    )
    def test_the_first_bad_step_is_named_by_the_end_of_its_epoch(
        self, at: int, words: str, make_trainer: Callable[..., Trainer]
    ) -> None:
        trainer = make_trainer(Exploding(at), lr=0.01)
        epochs: list[EpochDone] = []
        with pytest.raises(Diverged, match=f"diverged in phase 1, main {words}") as caught:
            epochs.extend(event for event in trainer.run() if isinstance(event, EpochDone))
        assert "\n" not in str(caught.value)
        assert len(epochs) == (at - 1) // STEPS

    def test_no_state_of_a_diverged_model_is_ever_given(self, make_trainer: Callable[..., Trainer]) -> None:
        trainer = make_trainer(lr=0.01)
        next(event for event in trainer.run() if isinstance(event, EpochDone))
        trainer.state()
        with torch.no_grad():
            trainer.model.head.new[0, 0] = torch.inf
        with pytest.raises(Diverged):
            trainer.state()

    def test_weights_that_break_in_the_last_step_of_an_epoch(self, make_trainer: Callable[..., Trainer]) -> None:
        trainer = make_trainer(Exploding(STEPS, gradient_only=True))
        running = trainer.run()
        for _ in range(STEPS - 1):
            assert isinstance(next(running), Progress)
        with pytest.raises(Diverged, match=f"epoch 1, step {STEPS} "):
            list(running)


@pytest.mark.parametrize(("method", "size"), [("slca", 1e38), ("simplecil", 1e38), ("slca", 1e30)])
def test_features_that_are_too_large_for_a_computed_head_mean_that_it_diverged(
    method: str, size: float, make_trainer: Callable[..., Trainer]
) -> None:
    """Whether they are infinite, or what a method computes of them: the last step's weights, nobody has looked at."""
    trainer = make_trainer(method)
    with torch.no_grad():
        for value in trainer.model.backbone.get_submodule("levels.2.0.bn2").parameters():
            value.fill_(size)
    with pytest.raises(Diverged, match="the features of the trained model are not finite, or too large; lower the"):
        trainer._conclude()


class Clamped(ICaRL):
    """Clamps most of its gradients."""

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        return (Stage(clamp=1e-3),)


def test_a_clamp_bounds_every_value_of_a_gradient(make_trainer: Callable[..., Trainer]) -> None:
    plain, clamped = make_trainer(ICaRL()), make_trainer(Clamped())
    for trainer in (plain, clamped):
        next(trainer.run())
    pairs = [(p, c) for p, c in zip(plain.model.parameters(), clamped.model.parameters(), strict=True)]
    for free, bounded in pairs:
        assert free.grad is not None
        assert bounded.grad is not None
        assert torch.equal(bounded.grad, free.grad.clamp(-1e-3, 1e-3))
    assert max(float(free.grad.abs().max()) for free, _ in pairs if free.grad is not None) > 1e-2


class TestEvents:
    def test_their_order_and_the_learning_rates(self, make_trainer: Callable[..., Trainer]) -> None:
        events = list(make_trainer(TwoStages(), epochs=4).run())
        epochs = [event for event in events if isinstance(event, EpochDone)]
        assert [(event.stage, event.epoch, event.epochs) for event in epochs] == [
            *[("main", epoch, 4) for epoch in (1, 2, 3, 4)],
            *[("tuning", epoch, 2) for epoch in (1, 2)],
        ]
        assert [event.lr for event in epochs] == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.1, 0.1])
        assert [event.stage for event in events if isinstance(event, StageDone)] == ["main", "tuning"]
        last = [event for event in events if isinstance(event, Progress)][-1]
        assert last.done == last.of == 6 * 12

    def test_an_epochs_loss_is_the_weighted_sum_of_its_terms(self, make_trainer: Callable[..., Trainer]) -> None:
        trainer = make_trainer("lucir", logit_kd=0.5, margin=2.0)
        for event in trainer.run():
            if isinstance(event, EpochDone):
                assert set(event.terms) == {"ce", "feature_kd", "logit_kd", "margin"}
                total = sum(trainer.action.weight(name) * value for name, value in event.terms.items())
                assert event.loss == pytest.approx(total, rel=1e-5)


def test_an_axis_the_method_does_not_use_changes_nothing(make_trainer: Callable[..., Trainer]) -> None:
    one, other = make_trainer("icarl"), make_trainer("icarl")
    other.action = Action(**other.action, feature_kd=3.0)
    assert list(one.run()) == list(other.run())


def test_steps_warm_up_once_where_sizes_networks_and_losses_are_the_same(make_trainer: Callable[..., Trainer]) -> None:
    """A captured step is not warmed up again where one with the same kernels was; what tells them apart."""

    def kind(trainer: Trainer, size: int = 4) -> int:
        runner = trainer._begin_stage(trainer.stages[0])
        return CapturedRunner(runner.step, runner.feed, runner.bounds)._kind(size)

    assert kind(make_trainer()) == kind(make_trainer(lr=0.5))
    known = [kind(make_trainer(), size) for size in (4, 3)]
    for name, rate in ((None, 0.0), ("resnet32/lucir", 1.0), ("resnet32/lucir", 0.0), ("small/ordinary", 1.0)):
        trainer = make_trainer()
        trainer.action = Action(**trainer.action, backbone_rate=rate)
        if name is not None:  # another network before the same head
            trainer.model.backbone = build_backbone(name, "", 3, 0)
        known.append(kind(trainer))
    without = make_trainer()
    without.teacher = None
    known += [kind(trainer) for trainer in (without, make_trainer(TwoStages()), make_trainer(Exploding(1)))]
    assert len(set(known)) == len(known) == 9
