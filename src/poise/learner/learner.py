"""The learner: one phase per `partial_fit`, then `predict`. It never sees a test image nor a later phase."""

from __future__ import annotations

import inspect
import io
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, Literal, ParamSpec, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poise import store
from poise.actions import Action, AxisValue, Grids
from poise.data import Augmentation, Budget, Memory, Preprocessing
from poise.data.images import digest_images
from poise.errors import (
    OtherImages,
    UserError,
    explaining_refusals,
    not_learned,
    reading,
    shown,
    suggesting,
    suggestion,
    unknown_argument,
)
from poise.learner import extras, upkeep
from poise.learner.defaults import choose_defaults, warn_of_short_phase
from poise.learner.inputs import (
    Images,
    Known,
    Labels,
    NewPhase,
    open_for_learner,
    receive,
    share_right,
)
from poise.learner.networks import Shape, architecture
from poise.learner.phase import Phase, with_jitter
from poise.learner.settings import KEYS, Runtime, Settings, is_given
from poise.learner.state import Knowledge, Label, LearnerState, Pending, save_state
from poise.learner.upkeep import Exemplar
from poise.nets import Model, NetInfo, net_info
from poise.nets.adapt import adapted_again, named_info
from poise.settings import TrialSettings, plain_copy
from poise.training.device import Backend, undisturbed
from poise.training.evaluate import Evaluator, Extracted, both_classifiers
from poise.training.events import Event, PhaseDone
from poise.training.lanes import Executor
from poise.tuning.results import CLASSIFIERS, Reward

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
Callback = Callable[[Event], object]

#: Parameters that change nothing that is learned: they may change at any time.
WATCHING: Final = ("verbose", "callbacks")
#: What scikit-learn calls our arguments.
THEIR_NAMES: Final = {"X": "images", "y": "labels"}


def public(method: Callable[Concatenate[Learner, P], R]) -> Callable[Concatenate[Learner, P], R]:
    """Run a method of `Learner` in the learner's own modes of torch, whatever the caller has set.

    Arguments may have scikit-learn's names, and a misspelt one gets a suggestion.
    """
    names = inspect.signature(method).parameters

    @wraps(method)
    def in_own_modes(self: Learner, /, *args: P.args, **kwargs: P.kwargs) -> R:
        for theirs, ours in THEIR_NAMES.items():
            if theirs in kwargs and ours in names and ours not in kwargs:
                kwargs[ours] = kwargs.pop(theirs)
        for name in kwargs.keys() - names:
            raise unknown_argument(method.__name__, name, names)
        with self._parts.runtime.backend.active():
            return method(self, *args, **kwargs)

    return in_own_modes


@dataclass(eq=False, repr=False)
class Learner:
    """A class-incremental classifier in the style of scikit-learn.

    >>> learner = Learner(method="lucir", epochs=30)            # doctest: +SKIP
    >>> learner.partial_fit(images, labels)                     # doctest: +SKIP
    >>> learner.partial_fit(more_images, labels_of_new_classes) # doctest: +SKIP
    >>> learner.predict(some_images)                            # doctest: +SKIP

    Parameters are checked when they are first used. One that is changed after the first phase counts from the next
    `fit` on, which starts anew; until then `partial_fit` is refused.

    Args:
        method: name of a method (`lucir`, `icarl`, `lwf`, `podnet`, `aanets`, `der`, `foster`; on a pretrained network
            `simplecil`, `ranpac`, `slca`; or one registered by you), or of a baseline (`replay`, `finetune`, `joint`).
        net: backbone name (`small`, `small-wide`, `small2`, `small4`, `resnet32`, `resnet18`, `pod-resnet18`,
            `cifar-resnet18`); a word for another network (`efficientnet-lite0`, `package:name`, `file.py:function`); or
            a module of your own that maps float images [B, C, H, W] to features [B, d], such as `poise.nets.adapt`
            makes. What is frozen in it stays frozen.
        memory: images kept per class (0: none), `all`, or a `Budget` (a fixed total, a reserve, RMM's rule); if not
            given, what the method keeps itself: nearly always 20 per class.
        epochs: training length of each phase. This and whatever else is None is chosen when the first images arrive
            (`poise.learner.defaults`): `batch`, `momentum`, `weight_decay`, `optimiser` (`sgd` or `adamw`), `decay` of
            the learning rate (`steps` or `cosine`), `warmup` (a share of the epochs), network, action, augmentation.
        action: axes of the method's default action to change, from the second phase on (`lr`, `classifier`, weights).
        first_lr: learning rate of the first phase.
        policy: what decides the action of each phase: `online` tries actions first, which takes longer; `fixed` trains
            with the method's own; others are in `poise.policies`. If not given, `fixed` for few images, where tuning
            was not shown to gain, and `online` for more than 20,000 in the first phase.
        policy_options: options of the policy, and wrappers around it such as `{"safe": 1.0, "every": 2}`.
        space: the actions it chooses from: `paper`, `joint`, `wide`, `online`, a grid of your own, or
            several, whose actions all count; if not given, the one that the policy brings along.
        tune: only these kinds of axes: `kd`, `classifier` (an axis of the space, or apart from it), `lr`.
        trials: how actions are tried: the environment, how many images validate, how long a trial is; keys that are
            not given are as the policy brings them along.
        options: of the method.
        image_size: to which image files, PIL images and those of a pack are scaled.
        preprocessing: normalisation and augmentation; if not given, the normalisation is the network's own where it
            has one, else measured on the first phase's images, and `augmentation` (default: judged on held-out
            images) is used.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: `auto`, `fp32`, `tf32` or `bf16`.
        deterministic: byte-identical results on a GPU too (a CPU always gives them).
        seed: of every random draw.
        executor: where trials are run, if not here; no part of a result.
        verbose: show progress in `partial_fit` and `fit`: a bar in a terminal or a notebook, lines elsewhere.
        callbacks: called with every event of `partial_fit` and `fit`; an error that one raises stops the phase, and
            nothing is learned. Like `verbose`, no part of a result or of a saved file.
    """

    method: str | None = None
    _: KW_ONLY
    net: str | nn.Module | None = None
    memory: int | str | Budget | None = None
    epochs: int | None = None
    batch: int | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    optimiser: Literal["sgd", "adamw"] | None = None
    decay: Literal["steps", "cosine"] | None = None
    warmup: float | None = None
    action: Mapping[str, AxisValue] | None = None
    first_lr: float | None = None
    policy: str | None = None
    policy_options: Mapping[str, bool | float | str] | None = None
    space: str | Grids | None = None
    tune: Sequence[str] | None = None
    trials: TrialSettings | Mapping[str, Any] | None = None
    options: Mapping[str, float | str] | None = None
    image_size: int | None = None
    preprocessing: Preprocessing | None = None
    augmentation: Augmentation | None = None
    device: str = "auto"
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    deterministic: bool = False
    seed: int = 0
    executor: Executor | None = None
    verbose: bool = False
    callbacks: Sequence[Callback] | None = None
    _made: _Parts | None = field(default=None, init=False)  # what they stand for, made when it is first needed

    # Learning ---------------------------------------------------------------------------------------------------

    @public
    def fit(self, images: Images, labels: Labels | None = None, *, next_images: int | None = None) -> Self:
        """Forget everything and learn these images as the first phase. The learner is unchanged if this fails."""
        with self._parts.changing():
            fresh = type(self)(**self.get_params(deep=False))
            fresh.partial_fit(images, labels, next_images=next_images)
            self._made = fresh._made
        return self

    @public
    def partial_fit(
        self, images: Images, labels: Labels | None = None, *, known: Known = "refuse", next_images: int | None = None
    ) -> Self:
        """Learn one phase: new classes with their images. The learner is unchanged if this fails.

        `labels` may be left out where the images bring them along: a folder of class folders, a torch `Dataset` or
        `DataLoader`. New images of a class that is known already are refused, unless `known="update"`: then they are
        trained on, and that class's memory is chosen anew from its old exemplars and the new images.

        With RMM's memory, exemplars that were discarded to make room stay discarded, whatever follows. `next_images`,
        how many images the next phase brings, is for the rule of its released code (`knows_increment`) and no other.
        """
        callbacks = _check_callbacks(self.callbacks)
        phase = self._open_phase(images, labels, known=known, next_images=next_images)
        events: Iterator[Event] = phase
        parts = self._parts
        if self.verbose:
            from poise import progress  # nobody who watches nothing has to wait for rich

            events = progress.watch_phase(phase)
        with closing(phase):
            for event in events:
                log.debug("%s", event)
                warn_of_short_phase(parts.settings, parts.phase, event)
                try:
                    for callback in callbacks:
                        callback(event)
                except BaseException as error:  # undoes what was learned, even at the last event
                    phase.throw(error)
        return self

    def fitting(
        self,
        images: Images,
        labels: Labels | None = None,
        *,
        known: Known = "refuse",
        action: Mapping[str, AxisValue] | None = None,
        next_images: int | None = None,
        reward: Reward | None = None,
    ) -> Generator[Event, None, None]:
        """Learn one phase as a generator of events; `state()` may be called between any two of them.

        An `ImageSet` brings its labels along, and where each image came from in the caller's own data, so that a run
        folder can store the memory as indices. With an `action` nothing is tuned: the phase is trained with it (where
        its classifier is `auto`, that is still judged). With a `reward` a study tells the policy something else than
        the local one. The input is checked at once, before the first event is asked for.
        """
        said = {"known": known, "action": action, "next_images": next_images}
        with self.backend.active():
            work = self._open_phase(images, labels, reward, **said)
        return self._between_events(work)

    def _open_phase(
        self,
        images: Images,
        labels: Labels | None,
        reward: Reward | None = None,
        **said: Any,  # noqa: ANN401 - the keywords of `receive`
    ) -> Generator[Event, None, None]:
        """Check what arrives, at once; the generator that it gives then learns it."""
        parts = self._parts
        if changed := parts.changed(self):
            raise UserError(
                f"{', '.join(changed)} changed since this learner began to learn; call fit, which starts anew, or set "
                f"{'it' if len(changed) == 1 else 'them'} back"
            )
        arrival = receive(images, labels, parts.settings, parts.knowledge, **said)
        if parts.pending is not None and parts.pending.digest != arrival.digest:
            raise OtherImages(
                "this learner was saved in the middle of a phase with other images; give it the same ones"
            )
        return self._learn(arrival, reward)

    def _learn(self, arrival: NewPhase, reward: Reward | None) -> Generator[Event, None, None]:
        """Learn what arrived; if that fails, the learner is as it was before, but for images that were discarded."""
        parts = self._parts
        with parts.changing():
            known, old = parts.knowledge, arrival.growth.old
            if arrival.phase != known.phases or arrival.classes[:old] != known.classes:
                raise UserError(
                    "this learner learned another phase in the meantime, or lost a class; call fitting again for this"
                )
            before, done = replace(parts), False
            try:
                if parts.settings.automatic and arrival.phase == 0:
                    given = parts.runtime.augmentation
                    if known.preprocessing is not None:
                        given = known.preprocessing.augmentation
                    chosen = choose_defaults(parts.settings, arrival.images, parts.runtime, given)
                    parts.settings, augmentation, event = yield from chosen
                    parts.runtime = replace(parts.runtime, augmentation=augmentation)
                    yield event
                phase = Phase(parts.settings, known, arrival, parts.runtime, reward)
                del arrival, known  # discarded images are held by nobody
                phase.begin(parts.pending)
                if before.knowledge.memory is not None:  # what was discarded on arrival stays discarded
                    parts.knowledge = before.knowledge = phase.before
                parts.phase = phase
                learned = yield from phase.learn(parts.pending)
                parts.knowledge, parts.phase, parts.pending = learned, None, None
                done = True
                yield PhaseDone(learned.phases - 1, learned.classifier, len(learned.memory or ()))
            except BaseException as error:
                if not (done and isinstance(error, GeneratorExit)):  # closed after the last event, it was learned
                    vars(parts).update(vars(before))
                raise
            finally:
                parts.phase = None

    def _between_events(self, work: Generator[Event, None, None]) -> Generator[Event, None, None]:
        """The events of a phase, each made in the learner's own modes; between two of them the caller's hold."""
        with closing(work):
            while True:
                with self.backend.active():
                    event = next(work, None)
                if event is None:
                    return
                yield event

    @property
    def phase_under_way(self) -> Phase | None:
        """The phase that is being learned at this moment."""
        return self._parts.phase

    @public
    def has_learned(self, images: Images, labels: Labels | None = None) -> bool:
        """Whether a phase was learned from exactly these images with these labels, in this order.

        Of phases before a class was removed, and in a file saved without its memory, that is not known.
        """
        known = self.knowledge
        if not known.images_digests:
            return False
        found = open_for_learner(images, self.settings, known, labels=labels, labelled=True, held_out=False)
        return digest_images(*found) in known.images_digests

    # Predicting -------------------------------------------------------------------------------------------------

    @public
    def predict(
        self,
        images: Images,
        *,
        classifier: str | None = None,
        reject: bool = False,
        rejected: Label | None = None,
    ) -> NDArray[Any]:
        """The label of each image, by the classifier that counts or by the one named.

        With `reject`, images whose largest score is below the threshold of `calibrate_reject` get the label `rejected`.
        """
        classes = self.knowledge.classes
        if rejected is not None and not reject:
            raise UserError(f"rejected={shown(rejected)} is the label of rejected images; pass reject=True too")
        if rejected in classes:
            raise UserError(f"rejected={rejected!r} is a known class; choose a label that none has")
        chances, below = self._classify(images, classifier, reject=reject)
        rows = chances.argmax(axis=1)
        if not reject:
            return np.asarray(np.asarray(classes)[rows])
        found = [rejected if out else classes[row] for row, out in zip(rows.tolist(), below, strict=True)]
        return np.array(found, dtype=None if type(rejected) is type(classes[0]) else object)

    @public
    def predict_proba(self, images: Images, *, classifier: str | None = None) -> NDArray[np.float32]:
        """A probability for each image and class, columns as in `classes_`.

        `fc`: the softmax of the head's logits. `ncm`: the softmax of the cosines to the class means, so that the most
        probable class is always the nearest mean. The temperature is calibrated by every phase: on the reserve, where
        there is one; where the network came frozen, on the kept images, each left out of what predicts it. Otherwise
        it is 1 (`fc`) and 0.1 (`ncm`).
        """
        return self._classify(images, classifier)[0]

    @public
    def proba_and_rejected(
        self, images: Images, *, classifier: str | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The result of `predict_proba`, and which images `predict(reject=True)` rejects; the network runs once."""
        return self._classify(images, classifier, reject=True)

    @public
    def score(
        self,
        images: Images,
        labels: Labels | None = None,
        *,
        sample_weight: Sequence[float] | NDArray[Any] | None = None,
        classifier: str | None = None,
    ) -> float:
        """The accuracy on these images, in [0, 1]; labels of another kind are refused.

        Of a pack it is the share of its test part, where it has one. Images of a class that the learner does not know
        count as wrong, with a warning; the command `poise score` leaves them out. With `sample_weight`, one number per
        image, it is the weighted share.
        """
        known = self.knowledge
        store, wanted = open_for_learner(images, self.settings, known, labels=labels, labelled=True)
        rows = self._classify(store, classifier)[0].argmax(axis=1)
        return share_right(wanted, [known.classes[row] for row in rows], known.classes, sample_weight)

    @public
    def features(self, images: Images) -> NDArray[np.float32]:
        """The network's features of each image, before any classifier: [images, width]."""
        return self._extract(images, self.knowledge.predictor).features.cpu().numpy()

    def predicting_by(self, classifier: str | None) -> Self:
        """Let this classifier count, `fc` or `ncm`, until a further phase decides anew; None: the one that does."""
        if classifier is not None:
            self._parts.knowledge = replace(self.knowledge, classifier=_check_classifier(classifier))
        return self

    @public
    def predictions(self, images: Images) -> dict[str, NDArray[Any]]:
        """The labels that each classifier, `fc` and `ncm`, gives to the images."""
        scores = self._scores(images)
        return {name: self.classes_[found.argmax(dim=1).cpu().numpy()] for name, found in scores.items()}

    @public
    def start_predictions(self, images: Images) -> dict[str, NDArray[Any]]:
        """The labels of the model that the next phase starts from, by its name, where another one predicts."""
        known, name = self.knowledge, self.settings.made_method.starts_from
        if name is None or known.start is None or known.start is known.predictor:
            return {}
        found = self._extract(images, known.start).logits
        return {name: self.classes_[found.argmax(dim=1).cpu().numpy()]}

    @public
    def calibrate_reject(self, rate: float = 0.05, images: Images | None = None) -> Self:
        """Set the reject threshold of each classifier, so that about `rate` of the images of known classes fall below.

        `images` are images of known classes, as they will come, that nothing was trained on. Without them the reserve
        is used (`memory=Budget(20, reserve=4)`), or else the kept images: those were trained on, so that more new
        images are rejected than asked for. A threshold belongs to the model it was measured on: a further phase, and
        whatever changes classes or kept images, takes it away.
        """
        with self._parts.changing():
            known = self.knowledge
            scores = self._scores_of_kept() if images is None else self._scores(images)
            found = {name: extras.reject_threshold(values, rate) for name, values in scores.items()}
            self._parts.knowledge = replace(known, reject=found)
        return self

    def _scores_of_kept(self) -> dict[str, Tensor]:
        """The scores of the reserve, else of the exemplars, each as if it had been left out where that is known."""
        known, settings = self.knowledge, self.settings
        if not known.memory:
            raise UserError("this learner keeps no images to set a reject threshold with; give some: images=…")
        if len(known.memory.reserve):
            return self._scores(known.memory.reserve)
        model, means, kept, found = known.predictor, known.means, known.memory.exemplars, dict[str, Tensor]()
        if model is not None and means is not None and model.is_frozen and is_given(settings, self.runtime):
            found = extras.left_out_scores(settings.made_method, known.action, model, means, kept, self.evaluator)
        if known.classifier not in found:
            log.warning("the reject threshold is set with images that were trained on: it rejects more than asked for")
        return {**self._scores(kept), **found}

    def _classify(
        self, images: Images, classifier: str | None, *, reject: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """A probability for each image and class, and whether an image is rejected, by the classifier of that name."""
        known = self.knowledge
        chosen = _check_classifier(classifier or known.classifier)
        if reject and known.predictor is not None and chosen not in known.reject:
            raise UserError("no reject threshold is set for this model; call calibrate_reject first")
        scores = self._scores(images)[chosen]
        chances = (scores / known.temperature(chosen)).softmax(dim=1)
        below = scores.max(dim=1).values.double() < (known.reject[chosen] if reject else -np.inf)
        return chances.cpu().numpy(), below.cpu().numpy()

    def _scores(self, images: Images) -> dict[str, Tensor]:
        """One score per image and class from each classifier: logits, and cosines to the means."""
        known = self.knowledge
        found = self._extract(images, known.predictor)
        assert known.means is not None
        return both_classifiers(found, known.means)

    def _extract(self, images: Images, model: Model | None) -> Extracted:
        """What this model makes of images: their features and logits."""
        if model is None:
            raise not_learned()
        store, _ = open_for_learner(images, self.settings, self.knowledge)
        return self.evaluator.extract(model, store)

    @property
    def evaluator(self) -> Evaluator:
        """Computes features and predictions of models, once images are known."""
        parts = self._parts
        if parts.knowledge.preprocessing is None:
            raise not_learned()
        return Evaluator(parts.knowledge.preprocessing, parts.runtime.backend.alone)

    # Between phases ---------------------------------------------------------------------------------------------

    @public
    def remove(self, classes: Label | Labels) -> Self:
        """Take classes out: their rows of the head, their means, and their kept images.

        Other classes are predicted as before, by the largest of the scores that are left. The network itself has still
        been trained with the images of these classes. A class of the same name can be learned again later. The history
        of trials, in which no class is named, stays. A reject threshold has to be set again.
        """
        with self._parts.changing(resumes=False):
            self._parts.knowledge = upkeep.without_classes(self.knowledge, classes)
        return self

    def exemplars(self) -> list[Exemplar]:
        """All kept images, class by class; within a class those that are trained on first, in the order of herding."""
        return upkeep.list_exemplars(self.knowledge)

    @public
    def image_ids(self, images: Images) -> list[str]:
        """The ids that these images have, or would have, among the kept ones: how to find one by its file.

        They are those of the pixels that the network sees: give images in the form in which they were learned (files
        as files), or they may be scaled another way and have other ids.
        """
        store, _ = open_for_learner(images, self.settings, self.knowledge, held_out=False)
        return upkeep.image_ids(store)

    @public
    def delete_exemplars(self, ids: str | Iterable[str]) -> Self:
        """Delete kept images by their ids, every copy of them; the means of their classes are computed anew.

        The head keeps what it has learned from them: a trained one until the next phase, and sums over features
        (SimpleCIL, RanPAC, SLCA) for good. To be rid of that too, `remove` the class and learn it again.

        The next `save` writes a file without them. The last image of a class to train on is not deleted, for a class
        without any cannot be learned on: remove the class, or give it other images first (`known="update"`).
        """
        with self._parts.changing(resumes=False):
            known = self.knowledge
            self._parts.knowledge = upkeep.without_exemplars(known, ids, self.evaluator)
        return self

    # Files and values -------------------------------------------------------------------------------------------

    @public
    def export(self, path: str | Path) -> None:
        """Write what predicts to an ONNX file (`.onnx`) or a program of `torch.export` (`.pt2`), by the path's ending.

        It takes `images`, uint8 [batch, C, H, W] as the learner was trained on, any number of them; normalisation is
        inside. It gives three float tensors [batch, classes], columns as in `classes_`: `probabilities`, those of
        `predict_proba`; `fc`, the logits of the head; `ncm`, the cosines to the class means. The class names, the
        classifier that counts and the reject thresholds are in the file too, as one JSON document: in ONNX's metadata
        under `poise`, in a `.pt2` file as the extra file `poise.json`. Its `short_side` says to how many pixels the
        short side of a photo is scaled before the images are cut out of its centre. No kept image is in the file.
        """
        extras.export(self.knowledge, store.expand_user(path))

    @public
    def save(self, path: str | Path, *, memory: bool = True) -> None:
        """Write the learner to one file.

        The file contains the training images kept in memory. With `memory=False` it does not; such a learner
        predicts but cannot learn further. A file that is written in the middle of a phase, the first one too, is
        loaded and given the same images to go on from there; of `fitting`, once its event `PhaseStarted` came. If
        `poise learn` is working on this file, that is logged: it will find the file changed, leave it so, and write
        what it learned beside it.
        """
        begun = self.phase_under_way is not None
        with explaining_refusals("save it again"):
            save_state(self.state(), store.expand_user(path), memory=memory, begun=begun)

    @classmethod
    @suggesting
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        net: nn.Module | None = None,
        executor: Executor | None = None,
    ) -> Self:
        """Read a learner; `net` gives the backbone again if it was your own, and is adapted if that one was.

        One that was made with a method or a policy of your own predicts where that is not registered, unless the method
        expands the network; to learn further it must be registered.
        """
        file = store.expand_user(path)
        with undisturbed():
            state = LearnerState.read(file, net=net)
            with reading(file):
                return cls.from_state(state, device=device, net=net, executor=executor)

    @public
    def state(self) -> LearnerState:
        """The learner as a value from which `from_state` makes the same one, in the middle of a phase too."""
        parts, phase = self._parts, self.phase_under_way
        pending = phase.pending() if phase is not None else parts.pending
        parts.runtime.backend.synchronise()
        own, model, augmentation = parts.runtime.net, self.model, parts.runtime.augmentation
        net = model.backbone if model is not None else phase.network if phase is not None else own
        return LearnerState(
            settings=parts.settings,
            knowledge=parts.knowledge,
            augmentation=augmentation,
            own_net=own is not None,
            pending=pending,
            net_info=net_info(net),
        )

    @classmethod
    def from_state(
        cls,
        state: LearnerState,
        *,
        device: str = "auto",
        net: nn.Module | None = None,
        executor: Executor | None = None,
    ) -> Self:
        """The learner that `state` described; `net` is the user's own, if it has one."""
        with undisturbed():
            net = adapted_again(net, state.net_info) if net is not None else None
            runtime = Runtime.of(state.settings, device, net=net, augmentation=state.augmentation, executor=executor)
            with runtime.backend.active():
                knowledge = state.knowledge.placed(runtime.backend.device)
            learner = cls.from_settings(state.settings, runtime, knowledge=knowledge)
            learner._parts.pending = state.pending
            if state.settings.unregistered is None:
                pending = state.pending.history if state.pending is not None else ()
                state.settings.tuner.refuse_foreign((*state.knowledge.history, *pending))
            return learner

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        runtime: Runtime,
        preprocessing: Preprocessing | None = None,
        knowledge: Knowledge | None = None,
    ) -> Self:
        """A learner with settings that are resolved already, and with the parameters that would make them again.

        Without `knowledge` it has learned nothing.
        """
        parameters = {
            **plain_copy(dict(settings)),
            "net": settings.net if runtime.net is None else runtime.net,
            "device": str(runtime.backend.device),
            "augmentation": runtime.augmentation,
            "executor": runtime.executor,
            "preprocessing": preprocessing,
        }
        if settings.images is not None:  # phases that are paced by their images have no length of their own
            parameters["epochs"] = None
        known = cls._defaults()
        learner = cls(**{name: value for name, value in parameters.items() if name in known})
        knowledge = knowledge or _nothing_known(settings, preprocessing)
        learner._made = _Parts(settings, runtime, knowledge, learner._learning_parameters())
        return learner

    def __getstate__(self) -> dict[str, Any]:
        """The state as it would be saved; a phase in its middle is resumed with the same images."""
        attributes = {name: value for name, value in vars(self).items() if name != "_made"}
        if self._made is None or not self._made.has_begun:
            return {"attributes": attributes}
        tensors, meta = self.state().tensors(images=True)
        # Bytes: of tensors torch hands to another process only the number of a file, which may be gone by then.
        buffer = io.BytesIO()
        torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, buffer)
        saved = {"tensors": buffer.getvalue(), "meta": meta, "net": self.runtime.net, "given": self._made.given}
        return {"attributes": attributes, "saved": saved}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state["attributes"])
        saved = state.get("saved")
        if saved is not None:
            tensors = torch.load(io.BytesIO(saved["tensors"]), map_location="cpu", weights_only=True)
            with undisturbed():
                found = LearnerState.from_tensors(tensors, saved["meta"], net=saved["net"])
            made = Learner.from_state(found, device=self.device, net=saved["net"], executor=self.executor)._parts
            made.given = saved["given"]
            self._made = made

    # What was learned -------------------------------------------------------------------------------------------

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels seen so far, in the order in which they arrived."""
        return np.asarray(self.knowledge.classes)

    @property
    def classifier_(self) -> str:
        """Which classifier predicts at present: `fc` or `ncm`."""
        return self.knowledge.classifier

    @property
    def action_(self) -> Action:
        """The action that the last phase was trained with."""
        return self.knowledge.action

    @property
    def phases_(self) -> int:
        """How many phases were learned."""
        return self._made.knowledge.phases if self._made is not None else 0

    @property
    def memory_(self) -> Memory | None:
        """The kept images."""
        return self.knowledge.memory

    @property
    def preprocessing_(self) -> Preprocessing | None:
        """How images are prepared, once that is known."""
        return self.knowledge.preprocessing

    @property
    def means_(self) -> Tensor | None:
        """The unit mean feature of each class, rows as in `classes_`: what NCM compares with."""
        return self.knowledge.means

    @property
    def held_(self) -> int:
        """The most images that were held at any moment of the last phase, memory and new images."""
        return self.knowledge.held

    @property
    def budget_(self) -> int:
        """The number of images that were allowed to be held in the last phase."""
        return self.knowledge.budget

    @property
    def shape_(self) -> Shape | None:
        """Channels, height and width of the images."""
        return self.knowledge.shape

    @property
    def reject_thresholds_(self) -> Mapping[str, float]:
        """For each classifier, the score below which an image is rejected; empty until `calibrate_reject`."""
        return self.knowledge.reject

    @property
    def model(self) -> Model | None:
        """The model that predicts."""
        return self.knowledge.predictor

    # Parameters -------------------------------------------------------------------------------------------------

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Every parameter of the constructor, and its default."""
        known = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return {each.name: each.default for each in known if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Every parameter of the constructor as it was given, or its default. `deep` changes nothing here."""
        return {name: getattr(self, name, default) for name, default in self._defaults().items()}

    def set_params(self, **params: Any) -> Self:  # noqa: ANN401 - whatever the constructor takes
        """Change parameters; after the first phase they count from the next `fit` on, the watching ones at once."""
        known = self._defaults()
        for name in params:
            if name not in known:
                raise UserError(f"{type(self).__name__} has no parameter '{name}'; {suggestion(name, known)}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        given = [
            f"{name}={f'{type(value).__name__}(…)' if isinstance(value, nn.Module) else shown(value, 60)}"
            for name, value in self.get_params().items()
            if not _is_same(value, self._defaults()[name])
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - scikit-learn has no types
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(one_d_array=True, two_d_array=False, three_d_array=True, string=True),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return self.phases_ > 0

    # What the parameters stand for, made when it is first needed ------------------------------------------------

    @property
    def _parts(self) -> _Parts:
        """Settings, device and knowledge; made anew if parameters changed before the first phase began."""
        made = self._made
        if made is None or (not made.has_begun and made.changed(self)):
            made = self._made = self._make_parts()
        return made

    def _make_parts(self) -> _Parts:
        """Check the parameters and make what they stand for."""
        net, preprocessing = self.net, self.preprocessing
        if not isinstance(net, str | nn.Module | None):
            raise UserError(
                f"net={shown(net)} is neither a name nor a module; a class of your own must be made first: net=Net()"
            )
        if not isinstance(preprocessing, Preprocessing | None):
            raise UserError(f"preprocessing={shown(preprocessing)} must be a poise.Preprocessing, or left out")
        _check_callbacks(self.callbacks)
        given = self._learning_parameters()
        with undisturbed():
            own = net if isinstance(net, nn.Module) else None
            keys = {name: value for name, value in given.items() if name in KEYS}
            settings = Settings.resolve(automatic=True, **{**keys, "net": None if own is not None else net})
            info = net_info(own) if own is not None else named_info(settings.net, settings.seed)
            if info is not None and self.image_size is None:
                settings = settings.replace(image_size=info.image_size)
            for line in settings.remarks():
                log.warning("%s", line)
            runtime = Runtime.of(settings, self.device, net=own, augmentation=self.augmentation, executor=self.executor)
        return _Parts(settings, runtime, _nothing_known(settings, preprocessing), given)

    def _learning_parameters(self) -> dict[str, Any]:
        """The parameters that count in learning, of which a class made of this one may hide some."""
        return {name: getattr(self, name) for name in Learner._defaults() if name not in WATCHING}

    @property
    def settings(self) -> Settings:
        """The settings that the learner is made with: plain values, every default written out."""
        return self._parts.settings

    @property
    def knowledge(self) -> Knowledge:
        """Everything that was learned: a value that is replaced as a whole when a phase is done."""
        return self._parts.knowledge

    @property
    def runtime(self) -> Runtime:
        """The device, a network of the user's own, and where trials run."""
        return self._parts.runtime

    @property
    def backend(self) -> Backend:
        """Device and floating-point format."""
        return self._parts.runtime.backend

    @property
    def architecture(self) -> str:
        """Backbone, its variant and the head, as in `resnet32/lucir+cosine`."""
        described = self.model.architecture if self.model is not None else None
        return described or architecture(self.settings, self.shape_, own_net=self.runtime.net is not None)

    @property
    def net_info(self) -> NetInfo | None:
        """What is known of a network that was not made here, such as the data it was pretrained on."""
        if self.model is not None:
            return net_info(self.model.backbone)
        own = self.runtime.net
        return net_info(own) if own is not None else named_info(self.settings.net, self.settings.seed)


# A misspelt parameter gets a suggestion; the constructor itself is made by `dataclass`.
Learner.__init__ = suggesting(Learner.__init__)  # type: ignore[method-assign]


@dataclass
class _Parts:
    """The settings, device and knowledge that a learner's parameters stand for.

    Attributes:
        given: the parameters it was made of. A dictionary among them that is changed later counts from `fit` on:
            the settings have a copy.
        pending: a phase that was saved in its middle.
        phase: the one under way.
        lock: held while the learner changes.
    """

    settings: Settings
    runtime: Runtime
    knowledge: Knowledge
    given: Mapping[str, Any]
    pending: Pending | None = None
    phase: Phase | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_begun(self) -> bool:
        """Whether anything was learned, or is being learned."""
        return self.knowledge.phases > 0 or self.lock.locked() or self.pending is not None

    def changed(self, learner: Learner) -> list[str]:
        """The parameters that differ from those that these parts were made of."""
        return [name for name, value in self.given.items() if not _is_same(value, getattr(learner, name))]

    @contextmanager
    def changing(self, *, resumes: bool = True) -> Iterator[None]:
        """Change the learner, which nobody else may do meanwhile; if not `resumes`, not in the middle of a phase."""
        if not self.lock.acquire(blocking=False):  # a second change would start from something else than its caller saw
            raise UserError(
                "this learner is in the middle of a phase, in another thread or around this call; wait for it to end"
            )
        try:
            if not resumes and self.pending is not None:
                raise UserError("this learner is in the middle of a phase; finish it first, with the same images")
            yield
        finally:
            self.lock.release()


def _nothing_known(settings: Settings, preprocessing: Preprocessing | None) -> Knowledge:
    method = settings.made_method
    prepared = with_jitter(method, preprocessing) if preprocessing is not None else None
    return Knowledge(action=method.default_action, preprocessing=prepared)


def _is_same(one: object, other: object) -> bool:
    plain = type(one) is type(other) and not isinstance(one, nn.Module | np.ndarray | Tensor)
    return one is other or (plain and bool(one == other))


def _check_classifier(word: str) -> str:
    if word not in CLASSIFIERS:
        raise UserError(f"unknown classifier {shown(word)}; use fc or ncm")
    return word


def _check_callbacks(callbacks: Any) -> tuple[Callback, ...]:  # noqa: ANN401 - checked here
    if not isinstance(callbacks, Sequence | None) or not all(map(callable, callbacks or ())):
        raise UserError(f"callbacks={shown(callbacks)} must be a list of functions of an event, such as [print]")
    return tuple(callbacks or ())
