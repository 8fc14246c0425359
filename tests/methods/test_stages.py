from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.errors import UserError
from poise.methods import DER, Growth, Stage, make_method
from poise.training.optimiser import Schedule


@given(st.integers(1, 300), st.floats(0.01, 1))
def test_a_stage_is_never_empty_and_scales_with_the_phase(epochs: int, share: float) -> None:
    length = Stage(share=share).epochs(epochs)
    assert 1 <= length <= epochs
    assert length >= share * epochs


def test_ders_plain_first_phase_has_200_epochs_and_three_milestones() -> None:
    (first,) = DER(first="plain").stages(Growth(0, 50))
    assert first.epochs(170) == 200
    rates = [Schedule().rate(first, epoch, 200, 0.1) for epoch in range(200)]
    assert [epoch for epoch in range(1, 200) if rates[epoch] != rates[epoch - 1]] == [60, 120, 160]
    assert first.prepare is None
    assert DER(first="plain").stages(Growth(50, 10)) == DER().stages(Growth(50, 10))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("lucri", {}, "unknown method 'lucri'; did you mean 'lucir'"),
        ("lucir", {"lambda_bas": 1.0}, "has no option 'lambda_bas'; did you mean 'lambda_base'"),
        ("lucir", {"lambda_base": -1.0}, "option lambda_base=-1.0 must be a number of at least 0"),
        ("podnet", {"flat": "much"}, "option flat='much' must be a number of at least 0"),
        ("der", {"first": "wram"}, "option first='wram'; did you mean 'warm'"),
        ("der", {"warmup": 1.0}, "option warmup=1.0 must be"),
        ("foster", {"beta1_falls": -1}, "option beta1_falls"),
        ("aanets", {"base": "icarl"}, "option base='icarl'; known: lucir, podnet"),
        ("aanets", {"alpha": 1.5}, "alpha=1.5 must be a share between 0 and 1, or 'learned'"),
        ("aanets", {"alpha": "learn"}, "must be a share between 0 and 1, or 'learned'"),
        ("aanets", {"eta": "restart"}, "eta='restart'; did you mean 'restarted'"),
        ("aanets", {"eta": 1.0}, "eta=1.0; known: kept, restarted"),
        ("aanets", {"base": "lucir", "lambda_base": -1.0}, "lambda_base=-1.0 must be a number of at least 0"),
    ],
)
def test_wrong_words_get_the_right_one(name: str, options: dict[str, float | str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_method(name, options)
