from __future__ import annotations

from poise.methods import Growth, Method, Stage, make_method
from poise.methods.der import renew_heads
from poise.runs import make_recipe
from poise.training.optimiser import Schedule

GROWTH = Growth(50, 10)


def rates(schedule: Schedule, stage: Stage, start: float) -> dict[int, float]:
    """By the epoch from which they count, the learning rates of a stage, rounded."""
    stage = schedule.apply_to(stage)
    epochs, found = stage.epochs(schedule.epochs), dict[int, float]()
    for epoch in range(epochs):
        rate = round(schedule.rate(stage, epoch, epochs, start), 8)
        if not found or rate != found[max(found)]:
            found[epoch] = rate
    return found


class TestMilestones:
    def test_steps_at_thirds_as_on_imagenet(self) -> None:
        schedule = Schedule(epochs=90, milestones=(0.3333, 0.6666))
        assert rates(schedule, Stage(), 0.1) == {0: 0.1, 30: 0.01, 60: 0.001}
        assert rates(schedule.with_epochs(9), Stage(), 0.1) == {0: 0.1, 3: 0.01, 6: 0.001}  # a trial

    def test_what_is_not_said_is_the_methods_own(self) -> None:
        assert rates(Schedule(), Stage(), 0.1) == {0: 0.1, 80: 0.01, 120: 0.001}
        assert Schedule().apply_to(Method.balancing) == Method.balancing

    def test_they_replace_a_cosine(self) -> None:
        (stage,) = make_method("podnet").stages(GROWTH)
        assert len(rates(Schedule(), stage, 0.1)) == 160
        assert len(rates(Schedule(milestones=(0.5,)), stage, 0.1)) == 2

    def test_stages_but_the_main_one_keep_theirs(self) -> None:
        stages = make_method("foster").stages(GROWTH)
        shaped = [Schedule(milestones=(0.5,)).apply_to(stage) for stage in stages]
        assert [stage.cosine for stage in shaped] == [False, True]

    def test_ders_on_imagenet_begin_to_count_after_the_warmup(self) -> None:
        (stage,) = make_method("der", {"warmup": 20 / 220}).stages(GROWTH)
        schedule = Schedule(epochs=220, milestones=(0.3636, 0.6363, 0.8181, 0.9090))
        found = rates(schedule, stage, 0.1)
        assert [epoch for epoch in found if epoch >= 19] == [19, 80, 140, 180, 200]
        assert (found[0], found[19], found[200]) == (0.005, 0.1, 0.00001)
        assert (stage.prepare, stage.prepare_at) == (renew_heads, 20 / 220)


class TestBalancing:
    def test_its_length_and_rate_are_values_of_the_schedule(self) -> None:
        schedule = Schedule(epochs=90, balance_share=0.2222, balance_lr=0.01)
        stage = schedule.apply_to(make_method("podnet").balancing)
        assert (stage.epochs(90), stage.lr, stage.trains) == (20, 0.01, "rows")

    def test_a_training_uses_them(self) -> None:
        keys = {"method": "podnet", "epochs": 90, "balance_share": 0.2222, "balance_lr": 0.01}
        settings = make_recipe({**keys, "policy": "fixed"}).settings
        assert settings.schedule.apply_to(settings.made_method.balancing).epochs(settings.schedule.epochs) == 20
