"""Own photos: reduced as they are decoded, and never all in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PHOTOS, WIDTH, HEIGHT = 10, 4000, 3000

# The peak of anonymous memory while photos are read, above what the process has before, in MB.
MEASURE = """
import sys
from poise.data import open_images

found, peak = peak_while(lambda: open_images(sys.argv[1]))
print(peak / 1e6, *found.store.shape)
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
    peak, *shape = measured_apart(MEASURE, str(photos))
    assert shape == ["3", "224", "224"]
    whole = 3 * WIDTH * HEIGHT / 1e6  # MB of one photo
    assert float(peak) < 3 * whole < PHOTOS * whole / 3
