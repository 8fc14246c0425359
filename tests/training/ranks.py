"""Started by torchrun in `test_world.py`: trains every method alone and with the other rank, and one whole run.

    torchrun --nproc-per-node=2 ranks.py FOLDER

Rank 0 leaves in FOLDER what it found: `found.json`, and `whole`, the folder of a run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from poise import Learner
from poise.data import Augmentation
from poise.runs import Follower, Run, RunFolder, load_recipe, make_plan
from poise.training.ranks import ALONE, World, join_world, joined_worlds

RUN = (
    *("groups=[3,2]", "epochs=2", "batch=60", "device=cpu", "images_per_class=50"),
    *("policy=exp3", "policy_options.iterations=2", "space={lr=[0.1,0.05]}"),
)


class Smooth(nn.Module):
    """A network without batch statistics, and without kinks that turn rounding into more."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.Tanh(), nn.Conv2d(12, 16, 3, 2), nn.Tanh())
        for values in self.parameters():
            nn.init.normal_(values, std=0.2, generator=torch.Generator().manual_seed(values.numel()))

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps.mean(dim=(2, 3))


#: Methods with their options, on poise's own networks (each rank with batch statistics of its part) or on that one.
Options = dict[str, float | str]
CASES: list[tuple[str, Options, str | nn.Module]] = [
    ("lucir", {}, "small"),
    ("aanets", {"base": "lucir", "alpha": "learned"}, "small"),
    ("der", {}, "small"),
    ("foster", {}, "small"),
    ("lucir", {}, Smooth()),
    ("lwf", {}, Smooth()),
    ("slca", {}, Smooth()),
    ("ranpac", {}, Smooth()),
]


def train(method: str, options: Options, net: str | nn.Module, world: World) -> dict[str, Tensor]:
    """What a learner holds after two phases; batches of 31, the last one of each phase smaller, some of 3 images."""
    joined_worlds[:] = [world]
    plan = make_plan("digits/lucir", load_recipe("digits/lucir", ["groups=[3,2,5]"]))
    learner = Learner(
        method, net=net, options=options, policy="fixed", epochs=1, batch=31, first_lr=0.01, action={"lr": 0.01},
        memory=9, augmentation=Augmentation(pad=1, flip=False), device="cpu", weight_decay=5e-4, momentum=0.9, seed=1,
    )  # fmt: skip
    for group, count in zip(plan.stream.groups[:2], (32, 24), strict=True):
        images = plan.training_images().of_labels(group).first_of_each_label(count)
        learner.partial_fit(images.pixels, images.labels)
    return learner.state().tensors(images=False)[0]


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """How far the weights and statistics are apart, relative to their size."""
    names = [name for name, value in one.items() if value.is_floating_point() and value.numel()]
    flat = [torch.cat([each[name].double().flatten() for name in names]) for each in (one, other)]
    return float((flat[0] - flat[1]).norm() / flat[0].norm())


def main(folder: Path) -> None:
    world = join_world()
    found: dict[str, float] = {}
    for name, options, net in CASES:
        together = train(name, options, net, world)
        for other in world.all_gather(together):
            assert all(torch.equal(value, other[key]) for key, value in together.items()), name
        if world.leads:
            kind = "smooth" if isinstance(net, Smooth) else "normalised"
            found[f"{name} {kind}"] = difference(train(name, options, net, ALONE), together)
    joined_worlds[:] = [world]
    runner = Run if world.leads else Follower
    runner(
        make_plan("digits/lucir", load_recipe("digits/lucir", RUN)), RunFolder(folder / "whole"), world=world
    ).start()
    if world.leads:
        (folder / "found.json").write_text(json.dumps(found))
    world.wait()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
