"""ImageNet's data sets: which classes they have, where they are found, and what is said where they are not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from poise import Learner
from poise.cli.data import add
from poise.data import Augmentation, class_order
from poise.data.packing import Packing
from poise.data.sources import listing, open_source
from poise.data.sources.registry import COLLECTIONS
from poise.errors import UserError
from poise.runs import Run, RunFolder, load_recipe, make_plan, open_outlined, reopen

LUCIRS, PODNETS = COLLECTIONS["imagenet-subset-lucir"], COLLECTIONS["imagenet-subset-podnet"]


class TestClasses:
    def test_lucirs_subset_is_drawn_by_the_seed_of_the_literature(self) -> None:
        drawn = np.random.RandomState(1993).permutation(1000)[:100]
        assert drawn[:10].tolist() == [54, 7, 894, 512, 126, 337, 988, 11, 284, 493]
        assert list(LUCIRS.chosen) == sorted(drawn.tolist())
        assert LUCIRS.chosen[-3:] == (989, 990, 999)
        assert blake2b(str(LUCIRS.chosen).encode(), digest_size=8).hexdigest() == "cda417770c1e3c4a", "FOSTER's list"

    def test_podnets_subset_is_the_first_hundred(self) -> None:
        assert PODNETS.chosen == tuple(range(100))
        assert sorted(set(PODNETS.chosen) & set(LUCIRS.chosen)) == [7, 11, 14, 44, 54, 62, 75, 77, 85]

    def test_the_first_classes_to_arrive_are_those_of_the_literature(self) -> None:
        lucirs = [LUCIRS.known[row] for row in class_order(1993, 100)[:10]]
        assert lucirs[:5] == ["n03710193", "n03089624", "n04152593", "n01806567", "n02107574"]
        assert lucirs[5:] == ["n04409515", "n04599235", "n03657121", "n03942813", "n04026417"]
        podnets = [PODNETS.known[row] for row in class_order(1993, 100)[:4]]
        assert podnets == ["n01756291", "n01734418", "n01776313", "n01514859"]
        assert (PODNETS.known[0], PODNETS.known[99]) == ("n01440764", "n01855672")
        whole = class_order(1993, 1000)
        assert whole[:10] == (54, 7, 894, 512, 126, 337, 988, 11, 284, 493)
        assert whole[10:20] == (133, 783, 192, 979, 622, 215, 240, 548, 238, 419)
        assert sorted(whole[:100]) == list(LUCIRS.chosen), "LUCIR's subset arrives first in the whole order"

    def test_of_all_of_imagenet_they_are_selected(self) -> None:
        names = [f"n{number:08}" for number in range(1000)]
        for place, name in PODNETS.known.items():
            names[place] = name
        assert PODNETS.select(names, "there")[:9] == names[:9]

    def test_a_folder_of_the_hundred_alone_will_do(self) -> None:
        names = [LUCIRS.known.get(place, f"class {place:03}") for place in range(100)]
        assert LUCIRS.select(names, "there") == names

    def test_another_folder_is_refused(self) -> None:
        with pytest.raises(
            UserError, match=r"there has 7 classes, .* has 100 .or the 1000 of ImageNet.; check the folder"
        ):
            LUCIRS.select(list("abcdefg"), "there")
        with pytest.raises(
            UserError, match=r"is not ImageNet-Subset as LUCIR has it: class 8 is x008, expected n01806567"
        ):
            LUCIRS.select([f"x{place:03}" for place in range(100)], "there")

    def test_the_numbers_are_the_published_ones(self) -> None:
        assert sum(COLLECTIONS["imagenet"].sizes()) == 1_281_167
        assert PODNETS.sizes() == [1300] * 100
        assert sum(LUCIRS.sizes()) == 128_856


class TestWhereNothingIs:
    @pytest.fixture(autouse=True)
    def nowhere(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("POISE_DATA", str(tmp_path / "data"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def test_the_list_says_how_to_get_them(self) -> None:
        found = {entry.name: entry for entry in listing()}
        assert {*COLLECTIONS} <= {*found}
        assert all(found[name].where is None and "poise data add" in found[name].hint for name in COLLECTIONS)
        assert "run poise data add tinyimagenet --from FOLDER" in found["tinyimagenet"].hint
        assert (
            "run poise data pack FOLDER --out imagenet-subset-lucir.pack --classes imagenet-subset-lucir, then "
            "poise data add imagenet-subset-lucir --from imagenet-subset-lucir.pack" in found[LUCIRS.name].hint
        )
        assert all("--from FOLDER" not in found[name].hint for name in COLLECTIONS if name != "tinyimagenet")

    def test_a_run_is_refused_in_one_line(self) -> None:
        with pytest.raises(UserError, match="imagenet-subset-lucir was not found; put train/CLASS") as caught:
            make_plan("imagenet-subset/lucir", load_recipe("imagenet-subset/lucir"))
        assert "\n" not in str(caught.value)

    def test_a_dry_run_counts_as_published(self) -> None:
        plan = make_plan("imagenet/lucir", load_recipe("imagenet/lucir"), open_outlined)
        assert sum(plan.source.outline()[0]) == 1_281_167
        assert not plan.source.is_here
        assert "is not here: counted as published" in plan.notes[0]


class TestPacked:
    """A small ImageNet: six classes, of which a subset has three. Images have a short side of 32, networks see 28."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        for name, count in (("imagenet", 6), ("imagenet-subset-lucir", 3)):
            changed = replace(COLLECTIONS[name], classes=count, size=28, stored=32, known={})
            monkeypatch.setitem(COLLECTIONS, name, changed)
        monkeypatch.setenv("POISE_DATA", str(tmp_path / "data"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        folder = tmp_path / "data" / "imagenet"
        for part, count in (("train", 6), ("val", 2)):
            for label in range(6):
                (folder / part / f"n{label:08}").mkdir(parents=True)
                for number in range(count):
                    picture = Image.new("RGB", (40 + 4 * number, 32), (40 * label, 10 * number, 99))
                    picture.paste((0, 99, 20 * number), (0, 0, 7, 9))  # outside of the centre of 28 when whole
                    picture.save(folder / part / f"n{label:08}" / f"{number}.png")
        return folder

    def pack(self, folder: Path, name: str, *classes: str) -> Path:
        out = folder.parent / f"{name}.pack"
        for _ in Packing(folder, out, 32, classes=classes).run():
            pass
        return out

    def test_class_folders_are_refused_with_the_command_to_type(self, small: Path) -> None:
        line = f"pack it once: poise data pack {small} --out {small.parent}/imagenet-subset-lucir.pack --classes"
        with pytest.raises(UserError, match=re.escape(line)) as caught:
            open_source("imagenet-subset-lucir")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["imagenet", "imagenet-subset-lucir"])
    def test_a_pack_that_was_added_comes_before_class_folders(
        self, name: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "fast").mkdir()
        (small.parent / "imagenet-subset-lucir").symlink_to(small)
        added = self.pack(small, name, *([name] if name != "imagenet" else [])).rename(
            tmp_path / "fast" / f"{name}.pack"
        )
        add(name, added)
        assert capsys.readouterr().err.count("\n") == 1, "the note alone"
        assert f"pack {added}" in open_source(name).notes[0]
        assert f"pack {added}" in open_source("imagenet-subset-lucir").notes[0], "of the whole pack, too"
        assert {entry.where for entry in listing() if entry.name == name} == {str(added)}

    def test_a_dry_run_counts_the_files_of_class_folders_and_decodes_none(self, small: Path) -> None:
        chosen = sorted(np.random.RandomState(1993).permutation(6)[:3].tolist())
        for file in (small / "train").glob("*/*.png"):
            file.write_text("no image")
        (small / "train" / f"n{chosen[1]:08}" / "0.png").unlink()
        words = ["net=small", "setting=groups", "groups=[2,1]", "order=sorted", "memory=2"]
        recipe = load_recipe("imagenet-subset/lucir", words)
        plan = make_plan("imagenet-subset/lucir", recipe, open_outlined)
        assert plan.source.outline() == ([6, 5, 6], (3, 28, 28))
        assert plan.source.class_names == tuple(f"n{label:08}" for label in chosen)
        assert "is not packed: its 17 images were counted, none was read" in plan.notes[0]

    def test_a_subset_is_part_of_the_whole_pack_or_has_its_own(self, small: Path) -> None:
        chosen = sorted(np.random.RandomState(1993).permutation(6)[:3].tolist())
        self.pack(small, "imagenet")
        whole = open_source("imagenet-subset-lucir")
        self.pack(small, "imagenet-subset-lucir", "imagenet-subset-lucir")
        own = open_source("imagenet-subset-lucir")
        for source in (whole, own):
            assert source.class_names == tuple(f"n{label:08}" for label in chosen)
            assert source.outline() == ([6] * 3, (3, 28, 28))
            for images, count in ((source.train(), 6), (source.test(), 2)):
                assert images.labels.tolist() == [label for label in range(3) for _ in range(count)]
                assert images.origins.tolist() == list(range(3 * count))
                reds = images.pixels[:, 0, 5, 5].tolist()
                assert reds == [40 * label for label in chosen for _ in range(count)]
        assert whole.train().store.sizes[:2].tolist() == [[32, 40], [32, 44]]
        assert open_source("imagenet").fingerprint != whole.fingerprint != own.fingerprint

    def test_one_of_another_size_is_refused(self, small: Path) -> None:
        for _ in Packing(small, small.parent / "imagenet.pack", 16).run():
            pass
        with pytest.raises(UserError, match="needs 32; pack it with --size 32"):
            open_source("imagenet")

    def test_a_recipe_is_run_and_resumed_from_it(
        self, small: Path, tmp_path: Path, outcome: Callable[[Path], tuple[object, bytes, bytes]]
    ) -> None:
        self.pack(small, "imagenet")
        words = ["net=small", "groups=[2,1]", "epochs=2", "batch=4", "memory=2"]
        plan = make_plan("imagenet-subset/lucir", load_recipe("imagenet-subset/lucir", words))
        assert plan.augmentation == Augmentation(pad=0, resized=0.08)
        whole = Run(plan, RunFolder(tmp_path / "whole")).start()
        assert "augmentation" not in whole, "it is the data's own"
        model = Learner.load(tmp_path / "whole" / "model.safetensors")
        seen = {name: model.predict_proba(sorted((small / "val" / name).glob("*"))) for name in plan.source.class_names}
        exam = model.predict_proba(plan.source.test().store)
        assert np.array_equal(np.concatenate(list(seen.values())), exam), "files are seen as by the exam"
        folder = RunFolder(tmp_path / "stopped")
        going = Run(plan, folder, checkpoint_seconds=0).starting()
        for _ in range(8):
            next(going)
        going.close()
        Run(reopen(folder.path)[1], folder).resume()
        assert outcome(folder.path) == outcome(tmp_path / "whole")


class TestPackedTinyImageNet:
    """Three classes instead of a hundred; its folder goes by another name than the data set."""

    @pytest.fixture
    def folder(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        monkeypatch.setitem(COLLECTIONS, "tinyimagenet", replace(COLLECTIONS["tinyimagenet"], classes=3))
        monkeypatch.setenv("POISE_DATA", str(tmp_path / "data"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        for part, label in ((part, label) for part in ("train", "val") for label in range(3)):
            where = tmp_path / "elsewhere" / part / f"n{label:08}"
            where.mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (64, 64), (9 * label, 10 * number, 99)).save(where / f"{number}.png")
        return tmp_path / "elsewhere"

    @pytest.mark.parametrize("name", ["tinyimagenet", "tiny-imagenet-100"])
    def test_it_is_found_by_either_name(self, name: str, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        pack = tmp_path / "data" / f"{name}.pack"
        for _ in Packing(folder, pack, 64).run():
            pass
        found = [entry for entry in listing() if entry.where == str(pack)]
        assert [entry.name for entry in found] == ["tinyimagenet"]
        packed = open_source("tinyimagenet")
        folder.rename(tmp_path / "data" / "tiny-imagenet-100")
        unpacked = open_source("tinyimagenet")
        assert (unpacked.notes == packed.notes) == (name == "tiny-imagenet-100"), "the folder comes before another name"
        assert packed.preprocessing == unpacked.preprocessing
        assert packed.net == unpacked.net
        assert packed.class_names == unpacked.class_names
        assert packed.train().pixels.equal(unpacked.train().pixels)


@pytest.mark.tinyimagenet
class TestTinyImageNet:
    def test_its_classes_and_files(self, tinyimagenet_folder: Path) -> None:
        source = open_source("tinyimagenet")
        assert source.class_names[:3] == ("n01443537", "n01629819", "n01641577")
        assert source.outline() == ([500] * 100, (3, 64, 64))
        assert source.net == "cifar-resnet18"
        assert source.preprocessing is not None
        assert source.preprocessing.mean == (0.485, 0.456, 0.406)
        assert sum(1 for _ in tinyimagenet_folder.glob("val/*/*.JPEG")) == 5000

    def test_its_streams(self) -> None:
        for words, sizes in (((), [50, 10, 10, 10, 10, 10]), (("setting=tfs",), [20] * 5)):
            plan = make_plan("tinyimagenet/lucir", load_recipe("tinyimagenet/lucir", words))
            assert [len(group) for group in plan.stream] == sizes
            assert plan.stream[0][:5] == (68, 56, 78, 8, 23)
            assert plan.settings.net == "cifar-resnet18"
