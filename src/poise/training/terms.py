"""What a method returns as its loss terms, checked in its first step: later ones pay nothing for it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cache

from torch import Tensor

from poise.errors import UserError, shown
from poise.methods import Growth, Method

log = logging.getLogger(__name__)


def check_terms(method: Method, terms: object) -> None:
    """Refuse what is no dictionary of losses. It looks at types and shapes alone, and waits for no device."""
    begin = f"method {method.name}: terms"
    if not isinstance(terms, Mapping) or not terms:
        raise UserError(f"{begin} returned {shown(terms)}; it must return a dictionary of losses, such as {{'ce': …}}")
    for name, term in terms.items():
        if not isinstance(name, str):
            raise UserError(f"{begin} returned a loss under {shown(name)}; its name must be text")
        if not isinstance(term, Tensor):
            raise UserError(f"{begin} returned {name}={shown(term)}; a term must be a tensor, computed from student")
        if term.ndim:
            why = "a term must be one number: take the mean over the batch"
            raise UserError(f"{begin} returned {name} of shape {list(term.shape)}; {why}")


def check_gradient(method: Method, terms: Mapping[str, Tensor], total: Tensor) -> None:
    """Refuse losses from which nothing can be learned."""
    if not total.requires_grad:
        why = "compute one from student, without detach, item, argmax or no_grad"
        raise UserError(f"method {method.name}: no term ({', '.join(terms)}) has a gradient; {why}")


def say_unmatched(method: Method, weights: Iterable[str], terms: Iterable[str], growth: Growth) -> None:
    """Warn of axes of an action that are the weight of no term, as misspelt ones are.

    A first phase lacks terms, as does one without new classes; and a method of several stages may have a term in one
    of them alone. Of poise's own methods it is known that every axis has its term.
    """
    if not (growth.old and growth.new) or len(method.stages(growth)) > 1:
        return
    if type(method).__module__.partition(".")[0] != __name__.partition(".")[0]:
        for axis in sorted({*weights} - {*terms}):
            _say_once(method.name, axis, ", ".join(terms))


@cache
def _say_once(method: str, axis: str, terms: str) -> None:
    why = f"its terms are {terms}; correct the name, or register_axis if it is a setting"
    log.warning("method %s: its action names '%s', which is no term and so changes nothing; %s", method, axis, why)
