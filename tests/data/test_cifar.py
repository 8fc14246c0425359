from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poise.data.augment import Augmentation, Preprocessing
from poise.data.sources import CifarSource, Source
from poise.data.sources.registry import RELEASES, Release
from poise.errors import UserError


class Trap:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def batch(count: int, key: str, seed: int) -> bytes:
    """A file in the layout of the published ones, small."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
    return pickle.dumps({"data": pixels, key: rng.integers(0, 10, count).tolist()}, protocol=2)


@pytest.fixture
def small(tmp_path: Path) -> tuple[Release, Path]:
    """CIFAR-10 with tiny files and the md5 sums that these have."""
    release = RELEASES["cifar10"]
    folder = tmp_path / release.folder
    folder.mkdir()
    contents = {file: batch(3, "labels", seed) for seed, file in enumerate([*release.train, *release.test])}
    contents["batches.meta"] = pickle.dumps({"label_names": [f"class {number}" for number in range(10)]})
    for file, data in contents.items():
        (folder / file).write_bytes(data)
    sums = {file: hashlib.md5(data).hexdigest() for file, data in contents.items()}
    made = dataclasses.replace(
        release,
        train={file: sums[file] for file in release.train},
        test={file: sums[file] for file in release.test},
        meta={file: sums[file] for file in release.meta},
    )
    return made, folder


def test_all_training_files_are_read_in_order(small: tuple[Release, Path]) -> None:
    source = CifarSource(*small)
    train = source.train()
    assert (len(train), len(source.test())) == (15, 3)
    assert train.shape == (3, 32, 32)
    for number in range(5):
        original = pickle.loads((small[1] / f"data_batch_{number + 1}").read_bytes())
        part = train.select(torch.arange(3 * number, 3 * number + 3))
        np.testing.assert_array_equal(part.pixels.numpy(), original["data"].reshape(3, 3, 32, 32))
        assert part.labels.tolist() == original["labels"]
    assert source.class_names[3] == "class 3"
    assert source.net == "resnet32"


def test_a_tampered_file_is_never_unpickled(small: tuple[Release, Path], tmp_path: Path) -> None:
    release, folder = small
    sprung = tmp_path / "sprung"
    for file, use in (
        ("data_batch_3", "train"),
        ("test_batch", "test"),
        ("batches.meta", "train"),
        ("test_batch", "verify"),
    ):
        original = (folder / file).read_bytes()
        (folder / file).write_bytes(pickle.dumps(Trap(sprung)))
        with pytest.raises(UserError) as caught:
            getattr(CifarSource(release, folder), use)()
        message = str(caught.value)
        assert str(folder / file) in message
        assert {**release.train, **release.test, **release.meta}[file] in message
        assert "the python version from the CIFAR page" in message
        assert "\n" not in message
        assert not sprung.exists()
        (folder / file).write_bytes(original)
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists(), "the trap must be one that works"


def test_the_published_sums_refuse_files_of_the_right_layout(small: tuple[Release, Path]) -> None:
    with pytest.raises(UserError, match="expected 5ff9c542aee3614f3951f8cda6e48888"):
        CifarSource(RELEASES["cifar10"], small[1])


def test_a_missing_file_is_named(small: tuple[Release, Path]) -> None:
    release, folder = small
    (folder / "data_batch_2").unlink()
    source = CifarSource(release, folder)
    with pytest.raises(UserError, match=rf"{folder}/data_batch_2 of CIFAR-10 \(md5 {release.train['data_batch_2']}\)"):
        source.train()


def test_training_and_fingerprint_do_not_touch_the_test_file(small: tuple[Release, Path]) -> None:
    release, folder = small
    (folder / "test_batch").unlink()
    source = CifarSource(release, folder)
    assert len(source.train()) == 15
    assert source.fingerprint == CifarSource(release, folder).fingerprint != ""
    with pytest.raises(UserError, match="test_batch"):
        source.test()


def test_the_fingerprint_follows_the_training_sums(small: tuple[Release, Path]) -> None:
    release, folder = small
    other = dataclasses.replace(release, train={**release.train, "data_batch_1": "0" * 32})
    assert CifarSource(other, folder).fingerprint != CifarSource(release, folder).fingerprint


@pytest.mark.cifar100
class TestCifar100:
    def test_counts_and_means_of_the_training_pixels(self, cifar100: Source) -> None:
        train, test = cifar100.train(), cifar100.test()
        assert (len(train), len(test)) == (50_000, 10_000)
        assert train.labels.bincount().tolist() == [500] * 100
        assert test.labels.bincount().tolist() == [100] * 100
        assert train.origins.tolist() == list(range(50_000))
        assert len(cifar100.class_names) == 100
        assert cifar100.class_names[0] == "apple"
        measured = Preprocessing.measured(train.store, Augmentation())
        assert measured.mean == pytest.approx((0.5071, 0.4865, 0.4409), abs=1e-4)
        assert cifar100.preprocessing is not None
        assert cifar100.preprocessing.mean == pytest.approx(measured.mean, abs=2e-4)
