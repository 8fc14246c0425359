"""Learn from few photos with a frozen network that was trained on ImageNet.

    python examples/pretrained.py JANUARY FEBRUARY ...

Each folder holds one folder of photos for each new class.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import poise


def main(folders: Sequence[Path]) -> poise.Learner:
    """One phase for each folder: RanPAC on frozen features keeps sums, so that no image need be kept."""
    learner = poise.Learner("ranpac", net="efficientnet-lite0", memory=0)
    for folder in folders:
        learner.partial_fit(folder)
        print(f"{folder}: {len(learner.classes_)} classes so far")
    return learner


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
