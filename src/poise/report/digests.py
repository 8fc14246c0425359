"""Digests for results that were written without one, or kept after the run folder was gone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from poise import store
from poise.errors import Damaged, PoiseError, UserError
from poise.report.reading import check_result, run_folders_below
from poise.runfolder import PROBE, RESULT

log = logging.getLogger(__name__)


def add_digests(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Give each result at these paths its digest, where it has none; each file, and whether it was changed for that.

    A path is a result, a table of `poise probe`, a run folder, or a folder of those. What is none of these, or does not
    match its digest, is said aloud, and the last of them raises once all paths were looked at; damage counts most.
    """
    failed: list[PoiseError] = []
    for path in paths:
        try:
            files = _results_at(path)
        except PoiseError as error:
            failed.append(error)
            continue
        for file in files:
            try:
                added = _add_digest(file)
            except PoiseError as error:
                failed.append(error)
                continue
            yield file, added
    failed.sort(key=lambda error: isinstance(error, Damaged))
    for fault in failed[:-1]:
        log.warning("%s", fault)
    if failed:
        raise failed[-1]


def _add_digest(file: Path) -> bool:
    """Whether this result had none."""
    value, verified = store.read_verified(file)
    if not verified:
        if value.get("kind") != PROBE:
            check_result(file, value)
        store.write_json(file, value, digest=True)
    return not verified


def _results_at(path: Path) -> list[Path]:
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if path.is_file():
        return [path]
    inside = [folder / RESULT for folder in run_folders_below(path)]
    found = [file for file in inside if file.is_file()] or sorted(path.glob("*.json"))
    if not found:
        raise UserError(f"{path} holds no result of a finished run")
    return found
