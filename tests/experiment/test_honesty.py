"""Nobody but the examiner touches an exam image: not policies, training, herding, imprinting nor decisions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from poise import store
from poise.data import ImageSet, make_stream
from poise.data.sources import DigitsSource
from poise.experiment import Examiner, Plan, Run, RunFolder, make_recipe
from poise.studies import Audit

#: The rooms in which nothing may look at an exam image.
LEARNS = ("poise.learner", "poise.tuning", "poise.training", "poise.policies", "poise.methods")


class Sealed(ImageSet):
    """Images that raise when anybody but the examiner looks at them, or while a learner is learning."""

    def __getattribute__(self, name: str) -> object:
        if name in ("pixels", "labels", "origins"):
            frame = sys._getframe(1)
            by_examiner = in_learner = False
            while frame is not None:
                owner = frame.f_locals.get("self")
                by_examiner |= isinstance(owner, Examiner)
                in_learner |= frame.f_globals.get("__name__", "").startswith(LEARNS)
                frame = frame.f_back  # type: ignore[assignment]
            if in_learner or not by_examiner:
                raise AssertionError(f"exam {name} were touched")
        return super().__getattribute__(name)


class SealedDigits(DigitsSource):
    """Digits whose test images are sealed."""

    def test(self) -> ImageSet:
        images = super().test()
        sealed = object.__new__(Sealed)
        for name in ("pixels", "labels", "origins"):
            object.__setattr__(sealed, name, getattr(images, name))
        return sealed


def plan(*words: str, groups: tuple[int, ...] = (3, 2, 1)) -> Plan:
    keys = {"net": "small", "memory": 8, "epochs": 2, "batch": 32, "setting": "groups", "groups": list(groups)}
    recipe = make_recipe({**keys, "images_per_class": 24, "space": {"feature_kd": [0, 1], "lr": [0.1, 0.02]}}, words)
    return Plan("sealed", recipe, SealedDigits(), make_stream("groups", order=range(10), groups=list(groups)))


def test_the_seal_holds() -> None:
    images = SealedDigits().test()
    with pytest.raises(AssertionError, match="were touched"):
        len(images)
    with pytest.raises(AssertionError, match="were touched"):
        images.of_labels([1])
    assert len(Examiner(images, make_stream("groups", order=range(10), groups=[2])).fingerprint) == 32


@pytest.mark.parametrize(
    "words",
    [
        ("policy=grid",),
        ("policy=race", "policy_options.finalists=1", "policy_options.safe=1.0"),
        ("policy=exp3", "policy_options.iterations=3", "trials.horizon=1"),
        ("policy=thompson", "policy_options.trials=3", "memory.reserve=2", "action.classifier=auto"),
        ("policy=hedge", "trials.environment=lookahead"),
        ("policy=grid", "method=icarl", "space={logit_kd=[0,1]}"),
        ("policy=online",),
        ("policy=bilevel", "policy_options.rounds=1", "space={}"),
    ],
    ids=" ".join,
)
def test_learning_never_touches_an_exam_image(words: tuple[str, ...], tmp_path: Path) -> None:
    result = Run(plan(*words), RunFolder(tmp_path / "run")).start()
    assert [point["classes"] for point in result["curve"]] == [3, 5, 6]


def test_neither_do_pseudo_tasks_made_of_the_first_phase(tmp_path: Path) -> None:
    job = plan("policy=offline-rl", "policy_options.episodes=2", groups=(4, 2))
    assert Run(job, RunFolder(tmp_path / "run")).start()["curve"][-1]["classes"] == 6


def test_a_resumed_run_does_not_either(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    going = Run(plan("policy=grid"), folder, checkpoint_seconds=0).starting()
    while sum(event["event"] == "trial" for event in store.read_journal(folder.journal.path)) < 6:
        next(going)
    going.close()
    assert Run(plan("policy=grid"), folder).resume()["curve"][-1]["classes"] == 6


def test_the_leak_audit_does_and_so_shows_that_the_seal_would_notice(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="were touched"):
        Audit(plan("policy=grid"), RunFolder(tmp_path / "run")).start()


def test_rewards_and_models_do_not_depend_on_the_exam(tmp_path: Path) -> None:
    """Other exam images, the same journal up to the exams, and the same model."""
    journals, models = [], []
    for name, turned in (("one", False), ("other", True)):
        folder = RunFolder(tmp_path / name)
        job = plan("policy=race")
        source = Turned() if turned else DigitsSource()
        Run(Plan(job.name, job.recipe, source, job.stream), folder).start()
        lines = folder.journal.path.read_text().splitlines()
        journals.append([line for line in lines if '"event": "exam"' not in line])
        models.append(folder.model.read_bytes())
    assert journals[0] == journals[1]
    assert models[0] == models[1]


class Turned(DigitsSource):
    """Digits whose test images are upside down."""

    def test(self) -> ImageSet:
        images = super().test()
        pixels: Tensor = torch.flip(images.pixels, dims=(2,))
        return ImageSet(pixels, images.labels, images.origins)
