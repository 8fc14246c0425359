"""Algorithm 2: train one model with one action, stage by stage, so that it can stop and go on anywhere."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poise import draws
from poise.actions import Action
from poise.data import Feed, Preprocessing, batch_bounds, herd
from poise.errors import Diverged, check_number, check_whole
from poise.methods import Growth, Method, Stage
from poise.nets import Model
from poise.training.backend import Backend
from poise.training.capture import CapturedRunner
from poise.training.evaluate import extract
from poise.training.events import EpochDone, Event, StageDone, StepDone
from poise.training.step import EagerRunner, Runner, Step, is_noisy


@dataclass(frozen=True)
class Schedule:
    """How long and how hard a phase trains, whatever the action."""

    epochs: int = 160
    batch: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs, 1)
        check_whole("batch", self.batch, 2)  # one image has no batch statistics
        check_number("momentum", self.momentum, below=1)
        check_number("weight_decay", self.weight_decay)


@dataclass
class _Engine:
    """What trains one stage. It is kept for the next action, so that a captured step serves all of them."""

    feed: Feed
    bounds: list[tuple[int, int]]
    optimiser: torch.optim.SGD
    step: Step
    runner: Runner

    def restart(self, action: Action) -> None:
        """Begin again with this action and no momentum."""
        self.step.weigh(action)
        for state in self.optimiser.state.values():
            state["momentum_buffer"].zero_()

    def set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


class Trainer:
    """The training of one model in one phase.

    Every epoch's order, crops and flips come from the address (seed, phase, stage, epoch), so the state is
    only the weights, the momentum, and where it stands: (stage, epoch, step).
    """

    def __init__(
        self,
        *,
        model: Model,
        teacher: Model | None,
        method: Method,
        action: Action,
        growth: Growth,
        feed: Feed,
        preprocessing: Preprocessing,
        schedule: Schedule,
        backend: Backend,
        seed: int,
        phase: int,
        address: tuple[int | str, ...] = (),
    ) -> None:
        self.model, self.teacher, self.action, self.growth = model, teacher, action, growth
        self.method, self.preprocessing, self.schedule, self.backend = method, preprocessing, schedule, backend
        self.feed, self.seed, self.phase, self.address = feed, seed, phase, address
        balancing = action.balance == "finetune" and growth.old > 0
        self.stages: tuple[Stage, ...] = (*method.stages(growth), *((method.balancing,) if balancing else ()))
        self.stage = self.epoch = self.step = 0
        self.record: list[Tensor] = []  # loss and terms of the steps of this epoch, [steps, names] each
        self._picks: Tensor | None = None  # the images of a balanced stage
        self._restored_names: tuple[str, ...] = ()
        self._engines: dict[int, _Engine] = {}
        self._afters: dict[int, _Engine] = {}  # what follows each epoch, for stages that have it
        self._enter()

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Where the batches of this stage start and stop."""
        return self._engine.bounds

    @property
    def captures(self) -> bool:
        """Whether steps are captured: on a GPU, where the images live there and the network draws nothing."""
        on_gpu = self.backend.device.type == "cuda" and self.feed.resident
        return on_gpu and self.backend.capture and not is_noisy(self.model)

    def run(self) -> Generator[Event, None, None]:
        """Train from where it stands to the end of the last stage."""
        while self.stage < len(self.stages):
            stage = self.stages[self.stage]
            epochs = stage.epochs(self.schedule.epochs)
            while self.epoch < epochs:
                yield from self._epoch(stage, epochs)
            self.stage, self.epoch, self._picks = self.stage + 1, 0, None
            if self.stage < len(self.stages):
                self._enter()
            elif self.action.balance == "align" and self.growth.old:
                self.model.head.align()
            yield StageDone(self.phase, stage.name)

    def restart(
        self, action: Action, schedule: Schedule, address: tuple[int | str, ...], values: Mapping[str, Tensor]
    ) -> None:
        """Train once more, from these values of the model, with another action that has the same kind of stages.

        What was captured is used again: nothing but numbers may differ (not `old_rows`, not `balance`).
        """
        self.model.load_state_dict(values)
        self.action, self.schedule, self.address = action, schedule, address
        self.stage = self.epoch = self.step = 0
        self.record, self._picks, self._restored_names = [], None, ()
        self._enter()

    @property
    def _engine(self) -> _Engine:
        return self._engines.get(self.stage) or self._engines[max(self._engines)]  # the last one, when all is done

    def _enter(self) -> None:
        """Make ready for the stage, and first for what follows each of its epochs: what is trained is the stage's."""
        stage = self.stages[self.stage]
        if stage.after is not None:
            self._afters[self.stage] = self._ready(stage.after, self._afters.get(self.stage))
        self._engines[self.stage] = self._ready(stage, self._engines.get(self.stage))

    def _ready(self, stage: Stage, engine: _Engine | None) -> _Engine:
        """What is trained, on which images, by which optimiser; the engine that did it before, where it can."""
        self._train_only(stage)
        feed = self._stage_feed(stage)
        if engine is None or (feed is not engine.feed and not (self.captures and len(feed) == len(engine.feed))):
            return self._new_engine(stage, feed)
        if feed is not engine.feed:
            engine.feed.load(feed)
        engine.restart(self.action)
        return engine

    def _train_only(self, stage: Stage) -> None:
        self.model.train_only(stage.trains, old_rows=self.action.old_rows == "trained" or stage.trains != "all")

    def _stage_feed(self, stage: Stage) -> Feed:
        if not stage.balanced:
            return self.feed
        if self._picks is None:
            features = extract(self.model, self.feed.pixels, self.preprocessing, self.backend).features
            smallest = int(torch.unique(self.feed.labels, return_counts=True)[1].min())
            ranks = herd(features, self.feed.labels, smallest)
            self._picks = torch.cat([ranks[label] for label in sorted(ranks)])
            if len(self._picks) == 1:  # a batch of two, for a single value has no batch statistics
                self._picks = self._picks.repeat(2)
        return self.feed.selected(self._picks)

    def _new_engine(self, stage: Stage, feed: Feed) -> _Engine:
        optimiser = self._new_optimiser()
        step = Step(
            model=self.model,
            teacher=self.teacher if stage.distils else None,
            method=self.method,
            action=self.action,
            growth=self.growth,
            preprocessing=self.preprocessing,
            optimiser=optimiser,
            backend=self.backend,
            clamp=stage.clamp,
        )
        bounds = batch_bounds(len(feed), self.schedule.batch)
        return _Engine(
            feed, bounds, optimiser, step, (CapturedRunner if self.captures else EagerRunner)(step, feed, bounds)
        )

    def _new_optimiser(self) -> torch.optim.SGD:
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        on_gpu = self.backend.device.type == "cuda"
        optimiser = torch.optim.SGD(
            trained,
            lr=torch.tensor(self.action.lr, device=self.backend.device) if on_gpu else self.action.lr,
            momentum=self.schedule.momentum,
            weight_decay=self.schedule.weight_decay,
            fused=on_gpu,
        )
        for parameter in trained if self.schedule.momentum else ():
            # momentum that starts at zero takes the same first step as none at all
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
        return optimiser

    def _epoch(self, stage: Stage, epochs: int) -> Iterator[Event]:
        rate, bounds = self._rate(stage, epochs), self.bounds
        for values in self._steps(stage, self._engine, rate, self.step):
            self.record.append(values)
            first, self.step = self.step, self.step + len(values)
            images = bounds[self.step - 1][1] - bounds[first][0]
            yield StepDone(self.phase, stage.name, self.epoch, epochs, self.step, len(bounds), images)
        if stage.after is not None:  # to its end, so that a state never stands inside it
            for _ in self._steps(stage.after, self._afters[self.stage], self._rate(stage.after, epochs), 0):
                pass
            self.model.settle()
        means = self._checked_means()
        self.step, self.record = 0, []
        self.epoch += 1
        loss = means.pop("loss")
        yield EpochDone(self.phase, stage.name, self.epoch, epochs, rate, loss, means)

    def _rate(self, stage: Stage, epochs: int) -> float:
        return stage.rate(self.epoch, epochs, self.action.lr if stage.lr is None else stage.lr)

    def _steps(self, stage: Stage, engine: _Engine, rate: float, first: int) -> Iterator[Tensor]:
        """This epoch of a stage from that step on."""
        engine.set_rate(rate)
        generator = draws.generator(self.seed, "epoch", self.phase, stage.name, self.epoch, *self.address)
        order = torch.from_numpy(generator.permutation(len(engine.feed)))
        augmentation = self.preprocessing.augmentation.draw(len(engine.feed), generator)
        self._train_only(stage)
        self.model.train()
        self.model.backbone.train(stage.moves_statistics)
        noise = draws.key(self.seed, "noise", self.phase, stage.name, self.epoch, *self.address)
        return engine.runner.epoch(order, augmentation, first, noise)

    def _checked_means(self) -> dict[str, float]:
        """The mean loss and terms so far in this epoch; raises `Diverged` at the first bad step."""
        names = self._names()
        values = torch.cat(self.record).double().cpu() if self.record else torch.zeros(0, len(names))
        bad = torch.nonzero(~torch.isfinite(values).all(dim=1)).flatten()
        if len(bad):
            raise self._diverged(int(bad[0]))
        state = [value for value in self.model.state_dict().values() if value.is_floating_point() and value.numel()]
        lengths = torch.stack([length.float() for length in torch._foreach_norm(state, torch.inf)])
        if not bool(torch.isfinite(lengths).all()):  # read back once: every look at a value waits for the device
            raise self._diverged(max(self.step - 1, 0))
        return {name: float(mean) for name, mean in zip(names, values.mean(dim=0), strict=True)} if len(values) else {}

    def _names(self) -> tuple[str, ...]:
        return self._engine.runner.names or self._restored_names

    def _diverged(self, step: int) -> Diverged:
        stage = self.stages[min(self.stage, len(self.stages) - 1)]
        return Diverged(
            f"the loss diverged in phase {self.phase}, {stage.name} epoch {self.epoch + 1}, step {step + 1} "
            f"(lr {self.action.lr:g}); lower the learning rate and start again"
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that `restore` needs; refuses to save a diverged model."""
        self._checked_means()
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for prefix, optimiser in self._optimisers().items():
            for name, parameter in self.model.named_parameters():
                if "momentum_buffer" in optimiser.state.get(parameter, {}):
                    tensors[f"{prefix}.{name}"] = optimiser.state[parameter]["momentum_buffer"]
        if self.record:
            tensors["record"] = torch.cat(self.record)
        if self._picks is not None:
            tensors["picks"] = self._picks
        return tensors, {"stage": self.stage, "epoch": self.epoch, "step": self.step, "names": list(self._names())}

    def _optimisers(self) -> dict[str, torch.optim.SGD]:
        """Those whose momentum matters, by the name under which it is stored."""
        if self.stage == len(self.stages):
            return {}
        after = {"momentum after": self._afters[self.stage].optimiser} if self.stage in self._afters else {}
        return {"momentum": self._engine.optimiser, **after}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Go back to where `state` was called; the model must have grown already."""
        self.stage, self.epoch, self.step = meta["stage"], meta["epoch"], meta["step"]
        self.model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
        self._picks = tensors["picks"].to(self.backend.device) if "picks" in tensors else None
        if self.stage < len(self.stages):
            self._enter()
            for prefix, optimiser in self._optimisers().items():
                for name, parameter in self.model.named_parameters():
                    if (momentum := tensors.get(f"{prefix}.{name}")) is not None:
                        optimiser.state[parameter]["momentum_buffer"].copy_(momentum)
        self._restored_names = tuple(meta["names"])
        self.record = [tensors["record"].to(self.backend.device)] if "record" in tensors else []
