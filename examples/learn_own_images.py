"""Learn new classes month by month from folders of images, and predict.

    python examples/learn_own_images.py [FOLDER]

FOLDER holds one folder for each month, and that one folder of images for each class. Without it, pictures are drawn.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import poise


def draw_pictures(folder: Path) -> None:
    """Two months of small pictures: stripes and checks of four colours."""
    generator = np.random.default_rng(0)
    colours = {"red": (200, 40, 40), "green": (40, 180, 40), "blue": (40, 60, 200), "yellow": (200, 190, 40)}
    for place, (name, colour) in enumerate(colours.items()):
        target = folder / ("2026-01" if place < 2 else "2026-02") / name
        target.mkdir(parents=True)
        for number in range(24):
            pixels = generator.normal(colour, 30, (16, 16, 3))
            pixels[:: 2 + place % 2] *= 0.5
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(target / f"{number}.png")


def main(folder: Path) -> float:
    """Learn every month in turn; return the accuracy on the images of all months."""
    learner = poise.Learner(memory=10, policy="fixed")
    months = sorted(path for path in folder.iterdir() if path.is_dir())
    for month in months:
        learner.partial_fit(month)
        print(f"after {month.name}: {', '.join(map(str, learner.classes_))}")
    files = [path for month in months for path in sorted(month.rglob("*.png"))]
    predicted = learner.predict(files)
    accuracy = float(np.mean([name == path.parent.name for name, path in zip(predicted, files, strict=True)]))
    print(f"accuracy on all {len(files)} images: {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as drawn:
            draw_pictures(Path(drawn))
            main(Path(drawn))
