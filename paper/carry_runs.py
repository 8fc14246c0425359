"""Take run folders from one machine to another in files of limited size, so that unfinished runs are resumed there.

    python paper/carry_runs.py RUNS --out FOLDER [--part 15] [--most 60]   pack the run folders below RUNS
    python paper/carry_runs.py --unpack FOLDER --out RUNS                  make run folders of what was packed

What `poise resume` and a report need of each run is packed: recipe, journal, result, what is known of the machine, the
newest checkpoint if it is not finished, and, as long as there is room, the state after phase 0 for `start=`. The parts
have at most `--part` MiB and all of them together at most `--most`; what did not fit is named. Beside the parts lies
`runs.index.json`, by which they are checked before anything is unpacked.

A run that is being written may be packed: its checkpoint is read before its journal, which a resumed run cuts to the
checkpoint. Recipes name their data and `start` by the paths of the first machine; `poise sweep` goes on with a cell
though they lie elsewhere on the other one.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from poise.errors import UserError
from poise.runs import RunFolder
from poise.runs.folder import CROSSVAL, JOURNAL, MACHINE, PHASE_0, RECIPE, REPORT, RESULT
from poise.words import counted

MIB = 2**20
PART = "runs.tar.{:03d}"
INDEX = "runs.index.json"


def pack(runs: Path, out: Path, part: int, most: int) -> None:
    """Write the parts and their index, in place of any that were there."""
    folders = run_folders(runs)
    content, left_out = _tar(runs, folders, most)
    pieces = [content[start : start + part] for start in range(0, len(content), part)]
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("runs.tar.[0-9][0-9][0-9]"):
        old.unlink()
    for number, piece in enumerate(pieces):
        (out / PART.format(number)).write_bytes(piece)
    index = {"parts": len(pieces), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (out / INDEX).write_text(json.dumps(index))
    print(f"{counted(len(folders), 'run')}, {len(content) / MIB:.1f} MiB in {counted(len(pieces), 'part')}")
    for name in left_out:
        print(f"left out: {name}")


def run_folders(runs: Path) -> list[Path]:
    """The run folders below this one, and the folders of cross-validations; without any, it is refused."""
    found = {path.parent for name in (RECIPE, CROSSVAL) for path in runs.rglob(name)} - {runs}
    found = {folder for folder in found if REPORT not in folder.relative_to(runs).parts}
    if not found:
        raise UserError(f"{runs} holds no run folder; give the folder above those of the runs")
    return sorted(found)


def _tar(runs: Path, folders: Sequence[Path], most: int) -> tuple[bytes, list[str]]:
    """All files in at most so many bytes, and the names of those that did not fit: a run is there as a whole or not."""
    stream, left_out = io.BytesIO(), list[str]()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for together in _in_order(folders):
            names = [path.relative_to(runs).as_posix() for path in together]
            contents = [path.read_bytes() for path in together]
            needed = sum(
                len(content) + 2 * tarfile.BLOCKSIZE for content in contents
            )  # with a header, and a whole block
            if stream.tell() + needed + tarfile.RECORDSIZE > most:
                left_out += names
                continue
            for name, content in zip(names, contents, strict=True):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue(), left_out


def _in_order(folders: Sequence[Path]) -> Iterator[list[Path]]:
    """What is packed together, what is most missed first; in a run what ends it, or its checkpoint, before the journal.

    What makes a folder one of a run comes last, so that half of one is none.
    """
    for folder in folders:
        ends = folder / RESULT
        first = [ends] if ends.exists() else RunFolder(folder).checkpoint_files()[-1:]
        yield [*first, *(path for name in (JOURNAL, MACHINE, CROSSVAL, RECIPE) if (path := folder / name).exists())]
    yield from ([path] for folder in folders if (path := folder / PHASE_0).exists())


def unpack(parts: Path, runs: Path) -> None:
    """Make the run folders; those that are there already stay as they are."""
    try:
        index = json.loads((parts / INDEX).read_text())
        content = b"".join((parts / PART.format(number)).read_bytes() for number in range(index["parts"]))
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read; copy all parts and {INDEX} there") from error
    if hashlib.sha256(content).hexdigest() != index["sha256"]:
        raise UserError(f"{parts} is damaged: pack it again")
    new, there = set[str](), {str(folder.relative_to(runs)) for folder in run_folders(runs)} if runs.exists() else set()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for entry in tar.getmembers():
            path = Path(entry.name)
            own = path.parent.parent if path.parent.name == "checkpoints" else path.parent
            if str(own) not in there:
                (runs / path).parent.mkdir(parents=True, exist_ok=True)
                held = tar.extractfile(entry)
                assert held is not None
                (runs / path).write_bytes(held.read())
                new.add(str(own))
    print(f"new in {runs}: {', '.join(sorted(new)) or 'nothing'}")


def main(words: Sequence[str] | None = None) -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", metavar="RUNS")
    parser.add_argument("--unpack", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", type=float, default=15, metavar="MIB", help="MiB of a part")
    parser.add_argument("--most", type=float, default=60, metavar="MIB", help="MiB of all parts")
    given = parser.parse_args(words)
    if (given.runs is None) == (given.unpack is None):
        parser.error("give RUNS to pack, or --unpack FOLDER")
    try:
        if given.unpack is None:
            pack(given.runs, given.out, int(given.part * MIB), int(given.most * MIB))
        else:
            unpack(given.unpack, given.out)
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
