from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from poise import Learner, losses
from poise.errors import UserError
from poise.methods import Growth, GrowthInputs, PODNet
from poise.nets import Model, Output, build_backbone, build_head, torch_generator

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
    def test_pod_is_three_times_spatial_plus_flat_times_the_root_of_all_classes_by_new_ones(self) -> None:
        spatial = losses.pod_spatial(STUDENT.maps, TEACHER.maps).item()
        flat = losses.feature_kd(STUDENT.features, TEACHER.features).item()
        assert terms()["pod"] == pytest.approx(math.sqrt(5 / 2) * (3 * spatial + flat))
        assert terms(spatial=8, flat=10)["pod"] == pytest.approx(math.sqrt(5 / 2) * (8 * spatial + 10 * flat))

    def test_classification_is_on_scaled_scores_and_its_margin_an_option(self) -> None:
        assert terms()["nca"] == pytest.approx(losses.nca(3 * STUDENT.scores, LABELS).item())
        lowered = STUDENT.scores.clone()
        lowered[torch.arange(6), LABELS] -= 0.6
        assert terms(nca_margin=0.6)["nca"] == pytest.approx(losses.nca(3 * lowered, LABELS).item())

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

    def test_the_first_phase_only_classifies(self) -> None:
        assert list(PODNet().terms(STUDENT, None, LABELS, Growth(0, 5))) == ["nca"]

    def test_images_of_known_classes_alone_have_finite_terms(self) -> None:
        found = PODNet().terms(output(3, 0), TEACHER, LABELS % 3, Growth(3, 0))
        assert all(term.isfinite() for term in found.values())

    def test_a_net_without_maps_is_refused_in_the_first_phase(self) -> None:
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))
        learner = Learner("podnet", net=net, epochs=1, device="cpu")
        with pytest.raises(UserError, match=r"^podnet compares maps, but your net returns none: [^\n]*$"):
            learner.partial_fit(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), [0, 0, 1, 1])


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

    def test_it_depends_on_the_address_and_nothing_else(self) -> None:
        features, classes = random(80, 4, seed=2).float(), torch.arange(80) % 2
        one, same, other = (self.grown(features, classes, seed).head.new for seed in (0, 0, 1))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)

    def test_one_image_is_enough(self) -> None:
        model = self.grown(torch.eye(2, 4), torch.tensor([0, 1]))
        directions = normalize(model.head.new.detach(), dim=2)
        assert torch.allclose(directions, torch.eye(2, 4)[:, None].expand(2, 10, 4))


def test_the_main_stage_follows_a_cosine_and_clamps() -> None:
    (main,) = PODNet().stages(GROWTH)
    expected = [0.05 * (1 + math.cos(math.pi * epoch / 160)) for epoch in range(160)]
    assert [main.rate(epoch, 160, 0.1) for epoch in range(160)] == pytest.approx(expected)
    assert main.clamp == 5


def test_fine_tuning_takes_20_of_160_epochs_at_a_constant_rate() -> None:
    tuning = PODNet.balancing
    assert tuning.epochs(160) == 20
    assert {tuning.rate(epoch, 20, tuning.lr or 0) for epoch in range(20)} == {0.05}


@pytest.mark.parametrize("option", ["spatial", "flat", "lambda_base", "nca_margin"])
def test_options_are_numbers_of_at_least_0(option: str) -> None:
    for wrong in (-1.0, "much"):
        with pytest.raises(UserError, match=f"option {option}="):
            PODNet(**{option: wrong})
