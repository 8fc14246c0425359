"""Algorithm 2: train one model with one action, stage by stage, so that it can stop and go on anywhere."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poise import draws
from poise.actions import Action
from poise.data import Feed, Preprocessing, batch_bounds
from poise.errors import Diverged, check_number, check_whole
from poise.methods import Growth, Method, Stage
from poise.nets import Model
from poise.training.backend import Backend
from poise.training.capture import CapturedRunner
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
        self.stages: tuple[Stage, ...] = method.stages(growth)
        self.bounds = batch_bounds(len(feed), schedule.batch)
        self.stage = self.epoch = self.step = 0
        self.record: list[Tensor] = []  # loss and terms of the steps of this epoch, [steps, names] each
        self._running: Runner | None = None
        self._restored_names: tuple[str, ...] = ()
        model.head.freeze_old(action.old_rows == "frozen")
        self.optimiser = self._new_optimiser()

    def run(self) -> Generator[Event, None, None]:
        """Train from where it stands to the end of the last stage."""
        while self.stage < len(self.stages):
            stage = self.stages[self.stage]
            epochs = stage.epochs(self.schedule.epochs)
            while self.epoch < epochs:
                yield from self._epoch(stage, epochs)
            self.stage, self.epoch = self.stage + 1, 0
            self.optimiser = self._new_optimiser()
            yield StageDone(self.phase, stage.name)

    def _epoch(self, stage: Stage, epochs: int) -> Iterator[Event]:
        rate = stage.rate(self.epoch, epochs, self.action.lr)
        self._set_rate(rate)
        generator = draws.generator(self.seed, "epoch", self.phase, stage.name, self.epoch, *self.address)
        order = torch.from_numpy(generator.permutation(len(self.feed)))
        augmentation = self.preprocessing.augmentation.draw(len(self.feed), generator)
        self.model.train()
        noise = draws.key(self.seed, "noise", self.phase, stage.name, self.epoch, *self.address)
        for values in self._runner().epoch(order, augmentation, self.step, noise):
            self.record.append(values)
            first, self.step = self.step, self.step + len(values)
            images = self.bounds[self.step - 1][1] - self.bounds[first][0]
            yield StepDone(self.phase, stage.name, self.epoch, epochs, self.step, len(self.bounds), images)
        means = self._checked_means()
        self.step, self.record = 0, []
        self.epoch += 1
        loss = means.pop("loss")
        yield EpochDone(self.phase, stage.name, self.epoch, epochs, rate, loss, means)

    def _runner(self) -> Runner:
        """What runs the steps of this stage: captured on a GPU where the images live there, else eager."""
        if self._running is None:
            step = Step(
                model=self.model,
                teacher=self.teacher,
                method=self.method,
                action=self.action,
                growth=self.growth,
                preprocessing=self.preprocessing,
                optimiser=self.optimiser,
                backend=self.backend,
            )
            on_gpu = self.backend.device.type == "cuda" and self.feed.resident
            captured = on_gpu and self.backend.capture and not is_noisy(self.model)
            runner = CapturedRunner if captured else EagerRunner
            self._running = runner(step, self.feed, self.bounds)
        return self._running

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
        if self.schedule.momentum:
            for parameter in trained:  # momentum that starts at zero takes the same first step as none at all
                optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
        self._running = None
        return optimiser

    def _set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _checked_means(self) -> dict[str, float]:
        """The mean loss and terms so far in this epoch; raises `Diverged` at the first bad step."""
        names = self._names()
        values = torch.cat(self.record).double().cpu() if self.record else torch.zeros(0, len(names))
        bad = torch.nonzero(~torch.isfinite(values).all(dim=1)).flatten()
        if len(bad):
            raise self._diverged(int(bad[0]))
        finite = torch.stack([torch.isfinite(value).all() for value in self.model.state_dict().values()])
        if not bool(finite.all()):  # read back once: every look at a value waits for the device
            raise self._diverged(max(self.step - 1, 0))
        return {name: float(mean) for name, mean in zip(names, values.mean(dim=0), strict=True)} if len(values) else {}

    def _names(self) -> tuple[str, ...]:
        return (self._running.names if self._running is not None else ()) or self._restored_names

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
        for name, parameter in self.model.named_parameters():
            momentum = self.optimiser.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{name}"] = momentum
        if self.record:
            tensors["record"] = torch.cat(self.record)
        return tensors, {"stage": self.stage, "epoch": self.epoch, "step": self.step, "names": list(self._names())}

    def restore(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Go back to where `state` was called; the model must have grown already."""
        self.stage, self.epoch, self.step = meta["stage"], meta["epoch"], meta["step"]
        self.model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
        for name, parameter in self.model.named_parameters():
            if (momentum := tensors.get(f"momentum.{name}")) is not None:
                self.optimiser.state[parameter]["momentum_buffer"].copy_(momentum)
        self._restored_names = tuple(meta["names"])
        self.record = [tensors["record"].to(self.backend.device)] if "record" in tensors else []
