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

    def test_strong_augmentation_is_trained_with_and_resumed_anywhere(self) -> None:
        """Resized crops, AutoAugment and Cutout."""
        strong, images = self.learner(augmentation=STRONG), self.arriving(0)
        strong.partial_fit(*images)
        assert strong.preprocessing_ is not None
        assert strong.preprocessing_.augmentation.name == "autoaugment+cutout"
        check_resuming(lambda: self.learner(augmentation=STRONG), *images, stops=1)
