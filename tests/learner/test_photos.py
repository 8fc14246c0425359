"""Own photos: reduced as they are decoded, and never all in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from poise.data.labelled import read_labelled

from poise.data import inputs

PHOTOS, WIDTH, HEIGHT = 10, 4000, 3000

# The peak of anonymous memory while photos are read, above what the process has before, in MB.
MEASURE = """
import sys
from poise.data import inputs
from poise.data.labelled import read_labelled

inputs.SPILL_SHARE = 0.0
found, peak = peak_while(lambda: read_labelled(sys.argv[1]))
print(peak / 1e6, found.store.in_memory, *found.store.shape)
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of 12 megapixels in two classes; the same bytes under several names."""
    root = tmp_path_factory.mktemp("photos")
    small = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(small).resize((WIDTH, HEIGHT)).save(root / "one.jpg", quality=60)
    data = (root / "one.jpg").read_bytes()
    for name in ("sea", "wood"):
        (root / "classes" / name).mkdir(parents=True)
        for number in range(PHOTOS // 2):
            (root / "classes" / name / f"{number}.jpg").write_bytes(data)
    return root / "classes"


def test_large_photos_are_never_in_memory_together(photos: Path, measured_apart: Callable[..., list[str]]) -> None:
    peak, in_memory, *shape = measured_apart(MEASURE, str(photos))
    assert (in_memory, shape) == ("False", ["3", "224", "224"])
    whole = 3 * WIDTH * HEIGHT / 1e6  # MB of one photo
    assert float(peak) < 3 * whole < PHOTOS * whole / 3


def test_images_in_a_temporary_file_are_those_that_would_be_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            pixels = np.random.default_rng([number, ord(name)]).integers(0, 256, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    plain = read_labelled(tmp_path)
    monkeypatch.setattr(inputs, "SPILL_SHARE", 0.0)
    spilled = read_labelled(tmp_path)
    assert plain.store.in_memory
    assert not spilled.store.in_memory
    assert torch.equal(spilled.pixels, plain.pixels)
    kept = spilled.store.select(torch.tensor([4, 1])).compacted()  # what a learner keeps of them is its own
    assert kept.in_memory
    assert torch.equal(kept.all(), plain.pixels[[4, 1]])
