"""Images that arrive in batches: in one place at the end, and in memory once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from poise.data import collecting, inputs
from poise.data.collecting import Collecting
from poise.errors import UserError

# The peak of anonymous memory while images are read, above what the process has before, as a share of their bytes.
MEASURE = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from poise.data import collecting
from poise.data.labelled import read_labelled

collecting.BLOCK = 1 << 23
COUNT, SHAPE = 8000, (3, 64, 64)

class Listed(Dataset):
    def __len__(self):
        return COUNT
    def __getitem__(self, place):
        return torch.full(SHAPE, place % 7 / 7), place % 7

class Streamed(IterableDataset):
    def __iter__(self):
        return (Listed()[place] for place in range(COUNT))

read_labelled([(torch.zeros(SHAPE), 0)])  # what is loaded when it is first used
given = {"dataset": Listed, "stream": Streamed}[sys.argv[1]]()
given = DataLoader(given, 32) if sys.argv[2] == "loaded" else given
found, peak = peak_while(lambda: read_labelled(given))
assert len(found.store) == COUNT and len(found.labels) == COUNT
print(peak / found.store.nbytes)
"""


@pytest.mark.parametrize("kind", ["dataset", "stream"])
@pytest.mark.parametrize("way", ["itself", "loaded"])
def test_images_of_datasets_and_loaders_lie_in_memory_once(
    kind: str, way: str, measured_apart: Callable[..., list[str]]
) -> None:
    (share,) = measured_apart(MEASURE, kind, way)
    assert 0.9 < float(share) < 1.5


@pytest.mark.parametrize("expected", [0, 3, 10, 20])
@pytest.mark.parametrize("share", [0.0, 0.25])
def test_however_many_were_expected_all_are_there(expected: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "BLOCK", 4 * 12)  # of four images
    monkeypatch.setattr(inputs, "SPILL_SHARE", share)
    pixels = torch.arange(120, dtype=torch.uint8).view(10, 3, 2, 2)
    found = Collecting(expected)
    for batch in (pixels[:1], pixels[1:7], pixels[7:]):
        found.add(batch)
    assert len(found) == 10
    store = found.store()
    assert store.in_memory == (share > 0)
    assert torch.equal(store.all(), pixels)


def test_another_shape_and_none_at_all_are_refused() -> None:
    found = Collecting()
    with pytest.raises(UserError, match="no images"):
        found.store()
    found.add(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
    with pytest.raises(UserError, match=r"different shapes, images\[0\] \(3, 4, 4\) and images\[2\] \(1, 4, 4\)"):
        found.add(torch.zeros(2, 1, 4, 4, dtype=torch.uint8))
