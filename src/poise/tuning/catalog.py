"""Every tuner by the word that `policy` names it with: all policies, and the tuners that are not policies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from poise.errors import UserError, suggestion
from poise.policies import POLICIES, PRESETS, resolved_options
from poise.tuning.base import TunerKind
from poise.tuning.bilevel import BILEVEL
from poise.tuning.offline import OFFLINE
from poise.tuning.policy import PolicyTuner

#: Those that are not policies over trials.
OTHERS: Final[Mapping[str, TunerKind]] = {kind.name: kind for kind in (BILEVEL, OFFLINE)}


def tuner_names() -> list[str]:
    """Every word that `policy` can be."""
    return [*POLICIES, *OTHERS]


def tuner_kind(name: str) -> TunerKind:
    """What is known of the tuner of that name."""
    if isinstance(name, str) and name in OTHERS:
        return OTHERS[name]
    if not isinstance(name, str) or name not in POLICIES:
        raise UserError(f"unknown policy '{name}'; {suggestion(str(name), tuner_names())}")
    preset = PRESETS[name]
    return TunerKind(
        name,
        make=PolicyTuner,
        resolve=partial(resolved_options, name),
        space=preset.space,
        trials=preset.trials,
        tunes=preset.tunes,
        asks=preset.tunes,
    )
