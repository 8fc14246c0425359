"""Every method passes the suite that poise ships for them. One that registers itself is tested here, too."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from poise import Augmentation
from poise.methods import METHODS
from poise.testing import MethodSuite, check_resuming

CASES: dict[str, tuple[str, Mapping[str, float | str]]] = {
    **{name: (name, {}) for name in sorted(METHODS)},
    "aanets-learned": ("aanets", {"alpha": "learned"}),
    "aanets-lucir": ("aanets", {"base": "lucir"}),
}
STRONG = Augmentation(pad=0, autoaugment=True, cutout=0.5, resized=0.08)


class TestMethods(MethodSuite):
    @pytest.fixture(autouse=True, params=CASES)
    def case(self, request: pytest.FixtureRequest) -> None:
        self.method, self.options = CASES[request.param]  # type: ignore[misc]
        self.keeps_old_scores = self.made.head not in ("renewed", "boosted")


@pytest.mark.parametrize("method", ["lucir", "der", "foster", "ranpac"])  # of one stage, of several, and of features
def test_strong_augmentation_is_trained_with_and_resumed_anywhere(method: str) -> None:
    """Resized crops, AutoAugment and Cutout."""
    suite = MethodSuite()
    suite.method = method
    strong, images = suite.learner(augmentation=STRONG), suite.arriving(0)
    strong.partial_fit(*images)
    assert strong.preprocessing_ is not None
    assert strong.preprocessing_.augmentation.name == "autoaugment+cutout"
    check_resuming(lambda: suite.learner(augmentation=STRONG), *images, stops=1)
