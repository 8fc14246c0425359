"""`memory=0`: what every method and every policy must hold where no old image is kept (exemplar-free)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from poise import Learner
from poise.data import ALL_IMAGES, ImageSet
from poise.errors import UserError
from poise.methods import METHODS, make_method
from poise.training.events import TrialDone
from poise.tuning.search import tuner_kind, tuner_names

MakeImages = Callable[..., ImageSet]
Options = Mapping[str, Any]

#: How a method is made where its own defaults end on old images.
UNBALANCED: Options = {"action": {"balance": "none"}}
CASES: dict[str, Options] = {
    **{name: {"method": name} for name, method in METHODS.items() if method.own_memory != ALL_IMAGES},
    "aanets-lucir": {"method": "aanets", "options": {"base": "lucir"}},
}
#: So short that every policy is tried in a second.
SHORT: Options = {"net": "small", "epochs": 2, "batch": 8, "memory": 0, "device": "cpu", "trials": {"length": 0.5}}


def learner_of(case: Options, **changes: Any) -> Learner:
    settings = {**SHORT, **case, **changes}
    if make_method(settings["method"], settings.get("options")).default_action.balance == "finetune":
        settings = {**UNBALANCED, **settings}
    return Learner(**settings)


def widened(before: Tensor, after: Tensor) -> Tensor:
    """Earlier means as they are kept where a network was added: they have nothing of its features."""
    return pad(before, (0, after.shape[1] - before.shape[1]))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Options:
    return CASES[request.param]


@pytest.fixture
def arriving(make_images: MakeImages) -> list[ImageSet]:
    phases = ([0, 1], [2, 3, 4], [5])  # the last one brings a single class
    return [make_images(classes * 6, seed=phase) for phase, classes in enumerate(phases)]


@pytest.mark.parametrize(
    ("case", "policy"),
    [*((case, "fixed") for case in CASES), ("lwf", "online"), ("aanets", "online")],
    indirect=["case"],
)
def test_no_image_is_kept_and_old_means_stay_as_they_were(
    case: Options, policy: str, arriving: list[ImageSet], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner, known = learner_of(case, policy=policy), 0
    for images in arriving:
        before = learner.means_
        learner.partial_fit(images.pixels, images.labels)
        assert learner.memory_ is not None
        assert len(learner.memory_) == 0
        assert (learner.held_, learner.budget_) == (len(images), len(images))
        assert learner.means_ is not None
        assert before is None or torch.equal(learner.means_[:known], widened(before, learner.means_))
        known = len(learner.knowledge.classes)
        new = learner.evaluator.class_means(learner.model, images, known)  # type: ignore[arg-type]
        fresh = known - len(torch.unique(images.labels))
        assert torch.allclose(learner.means_[fresh:], new[fresh:], atol=1e-6)
        for classifier in ("fc", "ncm"):
            assert learner.predict_proba(images.pixels, classifier=classifier).shape == (len(images), known)
    caplog.clear()
    learner.save(tmp_path / "learner")
    assert not caplog.records, "there is no training image to warn of"
    loaded = Learner.load(tmp_path / "learner", device="cpu")
    assert loaded.knowledge.mean_images == (6,) * 6
    assert torch.equal(loaded.means_, learner.means_)  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [[0], [1, 2]], ids=["known only", "known and new"])
@pytest.mark.parametrize(
    ("case", "policy"),
    [*((case, "fixed") for case in CASES), ("lwf", "online"), ("icarl", "online")],
    indirect=["case"],
)
def test_new_images_of_a_known_class_are_weighed_with_its_earlier_ones(
    classes: list[int], case: Options, policy: str, arriving: list[ImageSet], make_images: MakeImages
) -> None:
    learner = learner_of(case, policy=policy).partial_fit(arriving[0].pixels, arriving[0].labels)
    before, images = learner.means_, make_images(classes * 3, seed=9)
    learner.partial_fit(images.pixels, images.labels, known="update")
    assert before is not None
    assert learner.means_ is not None
    before = widened(before, learner.means_)
    (updated,) = {0, 1} & set(classes)
    assert learner.knowledge.mean_images == ((9, 6, 3) if updated == 0 else (6, 9, 3))[: len(learner.knowledge.classes)]
    assert torch.equal(learner.means_[1 - updated], before[1 - updated])
    found = learner.evaluator.class_means(learner.model, images, len(learner.knowledge.classes))  # type: ignore[arg-type]
    both = normalize(3 * found[updated] + 6 * before[updated], dim=0)
    assert torch.allclose(learner.means_[updated], both, atol=1e-6)


class TestPolicies:
    @pytest.mark.parametrize("name", [name for name in tuner_names() if tuner_kind(name).asks])
    def test_every_policy_tries_actions_on_new_images_alone(self, name: str, arriving: list[ImageSet]) -> None:
        space = {"lr": [0.1, 0.05], "logit_kd": [0.5, 1.0]}
        learner = learner_of(CASES["lwf"], policy=name, space=space)
        learner.partial_fit(arriving[0].pixels, arriving[0].labels)
        events = list(learner.fitting(arriving[1].pixels, arriving[1].labels))
        trials = [event for event in events if isinstance(event, TrialDone)]
        assert trials
        for event in trials:
            assert event.record["split"]["environment"] == "lookahead"
            assert set(event.record["classes"]) == {2, 3, 4}
        assert learner.settings.resolved_policy()["trials"]["environment"] == "lookahead"

    def test_what_is_left_open_is_chosen_for_no_memory(self, arriving: list[ImageSet]) -> None:
        learner = Learner(memory=0, net="small", epochs=2, device="cpu")
        learner.partial_fit(arriving[0].pixels, arriving[0].labels)
        assert (learner.settings.automatic, learner.settings.policy) == ((), "fixed")
        assert learner.partial_fit(arriving[1].pixels, arriving[1].labels).score(arriving[1].pixels, [2] * 18) >= 0

    def test_a_single_new_class_leaves_nothing_to_validate_on(
        self, arriving: list[ImageSet], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Validating on new images alone would only reward forgetting."""
        learner = learner_of(CASES["lwf"], policy="online").partial_fit(arriving[0].pixels, arriving[0].labels)
        learner.partial_fit(arriving[2].pixels, arriving[2].labels - 3)
        assert learner.action_ == learner.settings.default_action
        assert "nothing to validate on" in caplog.text

    def test_pseudo_tasks_keep_no_image_either(self, make_images: MakeImages) -> None:
        learner = learner_of(CASES["icarl"], policy="offline-rl", policy_options={"episodes": 2, "length": 0.5})
        first, second = make_images([0, 1, 2, 3] * 6), make_images([4, 5] * 6, seed=1)
        learner.partial_fit(first.pixels, first.labels).partial_fit(second.pixels, second.labels)
        assert learner.memory_ is not None
        assert len(learner.memory_) == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "podnet"}, "set action.balance=none"),
        ({"method": "aanets", "options": {"alpha": "learned", "base": "lucir"}}, "trains on as many old images"),
        ({"action": {"balance": "finetune"}}, "set action.balance=none"),
        ({"space": {"balance": ["none", "finetune"]}}, "set action.balance=none"),
        ({"policy": "bilevel"}, "policy=bilevel validates on old images"),
        ({"trials": {"environment": "local"}}, "trials.environment=local needs old images"),
        ({"trials": {"environment": "both"}}, "trials.environment=both needs old images"),
        ({"policy": "grid", "trials": {"horizon": 1}}, "trials.horizon=1 needs old images"),
    ],
)
def test_what_needs_old_images_is_refused_before_anything_is_trained(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=rf"^[^\n]*({words})[^\n]*$"):
        _ = Learner(**{**SHORT, "trials": None, **settings}).settings
