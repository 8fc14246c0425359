from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from poise import losses
from poise.methods import Growth, GrowthInputs, PODNet
from poise.nets import Model, Output, build_backbone, build_head, torch_generator
from poise.training.optimiser import Schedule

GROWTH = Growth(old=3, new=2)


def random(*shape: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def output(classes: int, seed: int) -> Output:
    scores = -random(6, classes, seed=seed).abs()
    maps = tuple(random(6, 2, size, size, seed=seed + size) for size in (4, 3, 2, 2))
    return Output(random(6, 4, seed=seed), maps, scores, 3 * scores, torch.tensor(3.0))


STUDENT, TEACHER, LABELS = output(5, 0), output(3, 10), torch.tensor([0, 1, 2, 3, 4, 0])


def terms(**options: float | str) -> dict[str, float]:
    return {name: term.item() for name, term in PODNet(**options).terms(STUDENT, TEACHER, LABELS, GROWTH).items()}


class TestTerms:
    def test_feature_distillation_is_that_of_lucir_with_its_margin_on_class_scores(self) -> None:
        flat = losses.feature_kd(STUDENT.features, TEACHER.features).item()
        margin = losses.margin_ranking(STUDENT.scores, LABELS, 3).item()
        assert margin > 0
        assert terms()["feature_kd"] == pytest.approx(5 * math.sqrt(5 / 2) * flat + margin)

    def test_logit_distillation_is_icarls_vector_of_targets_on_class_scores(self) -> None:
        targets = np.eye(5)[LABELS.numpy()]
        targets[:, :3] = 1 / (1 + np.exp(-TEACHER.scores.numpy()))
        p = 1 / (1 + np.exp(-STUDENT.scores.numpy()))
        slow = -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).mean()
        assert terms()["logit_kd"] == pytest.approx(slow)

    def test_with_softmax_old_logits_are_distilled_as_by_lucir(self) -> None:
        def softened(logits: Tensor) -> np.ndarray:
            powers: np.ndarray = np.exp(logits[:, :3].numpy() / 2)
            return np.asarray(powers / powers.sum(axis=1, keepdims=True))

        old, new = softened(TEACHER.logits), softened(STUDENT.logits)
        found = terms(logits="softmax")
        assert found["logit_kd"] == pytest.approx((old * np.log(old / new)).sum(axis=1).mean())
        assert {**found, "logit_kd": 0} == {**terms(), "logit_kd": 0}


class TestGrowth:
    def grown(self, features: Tensor, classes: Tensor, seed: int = 0) -> Model:
        model = Model(build_backbone("small", "pod", 3, 0), build_head("proxies", 4))
        PODNet().grow(model, GrowthInputs(Growth(0, 3), torch_generator(0, "head", 0), self.unasked))
        arrivals = GrowthInputs(Growth(3, 2), torch_generator(seed, "head", 1), lambda: (features, classes))
        PODNet().grow(model, arrivals)
        return model

    @staticmethod
    def unasked() -> tuple[Tensor, Tensor]:
        raise AssertionError("the first phase has no last model to ask for features")

    def test_new_proxies_lie_where_their_classs_unit_features_gather(self) -> None:
        places = normalize(random(20, 4, seed=1).float())  # ten for each class
        spread = torch.arange(1, 7).repeat(20)[:, None]  # lengths do not count
        features = places.repeat_interleave(6, dim=0) * spread
        model = self.grown(features, torch.arange(2).repeat_interleave(60))
        length = model.head.old.norm(dim=2).mean()
        for number in range(2):
            expected = length * places[10 * number : 10 * number + 10]
            gaps = torch.cdist(expected, model.head.new[number])
            assert gaps.min(dim=0).values.max() < 1e-4
            assert gaps.min(dim=1).values.max() < 1e-4


def test_fine_tuning_takes_20_of_160_epochs_at_a_constant_rate() -> None:
    tuning = PODNet.balancing
    assert tuning.epochs(160) == 20
    assert {Schedule().rate(tuning, epoch, 20, 0.1) for epoch in range(20)} == {0.05}
