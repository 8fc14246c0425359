"""Whole phases of LUCIR, iCaRL, PODNet and AANets against plain loops: the same networks on the same batches.

LwF trains as iCaRL does, and RMM as AANets does: they differ in what predicts and in what is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div, log_softmax, normalize, softmax
from torch.nn.utils import clip_grad_value_
from torch.nn.utils.parametrize import register_parametrization
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiStepLR

from poise import Learner
from poise.data import ImageSet
from poise.nets import Branches, Model, ResNet

from .conftest import learned
from .plain import CLOSE, DECAY, EPOCHS, LONG, RATE, epochs_of, features, linear, same, same_rows, step, trained
from .watching import Batch, Watched

STEPS = (9, 13)  # half and three quarters of 17 epochs, rounded up


def start_of(learner: Learner) -> Model:
    found = learner.knowledge.start
    assert found is not None
    return found


# LUCIR ----------------------------------------------------------------------------------------------------------------


def test_lucir_holds_features_and_separates_classes_as_a_plain_loop_does(
    arriving: list[ImageSet], watched: Watched
) -> None:
    before = 2
    learner = learned(Learner("lucir", action={"lr": RATE}, **LONG), *arriving[:before])
    teacher = copy.deepcopy(start_of(learner)).eval()
    prepared = learner.knowledge.preprocessing
    watched.learn(learner, arriving[before])
    batches, known = watched.stages["main"], 2 * before

    with torch.no_grad():
        units = normalize(teacher.backbone(prepared.plain(arriving[before].pixels))[0])
    old = torch.cat([teacher.head.state_dict()[part] for part in ("old", "new")])
    means = [normalize(units[arriving[before].labels == label].mean(dim=0), dim=0) for label in (known, known + 1)]
    imprinted = torch.stack(means) * old.norm(dim=1).mean()
    torch.testing.assert_close(batches[0].model.head.state_dict()["new"], imprinted, **CLOSE)

    net, new = copy.deepcopy(teacher.backbone).train(), nn.Parameter(imprinted.clone())
    scale = nn.Parameter(teacher.head.state_dict()["scale"].clone())
    optimiser = SGD([*net.parameters(), new, scale], lr=RATE, momentum=0.9, weight_decay=DECAY)
    for batch in epochs_of(batches, EPOCHS, MultiStepLR(optimiser, STEPS)):
        with torch.no_grad():
            remembered = features(teacher.backbone, batch)
        seen = features(net, batch)
        cosines = normalize(seen) @ normalize(torch.cat([old, new])).T
        less_forgetting = 5 * (known / 2) ** 0.5 * (1 - cosine_similarity(seen, remembered)).mean()
        loss = cross_entropy(scale * cosines, batch.labels) + less_forgetting + margins(cosines, batch.labels, known)
        step(optimiser, loss)

    found = start_of(learner)
    same(found.backbone, net)
    torch.testing.assert_close(found.head.rows().detach(), torch.cat([old, new.detach()]), **CLOSE)
    torch.testing.assert_close(found.head.state_dict()["scale"], scale.detach(), **CLOSE)


def margins(cosines: Tensor, labels: Tensor, known: int) -> Tensor:
    """The ranking of LUCIR: each old image against the two new classes that look most like its own."""
    found = [
        max(0.5 - row[label] + other, torch.zeros(()))
        for row, label in zip(cosines, labels.tolist(), strict=True)
        if label < known
        for other in row[known:].topk(2).values
    ]
    return torch.stack(found).mean() if found else torch.zeros(())


# iCaRL ----------------------------------------------------------------------------------------------------------------


def test_icarl_distils_old_logits_as_a_plain_loop_does(arriving: list[ImageSet], watched: Watched) -> None:
    before = 2
    learner = learned(Learner("icarl", action={"lr": RATE}, **LONG), *arriving[:before])
    teacher = copy.deepcopy(start_of(learner)).eval()
    watched.learn(learner, arriving[before])

    batches, known = watched.stages["main"], 2 * before
    net, classifier, old = copy.deepcopy(teacher.backbone).train(), linear(batches[0].model.head), linear(teacher.head)
    torch.testing.assert_close(classifier.weight[:known], old.weight, rtol=0, atol=0)
    optimiser = SGD(trained(net, classifier), lr=RATE, momentum=0.9, weight_decay=DECAY)
    for batch in epochs_of(batches, EPOCHS, MultiStepLR(optimiser, STEPS)):
        with torch.no_grad():
            targets = softmax(old(features(teacher.backbone, batch)) / 2, dim=1)
        logits = classifier(features(net, batch))
        distillation = kl_div(log_softmax(logits[:, :known] / 2, dim=1), targets, reduction="batchmean")
        step(optimiser, cross_entropy(logits, batch.labels) + distillation)

    same(start_of(learner).backbone, net)
    same_rows(start_of(learner), classifier)


# PODNet and AANets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "before"), [("podnet", 2), ("aanets", 1), ("aanets", 2)])
def test_podnet_and_aanets_hold_maps_and_balance_proxies_as_plain_loops_do(
    method: str, before: int, arriving: list[ImageSet], watched: Watched
) -> None:
    learner = learned(Learner(method, action={"lr": RATE}, **LONG), *arriving[:before])
    start = copy.deepcopy(start_of(learner))
    watched.learn(learner, arriving[before])
    known, first = 2 * before, watched.stages["main"][0].model.head.state_dict()
    scale = start.head.state_dict()["scale"]
    scale = torch.ones(()) if method == "aanets" and before == 1 else scale  # η starts again with the branches
    old = torch.cat([start.head.state_dict()[part] for part in ("old", "new")])
    torch.testing.assert_close(first["old"], old, rtol=0, atol=0)
    classifier = Proxies(old, first["new"], scale)
    net = Levels.twice(start.backbone) if method == "aanets" and before == 1 else Levels.of(start.backbone)
    hold_maps(net, classifier, Levels.of(start.backbone).eval(), watched.stages["main"], known)
    found, balanced = start_of(learner), watched.stages["balance"]
    net.compare(balanced[0].model.backbone)
    torch.testing.assert_close(balanced[0].model.head.rows().detach(), classifier.rows().detach(), **CLOSE)
    torch.testing.assert_close(found.head.state_dict()["scale"], classifier.scale.detach(), **CLOSE)

    labels = torch.cat([batch.labels for batch in balanced[: len(balanced) // 3]])
    assert torch.bincount(labels).tolist() == [3] * (known + 2), "as many images of each class"
    balance_proxies(net, classifier, balanced)
    net.compare(found.backbone)
    torch.testing.assert_close(found.head.rows().detach(), classifier.rows().detach(), **CLOSE)


class Proxies(nn.Module):
    """Ten proxies for each class, and the scale η of the loss."""

    def __init__(self, old: Tensor, new: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.old, self.new = nn.Parameter(old.clone()), nn.Parameter(new.clone())
        self.scale = nn.Parameter(scale.clone())

    def rows(self) -> Tensor:
        return torch.cat([self.old, self.new])

    def forward(self, seen: Tensor) -> Tensor:
        distances = (normalize(seen)[:, None, None] - normalize(self.rows(), dim=2)).square().sum(dim=3)
        return (softmax(-distances, dim=2) * -distances).sum(dim=2)

    def loss(self, seen: Tensor, labels: Tensor) -> Tensor:
        """The NCA of the released code, whose margin has no effect."""
        scores = self.scale * self(seen)
        scores = scores - scores.max(dim=1, keepdim=True).values
        own = scores.gather(1, labels[:, None])[:, 0]
        others = scores.exp().scatter(1, labels[:, None], 0.0).sum(dim=1)
        found: Tensor = (torch.log(1 + others) - own).mean()
        return found


class Scale(nn.Module):
    """One factor for each kernel of a convolution, whose weights are frozen."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones(*weight.shape[:2], 1, 1))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.factors


class Levels(nn.Module):
    """One network, or a stable and a plastic one whose maps are averaged after each level; all of it is trained."""

    def __init__(self, nets: Iterable[ResNet]) -> None:
        super().__init__()
        self.nets = list(nets)
        self.registered = nn.ModuleList(self.nets)

    @classmethod
    def of(cls, backbone: nn.Module) -> Levels:
        if isinstance(backbone, ResNet):
            return cls([copy.deepcopy(backbone).requires_grad_(True)])
        assert isinstance(backbone, Branches)
        made = cls.twice(backbone.plastic)
        made._load_stable(backbone.stable.state_dict())
        return made

    @classmethod
    def twice(cls, backbone: nn.Module) -> Levels:
        assert isinstance(backbone, ResNet)
        stable, plastic = (copy.deepcopy(backbone).requires_grad_(True) for _ in range(2))
        for conv in [module for module in stable.modules() if isinstance(module, nn.Conv2d)]:
            conv.weight.requires_grad_(False)
            register_parametrization(conv, "weight", Scale(conv.weight))
        return cls([stable, plastic])

    def _load_stable(self, state: dict[str, Tensor]) -> None:
        own = self._stable_state()
        assert own.keys() == state.keys()
        for name, value in state.items():
            own[name].copy_(value)

    def _stable_state(self) -> dict[str, Tensor]:
        """The values of the stable network, by the names that poise gives them."""
        words = {"parametrizations.weight.original": "weight", "parametrizations.weight.0.factors": "scale"}
        found = {}
        for name, value in self.nets[0].state_dict().items():
            for theirs, ours in words.items():
                name = name.replace(theirs, ours)  # noqa: PLW2901
            found[name] = value
        return found

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        maps: list[Tensor] = []
        for number in range(len(self.nets[0].levels)):
            given = images if number == 0 else maps[-1]
            outputs = [net.levels[number](net.stem(given) if number == 0 else given) for net in self.nets]
            maps.append(torch.stack(outputs).mean(dim=0))
        return maps[-1].mean(dim=(2, 3)), maps

    def compare(self, backbone: nn.Module) -> None:
        if isinstance(backbone, Branches):
            same(backbone.plastic, self.nets[1])
            torch.testing.assert_close(dict(backbone.stable.state_dict()), self._stable_state(), **CLOSE)
        else:
            same(backbone, self.nets[0])


def hold_maps(net: Levels, classifier: Proxies, teacher: Levels, batches: list[Batch], known: int) -> None:
    net.train()
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    optimiser = SGD([*weights, classifier.new, classifier.scale], lr=RATE, momentum=0.9, weight_decay=DECAY)
    adaptive = ((known + 2) / 2) ** 0.5
    for batch in epochs_of(batches, EPOCHS, CosineAnnealingLR(optimiser, T_max=EPOCHS)):
        with torch.no_grad():
            remembered, before = teacher(batch.images)
        seen, maps = net(batch.images)
        flat = (1 - cosine_similarity(seen, remembered)).mean()
        spatial = torch.stack([pooled_distance(*pair) for pair in zip(maps, before, strict=True)]).mean()
        loss = classifier.loss(seen, batch.labels) + adaptive * (3 * spatial + flat)
        optimiser.zero_grad()
        loss.backward()
        clip_grad_value_([*weights, classifier.new, classifier.scale], 5.0)
        optimiser.step()


def pooled_distance(now: Tensor, before: Tensor) -> Tensor:
    """Between the squared maps, summed over their width and over their height, as unit vectors."""
    vectors = []
    for each in (now, before):
        squared = each**2
        vectors.append(normalize(torch.cat([squared.sum(dim=3).flatten(1), squared.sum(dim=2).flatten(1)], dim=1)))
    distances: Tensor = (vectors[0] - vectors[1]).norm(dim=1)
    return distances.mean()


def balance_proxies(net: Levels, classifier: Proxies, batches: list[Batch]) -> None:
    net.train()
    optimiser = SGD([classifier.old, classifier.new], lr=0.05, momentum=0.9, weight_decay=DECAY)
    for batch in epochs_of(batches, 3, LambdaLR(optimiser, lambda epoch: 1.0)):
        with torch.no_grad():
            seen, _ = net(batch.images)
        optimiser.zero_grad()
        classifier.loss(seen, batch.labels).backward()  # type: ignore[no-untyped-call]
        clip_grad_value_([classifier.old, classifier.new], 5.0)
        optimiser.step()
