"""Algorithm 2: train one model with one action, stage by stage, so that it can stop and resume anywhere."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from poise import draws, store
from poise.actions import Action
from poise.data import Feed, batch_bounds
from poise.errors import Diverged
from poise.methods import MODEL, PREVIOUS, Finished, Stage, TrainedPhase
from poise.nets import FULL, Model, own_draws, torch_generator
from poise.schema import fitting_together
from poise.settings import ceiling
from poise.training.balanced import drawn_picks, herded_picks
from poise.training.capture import CapturedRunner
from poise.training.engine import Engine
from poise.training.events import EpochDone, Event, Progress, StageDone
from poise.training.optimiser import make_optimiser, named_tensors, set_rate
from poise.training.restoring import check_place, check_stage, checked_picks, load_kept, load_values
from poise.training.schedule import BALANCE
from poise.training.situation import LocalPhase, Situation
from poise.training.step import EagerRunner, Step, drawn_in_training

BACKBONE, OLD_ROWS = "backbone", "old rows"  # parts of a network that may learn at rates of their own


class Trainer:
    """The training of one phase: of its model, and of whatever other students its stages name.

    Every epoch's order, crops and flips come from the address (seed, phase, stage, epoch), so the state is
    only the weights, the momentum, and where it stands: (stage, epoch, step). `address` tells its draws from those of
    other trainings of the same phase, and `epochs` its length where the phase's own is not meant. `begun` is the local
    phase that it trains, which other trainings start from, too.
    """

    def __init__(
        self,
        situation: Situation,
        model: Model,
        teacher: Model | None,
        action: Action,
        feed: Feed,
        *,
        epochs: int | None = None,
        address: tuple[int | str, ...] = (),
        begun: LocalPhase | None = None,
    ) -> None:
        self.situation, self.teacher, self.action, self.feed, self.address = situation, teacher, action, feed, address
        self._begun = begun
        self.students: dict[str, Model] = {MODEL: model}
        self.schedule = situation.schedule.lasting(epochs or action.epochs)
        method, growth = situation.method, situation.growth
        balancing = action.balance == "finetune" and growth.old > 0
        stages = (*method.stages(growth), *((method.balancing,) if balancing else ()))
        self.stages = tuple(self.schedule.apply_to(stage).without_missing(model) for stage in stages)
        self.stage = self.epoch = self.step = 0
        self.record: list[Tensor] = []  # loss and terms of the steps of this epoch, [steps, names] each
        self._picks: Tensor | None = None  # the images of a balanced stage
        self._made: set[str] = set()  # the students besides the phase's own that were made in this training
        self._restored_names: tuple[str, ...] = ()
        self._engines: dict[int, Engine] = {}
        self._afters: dict[int, Engine] = {}  # what follows each epoch, for stages that have it
        self._enter()

    @property
    def model(self) -> Model:
        """The phase's own model."""
        return self.students[MODEL]

    @property
    def predictor(self) -> Model:
        """The model to look at: the one that is trained, and after the last stage the one that predicts."""
        return self.model if self.stage < len(self.stages) else self.finish().predicts

    def finish(self) -> Finished:
        """What the phase ends with, when all stages were trained."""
        return self.situation.method.finish(self.students)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Where the batches of this stage start and stop."""
        return self._engine.bounds

    @property
    def captures(self) -> bool:
        """Whether steps are captured: on a GPU, where the network draws nothing."""
        backend = self.situation.backend
        return backend.device.type == "cuda" and backend.capture and not self._drawn_from

    @cached_property
    def _drawn_from(self) -> frozenset[str]:
        """The global generators that networks of one's own draw from: a captured step cannot follow their addresses."""
        return drawn_in_training(self.situation, self.model, self.teacher, self.feed)

    def run(self) -> Generator[Event, None, None]:
        """Train from where it stands to the end of the last stage."""
        while self.stage < len(self.stages):
            stage = self.stages[self.stage]
            epochs = self._length(stage)
            while self.epoch < epochs:
                yield from self._epoch(stage, epochs)
            self.stage, self.epoch, self._picks = self.stage + 1, 0, None
            if self.stage < len(self.stages):
                self._enter()
            else:
                self._conclude()
            yield StageDone(self.situation.phase, stage.name)

    @property
    def planned(self) -> int:
        """About how many images all stages train on; a balanced one counts as if it saw all of them."""
        return sum(map(self._length, self.stages)) * len(self.feed)

    @property
    def done(self) -> int:
        """About how many of these images it was trained on so far."""
        epochs = sum(map(self._length, self.stages[: self.stage])) + self.epoch
        part = self.bounds[self.step - 1][1] / self.bounds[-1][1] if self.step else 0.0
        return round((epochs + part) * len(self.feed))

    def _length(self, stage: Stage) -> int:
        """How many epochs of a stage are trained."""
        epochs = stage.epochs(self.schedule.epochs)
        if self._begun is None or stage.name != BALANCE:
            return epochs
        whole = stage.epochs(self.situation.schedule.lasting(self.action.epochs).epochs)
        return max(epochs, ceiling(self._begun.balance_length * whole))

    def _conclude(self) -> None:
        """What follows the last stage: rows are aligned where the action says so, and the method computes its part."""
        situation = self.situation
        if self.action.balance == "align" and situation.growth.old:
            self.model.head.align()

        @cache
        def features() -> tuple[Tensor, Tensor]:
            images, labels = self.feed.new_images()
            if not len(labels):  # in a trial of which all new images validate
                return torch.empty(0, self.model.head.width, dtype=FULL, device=labels.device), labels
            return situation.evaluator.extract(self.model, images).features, labels

        generator = torch_generator(situation.seed, "conclude", situation.phase, *self.address)
        situation.method.fit_head(self.model, TrainedPhase(situation.growth, self.action, generator, features))
        self._equalise()

    def restart(self, begun: LocalPhase, action: Action, epochs: int | None, address: tuple[int | str, ...]) -> None:
        """Train another local phase of the same shapes, with another action that has the same kind of stages.

        What was captured is used again, so the actions may differ in numbers that a step reads and in nothing else
        (`Action.step_key`).
        """
        self.situation = replace(begun.situation, backend=self.situation.backend)
        self.feed.load(begun.feed)
        if self.teacher is not None and begun.teacher is not None:
            self.teacher.load_state_dict(begun.teacher.state_dict())
        self.model.load_changing(begun.model.changing())
        if begun.follows:  # what others left is frozen in it, and not the same for all of them
            self.model.load_fresh(begun.model)
        self.action, self.address, self._begun = action, address, begun
        self.schedule = self.situation.schedule.lasting(epochs or action.epochs)
        self.stage = self.epoch = self.step = 0
        self.record, self._picks, self._restored_names = [], None, ()
        self._made.clear()
        self._enter()

    @property
    def _engine(self) -> Engine:
        return self._engines.get(self.stage) or self._engines[max(self._engines)]  # the last one, when all is done

    def _enter(self) -> None:
        """Prepare the stage; its `after` first, so that the stage's own parameters are trainable in the end."""
        stage = self.stages[self.stage]
        if not stage.share:  # nothing is trained in it
            return
        for each in (stage, stage.after):
            if each is not None and each.student not in (MODEL, *self._made):
                self._make_student(each.student)
        if stage.after is not None:
            self._afters[self.stage] = self._prepare_engine(stage.after, self._afters.get(self.stage))
        self._engines[self.stage] = self._prepare_engine(stage, self._engines.get(self.stage))
        self._equalise()

    def _equalise(self) -> None:
        """On several ranks, begin and end a stage with the first one's values: what it computed counts."""
        values = (value for model in self.students.values() for value in model.changing().values())
        self.situation.backend.world.equalise_(values)

    def _make_student(self, name: str) -> None:
        """A student of a later stage, made by the method; a module from an earlier training takes over its values."""
        models = {**self.students, PREVIOUS: self.situation.model.copy()}
        inputs = self.situation.growth_inputs(self.feed.images(), "student", name)
        with own_draws(torch_generator(self.situation.seed, "layers", self.situation.phase, name)):
            made = self.situation.method.student(name, models, inputs).placed(self.situation.backend.device)
        if name in self.students:
            self.students[name].load_state_dict(made.state_dict())
        else:
            self.students[name] = made
        self._made.add(name)

    def _prepare_engine(self, stage: Stage, engine: Engine | None) -> Engine:
        """What is trained, on which images, by which optimiser; the engine that did it before, where it can."""
        self._train_only(stage)
        feed, teacher = self._stage_feed(stage), self._stage_teacher(stage)
        if engine is None or (feed is not engine.feed and not (self.captures and len(feed) == len(engine.feed))):
            return self._new_engine(stage, feed, teacher)
        if feed is not engine.feed:
            engine.feed.load(feed)
        if teacher is not None and engine.step.teacher is not None and teacher is not engine.step.teacher:
            engine.step.teacher.load_state_dict(teacher.state_dict())
        engine.restart(self.action)
        return engine

    def _train_only(self, stage: Stage) -> None:
        """Say what is trained. In a captured step old rows always are, where not at all with a rate of 0."""
        old_rows = self.situation.trains_old_rows(self.action) or stage.trains != "all" or self.captures
        self.students[stage.student].train_only(stage.trains, old_rows=old_rows, backbone=self._backbone_learns)

    def _ratios(self, stage: Stage) -> dict[str, float]:
        """The learning rates of parts of the network as multiples of the others'."""
        if stage.trains != "all":
            return {}
        ratios = {} if self.action.backbone_rate == 1 else {BACKBONE: self.action.backbone_rate}
        if self.captures and self.situation.growth.old:
            ratios[OLD_ROWS] = float(self.situation.trains_old_rows(self.action))
        return ratios

    @property
    def _backbone_learns(self) -> bool:
        """Whether the action lets the backbone learn at all; if not, its statistics stay as they are, too."""
        return self.action.backbone_rate > 0

    def _stage_teacher(self, stage: Stage) -> Model | None:
        if stage.teacher is None or stage.teacher == PREVIOUS:
            return self.teacher if stage.teacher else None
        return self.students[stage.teacher].teacher(self.situation.backend.dtype)

    def _stage_feed(self, stage: Stage) -> Feed:
        if not stage.balanced:
            return self.feed
        if self._picks is None:
            generator = draws.generator(self.situation.seed, "balanced", *self._address(stage))
            picks = (
                drawn_picks(self.feed, generator)
                if stage.at_random
                else herded_picks(self.feed, self.model, self.situation.evaluator)
            )
            self._picks = self.situation.backend.broadcast(picks.cpu()).to(picks.device)
        return self.feed.select(self._picks)

    def _address(self, stage: Stage) -> tuple[int | str, ...]:
        """What tells the draws of a stage from those of others."""
        return (self.situation.phase, stage.name, *self.address)

    def _new_engine(self, stage: Stage, feed: Feed, teacher: Model | None) -> Engine:
        model = self.students[stage.student]
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        members = {BACKBONE: list(model.backbone.parameters()), OLD_ROWS: model.head.old_values()}
        parts = {name: members[name] for name in self._ratios(stage)}
        decay = self.schedule.weight_decay if stage.weight_decay is None else stage.weight_decay
        schedule = self.schedule.replace(weight_decay=decay)
        optimiser = make_optimiser(trained, schedule, self.action.lr, self.situation.backend.device, parts=parts)
        step = Step(self.situation, optimiser, model, teacher, self.action, feed.labels, stage)
        bounds = batch_bounds(len(feed), self.schedule.batch)
        runner = CapturedRunner if self.captures else EagerRunner
        return Engine(feed, bounds, optimiser, step, runner(step, feed, bounds))

    def _epoch(self, stage: Stage, epochs: int) -> Iterator[Event]:
        rate = self._rate(stage, epochs)
        if self.step == 0 and stage.renews_before(self.epoch, epochs):
            generator = torch_generator(self.situation.seed, "renewed heads", *self._address(stage))
            self.situation.method.renew(self.students[stage.student], generator)
        for values in self._steps(stage, self._engine, rate, self.step):
            self.record.append(values)
            self.step += len(values)
            words = f"{stage.name} epoch {self.epoch + 1}/{epochs}"
            yield Progress(self.situation.phase, "training", self.done, self.planned, words)
        if stage.after is not None:  # to its end, so that a state never stands inside it
            for _ in self._steps(stage.after, self._afters[self.stage], self._rate(stage.after, epochs), 0):
                pass
            self.students[stage.after.student].clamp_fusion()
        means = self._checked_means()
        self.step, self.record = 0, []
        self.epoch += 1
        loss = means.pop("loss")
        yield EpochDone(self.situation.phase, stage.name, self.epoch, epochs, rate, loss, means)

    def _rate(self, stage: Stage, epochs: int) -> float:
        return self.schedule.rate(stage, self.epoch, epochs, self.action.lr if stage.lr is None else stage.lr)

    def _steps(self, stage: Stage, engine: Engine, rate: float, first: int) -> Iterator[Tensor]:
        """This epoch of a stage from that step on."""
        set_rate(engine.optimiser, rate, self._ratios(stage))
        seed, address = self.situation.seed, (self.situation.phase, stage.name, self.epoch, *self.address)
        generator = draws.generator(seed, "epoch", *address)
        order = torch.from_numpy(generator.permutation(len(engine.feed)))
        augmentation = engine.feed.draw(self.situation.preprocessing.augmentation, order, generator)
        self._train_only(stage)
        student = self.students[stage.student].train()
        if not stage.moves_statistics or not self._backbone_learns:
            student.backbone.eval()
        noise = draws.key(seed, "noise", *address)
        return engine.runner.epoch(order, augmentation, first, noise)

    def _checked_means(self) -> dict[str, float]:
        """The mean loss and terms so far in this epoch; raises `Diverged` at the first bad step."""
        names = self._names()
        values = (
            torch.cat(self.record).double().cpu() if self.record else torch.zeros(0, len(names), dtype=torch.float64)
        )
        bad = torch.nonzero(~torch.isfinite(values).all(dim=1)).flatten()
        if len(bad):
            raise self._divergence_at(int(bad[0]))
        state = [value for value in self._student.state_dict().values() if value.is_floating_point() and value.numel()]
        lengths = torch.stack([length.float() for length in torch._foreach_norm(state, torch.inf)])
        if not bool(torch.isfinite(lengths).all()):  # read back once: every look at a value waits for the device
            raise self._divergence_at(max(self.step - 1, 0))
        return {name: float(mean) for name, mean in zip(names, values.mean(dim=0), strict=True)} if len(values) else {}

    @property
    def _student(self) -> Model:
        """The one that is trained in this stage, or was in the last one."""
        return self.students[self.stages[min(self.stage, len(self.stages) - 1)].student]

    def _names(self) -> tuple[str, ...]:
        return (self._engine.runner.names if self._engines else ()) or self._restored_names

    def _divergence_at(self, step: int) -> Diverged:
        stage = self.stages[min(self.stage, len(self.stages) - 1)]
        return Diverged(
            f"the loss diverged in phase {self.situation.phase}, {stage.name} epoch {self.epoch + 1}, step {step + 1} "
            f"(lr {self.action.lr:g}); lower the learning rate and start again"
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that `restore` needs; refuses to save a diverged model."""
        self._checked_means()
        students = [MODEL, *sorted(self._made)]
        tensors = {
            f"student.{student}.{name}": value
            for student in students
            for name, value in self.students[student].changing().items()
        }
        for place, engine in self._engines_at_work().items():
            for kind, name, value in named_tensors(engine.optimiser, engine.step.model):
                tensors[f"{kind}{place}.{name}"] = value
            if (teacher := self._own_teacher(engine)) is not None:
                tensors |= {f"teacher{place}.{name}": value for name, value in teacher.state_dict().items()}
        if self.record:
            tensors["record"] = torch.cat(self.record)
        if self._picks is not None:
            tensors["picks"] = self._picks
        position = {"stage": self.stage, "epoch": self.epoch, "step": self.step, "names": list(self._names())}
        return tensors, {**position, "students": students}

    def _engines_at_work(self) -> dict[str, Engine]:
        """Those whose momentum and teacher matter, by what is added to the names under which these are stored."""
        if self.stage == len(self.stages) or not self.stages[self.stage].share:
            return {}
        engines = {"": self._engine}
        if self.stage in self._afters:
            engines[" after"] = self._afters[self.stage]
        return engines

    def _own_teacher(self, engine: Engine) -> Model | None:
        """A teacher that was made of a student when the stage began: that one may have been trained since."""
        return engine.step.teacher if engine.step.teacher is not self.teacher else None

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Return to where `state` was called; the model must have grown already. Refuses that of another one."""
        with fitting_together():
            self.stage, self.epoch, self.step = meta["stage"], meta["epoch"], meta["step"]
            check_stage(self.stage, len(self.stages), meta["students"])
            for student in meta["students"]:
                if student not in self.students:
                    self._make_student(student)
                load_values(self.students[student], store.under(f"student.{student}", tensors))
            self._made = set(meta["students"]) - {MODEL}
            self._picks = checked_picks(tensors, len(self.feed), self.situation.backend.device)
            epochs = steps = 0
            if self.stage < len(self.stages):
                self._enter()
                self._restore_engines(tensors)
                epochs = self._length(self.stages[self.stage])
                steps = self._most_steps if self.stage in self._engines and self.epoch < epochs else 0
            self._restored_names = tuple(meta["names"])
            self.record = [tensors["record"].to(self.situation.backend.device)] if "record" in tensors else []
            check_place((self.epoch, self.step), epochs, steps, self.record, self._names())

    @property
    def _most_steps(self) -> int:
        """How far a state may stand in an epoch: poise used to train a few last images by themselves."""
        return -(-len(self._engine.feed) // self.schedule.batch)

    def _restore_engines(self, tensors: Mapping[str, Tensor]) -> None:
        for place, engine in self._engines_at_work().items():
            load_kept(tensors, place, named_tensors(engine.optimiser, engine.step.model))
            if (teacher := self._own_teacher(engine)) is not None:
                teacher.load_state_dict(store.under(f"teacher{place}", tensors))
