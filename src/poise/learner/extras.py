"""Beside learning and predicting: thresholds below which an image belongs to no known class, and export."""

from __future__ import annotations

import copy
import json
import logging
import math
import warnings
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from poise import __version__, store
from poise.actions import Action
from poise.data import ImageSet
from poise.data.augment import scale_and_shift
from poise.errors import UserError, check_number, explaining_refusals, first_line, not_learned
from poise.learner.state import Knowledge
from poise.methods import Method
from poise.nets import Model
from poise.training.evaluate import Evaluator
from poise.words import install_extra

log = logging.getLogger(__name__)

#: Where the class names are: a key of an ONNX file's metadata, and the stem of a .pt2's extra file.
DOCUMENT: Final = "poise"
INPUT: Final = "images"
OUTPUTS: Final = ("probabilities", "fc", "ncm")


# Probabilities and rejecting ----------------------------------------------------------------------------------------


def left_out_scores(
    method: Method, action: Action, model: Model, means: Tensor, images: ImageSet, evaluator: Evaluator
) -> dict[str, Tensor]:
    """The scores of images that classifiers on a frozen network were made of, as if each alone had been left out."""
    found, labels = evaluator.extract(model, images), images.labels.to(means.device)
    unit = normalize(found.features)
    sums = torch.zeros_like(means).index_add(0, labels, unit)
    own = (unit * normalize(sums[labels] - unit)).sum(dim=1, keepdim=True)
    logits = method.configured_for(action).left_out(model, found.features, labels, action)
    return {"ncm": (unit @ means.T).scatter(1, labels[:, None], own), **({} if logits is None else {"fc": logits})}


def best_temperature(scores: Tensor, labels: Tensor) -> float:
    """The temperature of a softmax of these scores under which the labels are likeliest (Guo et al., ICML 2017).

    A twentieth of a power of ten is as exact as it gets. One image more, of no class in particular, counts with them:
    where every image is recognised, no temperature is too low for the labels alone.

    >>> scores = torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [4.0, 0.0]])
    >>> three_right, all_right = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 0, 0])
    >>> round(best_temperature(scores, three_right), 1), round(best_temperature(scores, all_right), 1)
    (4.5, 1.8)
    """
    plain, wanted = scores.double().cpu(), labels.cpu()
    smoothing = 1 / (len(wanted) + 1)

    def loss(step: int) -> float:
        return float(cross_entropy(plain / 10 ** (step / 20), wanted, label_smoothing=smoothing))

    low, high = -60, 60
    while low < high:  # convex in 1 / temperature
        middle = (low + high) // 2
        low, high = (low, middle) if loss(middle) <= loss(middle + 1) else (middle + 1, high)
    return float(10 ** (low / 20))


def reject_threshold(scores: Tensor, rate: float) -> float:
    """The score below which about `rate` of the images of known classes lie, from theirs of [images, classes].

    It is the k-th smallest of n largest scores, k = ⌊rate · (n + 1)⌋: that of another image falls below it with a
    chance of k / (n + 1).

    >>> reject_threshold(torch.arange(99, 0, -1).double()[:, None], 0.05)
    5.0
    """
    check_number("rate", rate, below=1, positive=True)
    largest = scores.max(dim=1).values.double().cpu()
    place = math.floor(round(rate * (len(largest) + 1), 9))
    if place < 1:
        raise UserError(
            f"{len(largest)} images are too few for a reject rate of {rate:g}; "
            f"give at least {math.ceil(round(1 / rate, 9)) - 1}: images=…"
        )
    return float(torch.sort(largest).values[place - 1])


# Exporting ----------------------------------------------------------------------------------------------------------


def export(known: Knowledge, path: Path) -> None:
    """Write what predicts to an ONNX file (`.onnx`) or a program of `torch.export` (`.pt2`); see `Learner.export`."""
    if path.suffix not in (".onnx", ".pt2"):
        raise UserError(f"{path.name} must end in .onnx (ONNX) or .pt2 (torch.export)")
    if known.predictor is None or known.means is None or known.preprocessing is None or known.shape is None:
        raise not_learned()
    store.refuse_bad_place(path)
    if path.suffix == ".onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        raise UserError(f"an ONNX file needs the extra; {install_extra('export')}, or write a .pt2 file")
    normalising = scale_and_shift(known.preprocessing.mean, known.preprocessing.std, torch.device("cpu"))
    program = _Program(
        known.predictor, known.means, normalising, known.classifier, known.temperature(known.classifier)
    ).eval()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # else it lists the packages that it misses
    with warnings.catch_warnings(action="ignore"), torch.no_grad():  # of torch, on its own future
        traced = _trace(program, known.shape)
        data = (_onnx_bytes if path.suffix == ".onnx" else _pt2_bytes)(traced, _document(known))
    with explaining_refusals("export it again"):
        store.write_bytes(path, data)


def _document(known: Knowledge) -> str:
    """The facts besides the weights that a program needs to predict, as JSON."""
    shape = ["batch", *(known.shape or ())]
    return json.dumps(
        {
            "poise": __version__,
            "classes": list(known.classes),
            "classifier": known.classifier,
            "reject": dict(known.reject),
            "input": {"name": INPUT, "type": "uint8", "shape": shape, "short_side": known.short_side},
            "outputs": list(OUTPUTS),
        }
    )


class _Program(nn.Module):
    """A network module from uint8 images to the scores of both classifiers, on the CPU in full precision."""

    scale: Tensor
    shift: Tensor
    means: Tensor

    def __init__(
        self, model: Model, means: Tensor, normalising: tuple[Tensor, Tensor], classifier: str, temperature: float
    ) -> None:
        super().__init__()
        self.model = copy.deepcopy(model.teacher()).to("cpu")  # a copy of what is frozen too, which a teacher shares
        self.classifier, self.temperature = classifier, temperature
        for name, values in zip(("scale", "shift", "means"), (*normalising, means), strict=True):
            self.register_buffer(name, values.detach().to("cpu", torch.float32).clone())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        found = self.model(torch.addcmul(self.shift, images.float(), self.scale))
        cosines = normalize(found.features) @ self.means.T
        scores = found.logits if self.classifier == "fc" else cosines
        return dict(zip(OUTPUTS, ((scores / self.temperature).softmax(dim=1), found.logits, cosines), strict=True))


def _trace(program: _Program, shape: tuple[int, int, int]) -> torch.export.ExportedProgram:
    example = torch.zeros(2, *shape, dtype=torch.uint8)
    try:
        return torch.export.export(program, (example,), dynamic_shapes={INPUT: {0: torch.export.Dim("batch", min=1)}})
    except Exception as error:  # whatever torch says of a network that it cannot trace
        raise UserError(f"torch.export cannot trace this network: {first_line(error)}") from error


def _onnx_bytes(traced: torch.export.ExportedProgram, document: str) -> bytes:
    made = torch.onnx.export(traced, dynamo=True, input_names=[INPUT], output_names=list(OUTPUTS), verbose=False)
    assert made is not None
    made.model.metadata_props[DOCUMENT] = document
    for value in (*made.model.graph.inputs, *made.model.graph.outputs):
        if value.shape is not None:
            value.shape[0] = "batch"
    data: bytes = made.model_proto.SerializeToString()
    return data


def _pt2_bytes(traced: torch.export.ExportedProgram, document: str) -> bytes:
    buffer = BytesIO()
    torch.export.save(traced, buffer, extra_files={f"{DOCUMENT}.json": document})
    return buffer.getvalue()
