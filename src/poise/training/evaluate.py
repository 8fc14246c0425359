"""Looking at models: features, class means and both classifiers, in batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from poise.data import ImageSet, PixelStore, Preprocessing, as_store
from poise.nets import Model
from poise.training.device import Backend, addressed_draws

BATCH = 512
NCM_TEMPERATURE = 0.1  # of the cosines to class means, where they become probabilities
GPU_BATCH = 2048  # with smaller ones the GPU waits for the host
PIXELS = 2**22  # per batch at most: fewer large images take as much memory as many small ones
FAST_PIXELS = 2**17  # on a CPU: what a network makes of more does not stay in its caches,
FAST_BATCH = 32  # and of fewer large images each takes longer


class Extracted(NamedTuple):
    """Features [n, d] and logits [n, classes] of a set of images, on the device."""

    features: Tensor
    logits: Tensor


class ClassMeans(NamedTuple):
    """The unit mean feature of each class [classes, d], and the number of images that each was measured on."""

    vectors: Tensor
    images: tuple[int, ...]


@dataclass(frozen=True)
class Evaluator:
    """Looks at images through a model: how they are prepared, and where the work is done."""

    preprocessing: Preprocessing
    backend: Backend

    @torch.no_grad()
    def extract(self, model: Model, images: ImageSet | PixelStore | Tensor, *, mirrored: bool = False) -> Extracted:
        """Features and logits of uint8 images, or of their mirror images, without augmentation; the model in eval mode.

        They are gathered batch by batch, from wherever they lie. What is found is written into memory that is there
        from the beginning: small results that are kept between large batches would break the memory of these into
        pieces that fit none of the next ones, and a process would grow by all of its images.
        """
        store = images.store if isinstance(images, ImageSet) else as_store(images)
        device, on_gpu = self.backend.device, self.backend.device.type == "cuda"
        size = batch_size(*store.shape[1:], on_gpu=on_gpu)
        world, starts = self.backend.world, range(0, len(store), size)
        if world.joined:  # each rank has its own
            starts = starts[slice(*world.stretch(len(starts), world.rank))]
        training = model.training
        model.eval()
        features = torch.empty(len(store), model.head.width, dtype=torch.float32, device=device)
        logits = torch.empty(len(store), model.head.classes, dtype=torch.float32, device=device)
        for start in starts:
            part = store.part(start, start + size).to(device)
            if mirrored:
                part = part.flip(-1)
            plain = self.preprocessing.plain(pad_to_power_of_two(part) if on_gpu else part)
            plain = plain.contiguous(memory_format=torch.channels_last)
            with self.backend.autocast, addressed_draws(model, start, device):
                output = model(plain)
            features[start : start + len(part)] = output.features[: len(part)]
            logits[start : start + len(part)] = output.logits[: len(part)]
        model.train(training)
        for rows in (features, logits) if world.joined else ():  # all of them, in the order of one process
            world.complete_(rows, size)
        return Extracted(features, logits)

    def class_means(self, model: Model, exemplars: ImageSet, classes: int) -> Tensor:
        """The unit mean feature of every class, from its exemplars under the present model.

        Where the data set is flipped in training, the mean is the average of the mean over the exemplars and
        the mean over their mirror images. These are true left-right mirrors; the released code of LUCIR's line
        reverses the last axis of channels-last arrays there and so swaps red and blue instead.
        """
        views = [False, True] if self.preprocessing.augmentation.flip else [False]
        members = one_hot(exemplars.labels.to(self.backend.device), classes).to(torch.float32)
        weights = members / members.sum(dim=0).clamp(min=1)
        means = [weights.T @ normalize(self.extract(model, exemplars, mirrored=view).features) for view in views]
        return normalize(torch.stack(means).mean(dim=0))

    def guesses(
        self, model: Model, means: Tensor, images: ImageSet | PixelStore | Tensor, among: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The row that each classifier gives to every image; if `among` is given, one of these rows."""
        scores = both_classifiers(self.extract(model, images), means)
        if among is None:
            return {name: found.argmax(dim=1) for name, found in scores.items()}
        return {name: among[found[:, among].argmax(dim=1)] for name, found in scores.items()}


def both_classifiers(found: Extracted, means: Tensor) -> dict[str, Tensor]:
    """The scores of each image for each class: the head's logits (`fc`), and the cosines to the class means (`ncm`).

    The nearest mean is the one with the largest cosine, since means have unit length.
    """
    return {"fc": found.logits, "ncm": normalize(found.features) @ means.T}


def batch_size(height: int, width: int, *, on_gpu: bool) -> int:
    """How many images of this size are looked at at a time, if memory suffices: on a GPU a power of two.

    >>> [batch_size(side, side, on_gpu=True) for side in (32, 224)]
    [2048, 64]
    >>> [batch_size(side, side, on_gpu=False) for side in (8, 32, 224)]
    [512, 128, 32]
    """
    pixels = height * width
    most = GPU_BATCH if on_gpu else min(BATCH, max(FAST_BATCH, FAST_PIXELS // pixels))
    return min(most, 1 << (max(1, PIXELS // pixels).bit_length() - 1))


def pad_to_power_of_two(pixels: Tensor) -> Tensor:
    """The images and black ones up to the next power of two: few sizes, for each new one makes cuDNN look for kernels.

    >>> pad_to_power_of_two(torch.ones(5, 1, 2, 2)).flatten(1).sum(dim=1).tolist()
    [4.0, 4.0, 4.0, 4.0, 4.0, 0.0, 0.0, 0.0]
    """
    missing = 2 ** (len(pixels) - 1).bit_length() - len(pixels)
    return torch.cat([pixels, pixels.new_zeros(missing, *pixels.shape[1:])]) if missing else pixels
