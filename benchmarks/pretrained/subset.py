"""Copy a few classes and images of Tiny-ImageNet-100 (found through POISE_DATA) into a folder for a quick run.

    python benchmarks/pretrained/subset.py OUT [--classes 12] [--train 40] [--test 25]

Every so many-th class in the order of names, and the first images of each: the same files every time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

NAME = "tiny-imagenet-100"


def main() -> int:
    """Copy, or say in one line what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name, count in (("classes", 12), ("train", 40), ("test", 25)):
        parser.add_argument(f"--{name}", type=int, default=count)
    words = parser.parse_args()
    place = os.environ.get("POISE_DATA")
    source = Path(place) / NAME if place else None
    if source is None or not all((source / part).is_dir() for part in ("train", "val")):
        looked = f"{source} has no train and val folders" if source else "POISE_DATA is not set"
        print(f"poise: {looked}; let POISE_DATA name the folder that holds {NAME}", file=sys.stderr)
        return 2
    names = sorted(folder.name for folder in (source / "train").iterdir() if folder.is_dir())
    for name in names[:: max(1, len(names) // words.classes)][: words.classes]:
        for part, into, count in (("train", "train", words.train), ("val", "test", words.test)):
            (words.out / into / name).mkdir(parents=True, exist_ok=True)
            for file in sorted((source / part / name).iterdir())[:count]:
                shutil.copy(file, words.out / into / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
