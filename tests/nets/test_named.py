"""Networks by name: real packages and files on disk, imported when asked for, missing ones in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from poise import Learner, UserError, cli, store
from poise.nets import Adapted, adapt, build_net, check_backbone, net_info
from poise.report.reading import read_runs
from poise.runs import Run, RunFolder, load_recipe, make_plan, reopen

from .conventions import MEAN, STD

SETTINGS: dict[str, Any] = {"policy": "fixed", "epochs": 1, "memory": 2, "batch": 4, "device": "cpu"}

#: A package that has functions like those of timm.models and torchvision.models, and others.
PACKAGE = """
import torch
from torch import nn
from tests_conventions import Clip, TimmNet, TorchvisionNet, VisionTransformer, ImageProcessor, Weights

calls = []

def with_flag(pretrained=False, **kwargs):
    calls.append(pretrained)
    return TimmNet()

def with_weights(*, weights=None, progress=True):
    calls.append(weights)
    return TorchvisionNet("fc", nn.Linear(4, 10))

def get_model_weights(name):
    return Weights

class inner:
    @staticmethod
    def without():
        return TimmNet()

def number():
    return 3

def needs_more(depth):
    return nn.Identity()
"""

TIMM = """
from tests_conventions import TimmNet

def create_model(name, pretrained=False, num_classes=1000):
    if name != "tiny":
        raise RuntimeError(f"Unknown model ({name})")
    return TimmNet(classes=max(1, num_classes))
"""

TRANSFORMERS = """
from tests_conventions import ImageProcessor, VisionTransformer

class AutoModel:
    @staticmethod
    def from_pretrained(name):
        net = VisionTransformer()
        net.config._name_or_path = name
        return net

class AutoImageProcessor:
    @staticmethod
    def from_pretrained(name):
        return ImageProcessor()
"""

OPEN_CLIP = """
from tests_conventions import Clip

def create_model(name, pretrained=None):
    return Clip()
"""

FILE = """
import torch
from torch import nn
from neighbour import WIDTH

def make():
    return nn.Sequential(nn.Conv2d({channels}, WIDTH, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def own():
    net = make()
    net.mean, net.std, net.pretrained_on = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "my photos"
    return net

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.fc = make(), nn.Linear(WIDTH, 6)

    def forward(self, images):
        return self.fc(self.stem(images))

def classifier():
    return Net()

def broken():
    raise RuntimeError("no weights\\nhere")
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Importable packages by the conventions of others; gone after the test."""
    place, before = tmp_path / "site", set(sys.modules)
    place.mkdir()
    conventions = (Path(__file__).parent / "conventions.py").read_text(encoding="utf-8")
    (place / "tests_conventions.py").write_text(conventions, encoding="utf-8")
    for name, text in (("zoo", PACKAGE), ("timm", TIMM), ("transformers", TRANSFORMERS), ("open_clip", OPEN_CLIP)):
        (place / name).mkdir()
        (place / name / "__init__.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(place)
    yield place
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"zoo", "timm", "transformers", "open_clip", "tests_conventions"}:
            del sys.modules[name]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with functions that make networks, and a neighbour that it imports."""
    (tmp_path / "neighbour.py").write_text("WIDTH = 6\n", encoding="utf-8")
    path = tmp_path / "my nets+.py"
    path.write_text(FILE.format(channels=3), encoding="utf-8")
    return path


@pytest.fixture
def some_images() -> tuple[Any, Any]:
    pixels = np.random.default_rng(1).integers(0, 256, (8, 64, 64, 3), dtype=np.uint8)
    return pixels, np.arange(8) % 2


def built(word: str) -> Adapted:
    found = build_net(word, "lucir", 3, 0)
    assert isinstance(found, Adapted)
    return found


class TestPackages:
    def test_a_function_is_called_for_its_pretrained_weights(self, packages: Path) -> None:
        check_backbone("zoo:with_flag", "lucir")
        assert "zoo" not in sys.modules  # nothing is imported before it is asked for
        found = built("zoo:with_flag")
        assert (found.width, found.info.mean, found.info.pretrained_on) == (4, MEAN, "ImageNet-1k")
        assert found.info.word == "zoo:with_flag"
        found = built("zoo:with_weights")
        assert (found.width, found.info.std, found.info.pretrained_on) == (4, STD, "ImageNet-1k")
        assert sys.modules["zoo"].calls == [True, "DEFAULT"]
        assert built("zoo:inner.without").width == 4

    @pytest.mark.parametrize(
        ("word", "said"),
        [
            ("timm:tiny", "ImageNet-1k"),
            ("transformers:some/vit-base-in21k", "ImageNet-21k"),
            ("transformers:some/other", "the data of some/other"),
            ("open_clip:ViT-B-32:laion2b_s34b", "laion2b_s34b"),
        ],
    )
    def test_packages_that_make_networks_by_name(self, word: str, said: str, packages: Path) -> None:
        found = built(word)
        assert (found.width, found.info.mean, found.info.std) == (4, MEAN, STD)
        assert found.info.pretrained_on == said

    def test_frozen_or_trainable_by_an_ending(self, packages: Path) -> None:
        frozen = built("timm:tiny/frozen")
        assert not frozen.training
        assert not any(parameter.requires_grad for parameter in frozen.parameters())
        assert all(parameter.requires_grad for parameter in built("timm:tiny/trainable").parameters())

    def test_adapt_takes_a_word(self, packages: Path) -> None:
        found = adapt("timm:tiny", preprocess={"mean": [0.5] * 3, "std": [0.5] * 3}, frozen=True)
        assert (found.info.mean, found.info.word) == ((0.5,) * 3, "timm:tiny")
        assert built("timm:tiny").info.mean == MEAN  # another copy

    @pytest.mark.parametrize(
        ("word", "line"),
        [
            ("nothing_here:net", "there is no package 'nothing_here' here"),
            ("zoo.inside:net", "there is no module 'zoo.inside'"),
            ("zoo:with_flags", "zoo has no function 'with_flags'; did you mean 'with_flag'"),
            ("zoo:number", "'number' returns int, it must return a torch module"),
            ("zoo:needs_more", "could not be made .TypeError"),
            ("zoo:", "neither package:name nor file.py:function"),
            ("no package:net", "neither package:name nor file.py:function"),
            ("timm:large", "could not be made .RuntimeError: Unknown model"),
            ("open_clip:ViT-B-32", "use open_clip:NAME:WEIGHTS"),
            ("efficientnet-lite", "did you mean 'efficientnet-lite0'"),
        ],
    )
    def test_what_is_missing_is_one_line(self, word: str, line: str, packages: Path) -> None:
        with pytest.raises(UserError, match=line) as raised:
            _ = Learner(net=word).settings
        assert "\n" not in str(raised.value)


class TestFiles:
    def test_a_function_of_ones_own(self, file: Path) -> None:
        found = built(f"{file}:own")
        assert (found.width, found.info.mean, found.info.pretrained_on) == (6, MEAN, "my photos")
        assert found.info.digest is not None
        assert str(file.parent) not in sys.path

    def test_its_first_values_are_drawn_by_the_seed_and_nothing_else(self, file: Path, tmp_path: Path) -> None:
        def weights(path: Path, seed: int) -> torch.Tensor:
            torch.rand(1)
            return next(build_net(f"{path}:make", "", 3, seed).parameters())

        state = torch.get_rng_state()
        first = weights(file, 0)
        moved = tmp_path / "elsewhere" / file.name
        moved.parent.mkdir()
        moved.write_bytes(file.read_bytes())
        (moved.parent / "neighbour.py").write_text("WIDTH = 6\n")
        assert torch.equal(first, weights(moved, 0))
        assert not torch.equal(first, weights(file, 1))
        torch.set_rng_state(state)
        built(f"{file}:make")
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize(
        ("name", "line"),
        [
            ("absent", "has no function 'absent'"),
            ("broken", "could not be made .RuntimeError: no weights here"),
        ],
    )
    def test_what_it_lacks_is_one_line(self, name: str, line: str, file: Path) -> None:
        with pytest.raises(UserError, match=line) as raised:
            _ = Learner(net=f"{file}:{name}").settings
        assert "\n" not in str(raised.value)

    def test_a_missing_file_is_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"cannot be read \(No such file"):
            _ = Learner(net=f"{tmp_path}/absent.py:make").settings
        with pytest.raises(UserError, match=r"cannot be read \(No such file"):
            load_recipe("digits/lucir", [f"net={tmp_path}/absent.py:make"])


class TestSaved:
    def test_the_word_is_saved_and_the_network_made_again(
        self, file: Path, some_images: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pixels, labels = some_images
        monkeypatch.chdir(file.parent)
        learner = Learner("lucir", net=f"{file.name}:own", **SETTINGS).partial_fit(pixels, labels)
        learner.save(tmp_path / "one")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        loaded = Learner.load(tmp_path / "one", device="cpu")
        assert loaded.net_info == learner.net_info
        assert loaded.net_info is not None
        assert loaded.net_info.pretrained_on == "my photos"
        np.testing.assert_array_equal(loaded.predict_proba(pixels), learner.predict_proba(pixels))
        for each, name in ((learner, "whole"), (loaded, "loaded")):
            each.partial_fit(pixels[::-1].copy(), labels + 2).save(tmp_path / name)
        assert (tmp_path / "whole").read_bytes() == (tmp_path / "loaded").read_bytes()

    def test_a_package_is_not_asked_for_weights_that_the_file_has(
        self, packages: Path, some_images: tuple[Any, Any], tmp_path: Path
    ) -> None:
        learner = Learner("icarl", net="zoo:with_flag", **SETTINGS).partial_fit(*some_images)
        learner.save(tmp_path / "one")
        before = len(sys.modules["zoo"].calls)
        loaded = Learner.load(tmp_path / "one", device="cpu")
        assert not any(sys.modules["zoo"].calls[before:])
        np.testing.assert_array_equal(loaded.predict_proba(some_images[0]), learner.predict_proba(some_images[0]))
        assert loaded.net_info == learner.net_info

    def test_a_changed_file_is_said_aloud(
        self, file: Path, some_images: tuple[Any, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        Learner("icarl", net=f"{file}:make", **SETTINGS).partial_fit(*some_images).save(tmp_path / "one")
        caplog.clear()
        Learner.load(tmp_path / "one")
        assert not caplog.records
        file.write_text(FILE.format(channels=3) + "# a comment\n")
        Learner.load(tmp_path / "one").save(tmp_path / "two")
        assert f"{file}, which made this learner's net, was changed since" in caplog.text
        caplog.clear()
        Learner.load(tmp_path / "two")
        assert not any("changed" in record.message for record in caplog.records)
        file.write_text(FILE.format(channels=1))
        with pytest.raises(UserError, match=r"takes images with 1 channels|does not fit the saved weights"):
            Learner.load(tmp_path / "one")

    def test_a_lost_file_is_one_line_and_the_module_itself_helps(
        self, file: Path, some_images: tuple[Any, Any], tmp_path: Path
    ) -> None:
        learner = Learner("icarl", net=f"{file}:make", **SETTINGS).partial_fit(*some_images)
        learner.save(tmp_path / "one")
        net = built(f"{file}:make")
        file.unlink()
        with pytest.raises(UserError, match="restore it, or give the module itself: net=…"):
            Learner.load(tmp_path / "one")
        loaded = Learner.load(tmp_path / "one", net=net, device="cpu")
        np.testing.assert_array_equal(loaded.predict_proba(some_images[0]), learner.predict_proba(some_images[0]))

    @pytest.mark.parametrize("word", ["make", "own", "classifier"])
    def test_that_module_is_the_one_that_the_function_returned(
        self, word: str, file: Path, some_images: tuple[Any, Any], tmp_path: Path
    ) -> None:
        """Grey images are repeated for it, and no layer is taken for a classifier, as when the word made it."""
        images, labels = some_images[0][..., 0], some_images[1]
        learner = Learner("icarl", net=f"{file}:{word}", **SETTINGS).partial_fit(images, labels)
        learner.save(tmp_path / "one")
        net = built(f"{file}:{word}").body
        names = set(net.state_dict())
        file.unlink()
        for name, after in (("one", "two"), ("two", "three")):
            loaded = Learner.load(tmp_path / name, net=net, device="cpu")
            np.testing.assert_array_equal(loaded.predict_proba(images), learner.predict_proba(images))
            loaded.save(tmp_path / after)
        assert set(net.state_dict()) == names, "the given module stays as it is"
        loaded.partial_fit(images, labels + 2)

    def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
        self, file: Path, some_images: tuple[Any, Any], stop_anywhere: Callable[..., Any]
    ) -> None:
        stop_anywhere(lambda: Learner("lucir", net=f"{file}:own", **SETTINGS), *some_images)


class TestRuns:
    @pytest.fixture
    def ran(self, file: Path, tmp_path: Path) -> Path:
        words = [f"net={file}:own", "groups=[2,1,1]", "epochs=1", "batch=64"]
        plan = make_plan("digits/lucir", load_recipe("digits/lucir", words))
        Run(plan, RunFolder(tmp_path / "run")).start()
        return tmp_path / "run"

    def test_a_recipe_takes_a_word_and_records_what_the_network_was_trained_on(self, ran: Path) -> None:
        assert store.read_json(ran / "result.json")["pretrained_on"] == "my photos"
        assert store.read_json(ran / "recipe.json")["pretrained_on"] == "my photos"
        model = Learner.load(ran / "model.safetensors")
        assert model.preprocessing is not None
        assert model.preprocessing.mean == MEAN  # the network's, not those of the digits
        assert not model.preprocessing.augmentation.flip  # which is the digits'
        assert model.shape_ == (1, 8, 8)

    def test_images_that_do_not_fit_are_refused_before_anything_is_written(
        self, packages: Path, tmp_path: Path
    ) -> None:
        plan = make_plan("digits/lucir", load_recipe("digits/lucir", ["net=transformers:some/vit"]))
        with pytest.raises(UserError, match="takes images of 64×64 pixels and no others, yours are 8×8"):
            Run(plan, RunFolder(tmp_path / "refused")).start()
        assert not (tmp_path / "refused").exists()

    def test_reports_label_it(self, ran: Path) -> None:
        (run,), unread = read_runs([ran])
        assert not unread
        assert run.policy_label == "fixed (pretrained)"
        (ran / "result.json").unlink()
        (run,), _ = read_runs([ran])
        assert run.labels == ("pretrained",)

    def test_it_is_resumed_to_the_same_bytes(
        self, ran: Path, file: Path, tmp_path: Path, outcome: Callable[[Path], Any]
    ) -> None:
        words = [f"net={file}:own", "groups=[2,1,1]", "epochs=1", "batch=64"]
        plan = make_plan("digits/lucir", load_recipe("digits/lucir", words))
        Run(plan, RunFolder(tmp_path / "stopped"), until=2).start()
        folder, plan = reopen(tmp_path / "stopped")
        Run(plan, folder).resume()
        assert outcome(ran) == outcome(tmp_path / "stopped")


def test_the_command_predicts_with_a_network_by_a_word(
    file: Path, some_images: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    Learner("icarl", net=f"{file}:make", **SETTINGS).partial_fit(*some_images).save(tmp_path / "one")
    Image.fromarray(some_images[0][0]).save(tmp_path / "image.png")
    monkeypatch.setattr(sys, "argv", ["poise", "predict", str(tmp_path / "one"), str(tmp_path / "image.png")])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
    assert capsys.readouterr().out.split("\t")[1] in ("0", "1")


def test_poises_own_networks_say_nothing_of_themselves() -> None:
    assert net_info(build_net("small", "lucir", 3, 0)) is None
    assert check_backbone("small", "lucir") == ("small", "lucir")
