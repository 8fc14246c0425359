"""What users give: images and labels, checked before anything is trained; and the reserve held out of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from poise import draws
from poise.actions import Action, AxisValue
from poise.data import Decoder, ImageSet, Memory, PixelStore, draw_reserve, open_images
from poise.data.images import all_but, digest_images, image_digests
from poise.data.packs import Pack
from poise.errors import UserError, check_whole, shown
from poise.learner.settings import Settings
from poise.learner.state import Knowledge, Label
from poise.methods import Growth
from poise.words import counted

log = logging.getLogger(__name__)

_NAMED: Final = 10  # unknown classes in a warning


class Column(Protocol):
    """A column of a table, by the convention of pandas and polars."""

    def to_numpy(self) -> NDArray[Any]:
        """Its values."""


Labels = Sequence[Label] | NDArray[Any] | Tensor | Column
Images: TypeAlias = (
    NDArray[Any]
    | Tensor
    | Sequence[Any]
    | str
    | Path
    | Dataset[Any]
    | DataLoader[Any]
    | Column
    | ImageSet
    | PixelStore
    | Pack
)

#: What becomes of new images of known classes.
Known = Literal["refuse", "update"]


@dataclass(frozen=True)
class NewPhase:
    """New images with their labels, checked, and the phase that they start.

    Attributes:
        images: all that arrived, labelled by rows of the head; once the phase begins, those that are stored.
        count: how many arrived.
        classes: the labels of all rows after this phase.
        growth: how many classes were known, and how many are new.
        digest: of images and labels, so that a saved phase is resumed with the same ones.
        next_images: how many come next, for a memory that is to know it.
    """

    phase: int
    images: ImageSet
    count: int
    classes: tuple[Label, ...]
    growth: Growth
    digest: str
    next_images: int | None = None
    action: Action | None = None


def receive(
    images: Images,
    labels: Labels | None,
    settings: Settings,
    knowledge: Knowledge,
    *,
    known: Known = "refuse",
    action: Mapping[str, AxisValue] | None = None,
    next_images: int | None = None,
) -> NewPhase:
    """Check images and labels that arrive: a mistake is found here, before anything is trained."""
    if known not in ("refuse", "update"):
        raise UserError(f"known='{known}' must be 'refuse' or 'update'")
    try:
        _ = settings.made_method, settings.kind  # those of a learner that was loaded may not be known here
    except UserError as error:
        raise UserError(
            f"this learner learns with the {settings.unregistered}, which is not registered here; "
            "import the module that registers it first"
        ) from error
    if knowledge.phases and knowledge.memory is None:
        raise UserError("this learner was saved without its memory: it can predict but not learn further")
    if next_images is None and settings.memory.knows_increment:
        raise UserError("memory.knows_increment must be told how many images come next: pass next_images=…")
    if next_images is not None:
        if not settings.memory.knows_increment:
            raise UserError("only a memory with knows_increment may be told what comes next; leave next_images out")
        check_whole("next_images", next_images, 0)
    store, plain = open_for_learner(images, settings, knowledge, labels=labels, labelled=True, held_out=False)
    digest = digest_images(store, plain)
    new = _new_classes(plain, knowledge.classes, known)
    if isinstance(images, ImageSet):
        origins = images.origins.cpu()
    else:
        origins = torch.full((len(plain),), -1, dtype=torch.long)
        _warn_of_two_labels(store, plain, knowledge)
    classes = (*knowledge.classes, *new)
    rows = dict(zip(classes, range(len(classes)), strict=True))
    arrived = ImageSet(store, torch.tensor(list(map(rows.__getitem__, plain))), origins)
    if settings.memory.total is not None:
        settings.memory.quota(len(classes))  # which refuses a total that is too small for them
    return NewPhase(
        phase=knowledge.phases,
        images=arrived,
        count=len(plain),
        classes=classes,
        growth=Growth(len(knowledge.classes), len(new)),
        digest=digest,
        next_images=next_images,
        action=settings.given_action(action, knowledge.phases) if action is not None else None,
    )


def _new_classes(plain: Sequence[Label], before: tuple[Label, ...], known: str) -> list[Label]:
    """The classes that were not known before, in order."""
    arrived = set(plain)
    if len({*map(type, arrived), *map(type, before)}) > 1:
        raise UserError("labels are partly numbers and partly strings; use one kind, the same in every phase")
    repeated = sorted(arrived.intersection(before))
    if repeated and known == "refuse":
        raise UserError(
            f"class {repeated[0]!r} is known already; pass known='update' to train on new images of known classes"
        )
    return sorted(arrived.difference(before))


def _warn_of_two_labels(store: PixelStore, plain: Sequence[Label], knowledge: Knowledge) -> None:
    """Warn of images that came under two labels, among new and kept ones; those that lie in a file are not read."""
    if not store.in_memory:
        return
    seen, pairs = dict[bytes, Label](), Counter[tuple[Label, Label]]()
    kept = knowledge.memory.exemplars if knowledge.memory is not None else None
    if kept is not None and kept.store.in_memory:
        for digest, row in zip(image_digests(kept.store), kept.labels.tolist(), strict=True):
            seen[digest] = knowledge.classes[row]
    for digest, label in zip(image_digests(store), plain, strict=True):
        if (other := seen.setdefault(digest, label)) != label:
            pairs[other, label] += 1
    for (other, label), count in pairs.most_common(1):
        more = f"; {counted(pairs.total() - count, 'other image')} came under two labels" if len(pairs) > 1 else ""
        log.warning("%s of class %r came as class %r, too%s", counted(count, "image"), label, other, more)


def open_for_learner(
    images: Images,
    settings: Settings,
    knowledge: Knowledge,
    *,
    labels: Labels | None = None,
    labelled: bool = False,
    held_out: bool = True,
) -> tuple[PixelStore, list[Label]]:
    """The images as this learner takes them; if `labelled`, with one label for each: as given, else as they bring them.

    Pictures are decoded to the shape of those that were learned from, if there are any; another size or number of
    channels is refused. Of a pack they are those of its test part where it has one or, if not `held_out`, those that
    are learned.
    """
    side, shape = settings.image_size, knowledge.shape
    given = None if labels is None else plain_labels(labels)  # a mistake in them is told before images are read
    if isinstance(images, ImageSet):  # opened already, its labels are checked
        store, given = images.store, images.labels.tolist() if given is None else given
        found: Any = given
    else:
        if shape is not None:
            decoder = Decoder(shape[1:], shape[0], knowledge.short_side)
        else:
            decoder = Decoder() if side is None else Decoder((side, side), short_side=side)
        store, found = open_images(images, given, decoder, labelled=labelled, held_out=held_out)
    if shape is not None and store.shape != shape:
        raise UserError(f"images of shape {store.shape}, but this learner was trained on {shape}")
    if not labelled:
        return store, []
    if found is None:
        raise UserError(f"images came as {type(images).__name__} without labels; pass labels, one per image")
    store, plain = store.to("cpu"), plain_labels(found) if given is None else given
    if len(store) != len(plain):
        raise UserError(f"{len(store)} images and {len(plain)} labels; give one label per image")
    return store, plain


def share_right(
    wanted: Sequence[Label],
    predicted: Sequence[Label],
    classes: Sequence[Label],
    sample_weight: Sequence[float] | NDArray[Any] | None = None,
) -> float:
    """The accuracy of predicted labels, in [0, 1]; labels of another kind can never match, and are refused.

    Images that are of none of the classes that a learner knows count as wrong, and that is said.
    """
    kinds = [{type(label) for label in labels} for labels in (wanted, classes)]
    if kinds[0] - kinds[1]:
        words = {int: "whole numbers", str: "strings"}
        found, known = (" and ".join(sorted(words[kind] for kind in each)) for each in kinds)
        raise UserError(f"labels are {found}, but this learner was trained with {known}; give labels of that kind")
    weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if weights is not None and not (
        weights.shape == (len(wanted),) and (weights >= 0).all() and 0 < weights.sum() < np.inf
    ):
        raise UserError(
            f"sample_weight must be a number of at least 0 for each of {len(wanted)} images, some of them above 0"
        )
    learned = set(classes)
    if unknown := Counter(label for label in wanted if label not in learned):
        log.warning(
            "%d of %d images count as wrong, because this learner does not know their classes (%s)",
            unknown.total(),
            len(wanted),
            ", ".join(map(str, list(unknown)[:_NAMED])) + (", …" if len(unknown) > _NAMED else ""),
        )
    return float(np.average([one == other for one, other in zip(wanted, predicted, strict=True)], weights=weights))


def plain_labels(labels: Labels) -> list[Label]:
    """One whole number or string for each image, of Python's own kinds."""
    if isinstance(labels, Mapping | set | frozenset):  # a set has no order, and keys are seldom meant
        raise UserError(
            f"labels came as {type(labels).__name__}; give a list with one label per image, in the order of the images"
        )
    if not isinstance(labels, np.ndarray | Tensor) and hasattr(labels, "to_numpy"):
        labels = labels.to_numpy()
    values = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else labels
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f"labels came as {type(labels).__name__}; give a list or array with one label per image")
    return list(map(plain_label, values))


def plain_label(value: Any) -> Label:  # noqa: ANN401 - checked here
    """A label as Python's own `int` or `str`; of a member of an `Enum` its value.

    Only such labels are the same after they were saved, and as numpy arrays show them.

    >>> plain_label(np.int64(3)), plain_label(np.str_("cat"))
    (3, 'cat')
    """
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        value = value.item()
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**63:
            raise UserError(
                f"label {shown(value)} does not fit into 64 bits with a sign; use smaller numbers, or strings"
            )
        return int.__index__(value)
    several = isinstance(value, np.ndarray | Tensor | list | tuple)
    hint = "; of one-hot labels, give the number of the class: labels.argmax(1)" if several else ""
    found = f"of shape {list(value.shape)}" if isinstance(value, np.ndarray | Tensor) else shown(value)
    raise UserError(f"label {found} is neither a whole number nor a string{hint}")


def hold_out(arrival: NewPhase, stored: ImageSet, settings: Settings, memory: Memory) -> tuple[ImageSet, ImageSet]:
    """The stored new images that may be trained on, and a random reserve of each new class that may not.

    Of an image that arrives several times one copy can be in the reserve, and then none of them is trained on.
    """
    if not settings.memory.reserve and not len(memory.reserve):
        return stored, stored.select(torch.empty(0, dtype=torch.long))
    keys, reserve, firsts = _identities(stored), set(_identities(memory.reserve)), dict[Identity, int]()
    for place, key in enumerate(keys):
        if key[0] >= arrival.growth.old:
            firsts.setdefault(key, place)
    different = torch.tensor(list(firsts.values()), dtype=torch.long)
    generator = draws.generator(settings.seed, "reserve", arrival.phase)
    reserved = different[draw_reserve(stored.labels[different], settings.memory.reserve, generator)]
    if again := sum(key in reserve for key in keys):
        log.warning("%d images are in the reserve already and are not trained on", again)
    reserve.update(keys[place] for place in reserved.tolist())
    trainable = [place for place, key in enumerate(keys) if key not in reserve]
    if not trainable:
        raise UserError("every one of these images is in the reserve already, which is never trained on")
    return stored.select(torch.tensor(trainable)), stored.select(reserved)


def without_copies(images: ImageSet, kept: ImageSet, *, every: bool) -> Tensor:
    """The places of the images that exemplars may be chosen from: copies of another one of the same class are left out.

    Where `every` image is kept, so are copies that arrive together; only those that are kept from an earlier phase, and
    are given again, are left out.
    """
    seen, copies = Counter(_identities(kept)), list[int]()
    for place, key in enumerate(_identities(images)):
        if seen[key] > 0:
            copies.append(place)
        seen[key] += -1 if every else 1
    return all_but(len(images), copies)


Identity = tuple[int, int | bytes]


def _identities(images: ImageSet) -> list[Identity]:
    """An id for each image: its class, and where a caller said that it comes from, else its bytes."""
    found: list[Identity] = list(zip(images.labels.tolist(), images.origins.tolist(), strict=True))
    unknown = (images.origins < 0).nonzero().flatten()
    for place, digest in zip(unknown.tolist(), image_digests(images.store.select(unknown)), strict=True):
        found[place] = found[place][0], digest
    return found
