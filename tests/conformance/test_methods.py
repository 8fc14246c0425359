"""What every method must pass. A method that registers itself is tested here without another word."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from poise import Action, Learner
from poise.actions import is_weight
from poise.data import ALL_IMAGES, ImageSet
from poise.methods import METHODS, AANets, Growth, GrowthInputs, make_method
from poise.nets import Model, Output, torch_generator
from poise.training import StageDone

MakeImages = Callable[..., ImageSet]
Options = Mapping[str, float | str]
CASES: dict[str, tuple[str, Options]] = {
    **{name: (name, {}) for name in sorted(METHODS)},
    "icarl-sigmoid": ("icarl", {"loss": "sigmoid"}),
    "aanets-learned": ("aanets", {"alpha": "learned"}),
    "aanets-lucir": ("aanets", {"base": "lucir"}),
}
PHASES = ([0, 1], [2, 3, 4], [5])  # the last one brings a single class
KEPT = 3  # images of each class, where a method does not keep all
HEADS_THAT_KEEP_OLD_LOGITS = ("cosine", "linear", "proxies", "ridge", "gaussian")


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, Options]:
    return CASES[request.param]


@pytest.fixture
def arriving(make_images: MakeImages) -> list[ImageSet]:
    return [make_images(classes * 6, seed=phase) for phase, classes in enumerate(PHASES)]


def learner_of(case: tuple[str, Options]) -> Learner:
    name, options = case
    memory = KEPT if make_method(*case).own_memory != ALL_IMAGES else None
    return Learner(name, options=options, policy="fixed", net="small", epochs=2, batch=8, memory=memory, device="cpu")


def kept_of(case: tuple[str, Options], *images: ImageSet) -> list[int]:
    """How many images of each class are kept after these."""
    counts: list[int] = ImageSet.joined(images).labels.bincount().tolist()
    return counts if make_method(*case).own_memory == ALL_IMAGES else [min(KEPT, count) for count in counts]


def learned(case: tuple[str, Options], phases: list[ImageSet]) -> Learner:
    learner = learner_of(case)
    for images in phases:
        learner.partial_fit(images.pixels, images.labels)
    return learner


def grown(learner: Learner, images: ImageSet, growth: Growth) -> Model:
    """A copy of the learner's model with rows for the classes of these images."""
    assert learner.model is not None
    model, old = copy.deepcopy(learner.model), learner.model
    method = make_method(learner.settings.method, learner.settings.options)

    @torch.no_grad()
    def features() -> tuple[Tensor, Tensor]:
        return old(images.pixels.float() / 255).features, images.labels - growth.old

    model.expand(lambda backbone: method.expanded(backbone, growth), growth, images.shape)
    method.grow(model, GrowthInputs(growth, torch_generator(0, "head", 1), features))
    return model


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


class TestGrowth:
    def test_shapes_follow_the_classes(self, case: tuple[str, Options], arriving: list[ImageSet]) -> None:
        learner, classes = learner_of(case), 0
        for phase, (images, new) in enumerate(zip(arriving, PHASES, strict=True)):
            learner.partial_fit(images.pixels, images.labels)
            classes += len(new)
            assert learner.model is not None
            assert learner.model.head.classes == classes == len(learner.classes_)
            for classifier in ("fc", "ncm"):
                shares = learner.predict_proba(images.pixels, classifier=classifier)
                assert shares.shape == (len(images), classes)
                np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
            assert set(learner.predict(images.pixels).tolist()) <= set(range(classes))
            assert learner.memory is not None
            assert learner.memory.exemplars.labels.bincount().tolist() == kept_of(case, *arriving[: phase + 1])

    def test_old_classes_keep_their_logits(self, case: tuple[str, Options], arriving: list[ImageSet]) -> None:
        """But for a learned scale that the method starts anew: then it is the scores before it."""
        learner, method = learned(case, arriving[:1]), make_method(*case)
        if method.head not in HEADS_THAT_KEEP_OLD_LOGITS:
            pytest.skip(f"the head of {case[0]} is made anew in every phase")
        assert learner.model is not None
        model = grown(learner, arriving[1], Growth(2, 3))
        inputs = arriving[1].pixels.float() / 255
        with torch.no_grad():
            before, after = learner.model(inputs), model.eval()(inputs)
        assert after.logits.shape[1] == 5
        assert torch.allclose(after.scores[:, :2], before.scores, atol=1e-6)
        if isinstance(method, AANets) and method.restarts:
            assert after.scale == 1
        else:
            assert torch.allclose(after.logits[:, :2], before.logits, atol=1e-6)

    def test_old_rows_move_only_where_the_action_lets_them(
        self, case: tuple[str, Options], arriving: list[ImageSet]
    ) -> None:
        learner = learned(case, arriving[:1])
        if make_method(*case).starts_anew:
            pytest.skip(f"{case[0]} has no old rows: every network is new")
        assert learner.model is not None
        before = learner.model.head.rows().detach().clone()
        for event in learner.fitting(arriving[1].pixels, arriving[1].labels):
            if event == StageDone(1, "main"):
                main = learner.state().tensors(images=False)[0]["pending.student.model.head.old"].clone()
        assert torch.equal(main, before) is (learner.action_.old_rows == "frozen")
        after = learner.model.head.rows()[: len(before)]
        assert torch.equal(after, main) is (learner.action_.balance != "finetune")


class TestTerms:
    @pytest.fixture
    def terms(self, case: tuple[str, Options], arriving: list[ImageSet]) -> tuple[Model, dict[str, Tensor]]:
        """The terms of a batch of old and new images when nothing was trained yet: the student is the teacher."""
        learner = learned(case, arriving[:1])
        assert learner.model is not None
        growth = Growth(2, 3)
        model = grown(learner, arriving[1], growth).eval()
        model.training = True  # extras give their outputs; what is below stays in eval mode
        batch = ImageSet.joined(arriving[:2])
        inputs = batch.pixels.float() / 255
        with torch.no_grad():
            teacher: Output = learner.model(inputs)
        return model, make_method(*case).terms(model(inputs), teacher, batch.labels, growth)

    def test_they_and_their_gradients_are_finite(self, terms: tuple[Model, dict[str, Tensor]]) -> None:
        model, named = terms
        for name, term in named.items():
            assert term.shape == (), name
            assert term.isfinite(), name
            for gradient in gradients(term, model):
                assert gradient.isfinite().all(), name

    def test_weight_zero_is_as_if_the_term_were_not_there(self, terms: tuple[Model, dict[str, Tensor]]) -> None:
        model, named = terms
        for absent in named if len(named) > 1 else ():
            others = [term for name, term in named.items() if name != absent]
            without = gradients(torch.stack(others).sum(), model)
            weighed = gradients(torch.stack([*others, 0.0 * named[absent]]).sum(), model)
            assert all(torch.allclose(one, other, atol=1e-7) for one, other in zip(without, weighed, strict=True))

    def test_every_weight_of_the_default_action_has_its_term(
        self, case: tuple[str, Options], terms: tuple[Model, dict[str, Tensor]]
    ) -> None:
        weights = {name for name in make_method(*case).default_action if is_weight(name)}
        assert weights <= set(terms[1])

    def test_the_first_phase_has_terms_too(self, case: tuple[str, Options], arriving: list[ImageSet]) -> None:
        learner = learned(case, arriving[:1])
        assert learner.model is not None
        student = learner.model(arriving[0].pixels.float() / 255)
        named = make_method(*case).terms(student, None, arriving[0].labels, Growth(0, 2))
        assert named
        assert all(term.isfinite() for term in named.values())


def gradients(loss: Tensor, model: Model) -> list[Tensor]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, found, strict=True)
    ]


def test_the_default_action_and_the_stages_are_valid(case: tuple[str, Options]) -> None:
    method = make_method(*case)
    action = method.default_action
    assert Action(**action) == action
    assert {"lr", "classifier"} <= set(action)
    stages = method.stages(Growth(5, 5))
    assert len({stage.name for stage in stages}) == len(stages) >= 1
    for stage in stages:
        assert 0 < stage.share <= 1
        assert all(0 < milestone <= 1 for milestone in stage.milestones)


class TestExactness:
    def test_the_same_bytes_twice(self, case: tuple[str, Options], arriving: list[ImageSet], tmp_path: Path) -> None:
        for name in ("one", "other"):
            torch.manual_seed(len(name))
            learned(case, arriving[:2]).save(tmp_path / name)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()

    def test_another_seed_gives_another_model(self, case: tuple[str, Options], arriving: list[ImageSet]) -> None:
        name, options = case
        one, other = (
            Learner(name, options=options, policy="fixed", net="small", epochs=1, batch=8, device="cpu", seed=seed)
            for seed in (0, 1)
        )
        for learner in (one, other):
            learner.partial_fit(arriving[0].pixels, arriving[0].labels)
        assert not same(one.state().tensors(images=True)[0], other.state().tensors(images=True)[0])

    def test_a_phase_stopped_anywhere_goes_on_to_the_same_bytes(
        self,
        case: tuple[str, Options],
        arriving: list[ImageSet],
        stop_learners_anywhere: Callable[[Learner, ImageSet, int], None],
    ) -> None:
        stop_learners_anywhere(learned(case, arriving[:1]), arriving[1], 1)

    def test_the_global_generator_is_left_alone(
        self, case: tuple[str, Options], arriving: list[ImageSet], tmp_path: Path
    ) -> None:
        before = torch.get_rng_state()
        learner = learned(case, arriving[:2])
        learner.save(tmp_path / "learner")
        Learner.load(tmp_path / "learner", device="cpu").predict(arriving[2].pixels)
        assert torch.equal(torch.get_rng_state(), before)


class TestSmallPhases:
    def test_one_image_of_one_new_class(self, case: tuple[str, Options], arriving: list[ImageSet]) -> None:
        learner = learned(case, arriving[:1])
        one = arriving[1].select(torch.tensor([0]))
        learner.partial_fit(one.pixels, one.labels)
        assert learner.classes_ == (0, 1, 2)
        assert all(bool(value.isfinite().all()) for value in _numbers(learner))

    @pytest.mark.parametrize("classes", [[0], [1, 2]], ids=["known only", "known and new"])
    def test_new_images_of_a_known_class(
        self, classes: list[int], case: tuple[str, Options], arriving: list[ImageSet], make_images: MakeImages
    ) -> None:
        learner = learned(case, arriving[:1])
        images = make_images(classes * 5, seed=9, first=500)
        list(learner.fitting(images.pixels, images.labels, known="update", origins=images.origins))
        assert learner.classes_ == tuple(range(max(1, *classes) + 1))
        assert learner.memory is not None
        assert learner.memory.exemplars.labels.bincount().tolist() == kept_of(case, arriving[0], images)
        untouched = learner.memory.exemplars.of_labels({0, 1} - set(classes))
        assert (untouched.origins < 500).all()
        assert all(bool(value.isfinite().all()) for value in _numbers(learner))


def _numbers(learner: Learner) -> list[Tensor]:
    tensors: dict[str, Any] = learner.state().tensors(images=True)[0]
    return [value for value in tensors.values() if value.is_floating_point()]
