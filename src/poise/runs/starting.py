"""Starting after the phase 0 of another run: what must agree, so that only what follows is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from poise import store
from poise.data import Budget
from poise.errors import UserError, reading
from poise.learner import LearnerState, Lookup, Settings
from poise.methods import is_registered
from poise.runs.folder import RunFolder
from poise.runs.plan import Plan, not_registered


def read_start(path: Path, settings: Settings, identity: Mapping[str, Any], lookup: Lookup) -> LearnerState:
    """The state after phase 0 of the run in this folder; refused where these settings would have led to another."""
    _refuse_early(settings)
    file = RunFolder(path).phase_0
    if not file.exists():
        raise UserError(f"start={path} has no {file.name}; give the folder of a run that finished phase 0")
    tensors, meta = store.read_tensors(file, kind="phase 0")
    with reading(file, "give another start"):
        theirs, learner = dict(meta["identity"]), meta["learner"]
        method = learner["settings"]["method"]
    _refuse_other_identity(path, theirs, identity)
    if not is_registered(method):  # how its network is made is not known here
        raise not_registered(f"start={path} was trained with the method '{method}'")
    with reading(file, "give another start"):
        state = LearnerState.from_tensors(tensors, learner, lookup=lookup)
    _refuse_other_network(path, state.architecture, replace(state, settings=settings).architecture)
    _refuse_other_memory(path, state.settings.memory, settings.memory)
    return state.started_with(settings)


def refuse_start_of(path: Path, other: Plan, plan: Plan) -> None:
    """Refuse to start from the phase 0 of a run that is still to come, where it would be refused afterwards."""
    _refuse_early(plan.settings)
    _refuse_other_identity(path, other.identity(), plan.identity())
    _refuse_other_network(path, other.new_learner().architecture, plan.new_learner().architecture)
    _refuse_other_memory(path, other.settings.memory, plan.settings.memory)


def _refuse_early(settings: Settings) -> None:
    if settings.kind.before_phase_0:
        raise UserError(
            f"policy={settings.policy} learns before the first phase and cannot start after it; leave start out"
        )


def _refuse_other_identity(path: Path, theirs: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse a phase 0 of other data, classes, augmentation or chance."""
    for name in ("augmentation", *identity):
        if theirs.get(name) != identity.get(name):
            raise UserError(f"start={path} has other {name}; start from a run of the same data, order and seed")


def _refuse_other_network(path: Path, there: str, here: str) -> None:
    if there != here:
        raise UserError(f"start={path} was trained with {there}, this run has {here}; they must agree")


def _refuse_other_memory(path: Path, theirs: Budget, budget: Budget) -> None:
    """Refuse a phase 0 after which other images were kept than this budget keeps."""
    there, here = theirs.storing_phase_0(), budget.storing_phase_0()
    if there == here:
        return
    causal = here.rule == "rmm" and not here.knows_increment
    helps = causal and budget.replace(after_phase_0="plain").storing_phase_0() == there
    todo = ", leave start out, or set memory.after_phase_0=plain" if helps else ", or leave start out"
    raise UserError(
        f"start={path} kept other images after phase 0 ({_in_words(there)}) than this run keeps ({_in_words(here)}); "
        f"start from a run with this memory{todo}"
    )


def _in_words(budget: Budget) -> str:
    return ", ".join(f"{key}={value}" for key, value in budget.changed().items()) or "memory=20"
