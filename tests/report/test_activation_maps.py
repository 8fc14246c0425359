"""Grad-CAM agrees with captum and with hand-made cases; the figure says what was predicted, of which images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from captum.attr import LayerGradCam
from matplotlib.figure import Figure as Drawing
from torch import Tensor, nn

from poise import Learner
from poise.errors import UserError
from poise.nets import Model, ResNet, build_backbone, build_head, torch_generator
from poise.report import look
from poise.report.activation_maps import Look, Subject, cam_figure, grad_cam

CLASSES = 5


def made(variant: str, head: str, net: str = "small") -> Model:
    """A model whose batch norms and head rows are not as they were initialised."""
    backbone = build_backbone(net, variant, 3, seed=1)
    generator = torch.Generator().manual_seed(2)
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight is not None
            assert module.running_mean is not None
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.running_mean.normal_(generator=generator)
    model = Model(backbone, build_head(head, backbone.width))
    model.head.grow(CLASSES, torch_generator(1, "head"))
    return model.eval()


def images() -> Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(3))


class Scores(nn.Module):
    """A model as captum wants it: images to one score per class."""

    def __init__(self, model: Model, means: Tensor | None) -> None:
        super().__init__()
        self.model, self.means = model, means

    def forward(self, x: Tensor) -> Tensor:
        output = self.model(x)
        logits: Tensor = output.logits
        return logits if self.means is None else nn.functional.normalize(output.features) @ self.means.T


@pytest.mark.parametrize("ncm", [False, True], ids=["fc", "ncm"])
@pytest.mark.parametrize(
    ("variant", "head", "net"),
    [
        ("lucir", "cosine", "small"),
        ("ordinary", "linear", "small"),
        ("pod", "cosine", "small"),
        ("lucir", "cosine", "resnet32"),
    ],
)
def test_maps_are_those_of_captum(variant: str, head: str, net: str, ncm: bool) -> None:
    model, batch, rows = made(variant, head, net), images(), torch.tensor([0, 4, 2, 2])
    means = nn.functional.normalize(torch.randn(CLASSES, model.head.width, generator=torch.Generator().manual_seed(4)))
    assert isinstance(model.backbone, ResNet)
    reference = LayerGradCam(Scores(model, means if ncm else None), model.backbone.levels[-1])
    expected = reference.attribute(batch, target=rows, relu_attributions=True)
    found = grad_cam(model, batch, rows, means if ncm else None)
    assert found.shape == (4, *expected.shape[2:])
    assert found.max() > 0
    torch.testing.assert_close(found, expected[:, 0].detach())


def test_a_map_depends_on_its_own_image_only_and_leaves_the_model_alone() -> None:
    model, batch, rows = made("lucir", "cosine"), images(), torch.tensor([0, 1, 2, 3])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    together = grad_cam(model, batch, rows)
    with torch.no_grad():
        alone = torch.cat([grad_cam(model, batch[[i]], rows[[i]]) for i in range(4)])
    torch.testing.assert_close(together, alone)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_frozen_model_is_explained_too() -> None:
    model, batch, rows = made("lucir", "cosine"), images(), torch.tensor([0, 1, 2, 3])
    expected = grad_cam(model, batch, rows)
    torch.testing.assert_close(grad_cam(model.requires_grad_(False), batch, rows), expected)


@pytest.mark.gpu
def test_maps_on_a_gpu_are_those_on_the_cpu() -> None:
    learned = Learner("lucir", epochs=2, memory=4, policy="fixed", device="cuda")
    learned.partial_fit(halves(24), ["left", "right"] * 12)
    assert learned.model is not None
    assert learned.preprocessing_ is not None
    batch = learned.preprocessing_.plain(torch.from_numpy(halves(6))[:, None])
    rows = torch.tensor([0, 1] * 3)
    there = grad_cam(learned.model, batch.cuda(), rows.cuda(), learned.means_).cpu()
    assert learned.means_ is not None
    here = grad_cam(learned.model.cpu(), batch, rows, learned.means_.cpu())
    torch.testing.assert_close(there, here, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8)), "no convolution"),
        (nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten()), ""),
    ],
)
def test_a_net_of_ones_own_needs_a_convolution(net: nn.Sequential, reason: str) -> None:
    width = net(images()).shape[1]
    head = build_head("linear", width)
    head.grow(CLASSES, torch_generator(0, "head"))
    model, rows = Model(net, head).eval(), torch.tensor([0, 1, 2, 3])
    if reason:
        with pytest.raises(UserError, match=reason):
            grad_cam(model, images(), rows)
    else:
        assert grad_cam(model, images(), rows).shape == (4, 16, 16)


@pytest.fixture(scope="module")
def learner() -> Learner:
    """A learner of two bright halves: class 'left' and class 'right'."""
    learned = Learner("icarl", epochs=6, memory=4, policy="fixed", device="cpu")
    learned.partial_fit(halves(24), ["left", "right"] * 12)
    return learned


def halves(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Noise, with the left half bright in even images and the right half in odd ones."""
    pixels = np.random.default_rng(5).integers(0, 60, (count, 8, 8), dtype=np.uint8)
    pixels[::2, :, :4] += 180
    pixels[1::2, :, 4:] += 180
    return pixels


@pytest.mark.parametrize("classifier", ["fc", "ncm"])
def test_a_look_explains_what_the_learner_predicts(learner: Learner, classifier: str) -> None:
    learner._parts.knowledge = replace(learner.knowledge, classifier=classifier)
    pixels = halves(6)
    seen = look(learner, pixels)
    assert [one.predicted for one in seen] == learner.predict(pixels).tolist()
    chances = learner.predict_proba(pixels)
    for one, image, chance in zip(seen, pixels, chances, strict=True):
        assert one.classifier == classifier
        assert one.chance == pytest.approx(chance.max())
        np.testing.assert_array_equal(one.pixels[..., 0], image)
        assert one.heat.min() >= 0
        assert one.heat.max() in (0, pytest.approx(1))
    assert learner.preprocessing_ is not None
    assert learner.model is not None
    rows = torch.from_numpy(chances.argmax(axis=1))
    batch = learner.preprocessing_.plain(torch.from_numpy(pixels)[:, None])
    raw = grad_cam(learner.model, batch, rows, learner.means_ if classifier == "ncm" else None)
    expected = raw / raw.amax(dim=(1, 2), keepdim=True).clamp(min=1e-30)
    np.testing.assert_allclose(np.stack([one.heat for one in seen]), expected.numpy(), rtol=1e-5)


def test_a_learner_without_classes_has_nothing_to_explain() -> None:
    with pytest.raises(UserError, match="learned nothing"):
        look(Learner(), halves(1))


def a_look(predicted: str) -> Look:
    return Look(np.zeros((8, 8, 1), np.uint8), np.eye(2, dtype=np.float32), predicted, 0.75, "fc")


def test_the_figure_knows_right_from_wrong_and_unknown() -> None:
    subjects = [Subject("a", "cat", (0, 1)), Subject("b", None)]
    looks = {"one, tfh 5": [a_look("cat"), a_look("cat")], "two": [a_look("dog"), a_look("dog")]}
    figure = cam_figure(subjects, looks, "caption")
    assert [(row["image"], row["run"], row["phase"], row["right"]) for row in figure.data] == [
        ("a", "one, tfh 5", 0, 1),
        ("a", "two", 1, 0),
        ("b", "one, tfh 5", None, None),
        ("b", "two", None, None),
    ]
    drawing = Drawing()
    figure.panels[0].paint(drawing)
    below = [axes.get_xlabel() for axes in drawing.axes]
    assert below == ["", "✓ cat  75%", "✗ dog  75%", "", "cat  75%", "dog  75%"]
    assert [axes.get_title() for axes in drawing.axes[:3]] == ["image", "one\ntfh 5", "two"]
    assert drawing.axes[0].get_ylabel() == "cat\nphase 0/1"


def test_saving_needs_a_known_ending_and_a_folder(tmp_path: Path) -> None:
    figure = cam_figure([Subject("a", "cat")], {"one": [a_look("cat")]}, "caption")
    for name in ("maps.png", "maps.svg", "maps.pdf"):
        figure.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    first = (tmp_path / "maps.svg").read_bytes()
    figure.save(tmp_path / "maps.svg")
    assert (tmp_path / "maps.svg").read_bytes() == first
    with pytest.raises(UserError, match=r"must end in \.png, \.svg or \.pdf"):
        figure.save(tmp_path / "maps.jpg")
    with pytest.raises(UserError, match="does not exist"):
        figure.save(tmp_path / "none" / "maps.png")
