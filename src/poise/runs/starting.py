"""Starting after the phase 0 of another run: what must agree, so that only what follows is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from poise import store
from poise.data import Budget
from poise.errors import UserError
from poise.learner import LearnerState, Lookup, Settings
from poise.methods import is_registered
from poise.runs.contents import check_phase_0
from poise.runs.folder import RunFolder
from poise.runs.plan import Plan, not_registered
from poise.schema import check, contents_of
from poise.words import counted


def read_start(path: Path, settings: Settings, identity: Mapping[str, Any], lookup: Lookup) -> LearnerState:
    """The state after phase 0 of the run in this folder; refused where these settings would have led to another."""
    _refuse_early(settings)
    folder = RunFolder(path)
    file = folder.phase_0
    if not folder.has_phase_0:
        raise UserError(f"start={path} has no phase-0.safetensors; give the folder of a run that finished phase 0")
    tensors, meta = store.read_tensors(file, kind="phase 0")
    with contents_of(file, "give another start"):
        check_phase_0(meta)
    _refuse_other_identity(path, meta["identity"], identity)
    with contents_of(file, "give another start"):
        state = LearnerState.from_tensors(tensors, meta["learner"], lookup=lookup)
        _refuse_unregistered(path, state.settings.method)
        check(state.knowledge.phases == 1, "learner.phases", "1", state.knowledge.phases)
        classes, wanted = [*state.knowledge.classes], identity.get("classes", state.knowledge.classes)
        check(set(classes) == set(wanted), "learner.classes", f"{wanted}", classes)
    own = replace(state, settings=settings)
    _refuse_other_network(path, state.architecture, own.architecture)
    _refuse_other_memory(path, state.settings.memory, settings.memory, len(state.knowledge.memory or ()))
    return state


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
    """Refuse a phase 0 of other data, classes or chance."""
    mine, others = identity.get("augmentation"), theirs.get("augmentation")
    if mine != others:
        raise UserError(
            f"start={path} was trained with augmentation={others or 'data'}, this run has {mine or 'data'}; "
            "start from a run with the same, or leave start out"
        )
    for name, mine in identity.items():
        if name in theirs and theirs[name] != mine:
            other = "other" if name in ("data", "classes") else "another"
            raise UserError(f"start={path} has {other} {name}; start from a run of the same data, order and seed")


def _refuse_unregistered(path: Path, method: str) -> None:
    """Refuse a phase 0 of a method of one's own that is not there: how its network is made is not known here."""
    if not is_registered(method):
        raise not_registered(f"start={path} was trained with the method '{method}'")


def _refuse_other_network(path: Path, there: str, here: str) -> None:
    if there != here:
        raise UserError(f"start={path} was trained with {there}, this run has {here}; they must agree")


def _refuse_other_memory(path: Path, theirs: Budget, budget: Budget, count: int | None = None) -> None:
    """Refuse a phase 0 after which other images (so many, if that is known) were kept than this budget keeps."""
    there, here = theirs.storing_phase_0(), budget.storing_phase_0()
    if there == here:
        return
    causal = here.rule == "rmm" and not here.knows_increment
    helps = causal and budget.replace(after_phase_0="plain").storing_phase_0() == there
    todo = "start from a run with this memory, leave start out, or set memory.after_phase_0=plain"
    kept = f"kept {counted(count, 'image')}" if count is not None else "keeps other images"
    raise UserError(
        f"start={path} {kept} after phase 0 ({_in_words(there)}) and this run keeps others ({_in_words(here)}); "
        f"{todo if helps else 'start from a run with this memory, or leave start out'}"
    )


def _in_words(budget: Budget) -> str:
    """What is kept after phase 0."""
    if budget.keeps_all:
        return "all"
    size = f"{budget.total} in total" if budget.per_class is None else f"{budget.per_class} per class"
    size += f", reserve {budget.reserve}" if budget.reserve else ""
    if budget.rule != "rmm":
        return size
    return f"{size}, {f'RMM, ρ = {budget.rho(0):g}' if not budget.knows_increment else 'RMM as released'}"
