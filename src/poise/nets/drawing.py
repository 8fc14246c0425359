"""Generators of our own for networks: first values at an address, and what other people's networks draw themselves.

Only the operations of this thread are looked at: what other threads draw is neither noticed nor changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from poise import draws


def torch_generator(seed: int, purpose: str, *address: int | str) -> torch.Generator:
    """A CPU generator for the initial values at this address."""
    return torch.Generator().manual_seed(draws.key(seed, purpose, *address) % 2**63)


class OwnDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes from this generator what would be drawn from torch's global one on the host: the same numbers.

    Attributes:
        drew: whether anything was drawn since it was entered, on the host or elsewhere.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator, self.drew = generator, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would load its compiler, which takes over a second, only to keep it away from these operations."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - any operation of torch
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever that gives
        """Run the operation, with our generator where it draws."""
        given = dict(kwargs or {})
        draws = torch.Tag.nondeterministic_seeded in func.tags and given.get("generator") is None
        self.drew = self.drew or draws
        if not draws or not _is_on_host(args, given):
            return func(*args, **given)
        if "generator" in _argument_names(func):
            return func(*args, **{**given, "generator": self._generator})
        variant = _with_generator(func)
        if variant is not None:
            return variant(*args, **{**given, "generator": self._generator})
        with torch.random.fork_rng(devices=[]):  # an operation that takes no generator
            torch.default_generator.set_state(self._generator.get_state())
            made = func(*args, **given)
            self._generator.set_state(torch.default_generator.get_state())
        return made


def _argument_names(func: Any) -> list[str]:  # noqa: ANN401 - any operation of torch
    return [argument.name for argument in func._schema.arguments]


def _with_generator(func: Any) -> Callable[..., Any] | None:  # noqa: ANN401 - any operation of torch
    """The variant of the same operation that takes a generator besides, such as `rand.generator` of `rand.default`."""
    packet, wanted = func.overloadpacket, set(_argument_names(func)) | {"generator"}
    for name in packet.overloads():
        other = getattr(packet, name)
        if set(_argument_names(other)) == wanted:
            return cast("Callable[..., Any]", other)
    return None


def _is_on_host(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"]).type == "cpu"
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    return tensors[0].device.type == "cpu" if tensors else True
