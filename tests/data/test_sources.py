from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from poise.data import suitable_net
from poise.data.augment import Augmentation, Preprocessing
from poise.data.sources import ArraySource, DigitsSource, published
from poise.data.sources.base import digest
from poise.errors import UserError


def noise(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


class TestDigits:
    def test_a_third_of_each_class_is_test(self) -> None:
        source = DigitsSource()
        train, test = source.train(), source.test()
        totals = np.bincount(load_digits().target)
        assert test.labels.bincount().tolist() == (totals // 3).tolist()
        assert (train.labels.bincount() + test.labels.bincount()).tolist() == totals.tolist()
        assert (len(train), len(test)) == (1201, 596)
        assert train.shape == test.shape == (1, 8, 8)
        assert train.origins.tolist() == list(range(1201))
        assert source.class_names == tuple("0123456789")
        assert source.fingerprint == "202b00b665ef6ddc623a9b85f9da4eb7", "the split is fixed"

    def test_the_parts_together_are_scikit_learns_images(self) -> None:
        source = DigitsSource()
        parts = torch.cat([source.train().pixels, source.test().pixels]).flatten(1).tolist()
        originals = np.rint(load_digits().data * 255 / 16).astype(int).tolist()
        assert sorted(parts) == sorted(originals)
        assert max(map(max, parts)) == 255

    def test_scikit_learn_is_asked_where_it_keeps_them_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = published._all_digits()
        monkeypatch.setattr(published, "DIGITS", "elsewhere.csv.gz")
        again = published._all_digits.__wrapped__()
        np.testing.assert_equal(again, known)

    def test_what_a_caller_does_with_the_pixels_stays_with_the_caller(self) -> None:
        mine = DigitsSource().train()
        mine.pixels.zero_()
        mine.labels.zero_()
        again = DigitsSource().train()
        assert again.pixels.any()
        assert again.labels.any()

    def test_the_constants_are_those_of_the_training_part(self) -> None:
        source = DigitsSource()
        measured = Preprocessing.measured(source.train().pixels, source.augmentation)
        assert source.preprocessing is not None
        assert source.preprocessing.mean == pytest.approx(measured.mean, abs=5e-5)
        assert source.preprocessing.std == pytest.approx(measured.std, abs=5e-5)

    def test_digits_are_never_mirrored(self) -> None:
        assert DigitsSource.augmentation == Augmentation(pad=1, flip=False)
        assert DigitsSource.preprocessing is not None
        assert DigitsSource.preprocessing.augmentation == DigitsSource.augmentation
        assert DigitsSource.net == "small"


class TestArrays:
    IMAGES = noise(4, 16, 16, 3)

    def test_string_labels_become_sorted_classes(self) -> None:
        source = ArraySource(self.IMAGES, ["cat", "ant", "cat", "bee"], self.IMAGES[:2], ["bee", "ant"], name="pets")
        assert source.name == "pets"
        assert source.class_names == ("ant", "bee", "cat")
        assert source.train().labels.tolist() == [2, 0, 2, 1]
        assert source.test().labels.tolist() == [1, 0]
        assert source.train().origins.tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(source.train().pixels.numpy(), self.IMAGES.transpose(0, 3, 1, 2))

    @pytest.mark.parametrize("labels", [[10, 9, 10, -1], np.array([10, 9, 10, -1]), torch.tensor([10, 9, 10, -1])])
    def test_number_labels_are_sorted_as_numbers(self, labels: Any) -> None:
        source = ArraySource(self.IMAGES, labels)
        assert source.class_names == ("-1", "9", "10")
        assert source.train().labels.tolist() == [2, 1, 2, 0]

    def test_numpy_strings_and_numpy_numbers_in_a_list(self) -> None:
        assert ArraySource(self.IMAGES, np.array(["b", "a", "a", "b"])).class_names == ("a", "b")
        assert ArraySource(self.IMAGES, [np.int64(3), 4, 4, 4]).class_names == ("3", "4")

    def test_copies_of_training_images_in_the_test_part_are_said(self, caplog: pytest.LogCaptureFixture) -> None:
        others = 255 - self.IMAGES
        ArraySource(self.IMAGES, [0, 1, 0, 1], others, [0, 1, 0, 1]).test()
        assert not caplog.messages
        mixed = np.concatenate([others, self.IMAGES[1:3]])
        ArraySource(self.IMAGES, [0, 1, 0, 1], mixed, [0, 1, 0, 1, 0, 1]).test()
        assert caplog.messages[0].startswith("2 of the 6 test images are copies of training images;")

    def test_what_is_chosen_follows_the_size(self) -> None:
        source = ArraySource(self.IMAGES, [0, 1, 0, 1])
        assert source.augmentation == Augmentation(pad=2, flip=True)
        assert source.preprocessing is None
        assert source.notes == ("size 16×16; net resnet32; flip on",)
        own = ArraySource(self.IMAGES, [0, 1, 0, 1], augmentation=Augmentation(1, flip=False))
        assert own.augmentation == Augmentation(1, flip=False)
        nets = {side: suitable_net(side) for side in (8, 12, 13, 32, 64, 65, 224)}
        assert list(nets.values()) == ["small"] * 2 + ["resnet32"] * 3 + ["resnet18"] * 2

    def test_the_fingerprint_follows_images_labels_and_names_but_not_the_test_part(self) -> None:
        def fingerprint(images: Any = self.IMAGES, labels: Any = (0, 1, 0, 1), **test: Any) -> str:
            return ArraySource(images, labels, **test).fingerprint

        same = fingerprint()
        assert fingerprint(test_images=self.IMAGES, test_labels=[0, 0, 0, 1]) == same
        assert fingerprint(labels=(0, 1, 1, 1)) != same
        assert fingerprint(labels=("0", "2", "0", "2")) != same
        assert fingerprint(images=255 - self.IMAGES) != same

    def test_bad_labels_and_images_are_refused(self) -> None:
        images = self.IMAGES
        cases: list[tuple[tuple[Any, ...], str]] = [
            ((images, [0, 1, 0]), "4 train images came with 3 labels"),
            ((images, [0, 0, 0, 0]), "1 class; at least 2"),
            ((images, [0.5, 1, 0, 1]), "contain float, int"),
            ((images, [True, False, True, True]), "contain bool"),
            ((images, ["a", 1, "a", 1]), "contain int, str"),
            ((images, "abab"), "came as str"),
            ((images, None), "came as NoneType"),
            ((images, np.eye(4, dtype=int)), "contain list"),
            ((images, [0, 1, 0, 1], images, [0, 1, 2, 7]), "train_labels lack: 2, 7"),
            ((images, [0, 1, 0, 1], images, None), "test_labels came as NoneType"),
            ((images / 2, [0, 1, 0, 1]), "between 0 and 1"),
        ]
        for arguments, words in cases:
            with pytest.raises(UserError, match=words):
                ArraySource(*arguments)

    def test_bad_test_images_are_refused(self) -> None:
        cases: list[tuple[Any, Any, str]] = [
            (noise(2, 8, 8, 3), [0, 1], "8×8 pixels, expected 16×16"),
            (noise(2, 16, 16), [0, 1], "1 channels, training images 3"),
            (self.IMAGES, [0, 1], "4 test images came with 2 labels"),
            (None, None, "without test images"),
        ]
        for images, labels, words in cases:
            with pytest.raises(UserError, match=words):
                ArraySource(self.IMAGES, [0, 1, 0, 1], images, labels).test()


def test_a_digest_tells_where_parts_end_and_which_shape_they_have() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest([torch.zeros(2, 3)]) != digest([torch.zeros(3, 2)])
    assert digest(["a", b"b"]) == digest([b"a", "b"])
