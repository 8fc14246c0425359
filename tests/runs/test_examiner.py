"""The examiner: right figures, on images that the learner never trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from poise import Learner
from poise.data import ImageSet, PixelStore, Stream, make_stream
from poise.data.sources import DigitsSource, Source
from poise.errors import UserError
from poise.runs import Exam, Examiner, Plan, Run, RunFolder, make_recipe, split_for_development
from poise.runs.examiner import accuracy_matrix, average_forgetting, backward_transfer


def exam(phase: int, classifier: str, classes: list[int], fc: list[int], ncm: list[int]) -> Exam:
    """Ten images of every class."""
    return Exam(phase, classifier, classes, [10] * len(classes), fc, ncm, [])


THREE = [
    exam(0, "fc", [4, 2], [9, 7], [6, 6]),
    exam(1, "ncm", [4, 2, 7], [1, 1, 10], [8, 9, 4]),
    exam(2, "fc", [4, 2, 7, 6], [5, 3, 6, 10], [0, 0, 0, 0]),
]
STREAM = Stream("groups", ((4, 2), (7,), (6,)))


def test_accuracy_is_the_share_of_hits_of_the_classifier_that_counts() -> None:
    assert [one.accuracy() for one in THREE] == pytest.approx([80, 70, 60])
    assert THREE[1].accuracy("fc") == pytest.approx(40)
    assert THREE[1].accuracy("ncm") == pytest.approx(70)
    assert THREE[2].accuracy(among=frozenset({4, 7})) == pytest.approx(55)


def test_classes_with_more_images_weigh_more() -> None:
    uneven = Exam(0, "fc", [0, 1], [30, 10], [30, 0], [0, 0], [])
    assert uneven.accuracy() == pytest.approx(75)


def test_forgetting_is_the_fall_from_the_best_earlier_exam() -> None:
    # classes 4 and 2: best 85 (phase 1, ncm counted), last 40; class 7: 40 then 60, a gain of 20; class 6 is the last
    assert average_forgetting(THREE, STREAM) == pytest.approx((85 - 40 + 40 - 60) / 2)
    assert average_forgetting(THREE[:2], STREAM) == pytest.approx(80 - 85)
    assert average_forgetting(THREE[:1], STREAM) == 0


def test_the_accuracy_matrix_has_a_row_for_each_exam_by_the_classifier_that_counted_there() -> None:
    found = accuracy_matrix(THREE, STREAM)
    assert [[round(cell) for cell in row] for row in found] == [[80], [85, 40], [40, 60, 100]]
    weighed = [sum(cell * size for cell, size in zip(row, (2, 1, 1), strict=False)) for row in found]
    assert weighed == pytest.approx([80 * 2, 70 * 3, 60 * 4]), "weighed by its classes a row gives the exam's accuracy"


def test_backward_transfer_is_the_mean_change_since_classes_were_learned() -> None:
    assert backward_transfer(accuracy_matrix(THREE, STREAM)) == pytest.approx((40 - 80 + 60 - 40) / 2)
    assert backward_transfer(accuracy_matrix(THREE[:2], STREAM)) == pytest.approx(85 - 80)
    assert backward_transfer(accuracy_matrix(THREE[:1], STREAM)) == 0


class Oracle(Learner):
    """Knows the answer from the first pixel; its other classifier always says the first class."""

    def predictions(self, images: object) -> dict[str, NDArray[Any]]:
        assert isinstance(images, PixelStore)
        return {"fc": images.all()[:, 0, 0, 0].numpy().astype(np.int64), "ncm": np.full(len(images), 3)}


def test_an_exam_covers_the_classes_seen_so_far_and_nothing_else() -> None:
    labels = torch.tensor([3, 3, 3, 1, 1, 0])
    pixels = labels.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).clone()
    pixels[0] = 1  # one image of class 3 looks like class 1
    examiner = Examiner(ImageSet(pixels, labels, torch.arange(6)), Stream("groups", ((3,), (1,), (0,))))
    found = examiner.examine(Oracle(), 1)
    assert (found.classes, found.images) == ([3, 1], [3, 2])
    assert (found.hits_fc, found.hits_ncm) == ([2, 2], [3, 0])
    assert found.accuracy() == pytest.approx(80)
    assert found.confusion == [[1, 1, 2], [3, 1, 1], [3, 3, 2]]


def test_a_temporary_model_is_scored_as_the_learner_is_examined() -> None:
    train, test = DigitsSource().train(), DigitsSource().test()
    learner = Learner("lucir", policy="fixed", net="small", epochs=1, memory=4, device="cpu")
    stream = Stream("groups", ((4, 2), (7,)))
    for group in stream:
        arrived = train.of_labels(group)
        learner.partial_fit(arrived.pixels, arrived.labels)
    examiner = Examiner(test, stream)
    wanted = examiner.examine(learner, 1)
    assert learner.knowledge.classes == (2, 4, 7), "rows are sorted within a phase, the stream is not"
    assert learner.model is not None
    assert learner.means_ is not None
    found = examiner.score(learner.model, learner.means_, learner.knowledge.classes, learner.evaluator)
    places = [wanted.classes.index(label) for label in (2, 4, 7)]
    assert found == {"fc": [wanted.hits_fc[at] for at in places], "ncm": [wanted.hits_ncm[at] for at in places]}
    assert examiner.counts(learner.knowledge.classes) == [wanted.images[at] for at in places]


def test_a_phase_that_cannot_be_examined_is_refused_at_once() -> None:
    images = DigitsSource().test().of_labels([4, 2])
    with pytest.raises(UserError, match="no image of phase 1, class 7"):
        Examiner(images, STREAM)


def test_the_development_exam_takes_50_of_each_class_and_the_training_the_rest() -> None:
    train = DigitsSource().train()
    rest, aside = split_for_development(train)
    assert torch.bincount(aside.labels).tolist() == [50] * 10
    assert not set(rest.origins.tolist()) & set(aside.origins.tolist())
    assert sorted(rest.origins.tolist() + aside.origins.tolist()) == train.origins.tolist()
    assert torch.equal(split_for_development(train)[1].origins, aside.origins)


def test_the_development_exam_leaves_half_of_a_small_class() -> None:
    train = DigitsSource().train()
    few = train.select(torch.cat([(train.labels == label).nonzero().flatten()[:7] for label in (0, 1)]))
    rest, aside = split_for_development(few)
    assert torch.bincount(rest.labels).tolist() == [4, 4]
    assert torch.bincount(aside.labels).tolist() == [3, 3]


class Sealed(DigitsSource):
    """Digits whose test images must not be touched."""

    def test(self) -> ImageSet:
        raise AssertionError("the test images were read")


def run(source: Source, folder: Path, *words: str) -> Run:
    recipe = make_recipe({"net": "small", "memory": 4, "epochs": 1, "batch": 64}, ["groups=[2,1]", *words])
    order = tuple(range(len(source.class_names)))
    job = Run(Plan("test", recipe, source, make_stream("groups", order=order, groups=[2, 1])), RunFolder(folder))
    job.start()
    return job


def test_a_development_run_never_reads_the_test_images(tmp_path: Path) -> None:
    job = run(Sealed(), tmp_path / "dev", "exam=dev")
    assert [one.images for one in job.findings.exams] == [[50, 50], [50, 50, 50]]
    with pytest.raises(AssertionError, match="were read"):
        run(Sealed(), tmp_path / "test")
