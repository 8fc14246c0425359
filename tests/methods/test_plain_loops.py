"""Whole phases of FOSTER and DER against plain loops, which train the same networks on the same batches.

The loops are written from the published descriptions with torch's own layers, losses, optimiser and schedules. What a
phase draws at random (batches, augmentation, new rows) is watched and given to them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, softmax
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from poise import Learner
from poise.data import ImageSet
from poise.methods import DER, FOSTER, Growth, Method
from poise.nets import Concatenated, Model, Output
from poise.training import StageDone

from .conftest import SETTINGS, learned

EPOCHS, RATE, DECAY = 17, 0.02, 0.05  # a tenth of the released epochs
PLAIN: dict[str, Any] = {"optimiser": "sgd", "decay": "steps", "warmup": 0, "precision": "fp32"}
LONG: dict[str, Any] = {**SETTINGS, **PLAIN, "epochs": EPOCHS, "momentum": 0.9, "weight_decay": DECAY}
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4}


class Batch(NamedTuple):
    """What a step was given, and the model before it."""

    images: Tensor
    labels: Tensor
    model: Model


@dataclass
class Watched:
    """The steps of the stages of one phase."""

    stages: dict[str, list[Batch]] = field(default_factory=dict)
    _now: list[Batch] = field(default_factory=list)
    _given: tuple[Tensor, Model] | None = None

    def forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, Model) and torch.is_grad_enabled():
            self._given = inputs[0].clone(), copy.deepcopy(module)

    def labelled(self, labels: Tensor) -> None:
        assert self._given is not None
        images, model = self._given
        self._now.append(Batch(images, labels.clone(), model))

    def learn(self, learner: Learner, images: ImageSet) -> None:
        self._now = []
        for event in learner.fitting(images.pixels, images.labels):
            if isinstance(event, StageDone):
                self.stages[event.stage], self._now = self._now, []


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    found = Watched()

    def watch(kind: type[Method]) -> None:
        terms = kind.terms

        def labelled(
            self: Method, student: Output, teacher: Output | None, labels: Tensor, growth: Growth
        ) -> dict[str, Tensor]:
            found.labelled(labels)
            return terms(self, student, teacher, labels, growth)

        monkeypatch.setattr(kind, "terms", labelled)

    watch(FOSTER)
    watch(DER)
    hook = nn.modules.module.register_module_forward_pre_hook(found.forward)
    yield found
    hook.remove()


# FOSTER ---------------------------------------------------------------------------------------------------------------

BETA1, BETA2 = 0.9, 0.97


@pytest.mark.parametrize("before", [1, 2])
def test_foster_boosts_and_compresses_as_plain_loops_do(
    before: int, arriving: list[ImageSet], watched: Watched
) -> None:
    learner = learned(Learner("foster", action={"beta1": BETA1, "lr": RATE}, **LONG), *arriving[:before])
    single = copy.deepcopy(learner.knowledge.start)
    assert single is not None
    watched.learn(learner, arriving[before])
    counts = [3] * (2 * before) + [6] * 2

    boosting = watched.stages["main"]
    old, new = copy.deepcopy(single.backbone), copy.deepcopy(single.backbone)
    classifier, alone = linear(boosting[0].model.head), linear(auxiliary(boosting[0].model))
    boost(old, new, classifier, alone, linear(single.head), boosting, class_weights(counts, BETA1))
    same(newest(learner.knowledge.predictor), new)
    same_rows(learner.knowledge.predictor, classifier)

    compression = watched.stages["compression"]
    student, rows = copy.deepcopy(single.backbone), linear(compression[0].model.head)
    compress(old, new, classifier, student, rows, compression, class_weights(counts, BETA2))
    assert learner.knowledge.start is not None
    same(learner.knowledge.start.backbone, student)
    same_rows(learner.knowledge.start, rows)


def boost(
    old: nn.Module,
    new: nn.Module,
    classifier: nn.Linear,
    alone: nn.Linear,
    before: nn.Linear,
    batches: list[Batch],
    weights: Tensor,
) -> None:
    old.eval()
    new.train()
    optimiser = SGD(trained(new, classifier, alone), lr=RATE, momentum=0.9, weight_decay=DECAY)
    for batch in epochs_of(batches, EPOCHS, CosineAnnealingLR(optimiser, T_max=EPOCHS)):
        with torch.no_grad():
            known = features(old, batch)
            targets = softmax(before(known) / 2, dim=1)
        fresh = features(new, batch)
        logits = classifier(torch.cat([known, fresh], dim=1))
        distillation = -(targets * log_softmax(logits[:, : targets.shape[1]] / 2, dim=1)).sum() / len(logits)
        loss = cross_entropy(logits / weights, batch.labels) + cross_entropy(alone(fresh), batch.labels) + distillation
        step(optimiser, loss)


def compress(
    old: nn.Module,
    new: nn.Module,
    classifier: nn.Linear,
    student: nn.Module,
    rows: nn.Linear,
    batches: list[Batch],
    weights: Tensor,
) -> None:
    old.eval()
    new.eval()
    student.train()
    optimiser = SGD(trained(student, rows), lr=RATE, momentum=0.9)
    for batch in epochs_of(batches, 13, CosineAnnealingLR(optimiser, T_max=13)):
        with torch.no_grad():
            both = torch.cat([features(old, batch), features(new, batch)], dim=1)
            targets = softmax(classifier(both) / 2, dim=1) * weights
            targets = targets / targets.sum(dim=1)[:, None]
        logits = rows(features(student, batch))
        step(optimiser, -(targets * log_softmax(logits / 2, dim=1)).sum() / len(logits))


def class_weights(counts: list[int], beta: float) -> Tensor:
    found = torch.tensor([(1 - beta) / (1 - beta**count) for count in counts], dtype=torch.float64)
    return (found / found.sum() * len(counts)).float()


# DER ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [1, 2])
def test_der_trains_a_network_and_then_the_classifier_as_plain_loops_do(
    before: int, arriving: list[ImageSet], watched: Watched
) -> None:
    learner = learned(Learner("der", action={"lr": RATE, "auxiliary": 0.7}, **LONG), *arriving[:before])
    start = copy.deepcopy(learner.knowledge.start)
    assert start is not None
    watched.learn(learner, arriving[before])

    batches, known = watched.stages["main"], 2 * before
    frozen, new = copy.deepcopy(networks(start)), copy.deepcopy(networks(start)[-1])
    represent(frozen, new, batches, known)
    same(newest(learner.knowledge.predictor), new)

    balanced = watched.stages["balance"]
    per_epoch = len(balanced) // 3
    labels = torch.cat([batch.labels for batch in balanced[:per_epoch]])
    assert torch.bincount(labels).tolist() == [3] * (known + 2), "as many images of each class"
    classifier = classify([*frozen, new], balanced)
    assert learner.knowledge.predictor is not None
    torch.testing.assert_close(learner.knowledge.predictor.head.rows(), classifier.weight, **CLOSE)


def represent(frozen: list[nn.Module], new: nn.Module, batches: list[Batch], known: int) -> None:
    for each in frozen:
        each.eval()
    new.train().requires_grad_(True)
    classifier, alone = linear(batches[0].model.head), linear(auxiliary(batches[0].model))
    optimiser = SGD(trained(new, classifier, alone), lr=RATE, momentum=0.9, weight_decay=DECAY)

    def share(epoch: int) -> float:  # it rises in the first epoch; then it falls after 11 and 13 of 17
        return 1.0 if epoch < 11 else 0.1 if epoch < 13 else 0.01

    per_epoch = len(batches) // EPOCHS
    for number, batch in enumerate(epochs_of(batches, EPOCHS, LambdaLR(optimiser, share))):
        if number == per_epoch:  # after the warm-up both are drawn anew; the optimiser goes on
            for layer, head in ((classifier, batch.model.head), (alone, auxiliary(batch.model))):
                assert not torch.allclose(layer.weight, linear(head).weight, atol=1e-2)
                layer.load_state_dict(linear(head).state_dict())
        elif number % 5 == 0:
            torch.testing.assert_close(linear(batch.model.head).weight, classifier.weight, **CLOSE)
        with torch.no_grad():
            parts = [features(each, batch) for each in frozen]
        fresh = features(new, batch)
        merged = torch.where(batch.labels < known, 0, batch.labels - known + 1)
        logits = classifier(torch.cat([*parts, fresh], dim=1))
        step(optimiser, cross_entropy(logits, batch.labels) + 0.7 * cross_entropy(alone(fresh), merged))


def classify(every: list[nn.Module], batches: list[Batch]) -> nn.Linear:
    for each in every:
        each.eval()
    classifier = linear(batches[0].model.head)
    optimiser = SGD(classifier.parameters(), lr=RATE, momentum=0.9, weight_decay=DECAY)
    for batch in epochs_of(batches, 3, LambdaLR(optimiser, lambda epoch: 1.0 if epoch < 2 else 0.1)):
        with torch.no_grad():
            inputs = torch.cat([features(each, batch) for each in every], dim=1)
        step(optimiser, cross_entropy(classifier(inputs) / 5, batch.labels))
    return classifier


# What both loops need -------------------------------------------------------------------------------------------------


def epochs_of(batches: list[Batch], epochs: int, schedule: LRScheduler) -> Iterator[Batch]:
    """The batches; after each epoch the learning rate goes on."""
    per_epoch, rest = divmod(len(batches), epochs)
    assert rest == 0
    for number, batch in enumerate(batches):
        yield batch
        if (number + 1) % per_epoch == 0:
            schedule.step()


def step(optimiser: SGD, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def trained(*modules: nn.Module) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]


def features(backbone: nn.Module, batch: Batch) -> Tensor:
    found: Tensor = backbone(batch.images)[0]
    return found


def networks(model: Model) -> list[nn.Module]:
    backbone = model.backbone
    return [*backbone.frozen, backbone.newest] if isinstance(backbone, Concatenated) else [backbone]


def newest(model: Model | None) -> nn.Module:
    assert model is not None
    return networks(model)[-1]


def auxiliary(model: Model) -> nn.Module:
    head = model.extras["auxiliary"].head
    assert isinstance(head, nn.Module)
    return head


def linear(head: nn.Module) -> nn.Linear:
    """The rows of a head, and its biases if it has some, as one layer of torch's."""
    state = head.state_dict()
    rows = torch.cat([state["old"], state["new"]])
    layer = nn.Linear(rows.shape[1], len(rows), bias="new_bias" in state)
    layer.weight.data.copy_(rows)
    if "new_bias" in state:
        layer.bias.data.copy_(torch.cat([state["old_bias"], state["new_bias"]]))
    return layer


def same(found: nn.Module, wanted: nn.Module) -> None:
    for name, value in wanted.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, **CLOSE, msg=name)


def same_rows(found: Model | None, wanted: nn.Linear) -> None:
    assert found is not None
    rows = linear(found.head)
    torch.testing.assert_close(rows.weight, wanted.weight, **CLOSE)
    torch.testing.assert_close(rows.bias, wanted.bias, **CLOSE)
