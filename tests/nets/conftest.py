from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def exact_numbers() -> Iterator[None]:
    """Full fp32 in the reference: TF32 would be the larger error of the two."""
    conv = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = conv.fp32_precision
    conv.fp32_precision = "ieee"
    yield
    conv.fp32_precision = before
