"""Take run folders from one machine to another in files of limited size, so that unfinished runs are resumed there.

    python paper/carry_runs.py RUNS --out FOLDER [--part 15] [--most 60]   pack the run folders below RUNS
    python paper/carry_runs.py --unpack FOLDER --out RUNS                  make run folders of what was packed

What `poise resume` and a report need of each run is packed: recipe, journal, result, what is known of the machine, the
newest checkpoint if it is not finished, and, as long as there is room, the state after phase 0 for `start=`. The parts
have at most `--part` MiB and all of them together at most `--most`; what did not fit is named. A run that is being
written may be packed: of a checkpoint and a journal, the checkpoint is read first, and a resumed run cuts the journal
to it. Beside the parts lies `runs.index.json`, by which they are checked before anything is unpacked.

A run is packed as a whole or not at all. Folders behind links are not looked into. Recipes name their data and `start`
by the paths of the first machine. `poise sweep` goes on with a cell though they lie elsewhere on the other one; to
compare its `start`, it needs the state after phase 0 there.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from poise.errors import UserError, shown
from poise.runs import RunFolder
from poise.runs.folder import CHECKPOINTS, CROSSVAL, JOURNAL, MACHINE, PHASE_0, RECIPE, REPORT, RESULT
from poise.words import counted, one_line

MIB = 2**20
PART = "runs.tar.{:03d}"
PART_NAME = re.compile(r"runs\.tar\.([0-9]{3,})")
INDEX = "runs.index.json"
UNPACKING = ".unpacking-"  # the start of the name of a folder that is not complete yet
BLOCK = tarfile.BLOCKSIZE  # a tar file is made of these: a header or more for each file, its bytes, and two at the end
RECORD = tarfile.RECORDSIZE  # and its whole length is a multiple of this


# Packing --------------------------------------------------------------------------------------------------------------


class Packed(NamedTuple):
    """A tar file, how many runs it holds, and the names of the files that did not fit."""

    content: bytes
    runs: int
    left_out: list[str]


def pack(runs: Path, room: int) -> Packed:
    """The tar file of all runs, in at most so many bytes."""
    free = room // RECORD * RECORD - 2 * BLOCK
    if free < 0:
        raise UserError(f"--most is too small for any run; give at least {RECORD / MIB:.2g} MiB, better 60")
    folders, stream = run_folders(runs), io.BytesIO()
    found, left_out = 0, list[str]()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for together in _in_order(folders):  # half a run would stand in the way of the whole one
            names = [path.relative_to(runs).as_posix() for path in together]
            entries = _entries(together, names, free)
            needed = sum(_size_of(entry) for entry, _ in entries)
            if not entries or needed > free:
                left_out += names
                continue
            free -= needed
            found += any(path.name == RECIPE for path in together)
            for entry, content in entries:
                tar.addfile(entry, io.BytesIO(content))
    if not found:
        raise UserError("--most is too small for any run; give more MiB")
    return Packed(stream.getvalue(), found, left_out)


def _entries(paths: Sequence[Path], names: Sequence[str], room: int) -> list[tuple[tarfile.TarInfo, bytes]]:
    """These files with their contents; none of them where they are too large, or one was removed meanwhile."""
    found = []
    try:
        if sum(path.stat().st_size for path in paths) > room:
            return []
        for path, name in zip(paths, names, strict=True):
            entry, content = tarfile.TarInfo(name), path.read_bytes()
            entry.size, entry.mtime = len(content), int(path.stat().st_mtime)
            found.append((entry, content))
    except FileNotFoundError:  # an older checkpoint: the run goes on
        return []
    return found


def _size_of(entry: tarfile.TarInfo) -> int:
    return len(entry.tobuf(tarfile.PAX_FORMAT, "utf-8")) + -(-entry.size // BLOCK) * BLOCK


def run_folders(runs: Path) -> list[Path]:
    """The run folders below this one, and the folders of cross-validations; without any, it is refused."""
    if not runs.is_dir():
        raise UserError(f"{runs} does not exist; give the folder that holds the run folders")
    if any((runs / name).exists() for name in (RECIPE, CROSSVAL)):
        raise UserError(f"{runs} is a run folder; give the folder above it")
    found = {path.parent for name in (RECIPE, CROSSVAL) for path in runs.rglob(name) if path.is_file()}
    found = {folder for folder in found if not any(map(_is_other, folder.relative_to(runs).parts))}
    if not any((folder / RECIPE).is_file() for folder in found):
        raise UserError(f"{runs} holds no run folder; give the folder that holds them")
    return sorted(found)


def _is_other(name: str) -> bool:
    """Whether a folder of this name is a page, or was left by an unpacking that broke off."""
    return name == REPORT or name.startswith(UNPACKING)


def _in_order(folders: Sequence[Path]) -> Iterator[list[Path]]:
    """What is packed together, what is most missed first; in a run what ends it, or its checkpoint, before the journal.

    A journal may be longer when it is read: a resumed run cuts it to its checkpoint.
    """
    for folder in folders:
        is_finished = (folder / RESULT).exists()
        first = [folder / RESULT] if is_finished else RunFolder(folder).checkpoint_files()[-1:]
        others = [path for name in (RECIPE, CROSSVAL, JOURNAL, MACHINE) if (path := folder / name).exists()]
        yield [*first, *others]
    yield from ([path] for folder in folders if (path := folder / PHASE_0).exists())


def write_parts(content: bytes, out: Path, part: int) -> list[Path]:
    """The content in files of at most so many bytes, and their index, in place of any that were there."""
    out.mkdir(parents=True, exist_ok=True)
    pieces = [content[start : start + part] for start in range(0, len(content), part)]
    index = {"parts": len(pieces), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    files = {PART.format(number): piece for number, piece in enumerate(pieces)}
    _replace(out, {**files, INDEX: json.dumps(index).encode()})
    for number, old in parts_in(out).items():
        if number >= len(pieces):
            old.unlink()
    return [out / name for name in files]


def _replace(out: Path, files: Mapping[str, bytes]) -> None:
    """Write all files under other names first, so that a full disk costs none of the old ones."""
    new = {out / name: out / f".{name}.new" for name in files}
    try:
        for path, content in zip(new.values(), files.values(), strict=True):
            path.write_bytes(content)
        for name, path in new.items():
            path.replace(name)
    finally:
        for path in new.values():
            path.unlink(missing_ok=True)


# Unpacking ------------------------------------------------------------------------------------------------------------


def parts_in(folder: Path) -> dict[int, Path]:
    """The parts in a folder by their number, counted from 0; other files are none of ours."""
    found = {}
    for path in folder.iterdir():
        matched = PART_NAME.fullmatch(path.name)
        if matched and path.name == PART.format(int(matched[1])):
            found[int(matched[1])] = path
    return dict(sorted(found.items()))


def read_parts(folder: Path) -> bytes:
    """What was packed; refused if anything of it is missing or differs."""
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist; give the folder that holds {INDEX} and the parts")
    if not (folder / INDEX).exists():
        raise UserError(f"{folder} lacks {INDEX}; copy it there, too, or pack again")
    damaged = UserError(f"{folder} is damaged: pack it again")
    try:
        index = json.loads((folder / INDEX).read_bytes())
        count, size, digest = int(index["parts"]), int(index["bytes"]), str(index["sha256"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise damaged from error
    found = parts_in(folder)
    if len(found) < count:
        missing = next(number for number in range(count) if number not in found)
        raise UserError(f"{folder} lacks part {missing + 1} of {count}, {PART.format(missing)}; copy it there, too")
    content = b"".join(path.read_bytes() for path in found.values())
    if len(found) != count or len(content) != size or hashlib.sha256(content).hexdigest() != digest:
        raise damaged
    return content


def unpack(parts: Path, runs: Path) -> tuple[list[str], list[str]]:
    """Make the run folders: the names of the new ones, and of those that were there already and stay as they are."""
    content, new, there = read_parts(parts), list[str](), list[str]()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        entries = tar.getmembers()
        for entry in entries:
            _refuse_outside(entry, parts)
        for name, inner in _by_folder(entries).items():
            if os.path.lexists(runs / name):
                there.append(name)
            else:
                _make_folder(tar, inner, runs, name)
                new.append(name)
    return new, there


def _refuse_outside(entry: tarfile.TarInfo, parts: Path) -> None:
    path = PurePosixPath(entry.name)
    if not entry.isfile() or path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise UserError(f"{parts} was not packed here: {shown(entry.name)} is no file of a run; nothing was unpacked")


def _by_folder(entries: Sequence[tarfile.TarInfo]) -> dict[str, list[tarfile.TarInfo]]:
    """The entries of each run folder; a cross-validation's folder is one with the runs in it."""
    own = {entry.name: _own_folder(PurePosixPath(entry.name)) for entry in entries}
    tops, found = set(own.values()), dict[str, list[tarfile.TarInfo]]()
    for entry in entries:
        folder = own[entry.name]
        top = next((above for above in reversed(folder.parents) if above in tops), folder)
        found.setdefault(str(top), []).append(entry)
    return found


def _own_folder(path: PurePosixPath) -> PurePosixPath:
    """The run folder of a file."""
    inside = path.parent.name == CHECKPOINTS and path.stem.isdecimal() and len(path.parts) > 2
    return path.parent.parent if inside else path.parent


def _make_folder(tar: tarfile.TarFile, entries: Sequence[tarfile.TarInfo], runs: Path, name: str) -> None:
    """All of a run folder, or nothing of it."""
    target = runs / name
    target.parent.mkdir(parents=True, exist_ok=True)
    growing = Path(tempfile.mkdtemp(prefix=UNPACKING, dir=target.parent))
    growing.chmod(0o755)
    try:
        for entry in entries:
            path = growing / PurePosixPath(entry.name).relative_to(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            held = tar.extractfile(entry)
            assert held is not None
            path.write_bytes(held.read())
            os.utime(path, (entry.mtime, entry.mtime))
        growing.rename(target)
    finally:
        shutil.rmtree(growing, ignore_errors=True)


# The command ----------------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", metavar="RUNS")
    parser.add_argument("--unpack", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", type=_bytes_of, default="15", metavar="MIB", help="MiB of a part")
    parser.add_argument("--most", type=_bytes_of, default="60", metavar="MIB", help="MiB of all parts")
    given = parser.parse_args(words)
    if (given.runs is None) == (given.unpack is None):
        parser.error("give RUNS to pack, or --unpack FOLDER")
    try:
        if given.unpack is None:
            _pack_into(given.out, given.runs, given.part, given.most)
        else:
            new, there = unpack(given.unpack, given.out)
            print(f"new in {given.out}: {one_line(', '.join(new)) or 'nothing'}")
            if there:
                print(f"already there and left as it was: {one_line(', '.join(there))}")
    except UserError as error:
        return _refuse(str(error))
    except tarfile.TarError:
        return _refuse(f"{given.unpack} is damaged: pack it again")
    except OSError as error:
        return _refuse(f"{error.filename or given.out}: {error.strerror or error}")
    return 0


def _pack_into(out: Path, runs: Path, part: int, most: int) -> None:
    packed = pack(runs, most)
    parts = write_parts(packed.content, out, part)
    print(f"{counted(packed.runs, 'run')}, {len(packed.content) / MIB:.1f} MiB in {counted(len(parts), 'part')}")
    for name in packed.left_out:
        print(f"left out: {one_line(name)}")


def _bytes_of(text: str) -> int:
    """A number of MiB, in bytes."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or found <= 0:
        raise argparse.ArgumentTypeError(f"{shown(text)} must be a number of MiB above 0")
    return max(1, int(found * MIB))


def _refuse(line: str) -> int:
    print(one_line(line), file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
