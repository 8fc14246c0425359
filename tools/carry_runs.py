"""Take run folders from one machine to another in files of limited size, so that unfinished runs are resumed there.

    python tools/carry_runs.py RUNS --out FOLDER [--part 15] [--most 60]   pack the run folders in RUNS
    python tools/carry_runs.py --unpack FOLDER --out RUNS                  make run folders of what was packed

What `poise resume` and a report need of each run is packed: recipe, journal, result, what is known of the machine, the
newest checkpoint if it is not finished, and, as long as there is room, the state after phase 0 for `start=`. The parts
have at most `--part` MiB and all of them together at most `--most`; what did not fit is named. A run that is being
written may be packed: of a checkpoint and a journal, the checkpoint is read first, and a resumed run cuts the journal
to it.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from poise.runfolder import CHECKPOINTS, JOURNAL, MACHINE, PHASE_0, RECIPE, RESULT

MIB = 2**20
PART = "runs.tar.{:03d}"
BLOCK = 1024  # what a tar file adds to each file, at most
END = 10 * BLOCK


def packed(runs: Path, room: int) -> tuple[bytes, list[str]]:
    """The tar file of all runs, and the names of the files that did not fit into so many bytes."""
    stream, left_out, free = io.BytesIO(), [], room - END
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path in _in_order(sorted(path.parent for path in runs.glob(f"*/{RECIPE}"))):
            name = str(path.relative_to(runs))
            try:
                content = path.read_bytes()
            except FileNotFoundError:  # an older checkpoint, which the run has just removed
                left_out.append(name)
                continue
            if len(content) + 2 * BLOCK > free:
                left_out.append(name)
                continue
            free -= len(content) + 2 * BLOCK
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue(), left_out


def _in_order(folders: Sequence[Path]) -> Iterator[Path]:
    """What is most missed comes first; a checkpoint before its journal, which is longer by the time it is read."""
    for folder in folders:
        if not (folder / RESULT).exists():
            yield from sorted((folder / CHECKPOINTS).glob("[0-9]*.safetensors"))[-1:]
        yield from (path for name in (RECIPE, JOURNAL, MACHINE, RESULT) if (path := folder / name).exists())
    yield from (path for folder in folders if (path := folder / PHASE_0).exists())


def write_parts(content: bytes, out: Path, part: int) -> list[Path]:
    """The content in files of at most so many bytes, in place of any that were there."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(PART.format(0)[:-3] + "*"):
        old.unlink()
    paths = [out / PART.format(number) for number in range(-(-len(content) // part))]
    for number, path in enumerate(paths):
        path.write_bytes(content[number * part : (number + 1) * part])
    return paths


def unpack(parts: Path, runs: Path) -> list[str]:
    """Make the run folders; one that is there already stays as it is. The names of the new ones."""
    found = sorted(parts.glob(PART.format(0)[:-3] + "*"))
    content = io.BytesIO(b"".join(path.read_bytes() for path in found))
    new: dict[str, bool] = {}
    with tarfile.open(fileobj=content) as tar:
        for entry in tar.getmembers():
            name = entry.name.split("/")[0]
            if new.setdefault(name, not (runs / name).exists()):
                tar.extract(entry, runs, filter="data")
    return [name for name, is_new in new.items() if is_new]


def main(words: Sequence[str] | None = None) -> int:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", metavar="RUNS")
    parser.add_argument("--unpack", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", type=float, default=15.0, help="MiB of a part")
    parser.add_argument("--most", type=float, default=60.0, help="MiB of all parts")
    given = parser.parse_args(words)
    if (given.runs is None) == (given.unpack is None):
        parser.error("give RUNS to pack, or --unpack FOLDER")
    if given.unpack is not None:
        try:
            new = unpack(given.unpack, given.out)
        except tarfile.TarError as error:
            print(f"{given.unpack} does not hold all parts of packed runs: {error}", file=sys.stderr)
            return 2
        print(f"new in {given.out}: {', '.join(new) or 'nothing'}")
        return 0
    content, left_out = packed(given.runs, int(given.most * MIB))
    parts = write_parts(content, given.out, max(1, int(given.part * MIB)))
    print(f"{len(content) / MIB:.1f} MiB in {len(parts)} parts")
    for name in left_out:
        print(f"left out: {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
