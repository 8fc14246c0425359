"""The labels of a learner, used as an array and as a tuple."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poise.learner.labels import ClassLabels

from .samples import grown

WORDS, NUMBERS = ClassLabels(("cat", "dog", "bear")), ClassLabels((5, 3))


@pytest.mark.parametrize("labels", [WORDS, NUMBERS])
def test_one_label_gives_masks_that_are_opposites_as_with_an_array(labels: ClassLabels) -> None:
    array = np.asarray(tuple(labels))
    for one in (*labels, *array, "horse", 9):
        np.testing.assert_array_equal(labels == one, [label == one for label in labels])
        np.testing.assert_array_equal(labels != one, [label != one for label in labels])
        np.testing.assert_array_equal(one != labels, labels != one)
    np.testing.assert_array_equal(array[labels != labels[0]], array[1:])


def test_several_labels_are_equal_or_not_as_with_a_tuple() -> None:
    assert (NUMBERS == (5, 3)) is True
    assert (NUMBERS != (5, 3)) is False
    assert (NUMBERS != (3, 5)) is True
    assert (NUMBERS != WORDS) is True
    assert (NUMBERS != None) is True  # noqa: E711 - it is about the operator
    assert hash(NUMBERS) == hash((5, 3))


@pytest.mark.parametrize("labels", [WORDS, NUMBERS])
def test_what_an_array_says_of_itself_it_says_too(labels: ClassLabels) -> None:
    array = np.asarray(tuple(labels))
    assert (labels.shape, labels.size, labels.ndim, labels.dtype) == (array.shape, array.size, array.ndim, array.dtype)
    np.testing.assert_array_equal(labels.astype(object), array.astype(object))
    np.testing.assert_array_equal(labels.take([1, 0, 1]), array.take([1, 0, 1]))


def test_a_mask_chooses_columns_of_probabilities() -> None:
    learned = grown()
    chances: Any = learned.predict_proba(np.zeros((2, 8, 8), np.uint8))
    assert chances[:, learned.classes_ != 0].shape == (2, 3)
    assert learned.classes_[learned.classes_ != 0].tolist() == [1, 2, 3]
