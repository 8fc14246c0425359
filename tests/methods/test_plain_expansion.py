"""Whole phases of FOSTER and DER against plain loops, which train the same networks on the same batches."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, softmax
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from poise import Learner
from poise.data import ImageSet
from poise.nets import Concatenated, Model

from .conftest import learned
from .plain import CLOSE, DECAY, EPOCHS, LONG, RATE, epochs_of, features, linear, same, same_rows, step, trained
from .watching import Batch, Watched

# FOSTER ---------------------------------------------------------------------------------------------------------------

BETA1, BETA2 = 0.9, 0.97


def test_foster_boosts_and_compresses_as_plain_loops_do(arriving: list[ImageSet], watched: Watched) -> None:
    before = 2
    learner = learned(Learner("foster", action={"beta1": BETA1, "lr": RATE}, **LONG), *arriving[:before])
    single = copy.deepcopy(learner.knowledge.start)
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


def test_der_trains_a_network_and_then_the_classifier_as_plain_loops_do(
    arriving: list[ImageSet], watched: Watched
) -> None:
    before = 2
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


# What both need -------------------------------------------------------------------------------------------------------


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
