"""A learner for other programs: the file predicts as the learner does, on real images."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise import Budget, Learner, UserError
from poise.learner import Images
from poise.methods import METHODS

from .samples import Flat, digits, grown, learner, memory_for, refused

#: Methods of which a trained model has iCaRL's kind of network and head.
LIKE_ICARL = {"finetune", "joint", "lwf", "replay"}

Predicted = tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]


def predict_with(path: Path, images: np.ndarray[Any, np.dtype[np.uint8]]) -> Predicted:
    """What the file gives for these images [N, C, H, W], by the program that reads such files; and what it says."""
    if path.suffix == ".pt2":
        extra = {"poise.json": ""}
        program = torch.export.load(path, extra_files=extra)
        found = program.module()(torch.from_numpy(images))
        return {name: values.numpy() for name, values in found.items()}, json.loads(extra["poise.json"])
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert [output.shape[0] for output in session.get_outputs()] == ["batch"] * 3
    document = json.loads(session.get_modelmeta().custom_metadata_map["poise"])
    return dict(zip(names, session.run(names, {"images": images}), strict=True)), document


def check(learned: Learner, path: Path, images: Images, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """The file agrees with the learner, both classifiers, whatever the number of images."""
    learned.export(path)
    found, document = predict_with(path, pixels)
    assert document["classes"] == list(learned.knowledge.classes)
    assert document["classifier"] == learned.classifier_
    assert document["input"]["shape"] == ["batch", *(learned.shape_ or ())]
    assert document["input"]["short_side"] == learned.knowledge.short_side
    np.testing.assert_allclose(found["probabilities"], learned.predict_proba(images), atol=1e-5)
    for name, scores in learned._scores(images).items():
        np.testing.assert_allclose(found[name], scores.numpy(), atol=1e-4)
    labels = np.asarray(document["classes"])[found["probabilities"].argmax(axis=1)]
    assert (labels == learned.predict(images)).all()
    alone, _ = predict_with(path, pixels[:1])
    np.testing.assert_allclose(alone["probabilities"], found["probabilities"][:1], atol=1e-5)


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
@pytest.mark.parametrize("method", sorted({*METHODS} - LIKE_ICARL))
def test_the_file_predicts_as_the_learner_does(method: str, ending: str, tmp_path: Path) -> None:
    images, _ = digits(0, 1, 2, 3, first=40)
    check(grown(method=method, epochs=2, **memory_for(method)), tmp_path / f"model.{ending}", images, images[:, None])


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_a_net_of_ones_own_and_names_are_in_the_file(ending: str, tmp_path: Path) -> None:
    images, labels = digits(0, 1, 2, count=20)
    net = nn.Sequential(Flat(12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2))
    learned = learner(net=net, method="lwf", memory=Budget(10, reserve=4)).partial_fit(
        images, [f"№ {i}" for i in labels]
    )
    learned.calibrate_reject(0.2)
    check(learned, tmp_path / f"model.{ending}", images, images[:, None])
    others, _ = digits(0, 1, 7, first=40)
    found, document = predict_with(tmp_path / f"model.{ending}", others[:, None])
    assert document["reject"] == learned.reject_thresholds_
    rejected = found["fc"].max(axis=1) < document["reject"]["fc"]
    assert (rejected == [label is None for label in learned.predict(others, reject=True)]).all()


def test_what_is_frozen_in_a_net_stays_where_it_is(tmp_path: Path) -> None:
    net = nn.Sequential(Flat(12).eval().requires_grad_(False), nn.Linear(12, 6))
    learned = learner(net=net).partial_fit(*digits(0, 1))
    before = {name: (value.data_ptr(), value.clone()) for name, value in learned.model.state_dict().items()}
    learned.export(tmp_path / "model.pt2")
    for name, value in learned.model.state_dict().items():
        assert value.data_ptr() == before[name][0]
        assert torch.equal(value, before[name][1])
    assert learned.partial_fit(*digits(2)).knowledge.classes == (0, 1, 2)


def test_no_kept_image_is_in_the_file(tmp_path: Path) -> None:
    learned = grown()
    for ending in ("onnx", "pt2"):
        learned.export(tmp_path / f"model.{ending}")
        written = (tmp_path / f"model.{ending}").read_bytes()
        assert not any(kept.image.tobytes() in written for kept in learned.exemplars())


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch reads its own archive
@pytest.mark.gpu
def test_a_learner_on_a_gpu_is_changed_between_phases_and_exported(tmp_path: Path) -> None:
    images, _ = digits(0, 2, 3, first=40)
    learned = grown(device="cuda", precision="fp32").remove(1)
    learned.delete_exemplars(learned.exemplars()[0].id).calibrate_reject(0.2)
    assert learned.predict(images, reject=True).shape == (36,)
    learned.export(tmp_path / "model.pt2")
    found, _ = predict_with(tmp_path / "model.pt2", images[:, None])
    np.testing.assert_allclose(found["probabilities"], learned.predict_proba(images), atol=1e-3)
    assert learned.partial_fit(*digits(1)).knowledge.classes == (0, 2, 3, 1)


class Stubborn(Flat):
    """Does something else with an even number of images: no program can be made of that for any number."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * (2 if images.sum() > 0 else 1)


def test_what_cannot_be_exported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="call partial_fit first"):
        learner().export(tmp_path / "model.pt2")
    for name, line in (
        ("model.tflite", "must end in .onnx (ONNX) or .pt2 (torch.export)"),
        ("nowhere/model.pt2", "does not exist; make it first"),
    ):
        with refused(line):
            grown().export(tmp_path / name)
    with refused("cannot trace this network"):
        learner(net=Stubborn()).partial_fit(*digits(0, 1)).export(tmp_path / "model.pt2")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with refused("in a clone of poise: pip install '.[export]'"):
        grown().export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
