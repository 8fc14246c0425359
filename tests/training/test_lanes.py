"""Lanes: how many there are, and running out of memory on the way, never changes a number."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from poise.actions import Action
from poise.data import Augmentation, ImageSet, Memory, Preprocessing
from poise.errors import OutOfMemory
from poise.methods import AANets, Growth, ICaRL, Lucir, Method, PODNet, make_method
from poise.nets import Branches, Model, Output, build_backbone, build_head, torch_generator
from poise.policies import Trial
from poise.settings import TrialSettings
from poise.training import capture
from poise.training import trainer as trainer_module
from poise.training.context import LocalPhase, PhaseContext
from poise.training.device import Backend, make_backend
from poise.training.lanes import Lane, Lanes, Work
from poise.training.optimiser import Schedule
from poise.training.step import Runner
from poise.training.trainer import Trainer
from poise.tuning.environments import TrialInputs, draw_environments
from poise.tuning.results import HitsPerClass, TrialResult
from poise.tuning.trials import Attempt, Trials, _TrialProgress

Piece = Callable[[Lane], Work[str]]
GROWTH = Growth(old=2, new=4)
OWN = Lucir.default_action
SHORT = 2
Wanted = list[Attempt]


class Hungry(Lucir):
    """Runs out of memory in the steps of these numbers, counted over all trials and tries."""

    def __init__(self, *steps: int) -> None:
        super().__init__()
        self.steps, self.taken = steps, 0

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        self.taken += 1
        if self.taken in self.steps:
            raise torch.cuda.OutOfMemoryError("injected")
        return super().terms(student, teacher, labels, growth)


def images_of(labels: list[int], count: int, shape: tuple[int, int, int], first: int) -> ImageSet:
    """Noise, on average brighter for a greater label."""
    generator = torch.Generator().manual_seed(first)
    all_labels = torch.tensor([label for label in labels for _ in range(count)])
    noise = torch.randint(0, 120, (len(all_labels), *shape), generator=generator)
    pixels = (noise + 25 * all_labels[:, None, None, None]).to(torch.uint8)
    return ImageSet(pixels, all_labels, torch.arange(first, first + len(all_labels)))


def trials_on(
    backend: Backend,
    lanes: int,
    method: Method | None = None,
    *,
    shape: tuple[int, int, int] = (1, 8, 8),
    **settings: Any,
) -> Trials:
    """The trials of a second phase on so many lanes; every weight and statistic is witnessed."""
    method = method or Lucir()
    with backend.active():
        model = Model(build_backbone("small", method.variant, shape[0], 0), build_head(method.head, 64))
        model.head.grow(GROWTH.old, torch_generator(0, "head", 0))
        model = model.placed(backend.device).eval()
    preprocessing = Preprocessing((0.5,) * shape[0], (0.25,) * shape[0], Augmentation(pad=1))
    schedule = Schedule(epochs=20, batch=24)
    context = PhaseContext(model, method, GROWTH, preprocessing, schedule, backend, seed=0, phase=1)
    kept, new = images_of([0, 1], 5, shape, 0), images_of([2, 3, 4, 5], 12, shape, 100)
    none = kept.select(torch.empty(0, dtype=torch.long))
    sizes: dict[str, Any] = {"arrived": len(new), "planned": schedule.epochs}
    inputs = TrialInputs(context, Memory(kept, none), new, none, 4, TrialSettings(**settings), **sizes)
    trials = Seen(inputs)
    trials._lanes = Lanes(backend, lanes)
    trials._executor = trials._lanes
    return trials


class Seen(Trials):
    """Looks into the models of a look-ahead too, which have no witness."""

    def _validate(self, at: _TrialProgress, trainer: Trainer) -> tuple[HitsPerClass, float]:
        hits, _ = super()._validate(at, trainer)
        values = trainer.model.state_dict().values()
        sums = [(place + 1) * value.double().abs().sum() for place, value in enumerate(values)]
        return hits, torch.stack(sums).sum().item()


def numbered(actions: Sequence[Action], epochs: int = SHORT) -> Wanted:
    return [Attempt(Trial(arm, arm, epochs), action, "fc") for arm, action in enumerate(actions)]


RATES = [OWN.replace(lr=lr, feature_kd=weight) for lr in (0.1, 0.02) for weight in (0.1, 1, 4)]
MIXED = [
    OWN.replace(old_rows=old_rows, balance=balance, lr=lr)
    for old_rows in ("frozen", "trained")
    for balance in ("none", "finetune")
    for lr in (0.1, 0.02)
]


PODS = [
    PODNet.default_action.replace(**{axis: weight})
    for axis in ("logit_kd", "feature_kd", "pod")
    for weight in (0.1, 10)
]


FREEZING = {
    method: [
        make_method(method).default_action.replace(lr=lr, auxiliary=weight) for lr in (0.1, 0.02) for weight in (0.1, 1)
    ]
    for method in ("der", "foster")
}


class Pieces:
    """A bench whose attempts are functions, as are the results of those that fit nowhere, if they may fail."""

    def __init__(self, *, may_fail: bool = False) -> None:
        self.may_fail = may_fail

    def work(self, attempt: Piece, lane: Lane) -> Work[str]:
        return attempt(lane)

    def waits(self, attempt: Piece) -> None:
        """Nothing is said."""

    def failed(self, attempt: Piece, error: Exception) -> str:
        if self.may_fail:
            return str(error)
        raise error


def told(lanes: Lanes, pieces: Sequence[Piece], **may: bool) -> list[str]:
    """The results of all rounds of turns."""
    return [result for results in lanes.run(Pieces(**may), pieces) for result in results]


class TestTurns:
    def pieces(self, steps: dict[str, int], log: list[str]) -> list[Piece]:
        def work(name: str, lane: Lane) -> Work[str]:
            self.used.setdefault(id(lane), []).append(name)
            for _ in range(steps[name]):
                log.append(name)
                yield None
            return name

        self.used: dict[int, list[str]] = {}
        return [partial(work, name) for name in steps]

    def test_results_come_in_order_whatever_ends_first(self, cpu: Backend) -> None:
        log: list[str] = []
        work = self.pieces({"a": 3, "b": 0, "c": 1}, log)
        assert told(Lanes(cpu, 4), work) == ["a", "b", "c"]
        assert log == ["a", "c", "a", "a"]

    def test_a_piece_that_waits_starts_on_the_lane_that_is_free_first(self, cpu: Backend) -> None:
        log: list[str] = []
        work = self.pieces({"a": 4, "b": 1, "c": 1, "d": 1}, log)
        assert told(Lanes(cpu, 2), work) == ["a", "b", "c", "d"]
        assert log == ["a", "b", "a", "a", "c", "a", "d"]
        assert list(self.used.values()) == [["a"], ["b", "c", "d"]]

    def test_after_every_round_of_turns_others_may_have_theirs(self, cpu: Backend) -> None:
        going = Lanes(cpu, 2).run(Pieces(), self.pieces({"a": 2, "b": 1, "c": 1}, []))
        assert list(going) == [[], [], ["a", "b"], ["c"]]

    @pytest.mark.parametrize(
        ("pieces", "given", "expected"), [(1, None, 8), (2, None, 4), (3, None, 2), (9, None, 1), (2, 2, 2)]
    )
    def test_work_that_shares_the_device_has_its_part_of_the_lanes(
        self, pieces: int, given: int | None, expected: int, cpu: Backend
    ) -> None:
        found = list[int]()

        def work(lane: Lane) -> Work[str]:
            inner = Lanes(cpu, given)
            if given is None:
                inner.most = 8  # as on a GPU
            yield None
            found.append(len(inner))
            return ""

        told(Lanes(cpu, pieces), [work] * pieces)
        assert found == [expected] * pieces


class Machine:
    """A memory that is too small for some jobs as long as others are there: `most` of them fit."""

    def __init__(self, most: int, error: type[Exception] = torch.cuda.OutOfMemoryError) -> None:
        self.most, self.error = most, error
        self.there: set[str] = set()
        self.log: list[str] = []

    def job(self, name: str, steps: int) -> Piece:
        """Takes memory in its second step, so that others have worked when it fails."""

        def work(lane: Lane) -> Work[str]:
            self.log.append(f"{name} starts")
            try:
                for step in range(steps):
                    if step == 1:
                        self.there.add(name)
                        if len(self.there) > self.most:
                            raise self.error("injected")
                    self.log.append(name)
                    yield None
                return name
            finally:
                self.there.discard(name)

        return work

    def jobs(self, **steps: int) -> list[Piece]:
        return [self.job(name, count) for name, count in steps.items()]

    def starts(self, name: str) -> int:
        return self.log.count(f"{name} starts")


class TestOutOfMemory:
    @pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError, OutOfMemory])
    def test_the_job_that_fails_waits_and_starts_again_and_the_others_continue(
        self, error: type[Exception], cpu: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        machine, lanes = Machine(2, error), Lanes(cpu, 4)
        assert told(lanes, machine.jobs(a=4, b=4, c=4, d=0)) == ["a", "b", "c", "d"]
        assert [machine.starts(name) for name in "abcd"] == [1, 1, 2, 1]
        assert [machine.log.count(name) for name in "abc"] == [4, 4, 5]  # what c had done is done again
        again = len(machine.log) - 1 - machine.log[::-1].index("c starts")
        assert "a" not in machine.log[again:]  # it waited for one of the others to end
        assert (len(lanes), len(lanes._lanes)) == (2, 2)
        assert "out of memory on cpu: at most 2 at a time from now on" in caplog.text

    @pytest.mark.parametrize(("count", "starts"), [(1, [1, 0, 0]), (3, [1, 1, 1])])
    def test_one_that_finds_none_although_it_is_alone_raises(self, count: int, starts: list[int], cpu: Backend) -> None:
        machine, lanes = Machine(0), Lanes(cpu, count)
        with pytest.raises(torch.cuda.OutOfMemoryError, match="injected"):
            told(lanes, machine.jobs(a=4, b=4, c=4))
        assert [machine.starts(name) for name in "abc"] == starts
        assert (len(lanes), len(lanes._lanes)) == (1, 1)

    def test_where_a_result_can_be_made_of_it_the_others_still_run(self, cpu: Backend) -> None:
        machine, lanes = Machine(1), Lanes(cpu, 1)
        large = [*machine.jobs(a=3), Machine(0).job("b", 3), *machine.jobs(c=3)]
        assert told(lanes, large, may_fail=True) == ["a", "injected", "c"]

    def test_a_job_that_may_not_start_is_left(self, cpu: Backend) -> None:
        machine, admitted = Machine(9), iter([True, True, False])
        lanes = Lanes(cpu, 1, admits=lambda: next(admitted, False))
        assert told(lanes, machine.jobs(a=1, b=1)) == ["a"]
        assert machine.starts("b") == 0


@pytest.fixture(scope="module")
def alone() -> list[TrialResult]:
    """What comes of these actions on one lane."""
    return trials_on(make_backend("cpu", "fp32", False), 1).run_all(numbered(RATES))


class TestTrials:
    @pytest.mark.parametrize("lanes", [2, 4, 8])
    def test_any_number_of_lanes_gives_the_same_results_in_order(
        self, cpu: Backend, lanes: int, alone: list[TrialResult]
    ) -> None:
        assert trials_on(cpu, lanes).run_all(numbered(RATES)) == alone

    @pytest.mark.parametrize(
        ("steps", "left"), [((1,), 2), ((5,), 2), ((16,), 2), ((5, 12), 2)], ids=["first", "early", "late", "twice"]
    )
    def test_out_of_memory_leads_to_fewer_lanes_and_the_same_results(
        self,
        cpu: Backend,
        steps: tuple[int, ...],
        left: int,
        alone: list[TrialResult],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        lanes = trials_on(cpu, 4, Hungry(*steps))
        assert lanes.run_all(numbered(RATES)) == alone
        assert len(lanes._lanes) == left
        assert f"{left} at a time from now on" in caplog.text

    @pytest.mark.parametrize("settings", [{}, {"horizon": 1}, {"environment": "both"}], ids=str)
    def test_out_of_memory_between_rungs(self, cpu: Backend, settings: dict[str, Any]) -> None:
        """Some trials of the wave had ended, one had diverged, and some go on from where an earlier one stopped."""
        actions = [RATES[0], OWN.replace(lr=1e30), MIXED[2], RATES[4]]
        first = [Attempt(Trial(arm, arm, 1), action, "ncm") for arm, action in enumerate(actions)]
        then = [Attempt(Trial(4 + arm, arm, SHORT), actions[arm], "ncm") for arm in (3, 0, 2)]
        calm = trials_on(cpu, 1, **settings)
        expected = [calm.run_all(wanted) for wanted in (first, then)]
        assert [result.outcome.diverged for result in expected[0]] == [False, True, False, False]
        method = Hungry()
        trials = trials_on(cpu, 4, method, **settings)
        method.steps = (8,)
        found = [trials.run_all(first)]
        method.steps = (method.taken + 7,)
        found.append(trials.run_all(then))
        assert found == expected
        assert 1 <= len(trials._lanes) <= 2

    @pytest.mark.parametrize(("method", "actions"), [(Lucir(), MIXED), (PODNet(), PODS)], ids=["mixed", "weights"])
    def test_actions_of_a_wave_may_differ(self, method: Method, actions: Sequence[Action], cpu: Backend) -> None:
        """In old rows and balancing, or in three weights of distillation."""
        alone = trials_on(cpu, 1, method).run_all(numbered(actions))
        assert trials_on(cpu, 3, method).run_all(numbered(actions)) == alone
        assert len({result.witnessed for result in alone}) == len(actions)

    @pytest.mark.parametrize("balance", ["finetune", "align"])
    def test_only_the_end_of_a_trial_is_balanced_and_rungs_lead_there(self, balance: str, cpu: Backend) -> None:
        own, rungs = ICaRL.default_action, [Trial(0, 0, 1), Trial(1, 0, 2), Trial(2, 0, 4)]
        going, plain = trials_on(cpu, 1, ICaRL(), length=0.2), trials_on(cpu, 1, ICaRL(), length=0.2)
        found = [going.run_all([Attempt(trial, own.replace(balance=balance), "fc")])[0] for trial in rungs]
        wanted = [plain.run_all([Attempt(trial, own, "fc")])[0] for trial in rungs]
        whole = trials_on(cpu, 1, ICaRL(), length=0.2).run_all([Attempt(rungs[-1], own.replace(balance=balance), "fc")])
        assert whole == found[-1:]
        alike = [one.witnessed == other.witnessed for one, other in zip(found, wanted, strict=True)]
        assert alike == [True, True, False]

    @pytest.mark.parametrize("method", FREEZING)
    def test_a_network_that_a_trial_froze_is_not_that_of_the_next_one(
        self, method: str, cpu: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A lane that keeps its trainings, as it does on a GPU; the second pseudo phase freezes what the first left."""
        actions, made = FREEZING[method], make_method(method)
        alone = trials_on(cpu, 1, made, environment="both").run_all(numbered(actions))
        assert len({result.witnessed for result in alone}) == len(actions)
        monkeypatch.setattr(Trainer, "captures", True)
        monkeypatch.setattr(trainer_module, "CapturedRunner", Runner)
        assert trials_on(cpu, 1, made, environment="both").run_all(numbered(actions)) == alone

    def test_results_before_the_shortage_are_not_lost(self, cpu: Backend, alone: list[TrialResult]) -> None:
        runs = trials_on(cpu, 2, Hungry(30)).run(numbered(RATES))
        going = (result for results in runs for result in results)
        assert [next(going) for _ in range(2)] == alone[:2]
        assert list(going) == alone[2:]


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.fixture
    def gpu(self, monkeypatch: pytest.MonkeyPatch) -> Backend:
        monkeypatch.setattr(capture, "_WARM", capture.Warm())  # steps are counted below, those that warm up too
        return make_backend("cuda", "fp32", deterministic=True)

    def trials(self, backend: Backend, lanes: int, method: Method | None = None, **settings: Any) -> Trials:
        return trials_on(backend, lanes, method, shape=(3, 32, 32), **settings)

    @pytest.mark.parametrize(
        ("method", "settings", "actions"),
        [
            *((Lucir(), settings, [*MIXED, *RATES]) for settings in ({}, {"horizon": 1}, {"environment": "both"})),
            *((method, {}, PODS) for method in (PODNet(), AANets(), AANets(alpha="learned"))),
        ],
        ids=["local", "horizon", "both", "podnet", "aanets", "learned"],
    )
    def test_one_four_and_interrupted_lanes_agree_to_the_bit(
        self, gpu: Backend, method: Method, settings: dict[str, Any], actions: list[Action]
    ) -> None:
        wanted = numbered(actions)
        alone = self.trials(gpu, 1, method, **settings).run_all(wanted)
        assert self.trials(gpu, 4, method, **settings).run_all(wanted) == alone
        eager = replace(gpu, capture=False)
        assert self.trials(eager, 1, method, **settings).run_all(wanted[:3]) == alone[:3]

    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    @pytest.mark.parametrize("environment", ["local", "both"])
    @pytest.mark.parametrize("method", FREEZING)
    def test_networks_that_trials_froze_agree_to_the_bit(
        self, method: str, gpu: Backend, environment: str, precision: str
    ) -> None:
        """In two rungs: a trial goes on after others have used its lane."""
        gpu, actions = replace(gpu, precision=precision), FREEZING[method]
        halves = [Attempt(Trial(arm, arm, 1), action, "ncm") for arm, action in enumerate(actions)]
        wanted = [Attempt(Trial(4 + arm, arm, SHORT), actions[arm], "ncm") for arm in (3, 0, 2)]
        found = []
        for backend, lanes in ((gpu, 1), (gpu, 4), (replace(gpu, capture=False), 1)):
            trials = self.trials(backend, lanes, make_method(method), environment=environment)
            found.append([*trials.run_all(halves), *trials.run_all(wanted)])
        assert found[1] == found[0]
        assert found[2] == found[0]

    def test_teachers_of_one_and_of_two_branches_take_turns(self, gpu: Backend) -> None:
        """Trainings on one lane may have the same counts and the same network, but not the same teacher."""
        with gpu.active():
            begun, lane = self.first(gpu, AANets()), Lane(gpu)
            double, single = begun.model, copy.deepcopy(begun.model)
            assert isinstance(single.backbone, Branches)
            single.backbone = single.backbone.plastic
            growth = Growth(sum(begun.context.growth), 0)
            again = LocalPhase.of(replace(begun.context, growth=growth, model=double.eval()), begun.kept, begun.new)
            teachers = [model.eval().teacher(gpu.dtype) for model in (single, double, single)]
            found = [self.trained(lane, replace(again, teacher=teacher), PODS[0], 0) for teacher in teachers]
        assert len(lane._kept) == 2
        for name, value in found[0].items():
            assert torch.equal(found[2][name], value), name

    @pytest.mark.parametrize("step", [2, 3, 4, 7], ids=["warming up", "capturing", "capturing the tail", "later"])
    def test_out_of_memory_changes_no_result(self, gpu: Backend, step: int) -> None:
        """46 images are a batch of 24 and one of 22: two steps warm up, two are captured, then comes the next lane."""
        wanted = numbered(MIXED)
        alone = self.trials(gpu, 1).run_all(wanted)
        trials = self.trials(gpu, 4, Hungry(step))
        assert trials.run_all(wanted) == alone
        assert 1 <= len(trials._lanes) < 4

    def test_rungs_go_on_in_other_lanes(self, gpu: Backend) -> None:
        first = numbered(MIXED, epochs=1)
        order = (7, 2, 5, 0, 3)
        then = [Attempt(Trial(100 + arm, arm, SHORT), MIXED[arm], "fc") for arm in order]
        alone, several = self.trials(gpu, 1), self.trials(gpu, 4)
        for wanted in (first, then):
            assert several.run_all(wanted) == alone.run_all(wanted)
        scratch = self.trials(gpu, 2)
        assert scratch.run_all(then) == self.trials(gpu, 3).run_all(then)

    @pytest.mark.parametrize("balance", ["none", "finetune"])
    @pytest.mark.parametrize("lr", [0.1, 1e30], ids=["after a good one", "after a diverged one"])
    def test_a_lanes_second_training_equals_a_fresh_one_exactly(self, gpu: Backend, balance: str, lr: float) -> None:
        before = OWN.replace(balance=balance, lr=lr, feature_kd=4, logit_kd=2)
        after = OWN.replace(balance=balance, lr=0.05, logit_kd=0.5)
        with gpu.active():
            begun = [self.first(gpu, number=number) for number in (0, 1)]
            used, fresh = Lane(gpu), Lane(gpu)
            self.trained(used, begun[0], before, 0)
            one, other = (self.trained(lane, begun[1], after, 1) for lane in (used, fresh))
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert torch.equal(value, other[name]), name

    def first(self, backend: Backend, method: Method | None = None, number: int = 0) -> LocalPhase:
        """What every trial of that round starts with."""
        inputs = self.trials(backend, 1, method).inputs
        return draw_environments(inputs, number)[0].begin(inputs)

    def trained(self, lane: Lane, begun: LocalPhase, action: Action, number: int) -> dict[str, Tensor]:
        trainer: Trainer = lane.trainer(begun, action, 3, ("round", number))
        assert trainer.captures
        try:
            for _ in trainer.run():
                pass
        except Exception:
            assert action.lr > 1
        found = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        lane.backend.synchronise()  # who compares does so on another stream
        return found
