"""A learner as a file that needs no poise: ONNX (the extra `export`), or a program of `torch.export`."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from poise import files, store
from poise._version import __version__
from poise.errors import UserError, first_line, not_learned
from poise.learner.state import Knowledge
from poise.learner.views import Views
from poise.nets import Model
from poise.quiet import without_warnings
from poise.training import NCM_TEMPERATURE, undisturbed
from poise.words import install_extra

DOCUMENT = "poise"  # where the class names are: a key of an ONNX file's metadata, and the stem of a .pt2's extra file
INPUT = "images"
OUTPUTS = ("probabilities", "fc", "ncm")


class Exporting(Views):
    """What writes a learner for other programs to predict with."""

    @undisturbed()
    def export(self, path: str | Path) -> None:
        """Write what predicts to an ONNX file (`.onnx`) or a program of `torch.export` (`.pt2`), by the path's ending.

        It takes `images`, uint8 [batch, C, H, W] as the learner was trained on, any number of them; normalisation is
        inside. It gives three float tensors [batch, classes], columns as in `classes_`: `probabilities`, those of
        `predict_proba`; `fc`, the logits of the head; `ncm`, the cosines to the class means. The class names, the
        classifier that counts and the reject thresholds are in the file too, as one JSON document: in ONNX's metadata
        under `poise`, in a `.pt2` file as the extra file `poise.json`. Its `short_side` says to how many pixels the
        short side of a photo is scaled before the images are cut out of its centre. No kept image is in the file.
        """
        place = files.expand_user(path)
        if place.suffix not in WRITERS:
            raise UserError(f"{place.name} must end in .onnx (ONNX) or .pt2 (torch.export)")
        known = self.knowledge  # another thread may change it before the file is written
        model, means, prepared, shape = known.predictor, known.means, known.preprocessing, known.shape
        if model is None or means is None or prepared is None or shape is None:
            raise not_learned()
        store.refuse_bad_place(place)
        if place.suffix == ".onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
            raise UserError(f"an ONNX file needs the extra; {install_extra('export')}, or write a .pt2 file")
        program = _Program(model, means, prepared.scale_and_shift(), known.classifier).eval()
        with _quietly(), torch.no_grad():
            data = WRITERS[place.suffix](_trace(program, shape), _document(known))
        with files.explaining_refusals("export it again"):
            files.write_bytes(place, data)


def _document(known: Knowledge) -> dict[str, Any]:
    """What a program that predicts has to know besides the numbers."""
    short_side = {} if known.short_side is None else {"short_side": known.short_side}
    return {
        "poise": __version__,
        "classes": list(known.classes),
        "classifier": known.classifier,
        "reject": dict(known.reject),
        "input": {"name": INPUT, "type": "uint8", "shape": ["batch", *(known.shape or ())], **short_side},
        "outputs": list(OUTPUTS),
    }


class _Program(nn.Module):
    """From uint8 images to the scores of both classifiers, on the CPU in full precision."""

    scale: Tensor
    shift: Tensor
    means: Tensor

    def __init__(self, model: Model, means: Tensor, normalising: tuple[Tensor, Tensor], classifier: str) -> None:
        super().__init__()
        self.model = copy.deepcopy(model.teacher()).to("cpu")  # a copy of what is frozen too, which a teacher shares
        self.classifier = classifier
        for name, values in zip(("scale", "shift", "means"), (*normalising, means), strict=True):
            self.register_buffer(name, values.detach().to("cpu", torch.float32).clone())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        found = self.model(torch.addcmul(self.shift, images.float(), self.scale))
        cosines = normalize(found.features) @ self.means.T
        scores = found.logits if self.classifier == "fc" else cosines / NCM_TEMPERATURE
        return dict(zip(OUTPUTS, (scores.softmax(dim=1), found.logits, cosines), strict=True))


def _trace(program: _Program, shape: tuple[int, int, int]) -> torch.export.ExportedProgram:
    example = torch.zeros(2, *shape, dtype=torch.uint8)
    try:
        return torch.export.export(program, (example,), dynamic_shapes={INPUT: {0: torch.export.Dim("batch", min=1)}})
    except Exception as error:  # whatever torch says of a network that it cannot trace
        reason = first_line(error)
        raise UserError(f"torch.export cannot trace this network: {reason}") from error


def _onnx_bytes(traced: torch.export.ExportedProgram, document: dict[str, Any]) -> bytes:
    made = torch.onnx.export(traced, dynamo=True, input_names=[INPUT], output_names=list(OUTPUTS), verbose=False)
    assert made is not None
    made.model.metadata_props[DOCUMENT] = json.dumps(document)
    graph = made.model.graph
    for value in (*graph.inputs, *graph.outputs):
        if value.shape is not None:
            value.shape[0] = "batch"
    data: bytes = made.model_proto.SerializeToString()
    return data


def _pt2_bytes(traced: torch.export.ExportedProgram, document: dict[str, Any]) -> bytes:
    buffer = BytesIO()
    torch.export.save(traced, buffer, extra_files={f"{DOCUMENT}.json": json.dumps(document)})
    return buffer.getvalue()


WRITERS = {".onnx": _onnx_bytes, ".pt2": _pt2_bytes}


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch says of packages that it misses, and of its own future."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with without_warnings():
            yield
    finally:
        logger.setLevel(level)
