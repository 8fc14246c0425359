"""A learner as tensors and plain values, typed. Other states are made of it here; nobody edits it by key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
    StrictInt,
    StrictStr,
    ValidationError,
)
from torch import Tensor, nn

from poise import __version__, store
from poise.actions import Action
from poise.data import Augmentation, FlatStore, ImageSet, Memory, PixelStore, Preprocessing, in_a_row
from poise.data.decode import compress, decompress
from poise.errors import PoiseError, UserError, first_line, not_learned, reading
from poise.learner.networks import SavedModel, Shape, architecture, expands, restore_model
from poise.learner.settings import Settings
from poise.nets import Model, NetInfo
from poise.nets.adapt import adapted_again, is_named, restore_info
from poise.settings import own_error
from poise.training.evaluate import NCM_TEMPERATURE
from poise.tuning.classifier import first_classifier
from poise.tuning.results import CLASSIFIERS, entry_as_json, entry_from_json
from poise.words import counted

log = logging.getLogger(__name__)

Label = int | str

#: The side from which on kept images are stored compressed, without loss: smaller ones gain little.
COMPRESSED_SIDE: Final = 48

Tensors = dict[str, Tensor]
Lookup = Callable[[Tensor], Tensor | PixelStore]  # from origins to images


#: In memory and in a file: an action, whose axes need not be known here, and an entry of the history.
SavedAction = Annotated[Action, BeforeValidator(Action.restored), PlainSerializer(dict)]
SavedEntry = Annotated[
    Any,
    PlainValidator(lambda value: entry_from_json(value) if isinstance(value, Mapping) else value),
    PlainSerializer(entry_as_json),
]


@dataclass(frozen=True)
class Knowledge:
    """Everything a learner has learned: all that a phase changes, replaced as a whole when the phase is done.

    Attributes:
        action: the one that the last phase was trained with.
        classes: the labels seen so far, in the order in which they arrived.
        classifier: which one counts at present.
        short_side: that of the images as they were stored. Pictures are scaled to it, and the centre of `shape` is cut
            out of them.
        start: the model that the next phase starts from; nearly always the same.
        mean_images: the number of images that the mean of each class was measured on.
        memory: the kept images; None where they were left out when the learner was saved.
        features: those of the kept images, exemplars first, where the network is frozen for good.
        hits: of each classifier, in all judgements so far.
        history: what was tried, decided and judged.
        held: the most images that were held at any moment of the last phase.
        budget: how many that may have been.
        rho: the allocation that the memory was stored with.
        temperatures: of the softmax that makes probabilities of a classifier's scores, where it was calibrated.
        reject: for each classifier, the score below which an image belongs to no known class; empty until it is set.
        images_digests: of the images and labels of each phase; where a class was removed, those of all phases before
            are gone.
    """

    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True)

    action: SavedAction
    classes: tuple[StrictInt | StrictStr, ...] = ()
    phases: NonNegativeInt = 0
    classifier: str = "fc"
    shape: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None
    short_side: PositiveInt | None = None
    preprocessing: Preprocessing | None = None
    predictor: Annotated[Model | None, Field(exclude=True)] = None
    start: Annotated[Model | None, Field(exclude=True)] = None
    hits: Mapping[str, NonNegativeInt] = field(default_factory=lambda: dict.fromkeys(CLASSIFIERS, 0))
    means: Annotated[Tensor | None, Field(exclude=True)] = None
    mean_images: tuple[NonNegativeInt, ...] = ()
    memory: Annotated[Memory | None, Field(exclude=True)] = None
    features: Annotated[Tensor | None, Field(exclude=True)] = None
    history: tuple[SavedEntry, ...] = ()
    held: NonNegativeInt = 0
    budget: NonNegativeInt = 0
    rho: float = 0.0
    temperatures: Mapping[str, PositiveFloat] = field(default_factory=dict)
    reject: Mapping[str, float] = field(default_factory=dict)
    images_digests: tuple[str, ...] = ()

    def temperature(self, classifier: str) -> float:
        """The temperature of a classifier's softmax. Cosines lie between -1 and 1 and need a low one."""
        return self.temperatures.get(classifier, NCM_TEMPERATURE if classifier == "ncm" else 1.0)

    def placed(self, device: torch.device) -> Knowledge:
        """A copy with its models and means on a device, ready to predict."""
        if self.predictor is None or self.start is None or self.means is None:
            return self
        predictor = self.predictor.placed(device).eval()
        start = predictor if self.start is self.predictor else self.start.placed(device).eval()
        return replace(self, predictor=predictor, start=start, means=self.means.to(device))


class Pending(BaseModel, frozen=True, arbitrary_types_allowed=True):
    """A phase in its middle.

    Attributes:
        digest: of the images and labels it learns.
        history: what was tried, decided and judged in it so far.
        action: the chosen one; None while it is being chosen.
        position: where the training stands.
        switches: those of the process that it was trained under, where they are known.
        preprocessing: of a first phase, what was measured on its images.
        tensors: of the training, once it has begun.
    """

    digest: str
    history: tuple[SavedEntry, ...]
    action: SavedAction | None = None
    position: dict[str, Any] = {}
    switches: dict[str, bool | int | str] = {}
    preprocessing: Preprocessing | None = None
    tensors: Tensors = Field({}, exclude=True)


class LearnerState(BaseModel, frozen=True):
    """All of a learner, as its file has it beside the tensors; fields of `Knowledge` stand among the others there.

    Attributes:
        pending: the phase it is in the middle of.
        net_info: what is known of a network that was not made here.
        models: how the networks of a file are built again.
        poise: the version that wrote the file.
    """

    settings: Settings
    knowledge: Knowledge
    augmentation: Augmentation | None
    own_net: bool
    pending: Pending | None
    net_info: NetInfo | None
    models: dict[Literal["predictor", "start"], SavedModel] = {}
    poise: str = __version__

    @classmethod
    def described(cls, meta: Mapping[str, Any]) -> Self:
        """The plain values of a file, checked; what is in tensors is missing. Others are a `ValueError`."""
        try:
            found = cls(**{**meta, "knowledge": meta})
        except (PoiseError, ValidationError) as error:
            raise ValueError(first_line(own_error(error) or error)) from error
        if lacking := found.as_json().keys() - meta.keys() - {"temperatures"}:  # else a default would stand for it
            raise ValueError(f"it lacks {min(lacking)}")
        return found

    def as_json(self) -> dict[str, Any]:
        """The plain values as a file has them."""
        plain = self.model_dump(mode="json")
        return {**plain.pop("knowledge"), **plain}

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 - a value of any field
        """This state with some fields changed."""
        return self.model_copy(update=changes)

    @property
    def architecture(self) -> str:
        """Backbone, its variant and the head, as in `resnet32/lucir+cosine`."""
        return architecture(self.settings, self.knowledge.shape, own_net=self.own_net)

    # Other states made of this one ------------------------------------------------------------------------------

    def predict_only(self) -> LearnerState:
        """The state without memory, history and policy: enough to predict."""
        predictor = self.knowledge.predictor.copy() if self.knowledge.predictor is not None else None
        if predictor is not None:
            predictor.head.drop_unused()
        gone: dict[str, Any] = {"memory": None, "features": None, "history": (), "images_digests": ()}
        knowledge = replace(self.knowledge, predictor=predictor, start=predictor, **gone)
        return self.replace(settings=self.settings.predicting(), knowledge=knowledge, pending=None)

    def renamed(self, names: Sequence[Label]) -> LearnerState:
        """A copy with other labels for its classes: `names[label]` instead of each label, a number."""
        classes = tuple(names[int(label)] for label in self.knowledge.classes)
        return self.replace(knowledge=replace(self.knowledge, classes=classes, images_digests=()))

    def started_with(self, settings: Settings) -> LearnerState:
        """The state after a first phase, for a learner made with other settings."""
        classifier = first_classifier(settings.default_action)
        action = self.knowledge.action.replace(classifier=classifier)
        return self.replace(settings=settings, knowledge=replace(self.knowledge, classifier=classifier, action=action))

    def without_past(self) -> LearnerState:
        """Only the phase it is in the middle of, if it learned others before: those are in another file."""
        known = self.knowledge
        return self if not known.phases else self.replace(knowledge=Knowledge(action=known.action))

    # To tensors and back ----------------------------------------------------------------------------------------

    def tensors(self, *, images: bool) -> tuple[Tensors, dict[str, Any]]:
        """Tensors and plain values. Without `images` the memory is stored as the `origins` its images came with."""
        known, found = self.knowledge, Tensors()
        models = {"predictor": known.predictor, "start": known.start if known.start is not known.predictor else None}
        described = dict[str, SavedModel]()
        for name, model in models.items():
            if model is not None:
                found |= _add_prefix(name, model.state_dict())
                net, grown = model.architecture or self.architecture, list(model.growth_history)
                expanded = bool(grown) and expands(self.settings)
                described[name] = SavedModel(net=net, grown=grown, expands=expanded, frozen=model.frozen)
        if known.means is not None:
            found["means"] = known.means
        if known.features is not None:
            found["memory.features"] = known.features
        if known.memory is not None:
            for part, kept in (("exemplars", known.memory.exemplars), ("reserve", known.memory.reserve)):
                found |= _add_prefix(f"memory.{part}", {"labels": kept.labels, "origins": kept.origins})
                if images:
                    found |= _add_prefix(f"memory.{part}", _pixels_of(kept.store, known.preprocessing))
        if self.pending is not None:
            found |= _add_prefix("pending", self.pending.tensors)
        return found, self.replace(models=described, poise=__version__).as_json()

    @classmethod
    def read(cls, path: Path, *, net: nn.Module | None = None) -> LearnerState:
        """The state that `save_state` wrote; `net` is the user's own, if it has one."""
        tensors, meta = store.read_tensors(path, kind="learner")
        with reading(path):
            return cls.from_tensors(tensors, meta, net=net)

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        meta: Mapping[str, Any],
        *,
        net: nn.Module | None = None,
        lookup: Lookup | None = None,
    ) -> LearnerState:
        """The state that `tensors` described; `lookup` turns origins into pixels where images were left out."""
        saved = cls.described(meta)
        if saved.own_net and net is None:
            raise UserError("this learner was trained with a net of your own; pass it again: Learner.load(path, net=…)")
        info = saved.net_info
        if net is not None and not saved.own_net and not is_named(saved.settings.net):
            named = saved.models["predictor"].net if saved.models else "a named net"
            raise UserError(f"this learner was trained with {named}, not with a net of your own; leave net out")
        net = adapted_again(net, info) if net is not None else None
        knowledge = _knowledge(saved, tensors, net, lookup)
        for model in (knowledge.predictor, knowledge.start):
            if model is not None and info is not None:
                restore_info(model.backbone, info)
        pending = saved.pending
        if pending is not None:
            pending = pending.model_copy(update={"tensors": store.under("pending", tensors)})
        return saved.replace(knowledge=knowledge, pending=pending)


def _knowledge(
    saved: LearnerState, tensors: Mapping[str, Tensor], net: nn.Module | None, lookup: Lookup | None
) -> Knowledge:
    known = saved.knowledge
    models = {
        name: restore_model(saved.settings, known.shape, described, store.under(name, tensors), net)
        for name, described in saved.models.items()
        if known.shape is not None
    }
    memory = None
    if "memory.exemplars.labels" in tensors:
        parts = (store.under("memory.exemplars", tensors), store.under("memory.reserve", tensors))
        memory = Memory(*(_stored_images(part, lookup, known.shape) for part in parts))
    return replace(
        known,
        predictor=models.get("predictor"),
        start=models.get("start", models.get("predictor")),
        means=tensors.get("means"),
        memory=memory,
        features=tensors.get("memory.features"),
    )


def save_state(state: LearnerState, path: Path, *, memory: bool, begun: bool = False) -> None:
    """Write a learner to a file; one without its memory predicts and no more.

    Before it has learned anything there is something to save only where a first phase has `begun`.
    """
    if state.knowledge.predictor is None:
        if not begun and state.pending is None:
            raise not_learned("this learner has learned nothing yet; there is nothing to save")
        if not memory:
            raise not_learned("this learner is in its first phase and cannot predict yet; leave memory=False out")
    store.refuse_bad_place(path)
    tensors, meta = (state if memory else state.predict_only()).tensors(images=True)
    count = len(state.knowledge.memory or ()) if memory else 0
    store.write_tensors(path, tensors, meta, kind="learner")
    if count:  # said of a file that is there
        held = counted(count, "training image")
        log.warning("%s contains %s; in Python, save(memory=False) leaves them out", path, held)


def _pixels_of(store: PixelStore, preprocessing: Preprocessing | None) -> Tensors:
    """The images as networks see them; all of each where they are larger and are cropped anew."""
    if store.is_even or preprocessing is None or not preprocessing.augmentation.resized:
        pixels = store.all()
        pays = min(store.shape[1:]) >= COMPRESSED_SIDE and store.shape[0] in (1, 3) and len(pixels)
        return compress(pixels) if pays else {"pixels": pixels}
    whole = store.loaded(torch.arange(len(store), device="cpu"))
    return {"pixels": whole.rows().flat, "sizes": whole.sizes}


def _stored_images(stored: Mapping[str, Tensor], lookup: Lookup | None, shape: Shape | None) -> ImageSet:
    pixels: Tensor | PixelStore | None = stored.get("pixels")
    if "files" in stored and shape is not None:
        pixels = decompress(stored["files"], stored["lengths"], shape)
    if isinstance(pixels, Tensor) and "sizes" in stored and shape is not None:
        pixels = FlatStore(pixels, in_a_row(stored["sizes"], shape[0])[0], stored["sizes"], shape)
    if pixels is None:
        if lookup is None:
            raise ValueError("its kept images are missing")
        pixels = lookup(stored["origins"])
    return ImageSet(pixels, stored["labels"], stored["origins"])


def _add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
