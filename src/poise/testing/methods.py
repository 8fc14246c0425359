"""What every method must pass. Needs no more than a test runner that collects classes, such as pytest."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poise import draws
from poise.actions import Action, is_weight
from poise.data import ALL_IMAGES
from poise.learner import Images, Known, Labels, Learner
from poise.methods import Growth, Method, make_method
from poise.nets import Model
from poise.training.events import PhaseStarted

Pixels = NDArray[np.uint8]
#: The classes of each phase; the last one brings a single class.
PHASES = ([0, 1], [2, 3, 4], [5])
KEPT = 3  # images of each class, where a method does not keep all


def make_images(labels: Sequence[int], seed: int = 0) -> tuple[Pixels, NDArray[np.int64]]:
    """Images of 8 × 8 pixels in colours: noise on a brightness that belongs to the class."""
    noise = draws.generator(seed, "images of a suite").integers(0, 128, (len(labels), 8, 8, 3))
    classes = np.asarray(labels)
    return (noise + 20 * (classes % 6)[:, None, None, None]).astype(np.uint8), classes


def check_resuming(
    make: Callable[[], Learner],
    images: Images,
    labels: Labels,
    *,
    stops: int = 3,
    known: Known = "refuse",
    net: nn.Module | None = None,
) -> None:
    """Stop a learner at a few drawn events of a phase, save it, load it, go on: the bytes are those without a stop.

    `make` gives learners that stand before the phase; `net` is theirs, if they have their own.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "learner"
        whole = make()
        started = [isinstance(event, PhaseStarted) for event in whole.fitting(images, labels, known=known)]
        events, first = len(started), started.index(True) + 1  # before it there is nothing to save
        whole.save(file)
        wanted = file.read_bytes()
        for stop in draws.generator(events, "stops of a suite").integers(first, max(first + 1, events), stops):
            learner = make()
            running = learner.fitting(images, labels, known=known)
            for _ in range(stop):
                next(running)
            learner.save(file)
            resumed = Learner.load(file, device="cpu", net=net)
            for _ in resumed.fitting(images, labels, known=known):
                pass
            resumed.save(file)
            assert file.read_bytes() == wanted, f"other bytes after a stop at event {stop} of {events}"


class MethodSuite:
    """The tests of one method: subclass it, name the method, and let pytest collect the class.

    Attributes:
        method: its name, once it is registered.
        options: its own options.
        keeps_old_scores: whether old classes keep their scores when the head grows; false where it is made anew.
    """

    method: str
    options: ClassVar[Mapping[str, float | str]] = {}
    keeps_old_scores = True

    # What the tests work with ---------------------------------------------------------------------------------------

    @property
    def made(self) -> Method:
        """The method."""
        return make_method(self.method, self.options)

    def learner(self, **settings: Any) -> Learner:  # noqa: ANN401 - any setting
        """A learner that has learned nothing."""
        memory = KEPT if self.made.own_memory != ALL_IMAGES else None
        short: dict[str, Any] = {"net": "small", "epochs": 2, "batch": 8, "device": "cpu", "policy": "fixed"}
        return Learner(self.method, **{**short, "memory": memory, "options": self.options, **settings})

    def arriving(self, phase: int) -> tuple[Pixels, NDArray[np.int64]]:
        """Six images of each class of a phase."""
        return make_images(PHASES[phase] * 6, seed=phase)

    def learned(self, phases: int = 1, **settings: Any) -> Learner:  # noqa: ANN401 - any setting
        """A learner that has learned so many phases."""
        learner = self.learner(**settings)
        for phase in range(phases):
            learner.partial_fit(*self.arriving(phase))
        return learner

    def grown(self, learner: Learner) -> tuple[Model, Tensor, Tensor]:
        """The model that a learner's second phase begins with, and inputs and labels of two phases."""
        (first, known), (second, new) = self.arriving(0), self.arriving(1)
        learning = learner.fitting(second, new)
        next(learning)
        phase = learner.phase_under_way
        learning.close()
        assert phase is not None
        model = phase.material.complete(phase.context.grow_model(phase.material.arrived))
        inputs = torch.from_numpy(np.concatenate([first, second])).permute(0, 3, 1, 2).float() / 255
        return model, inputs, torch.from_numpy(np.concatenate([known, new]))

    def equal_terms(self) -> tuple[Model, dict[str, Tensor]]:
        """The terms of old and new images when nothing was trained yet: the student is the teacher."""
        learner = self.learned()
        model, inputs, rows = self.grown(learner)
        model.eval()
        model.training = True  # extras give their outputs; what is below stays in eval mode
        with torch.no_grad():
            teacher = model_of(learner)(inputs)
        return model, self.made.terms(model(inputs), teacher, rows, Growth(2, 3))

    # Growth ---------------------------------------------------------------------------------------------------------

    def test_shapes_follow_the_classes(self) -> None:
        """Rows, predictions and kept images after every phase."""
        learner, known = self.learner(), 0
        for phase, classes in enumerate(PHASES):
            images, labels = self.arriving(phase)
            learner.partial_fit(images, labels)
            known += len(classes)
            assert model_of(learner).head.classes == known == len(learner.knowledge.classes)
            for classifier in ("fc", "ncm"):
                shares = learner.predict_proba(images, classifier=classifier)
                assert shares.shape == (len(images), known)
                np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
            kept = 6 if self.made.own_memory == ALL_IMAGES else KEPT
            assert [each.label for each in learner.exemplars()] == [row for row in range(known) for _ in range(kept)]

    def test_old_classes_keep_their_scores_when_the_head_grows(self) -> None:
        """Before any training. A learned scale may start anew: scores are what comes before it."""
        learner = self.learned()
        model, inputs, _ = self.grown(learner)
        with torch.no_grad():
            before, after = model_of(learner)(inputs), model.eval()(inputs)
        assert after.logits.shape[1] == 5
        kept = torch.allclose(after.scores[:, :2], before.scores, atol=1e-6)
        assert kept or not self.keeps_old_scores or self.made.starts_anew

    def test_old_rows_move_only_where_the_action_lets_them(self) -> None:
        """`old_rows=frozen` keeps them, unless they are fine-tuned on a balanced set afterwards."""
        learner = self.learned()
        before = model_of(learner).head.rows().detach().clone()
        learner.partial_fit(*self.arriving(1))
        if not self.made.starts_anew:
            moved = not torch.equal(model_of(learner).head.rows()[: len(before), ..., : before.shape[-1]], before)
            assert moved == (learner.action_.old_rows != "frozen" or learner.action_.balance == "finetune")

    # Terms ----------------------------------------------------------------------------------------------------------

    def test_terms_and_gradients_are_finite_where_the_student_is_the_teacher(self) -> None:
        """A term of weight 0 must not poison the sum."""
        model, terms = self.equal_terms()
        for name, term in terms.items():
            assert term.shape == (), name
            assert term.isfinite(), name
            assert all(gradient.isfinite().all() for gradient in _gradients(term, model)), name

    def test_weight_zero_is_as_if_the_term_were_not_there(self) -> None:
        """Whatever its gradient."""
        model, terms = self.equal_terms()
        for absent in terms if len(terms) > 1 else ():
            others = [term for name, term in terms.items() if name != absent]
            without = _gradients(torch.stack(others).sum(), model)
            weighed = _gradients(torch.stack([*others, 0.0 * terms[absent]]).sum(), model)
            assert all(torch.allclose(one, other, atol=1e-7) for one, other in zip(without, weighed, strict=True))

    def test_every_weight_of_the_default_action_has_its_term(self) -> None:
        """A weight of nothing could be tuned without effect."""
        assert {name for name in self.made.default_action if is_weight(name)} <= set(self.equal_terms()[1])

    def test_the_default_action_and_the_stages_are_valid(self) -> None:
        """The action names rate and classifier; stages have names of their own and lengths."""
        action, stages = self.made.default_action, self.made.stages(Growth(5, 5))
        assert Action(**action) == action
        assert {"lr", "classifier"} <= set(action)
        assert len({stage.name for stage in stages}) == len(stages) >= 1
        assert all(0 < stage.share <= 1 and all(0 < each <= 1 for each in stage.milestones) for stage in stages)

    # Exactness ------------------------------------------------------------------------------------------------------

    def test_the_seed_alone_decides(self) -> None:
        """Equal values with one seed, others with another; torch's global generator neither counts nor moves."""
        torch.manual_seed(1)
        before = torch.get_rng_state()
        one = _values(self.learned(2))
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert _same(one, _values(self.learned(2)))
        assert not _same(one, _values(self.learned(2, seed=1)))

    def test_a_phase_stopped_anywhere_goes_on_to_the_same_bytes(self) -> None:
        """A phase that is stopped at each of three drawn events ends with the same bytes."""
        first = self.learned()
        check_resuming(lambda: copy.deepcopy(first), *self.arriving(1))

    # Small phases ---------------------------------------------------------------------------------------------------

    def test_one_image_of_one_new_class(self) -> None:
        """No batch statistics, no class mean of several."""
        learner = self.learned()
        images, labels = self.arriving(1)
        learner.partial_fit(images[:1], labels[:1])
        assert learner.knowledge.classes == (0, 1, 2)
        assert _is_finite(learner)

    def test_new_images_of_known_classes_alone_and_beside_new_ones(self) -> None:
        """`known="update"`."""
        for classes in ([0], [1, 2]):
            learner = self.learned()
            learner.partial_fit(*make_images(classes * 5, seed=9), known="update")
            assert learner.knowledge.classes == tuple(range(max(1, *classes) + 1))
            assert _is_finite(learner)


def model_of(learner: Learner) -> Model:
    """The model of a learner that has learned something."""
    assert learner.model is not None
    return learner.model


def _gradients(loss: Tensor, model: Model) -> list[Tensor]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(each) if value is None else value for each, value in zip(trained, found, strict=True)]


def _values(learner: Learner) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model_of(learner).state_dict().items()}


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def _is_finite(learner: Learner) -> bool:
    return all(bool(value.isfinite().all()) for value in _values(learner).values())
