"""Algorithm 2: train one model with one action, stage by stage, so that it can stop and resume after every epoch."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn

from poise import draws, store
from poise.actions import Action
from poise.data import Feed, batch_bounds
from poise.errors import Diverged
from poise.methods import MODEL, PREVIOUS, Select, Stage, TrainedPhase
from poise.nets import FULL, Backbone, Model, own_draws, torch_generator
from poise.settings import ceiling
from poise.training.capture import CapturedRunner, StepCache
from poise.training.context import TOO_LARGE, PhaseContext
from poise.training.device import draws_numbers
from poise.training.events import EpochDone, Event, Progress, StageDone
from poise.training.optimiser import BALANCE, Optimiser
from poise.training.step import Runner, Step

BACKBONE, OLD_ROWS = "backbone", "old rows"  # parts of a network that may learn at rates of their own
AFTER = " after"


class Trainer:
    """The training of one phase: of its model, and of whatever other students its stages name.

    Every epoch's order, crops and flips come from the address (seed, phase, stage, epoch), so the state is only the
    weights, the momentum, and where it stands: after so many epochs of a stage.

    Args:
        model: the phase's own, grown.
        teacher: the last phase's.
        action: the weights of the terms, the learning rate and the other settings.
        epochs: the length of the phase, where its own is not meant.
        address: what tells its draws from those of other trainings of the phase.
        kept: a trial's cache: the local phase that it starts from, model, teacher and feed, and the steps that earlier
            trainings of these shapes captured.
    """

    def __init__(
        self,
        context: PhaseContext,
        model: Model,
        teacher: Model | None,
        action: Action,
        feed: Feed,
        *,
        epochs: int | None = None,
        address: tuple[int | str, ...] = (),
        kept: StepCache | None = None,
    ) -> None:
        self.context, self.teacher, self.action, self.feed, self.address = context, teacher, action, feed, address
        self.students: dict[str, Model] = {MODEL: model}
        self.schedule = context.schedule.with_epochs(epochs or action.epochs)
        self._kept = kept or StepCache(model, teacher, feed)
        self.method = method = context.method.configured_for(action)
        growth = context.growth
        balancing = action.balance == "finetune" and growth.old > 0
        self.stages = list[Stage]()
        for stage in (*method.stages(growth), *((method.balancing,) if balancing else ())):
            self.stages.append(self.schedule.apply_to(stage).without_missing(model))
        self.stage = self.epoch = 0
        self._part = 0.0  # of the present epoch that is done
        self._picks: Tensor | None = None  # the images that the present stage selected
        #: What trains the present stage, once it has begun, and what follows each of its epochs, by what is added to
        #: the names under which their tensors are stored.
        self._runners: dict[str, Runner] = {}

    @property
    def model(self) -> Model:
        """The phase's own model, which predicts."""
        return self.students[MODEL]

    @property
    def start(self) -> Model:
        """The model that the next phase starts from, once all stages were trained."""
        return self.students.get(self.method.starts_from or MODEL, self.model)

    @property
    def planned(self) -> int:
        """The number of images that all stages train on, about; a stage that selects some counts as if it saw all."""
        return sum(map(self._length, self.stages)) * len(self.feed)

    @property
    def done(self) -> int:
        """The number of these images that it was trained on so far, about."""
        return round((sum(map(self._length, self.stages[: self.stage])) + self.epoch + self._part) * len(self.feed))

    # Algorithm 2 ------------------------------------------------------------------------------------------------------

    def run(self) -> Generator[Event, None, None]:
        """Train from where it stands to the end of the last stage."""
        while self.stage < len(self.stages):
            stage = self.stages[self.stage]
            epochs, steps = self._length(stage), None
            while self.epoch < epochs:
                runner = self._runners.get("") or self._begin_stage(stage)
                if stage.prepare is not None and self.epoch == ceiling(stage.prepare_at * epochs):
                    address = (self.context.phase, stage.name, *self.address)
                    generator = torch_generator(self.context.seed, "renewed heads", *address)
                    stage.prepare(self.students[stage.student], generator)
                record: list[Tensor] = []  # loss and terms of the steps of this epoch, [steps, names] each
                rate = self.schedule.rate(stage, self.epoch, epochs, self.action.lr)
                runner.step.optimiser.set_rate(rate)
                self._train_only(stage)
                for values in steps or self._make_epoch(stage, runner, self.epoch):
                    record.append(values)
                    self._part += len(values) / len(runner.bounds)
                    detail = f"{stage.name} epoch {self.epoch + 1}/{epochs}"
                    yield Progress(self.context.phase, "training", self.done, self.planned, detail)
                if stage.after is not None:
                    after = self._runners[AFTER]
                    after.step.optimiser.set_rate(self.schedule.rate(stage.after, self.epoch, epochs, self.action.lr))
                    self._train_only(stage.after)
                    for _ in self._make_epoch(stage.after, after, self.epoch):
                        pass
                    self.students[stage.after.student].clamp_fusion()
                if self.epoch + 1 < epochs:  # drawn while the device is still at work on this one
                    steps = self._make_epoch(stage, runner, self.epoch + 1)
                means = self._mean_values(record, runner.step.names)
                self.epoch, self._part = self.epoch + 1, 0.0
                loss = means.pop("loss")
                yield EpochDone(self.context.phase, stage.name, self.epoch, epochs, rate, loss, means)
            self.stage, self.epoch = self.stage + 1, 0
            self._picks, self._runners = None, {}
            if self.stage == len(self.stages):
                self._conclude()
            yield StageDone(self.context.phase, stage.name)

    def _length(self, stage: Stage) -> int:
        """How many epochs of a stage are trained."""
        epochs = stage.epochs(self.schedule.epochs)
        if stage.name != BALANCE or self._kept.begun is None:
            return epochs
        whole = stage.epochs(self.context.schedule.with_epochs(self.action.epochs).epochs)
        return max(epochs, ceiling(self._kept.begun.balance_length * whole))

    def _make_epoch(self, stage: Stage, runner: Runner, epoch: int) -> Iterator[Tensor]:
        """Draw an epoch's choices; its steps are run as their losses and terms are asked for, a few at a time."""
        seed, address = self.context.seed, (self.context.phase, stage.name, epoch, *self.address)
        generator = draws.generator(seed, "epoch", *address)
        order = torch.from_numpy(generator.permutation(len(runner.feed)))
        augmentation = runner.feed.draw(self.context.preprocessing.augmentation, order, generator)
        return runner.epoch(order, augmentation, draws.key(seed, "noise", *address))

    def _conclude(self) -> None:
        """End the training: align rows where the action says so, and let the method fit its head."""
        context = self.context
        if self.action.balance == "align" and context.growth.old:
            self.model.head.align()

        @cache
        def features() -> tuple[Tensor, Tensor]:
            images, labels = self.feed.new_images()
            if not len(labels):  # in a trial of which all new images validate
                return torch.empty(0, self.model.head.width, dtype=FULL, device=labels.device), labels
            found = context.evaluator.extract(self.model, images).features
            if not bool(torch.isfinite(found).all()):  # the last step moved weights, which nobody has looked at since
                raise Diverged(TOO_LARGE)
            return found, labels

        generator = torch_generator(context.seed, "conclude", context.phase, *self.address)
        trained = TrainedPhase(context.growth, self.action, generator, features)
        try:
            self.method.fit_head(self.model, trained)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # finite numbers that are too large
            raise Diverged(TOO_LARGE) from error
        if not _is_finite(self.model):
            raise Diverged(TOO_LARGE)
        if context.backend.world.joined:  # what the first rank computed counts
            context.backend.world.copy_from_rank_0_(self.students.values())

    def _mean_values(self, record: list[Tensor], names: tuple[str, ...]) -> dict[str, float]:
        """The mean loss and terms of an epoch; raises `Diverged` at the first bad step."""
        healthy = _is_finite(self.students[self.stages[self.stage].student])
        read = torch.cat([*map(torch.flatten, record), healthy[None]]).double().cpu()  # one look at the device
        values = read[:-1].view(-1, len(names))
        bad = torch.nonzero(~torch.isfinite(values).all(dim=1)).flatten()
        if len(bad):
            step = int(bad[0])
            broken = [name for name, value in zip(names, values[step], strict=True) if not value.isfinite()]
            raise self._divergence_at(step, broken[-1])
        if not read[-1]:
            raise self._divergence_at(len(values) - 1)
        return {name: float(mean) for name, mean in zip(names, values.mean(dim=0), strict=True)}

    def _divergence_at(self, step: int, term: str | None = None) -> Diverged:
        stage = self.stages[min(self.stage, len(self.stages) - 1)]
        todo = "lower the learning rate and start again"
        if not (self.stage or self.epoch or step) and term not in (None, "loss"):  # nothing was trained yet
            todo = f"its term '{term}' is not finite from the start: correct it, or the images"
        return Diverged(
            f"the loss diverged in phase {self.context.phase}, {stage.name} epoch {self.epoch + 1}, step {step + 1} "
            f"(lr {self.action.lr:g}); {todo}"
        )

    # What trains a stage ----------------------------------------------------------------------------------------------

    @cached_property
    def captures(self) -> bool:
        """Whether steps are captured: on a GPU, unless the network draws random numbers."""
        backend = self.context.backend
        wanted = backend.device.type == "cuda" and backend.capture
        if not wanted or isinstance(self.model.backbone, Backbone):
            return wanted
        ends = torch.tensor([0, len(self.feed) - 1], device=self.feed.store.device)  # two, for batch statistics
        images = self.context.preprocessing.plain(self.feed.gather(ends).to(backend.device))
        with backend.autocast:
            return not draws_numbers(self.model, images.contiguous(memory_format=torch.channels_last))

    def _begin_stage(self, stage: Stage) -> Runner:
        """Make the students of the stage and what trains them."""
        for each in (stage, stage.after):
            if each is not None and each.student not in self.students:
                self._make_student(each.student)
        if stage.after is not None:  # before the stage's own, so that its parameters are trainable in the end
            self._runners[AFTER] = self._prepare_runner(stage.after, AFTER)
        self._runners[""] = self._prepare_runner(stage, "")
        if self.context.backend.world.joined:
            self.context.backend.world.copy_from_rank_0_(self.students.values())
        return self._runners[""]

    def _make_student(self, name: str) -> None:
        """A student of a later stage, made by the method; a module from an earlier training takes over its values."""
        models = {**self.students, PREVIOUS: self.context.model.copy()}
        inputs = self.context.growth_inputs(self.feed.images(), "student", name)
        with own_draws(torch_generator(self.context.seed, "layers", self.context.phase, name)):
            made = self.method.student(name, models, inputs).placed(self.context.backend.device)
        held = self._kept.students.setdefault(name, made)
        if held is not made:
            held.load_state_dict(made.state_dict())
        self.students[name] = held

    def _prepare_runner(self, stage: Stage, place: str) -> Runner:
        """Make the optimiser, images and step of a stage; steps that an earlier training captured are used again."""
        self._train_only(stage)
        context, student = self.context, self.students[stage.student]
        feed = self.feed if stage.select is None else self._select_images(stage.select, stage)
        teacher = self.teacher if stage.teacher == PREVIOUS else None
        if stage.teacher not in (None, PREVIOUS):
            teacher = self.students[stage.teacher].teacher(context.backend.dtype)
        parts: dict[str, Iterable[nn.Parameter]] = {}
        ratios: dict[str, float] = {}  # the learning rates of these parts as multiples of the others'
        if stage.trains == "all" and self.action.backbone_rate != 1:
            parts[BACKBONE], ratios[BACKBONE] = student.backbone.parameters(), self.action.backbone_rate
        if stage.trains == "all" and self.captures and context.growth.old:
            parts[OLD_ROWS] = student.head.old_values()
            ratios[OLD_ROWS] = float(context.trains_old_rows(self.action))
        runner = self._kept.runners.get((self.stage, place))
        if runner is not None and len(feed) == len(runner.feed):
            runner.restart(self.action, feed, teacher)
        else:
            decay, device = stage.weight_decay, context.backend.device
            optimiser = Optimiser(
                student.parameters(), self.schedule, self.action.lr, device, weight_decay=decay, parts=parts
            )
            step = Step(context, optimiser, student, teacher, self.action, feed.labels, stage)
            bounds = batch_bounds(len(feed), self.schedule.batch)
            runner = (CapturedRunner if self.captures else Runner)(step, feed, bounds)
            self._kept.runners[self.stage, place] = runner
        runner.step.optimiser.ratios = ratios
        return runner

    def _train_only(self, stage: Stage) -> None:
        """Set what of its student a stage trains, and which statistics move.

        In a captured step old rows are always trained, where they are frozen with a rate of 0.
        """
        old_rows = self.captures or stage.trains != "all" or self.context.trains_old_rows(self.action)
        learns = self.action.backbone_rate > 0  # if not at all, its statistics stay as they are, too
        student = self.students[stage.student].train()
        student.train_only(stage.trains, old_rows=old_rows, backbone=learns)
        if not (stage.moves_statistics and learns):
            student.backbone.eval()

    def _select_images(self, select: Select, stage: Stage) -> Feed:
        """The images that a stage is trained on: chosen once, when it begins."""
        if self._picks is None:

            def features() -> Tensor:
                return self.context.evaluator.extract(self.model, self.feed.images()).features

            address = (self.context.phase, stage.name, *self.address)
            generator = draws.generator(self.context.seed, "balanced", *address)
            picks = self.context.backend.broadcast(select(self.feed.labels, features, generator).cpu())
            # a batch of two, for a single value has no batch statistics
            self._picks = (picks.repeat(2) if len(picks) == 1 else picks).to(self.feed.labels.device)
        return self.feed.select(self._picks)

    # State ------------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A copy of what `restore` needs, after an epoch or a stage; refuses to save a diverged model.

        Before the first epoch that is nothing: the model grows again as it did.
        """
        assert not self._part, "a training is saved after an epoch, not in its middle"
        position = {"stage": self.stage, "epoch": self.epoch, "students": sorted(self.students)}
        tensors: dict[str, Tensor] = {}
        if not (self.stage or self.epoch):
            return tensors, position
        for student, model in self.students.items():
            if not _is_finite(model):
                raise self._divergence_at(0)
            tensors |= {f"student.{student}.{name}": value for name, value in model.changing().items()}
        if self.epoch:
            tensors |= dict(self._held())
            if self._picks is not None:
                tensors["picks"] = self._picks
        return {name: value.clone() for name, value in tensors.items()}, position

    def restore(self, tensors: Mapping[str, Tensor], position: Mapping[str, Any]) -> None:
        """Return to where `state` was called; the model must have grown already."""
        self.stage, self.epoch = position["stage"], position["epoch"]
        if not (self.stage or self.epoch):
            return
        for student in sorted(position["students"]):
            if student not in self.students:
                self._make_student(student)
            self.students[student].load_changing(store.under(f"student.{student}", tensors))
        if not self.epoch:
            return
        if "picks" in tensors:
            self._picks = tensors["picks"].to(self.feed.labels.device)
        self._begin_stage(self.stages[self.stage])
        for name, value in self._held():
            value.copy_(tensors[name])

    def _held(self) -> Iterator[tuple[str, Tensor]]:
        """What a stage holds besides its students' weights, by the names under which it is saved: momentum, and a
        teacher that was made of a student when the stage began, for that one may have been trained since.
        """
        for place, runner in self._runners.items():
            step = runner.step
            for kind, name, value in step.optimiser.named(step.model):
                yield f"{kind}{place}.{name}", value
            if step.teacher is not None and step.teacher is not self.teacher:
                for name, value in step.teacher.state_dict().items():
                    yield f"teacher{place}.{name}", value


def _is_finite(model: Model) -> Tensor:
    """Whether all weights and statistics are numbers, where the model is: a look at it waits for the device."""
    state = [value for value in model.state_dict().values() if value.is_floating_point() and value.numel()]
    lengths = torch.stack([length.float() for length in torch._foreach_norm(state, torch.inf)])
    return torch.isfinite(lengths).all()
