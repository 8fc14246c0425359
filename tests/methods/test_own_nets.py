"""Networks of one's own, trained or frozen, where a method needs one of poise's."""

from __future__ import annotations

import pytest
from torch import nn

from poise import Learner
from poise.data import ImageSet
from poise.errors import UserError

from .conftest import SETTINGS, learned

REFUSED = {
    "aanets": "other networks of one of poise's own; leave net out or name one",
    "der": "other networks of one of poise's own; leave net out or name one",
    "foster": "other networks of one of poise's own; leave net out or name one",
    "podnet": "compares maps, but your net returns none",
}


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("method", REFUSED)
def test_it_is_refused_before_anything_is_trained(method: str, frozen: bool, arriving: list[ImageSet]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16))
    if frozen:
        net = net.requires_grad_(False).eval()
    learner = Learner(method, **{**SETTINGS, "net": net})
    with pytest.raises(UserError, match=rf"^{method} [^\n]*{REFUSED[method]}"):
        learned(learner, arriving[0])
    assert learner.phases_ == 0
