"""Draws of other people's code, taken from a generator of our own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from poise.nets import OwnDraws, make_layer


def made(kind: Callable[[], nn.Module]) -> Callable[[], Tensor]:
    return lambda: torch.cat([parameter.detach().flatten() for parameter in kind().parameters()])


DRAWS: dict[str, Callable[[], Tensor]] = {
    "linear": made(lambda: nn.Linear(5, 7)),
    "convolution": made(lambda: nn.Conv2d(3, 4, 3)),
    "attention": made(lambda: nn.MultiheadAttention(8, 2)),
    "rand": lambda: torch.rand(3, 4),
    "randn": lambda: torch.randn(20),
    "randint": lambda: torch.randint(2, 9, (5,)).float(),
    "randperm": lambda: torch.randperm(9).float(),
    "rand_like": lambda: torch.rand_like(torch.ones(4)),
    "randn_like": lambda: torch.randn_like(torch.ones(4)),
    "normal": lambda: torch.normal(torch.zeros(3), 1.0),
    "multinomial": lambda: torch.multinomial(torch.ones(9), 4).float(),
    "dropout": lambda: nn.functional.dropout(torch.ones(40)),
    "truncated": lambda: nn.init.trunc_normal_(torch.empty(9)),
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(3, 3)),
    "several": lambda: torch.cat([torch.rand_like(torch.ones(3)), torch.rand(3), torch.randn(2)]),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_numbers_are_those_of_the_global_generator_which_does_not_move(name: str) -> None:
    torch.manual_seed(11)
    wanted = DRAWS[name]()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with OwnDraws(torch.Generator().manual_seed(11)) as drawing:
        assert torch.equal(DRAWS[name](), wanted)
    assert drawing.drew
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_that_was_given_is_used() -> None:
    def draw() -> Tensor:
        return torch.rand(4, generator=torch.Generator().manual_seed(2))

    with OwnDraws(torch.Generator().manual_seed(11)) as drawing:
        assert torch.equal(draw(), DRAWS["rand"]()[:0].new_tensor(draw().tolist()))
        taken = draw()
    assert torch.equal(taken, draw())
    assert drawing.drew  # by `DRAWS["rand"]`


def test_a_make_layer_draws_nothing_and_is_in_float32() -> None:
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        layer, again = (make_layer(nn.Conv2d, 3, 4, 3, bias=False) for _ in range(2))
    finally:
        torch.set_default_dtype(torch.float32)
    assert layer.weight.dtype is torch.float32
    assert layer.weight.shape == (4, 3, 3, 3)
    assert layer.weight.requires_grad
    assert torch.equal(layer.weight, again.weight)  # no memory that happened to be there
    assert 0 < float(layer.weight.detach().abs().max()) < 1
    assert torch.equal(torch.get_rng_state(), before)
