"""What DER does in its phases; what every method must do is in the conformance tests."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from poise import Learner
from poise.data import ImageSet
from poise.methods import DER, Growth, draw_evenly
from poise.methods.der import renew_heads
from poise.training import EpochDone

from .conftest import SETTINGS, learned


class TestSchedule:
    def test_the_rate_rises_for_ten_epochs_and_falls_at_110_and_130_of_170(self) -> None:
        (main,) = DER().stages(Growth(10, 10))
        epochs = main.epochs(170)
        rates = {epoch: main.rate(epoch, epochs, 0.1) for epoch in (0, 4, 9, 10, 109, 110, 129, 130, 169)}
        expected = [0.01, 0.05, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
        assert list(rates.values()) == pytest.approx(expected)
        assert epochs == 170
        assert (main.prepare, main.prepare_at) == (renew_heads, 10 / 170)
        assert DER().stages(Growth(0, 10)) == (main,)

    def test_a_plain_first_phase_has_200_epochs_and_three_milestones(self) -> None:
        (first,) = DER(first="plain").stages(Growth(0, 50))
        assert first.epochs(170) == 200
        changes = [e for e in range(1, 200) if first.rate(e, 200, 0.1) != first.rate(e - 1, 200, 0.1)]
        assert changes == [60, 120, 160]
        assert first.prepare is None
        assert DER(first="plain").stages(Growth(50, 10)) == DER().stages(Growth(50, 10))

    def test_the_classifier_has_30_epochs_and_a_temperature(self) -> None:
        last = DER().balancing
        assert last.epochs(170) == 30
        assert [last.rate(epoch, 30, 0.1) for epoch in (0, 14, 15, 29)] == pytest.approx([0.1, 0.1, 0.01, 0.01])
        assert (last.temperature, DER(temperature=1).balancing.temperature) == (5, 1)
        assert (last.trains, last.moves_statistics) == ("head", False)
        assert (last.select, last.prepare, last.prepare_at) == (draw_evenly, renew_heads, 0)


STILL = 1e-12  # a learning rate at which nothing moves


class TestHeads:
    """With a learning rate of almost 0, heads are as they were drawn."""

    def heads(self, learner: Learner, images: ImageSet) -> dict[str, list[Tensor]]:
        """Rows of the classifier and the auxiliary one at the end of each epoch, by stage."""
        seen: dict[str, list[Tensor]] = {}
        for event in learner.fitting(images.pixels, images.labels):
            if isinstance(event, EpochDone):
                tensors = learner.state().tensors(images=False)[0]
                names = ("head.old", "head.new", "extras.auxiliary.head.new")
                rows = [tensors[f"pending.student.model.{name}"] for name in names]
                seen.setdefault(event.stage, []).append(torch.cat([each.flatten() for each in rows]).clone())
        return seen

    def test_they_are_drawn_anew_after_the_warm_up_and_for_the_last_stage(self, arriving: list[ImageSet]) -> None:
        changes = {"epochs": 17, "weight_decay": 0.0, "action": {"lr": STILL}, "first_lr": STILL}
        learner = learned(Learner("der", **{**SETTINGS, **changes}), arriving[0])
        seen = self.heads(learner, arriving[1])
        main, last = seen["main"], seen["balance"]
        assert (len(main), len(last)) == (17, 3)
        auxiliary, classifier = 3 * 64, 4 * 128
        changed = [not torch.allclose(one, other, atol=1e-6) for one, other in pairwise(main)]
        assert changed == [True, *[False] * 15], "after one epoch of 17, as after 10 of 170"
        for part in (main[1][:classifier], last[0][:classifier]):
            assert part.abs().max() <= 1 / math.sqrt(128) + 1e-6
        assert main[1][classifier:].abs().max() <= 1 / 8 + 1e-6
        assert main[0][:classifier].abs().max() > 1 / math.sqrt(128), "N(0, 1/d) when they are made"
        assert not torch.allclose(last[0][:classifier], main[-1][:classifier], atol=1e-3)
        assert torch.equal(last[0][classifier:], main[-1][classifier:])
        assert len(main[0]) == auxiliary + classifier
