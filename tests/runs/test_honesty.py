"""Nobody but the examiner touches an exam image: not policies, training, herding, imprinting nor decisions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from poise.data import Crops, DenseStore, Feed, FlatStore, ImageSet, PixelStore, make_stream, stores
from poise.data.packing import Packing
from poise.data.packs import PackedStore
from poise.data.sources import DigitsSource, PackSource
from poise.data.stores import View
from poise.runs import Examiner, Plan, Run, RunFolder, make_recipe
from poise.runs.checks import Audit
from poise.runs.journal import read_journal

#: The rooms in which nothing may look at an exam image.
LEARNS = ("poise.learner", "poise.tuning", "poise.training", "poise.policies", "poise.methods")
#: What gives pixels of a store, or something that is made of them.
PIXELS = ("gather", "part", "all", "loaded", "identity", "to", "picture", "rows", "pixels", "flat")
#: What a store says of itself, and what makes views of it or gives a store that is sealed itself.
HARMLESS = {
    *("shape", "device", "sizes", "dtype", "nbytes", "is_even", "in_memory", "lasting", "known_by_pixels"),
    *("lies_on", "select", "compacted", "host"),
}


def frames() -> Iterator[tuple[object, str]]:
    """Who called, from the inside out: the object whose method it is, and the module."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame.f_locals.get("self"), frame.f_globals.get("__name__", "")
        frame = frame.f_back


class Sealed(ImageSet):
    """Labels and origins that raise when anybody but the examiner looks at them, or while a learner is at work."""

    def __getattribute__(self, name: str) -> object:
        if name in ("store", "labels", "origins"):
            callers = list(frames())
            if any(module.startswith(LEARNS) for _, module in callers) or not any(
                isinstance(owner, Examiner) for owner, _ in callers
            ):
                raise AssertionError(f"exam {name} were touched")
        return super().__getattribute__(name)


class SealedStore(PixelStore):
    """Pixels that raise unless the examiner asked for them, and nobody who learns asked the examiner.

    The examiner hands its images to a learner that predicts: between the two, the rooms that learn may look at them.
    """

    def __getattribute__(self, name: str) -> object:
        if name not in PIXELS or sys._getframe(1).f_code.co_name in ("__len__", "device", "dtype", "nbytes"):
            return super().__getattribute__(name)
        callers = frames()
        asked = any(isinstance(owner, Examiner) for owner, _ in callers)  # from there on outwards:
        if not asked or any(module.startswith(LEARNS) for _, module in callers):
            raise AssertionError(f"exam images were touched by {name}")
        found: Any = super().__getattribute__(name)
        return found if name not in ("loaded", "to") else lambda *given: seal(found(*given))


@cache
def sealed_kind(kind: type[PixelStore]) -> type[SealedStore]:
    """Stores of this kind, sealed."""
    return type(f"Sealed{kind.__name__}", (SealedStore, kind), {})


def seal(store: PixelStore) -> PixelStore:
    """The same store, and every copy and view of it that is made from now on, sealed. No kind is passed over."""
    if isinstance(store, View):  # which has no pixels
        for base in store.bases:
            seal(base)
    elif not isinstance(store, SealedStore):
        store.__class__ = sealed_kind(type(store))
    return store


def is_sealed(store: PixelStore) -> bool:
    """Whether some of its pixels are."""
    return any(map(is_sealed, store.bases)) if isinstance(store, View) else isinstance(store, SealedStore)


@pytest.fixture(autouse=True)
def copies_are_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `resident`, and a view of several stores, make of sealed images is a new store, and sealed too."""

    def sealing(copying: Callable[..., PixelStore]) -> Callable[..., PixelStore]:
        @wraps(copying)
        def copied(store: PixelStore, *given: Any) -> PixelStore:
            found = copying(store, *given)
            return seal(found) if is_sealed(store) else found

        return copied

    original = stores.resident
    patched = sealing(original)
    for module in [module for name, module in sys.modules.items() if name.startswith("poise")]:
        if vars(module).get("resident") is original:
            monkeypatch.setattr(module, "resident", patched)
    monkeypatch.setattr(View, "loaded", sealing(View.loaded))


def seal_set(images: ImageSet) -> ImageSet:
    """The same images, sealed with their labels."""
    sealed = object.__new__(Sealed)
    for name in ("store", "labels", "origins"):
        object.__setattr__(sealed, name, getattr(images, name))
    seal(object.__getattribute__(sealed, "store"))
    return sealed


class SealedDigits(DigitsSource):
    """Digits whose test images are sealed."""

    def test(self) -> ImageSet:
        return seal_set(super().test())


def plan(*words: str, groups: tuple[int, ...] = (3, 2, 1)) -> Plan:
    keys = {"net": "small", "memory": 8, "epochs": 2, "batch": 32, "setting": "groups", "groups": list(groups)}
    recipe = make_recipe({**keys, "images_per_class": 24, "space": {"feature_kd": [0, 1], "lr": [0.1, 0.02]}}, words)
    return Plan("sealed", recipe, SealedDigits(), make_stream("groups", order=range(10), groups=list(groups)))


def test_the_seal_holds() -> None:
    images = SealedDigits().test()
    for look in (len, lambda images: images.of_labels([1]), lambda images: images.pixels):
        with pytest.raises(AssertionError, match="were touched"):
            look(images)
    assert len(Examiner(images, make_stream("groups", order=range(10), groups=[2])).fingerprint) == 32


def packed(path: Path, *, square: bool = False) -> PixelStore:
    """Images in a pack, three of each of two classes, with test images of their own."""
    for part, name in ((part, name) for part in ("train", "test") for name in "ab"):
        (path / "images" / part / name).mkdir(parents=True)
        for number in range(3):
            pixels = np.random.default_rng([number, ord(name), len(part)]).integers(0, 256, (8, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / "images" / part / name / f"{number}.png")
    list(Packing(path / "images", path / "some.pack", size=8, square=square).run())
    return PackSource(path / "some.pack").test().store


def joined(*parts: PixelStore) -> PixelStore:
    """The images of several stores of three."""
    return View.of([(part, torch.arange(3)) for part in parts])


def flat(count: int = 6) -> FlatStore:
    """Images of different widths in one row of bytes."""
    sizes = torch.tensor([[8, 8 + index] for index in range(count)])
    lengths = sizes.prod(dim=1)
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 256, (int(lengths.sum()),), dtype=torch.uint8, generator=generator)
    return FlatStore(values, lengths.cumsum(0) - lengths, sizes, (1, 8, 8))


CPU, NOWHERE = torch.device("cpu"), torch.device("meta")  # a device that has no pixels, where there is no other
STORES: dict[str, tuple[type[PixelStore], Callable[[Path], PixelStore]]] = {
    "in memory": (DenseStore, lambda path: DenseStore(torch.zeros(6, 1, 8, 8, dtype=torch.uint8))),
    "in a row": (FlatStore, lambda path: flat()),
    "resident": (FlatStore, lambda path: stores.resident(packed(path), CPU)),
    "resident, of one size": (DenseStore, lambda path: stores.resident(packed(path, square=True), CPU)),
    "packed": (PackedStore, packed),
    "packed, of one size": (PackedStore, lambda path: packed(path, square=True)),
    "a view of two": (
        View,
        lambda path: joined(flat(3), DenseStore(torch.zeros(3, 1, 8, 8, dtype=torch.uint8))),
    ),
    "a view of two, of one size": (
        View,
        lambda path: joined(*(DenseStore(torch.full((3, 1, 8, 8), value, dtype=torch.uint8)) for value in (0, 1))),
    ),
}


def feed_of(images: PixelStore, *, resident: bool) -> Feed:
    """The images with labels of no meaning."""
    nothing = torch.zeros(len(images), dtype=torch.int64)
    return Feed(ImageSet(images, nothing, nothing), CPU, resident=resident)


#: What a learner may make of the images that it is shown, and keep.
KEEPING: dict[str, Callable[[PixelStore], PixelStore | Feed]] = {
    "itself": lambda images: images,
    "view": lambda images: images.select(torch.tensor([0])),
    "loaded": lambda images: images.loaded(torch.tensor([1, 4])),
    "compacted": lambda images: images.select(torch.tensor([1, 4])).compacted(),
    "resident": lambda images: stores.resident(images, CPU),
    "resident view": lambda images: stores.resident(images.select(torch.tensor([4, 1])), CPU),
    "resident copy of a copy": lambda images: stores.resident(images.loaded(torch.tensor([4, 1])), CPU),
    "moved": lambda images: images.to(NOWHERE),
    "moved set": lambda images: ImageSet(images, *[torch.arange(len(images))] * 2).to(NOWHERE).store,
    "feed": lambda images: feed_of(images, resident=True),
    "copied feed": lambda images: feed_of(images, resident=True).copy(),
    "streaming feed": lambda images: feed_of(images, resident=False),
}


class Thief:
    """Keeps what it makes of the images that it is asked to predict, to look at it later."""

    classifier_ = "fc"

    def __init__(self, keep: Callable[[PixelStore], PixelStore | Feed]) -> None:
        self.keep = keep

    def predictions(self, images: PixelStore) -> dict[str, np.ndarray[Any, Any]]:
        self.kept = self.keep(images)
        guessed = images.gather(torch.arange(len(images))).flatten(1).sum(dim=1)  # which is what it is handed for
        return dict.fromkeys(("fc", "ncm"), guessed.numpy() * 0)

    def start_predictions(self, images: PixelStore) -> dict[str, np.ndarray[Any, Any]]:
        assert self.kept.gather(torch.tensor([0])).shape[1:] == images.shape, "it may look now"
        return {}


@pytest.mark.parametrize("way", KEEPING)
@pytest.mark.parametrize("kind", STORES)
def test_the_seal_covers_every_store_and_bites_whoever_keeps_one(kind: str, way: str, tmp_path: Path) -> None:
    labels, (expected, make) = torch.tensor([0, 1] * 3), STORES[kind]
    store = make(tmp_path)
    assert type(store) is expected
    examiner = Examiner(seal_set(ImageSet(store, labels, labels)), make_stream("groups", order=[0, 1], groups=[2]))
    thief = Thief(KEEPING[way])
    assert examiner.examine(thief, 0).images == [3, 3]  # type: ignore[arg-type]
    kept = thief.kept
    stolen = [*feed_thefts(kept), *thefts(kept.images().store)] if isinstance(kept, Feed) else thefts(kept)
    for steal in stolen:
        with pytest.raises(AssertionError, match="were touched"):
            steal()


def test_no_kind_of_store_gives_pixels_in_a_way_that_the_seal_does_not_know() -> None:
    kinds = {DenseStore, FlatStore, PackedStore, View}
    every = subclasses(PixelStore)  # type: ignore[type-abstract]
    found = {kind for kind in every if kind.__module__.startswith("poise.")}
    assert kinds <= found
    for kind in found:
        public = {name for name in dir(kind) if not name.startswith("_")}
        assert public - HARMLESS <= {*PIXELS, *(("of",) if kind is View else ())}, kind
        if kind is not View:
            assert issubclass(sealed_kind(kind), SealedStore)


def subclasses(kind: type[PixelStore]) -> Iterator[type[PixelStore]]:
    """All kinds of stores that there are."""
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def feed_thefts(feed: Feed) -> list[Callable[[], object]]:
    """Ways to the first image of a feed."""
    first = torch.tensor([0])
    return [lambda: feed.gather(first), lambda: next(feed.batches(first, [(0, 1)])), lambda: feed.copy().gather(first)]


def thefts(store: PixelStore) -> list[Callable[[], object]]:
    """Ways to the first image of a store."""
    first = torch.tensor([0])
    crops = Crops(torch.tensor([[0.0, 0, 4, 4]]), torch.tensor([False]), (4, 4))
    some = ImageSet(store.select(first), first, first)
    return [
        lambda: store.gather(first),
        lambda: store.gather(first, crops),
        lambda: store.part(0, 1),
        lambda: store.loaded(first),
        lambda: stores.resident(store, CPU),
        lambda: Feed(some, CPU, resident=True).gather(first),
        lambda: next(Feed(some, CPU, resident=False).batches(first, [(0, 1)])),
    ]


class SealedPack(PackSource):
    """A pack whose test images are sealed."""

    def test(self) -> ImageSet:
        return seal_set(super().test())


def test_neither_does_learning_from_a_pack(tmp_path: Path) -> None:
    packed(tmp_path)
    keys = {"net": "small", "memory": 2, "epochs": 1, "batch": 4, "setting": "groups", "groups": [1, 1]}
    recipe = make_recipe({**keys, "policy": "grid", "space": {"lr": [0.1, 0.02]}}, [])
    stream = make_stream("groups", order=[0, 1], groups=[1, 1])
    job = Plan("sealed", recipe, SealedPack(tmp_path / "some.pack"), stream)
    assert Run(job, RunFolder(tmp_path / "run")).start()["curve"][-1]["classes"] == 2


@pytest.mark.parametrize(
    "words",
    [
        ("policy=grid",),
        ("policy=race", "policy_options.finalists=1", "policy_options.safe=1.0"),
        ("policy=exp3", "policy_options.iterations=3", "trials.horizon=1"),
        ("policy=random", "policy_options.trials=3", "memory.reserve=2", "action.classifier=auto"),
        ("policy=hedge", "trials.environment=lookahead"),
        ("policy=grid", "method=icarl", "space={logit_kd=[0,1]}"),
        ("policy=online",),
        ("policy=bilevel", "policy_options.rounds=1", "space={}"),
    ],
    ids=" ".join,
)
def test_learning_never_touches_an_exam_image(words: tuple[str, ...], tmp_path: Path) -> None:
    result = Run(plan(*words), RunFolder(tmp_path / "run")).start()
    assert [point["classes"] for point in result["curve"]] == [3, 5, 6]


def test_neither_do_pseudo_tasks_made_of_the_first_phase(tmp_path: Path) -> None:
    job = plan("policy=offline-rl", "policy_options.episodes=2", groups=(4, 2))
    assert Run(job, RunFolder(tmp_path / "run")).start()["curve"][-1]["classes"] == 6


def test_a_resumed_run_does_not_either(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    going = Run(plan("policy=grid"), folder, checkpoint_seconds=0).starting()
    while sum(event["event"] == "trial" for event in read_journal(folder.journal.path)) < 6:
        next(going)
    going.close()
    assert Run(plan("policy=grid"), folder).resume()["curve"][-1]["classes"] == 6


def test_the_leak_audit_does_and_so_shows_that_the_seal_would_notice(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="were touched"):
        Audit(plan("policy=grid"), RunFolder(tmp_path / "run")).start()


def test_rewards_and_models_do_not_depend_on_the_exam(tmp_path: Path) -> None:
    """Other exam images, the same journal up to the exams, and the same model."""
    journals, models = [], []
    for name, turned in (("one", False), ("other", True)):
        folder = RunFolder(tmp_path / name)
        job = plan("policy=race", groups=(3, 2))
        source = Turned() if turned else DigitsSource()
        Run(Plan(job.name, job.recipe, source, job.stream), folder).start()
        lines = folder.journal.path.read_text().splitlines()
        journals.append([line for line in lines if '"event": "exam"' not in line])
        models.append(folder.model.read_bytes())
    assert journals[0] == journals[1]
    assert models[0] == models[1]


class Turned(DigitsSource):
    """Digits whose test images are upside down."""

    def test(self) -> ImageSet:
        images = super().test()
        pixels: Tensor = torch.flip(images.pixels, dims=(2,))
        return ImageSet(pixels, images.labels, images.origins)
