"""The learner: one phase per `partial_fit`, then `predict`. It never sees a test image nor a later phase."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from poise.actions import AxisValue
from poise.data import Augmentation, Budget, Preprocessing
from poise.errors import OtherImages, UserError, shown
from poise.learner.arrival import (
    Arrival,
    Images,
    Labels,
    check_foresight,
    digest_images,
    labelled_store,
    plain_weights,
    receive,
    share_right,
    store_of,
    warn_of_unknown,
)
from poise.learner.conventions import Conventions
from poise.learner.defaults import choose_defaults
from poise.learner.exporting import Exporting
from poise.learner.given import Callback, check_given, with_names_of_sklearn
from poise.learner.labels import Label
from poise.learner.phase import Phase, Surroundings
from poise.learner.rejecting import Rejecting
from poise.learner.settings import KEYS, Settings
from poise.learner.state import Knowledge
from poise.learner.upkeep import Upkeep
from poise.nets import named_info, net_info
from poise.spaces import Grids
from poise.training import Event, Executor, undisturbed
from poise.tuning import Reward, TrialSettings

log = logging.getLogger(__name__)


class Learner(Conventions, Upkeep, Rejecting, Exporting):
    """A class-incremental classifier in the style of scikit-learn.

    >>> learner = Learner(method="lucir", epochs=30)            # doctest: +SKIP
    >>> learner.partial_fit(images, labels)                     # doctest: +SKIP
    >>> learner.partial_fit(more_images, labels_of_new_classes) # doctest: +SKIP
    >>> learner.predict(some_images)                            # doctest: +SKIP

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
            with the method's own; others are in `poise.policies`.
        policy_options: options of the policy, and wrappers around it such as `{"safe": 1.0, "every": 2}`.
        space: the actions it chooses from: `paper`, `joint`, `wide`, `online`, a grid of
            your own, or several, whose actions all count; if not given, the one that the policy brings along.
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

    Attributes:
        classes_: the labels seen so far, in the order in which they arrived.
        classifier_: which classifier predicts at present: `fc` or `ncm`.
        action_: the action that the last phase was trained with.
    """

    @undisturbed()
    def __init__(  # noqa: PLR0913 - what a user may want to set
        self,
        method: str | None = None,
        *,
        net: str | nn.Module | None = None,
        memory: int | str | Budget | None = None,
        epochs: int | None = None,
        batch: int | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        optimiser: str | None = None,
        decay: str | None = None,
        warmup: float | None = None,
        action: Mapping[str, AxisValue] | None = None,
        first_lr: float | None = None,
        policy: str = "online",
        policy_options: Mapping[str, bool | float | str] | None = None,
        space: str | Grids | None = None,
        tune: Sequence[str] | None = None,
        trials: TrialSettings | Mapping[str, Any] | None = None,
        options: Mapping[str, float | str] | None = None,
        image_size: int | None = None,
        preprocessing: Preprocessing | None = None,
        augmentation: Augmentation | None = None,
        device: str = "auto",
        precision: str = "auto",
        deterministic: bool = False,
        seed: int = 0,
        executor: Executor | None = None,
        verbose: bool = False,
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        as_given = dict(locals())
        given = {name: value for name, value in locals().items() if name in KEYS}
        check_given(as_given)
        settings = Settings.resolve(automatic=True, **{**given, "net": net if isinstance(net, str) else None})
        own = net if isinstance(net, nn.Module) else None
        info = net_info(own) if own is not None else named_info(settings.net, settings.seed)
        if info is not None and image_size is None:
            settings = settings.replace(image_size=info.image_size)
        around = Surroundings.of(settings, device, net=own, augmentation=augmentation, executor=executor)
        self._make(settings, around, preprocessing)
        self._remember(as_given)
        for line in settings.remarks():
            log.warning("%s", line)

    # Learning ---------------------------------------------------------------------------------------------------

    @with_names_of_sklearn
    def partial_fit(
        self, images: Images, labels: Labels | None = None, *, known: str = "refuse", next_images: int | None = None
    ) -> Self:
        """Learn one phase: new classes with their images. The learner is unchanged if this fails.

        While a thread does this, other threads may predict and save; learning is refused to them.

        `labels` may be left out where the images bring them along: a folder of class folders, a torch `Dataset` or
        `DataLoader`. New images of a class that is known already are refused, unless `known="update"`: then they are
        trained on, and that class's memory is chosen anew from its old exemplars and the new images.

        With RMM's memory, exemplars that were discarded to make room stay discarded, whatever follows. `next_images`,
        how many images the next phase brings, is for the rule of its released code (`knows_increment`) and no other.
        """
        self._refuse_changed()
        with self._turns.change():
            events = self._events(images, labels, known=known, next_images=next_images)
            self._learn(self._turns.steps(events, alone=True))
        return self

    def fitting(
        self,
        images: Images,
        labels: Labels | None = None,
        *,
        known: str = "refuse",
        origins: Tensor | None = None,
        action: Mapping[str, AxisValue] | None = None,
        next_images: int | None = None,
        reward: Reward | None = None,
    ) -> Iterator[Event]:
        """The same phase as a generator of events; `state()` may be called between any two of them.

        `origins` says where each image came from in the caller's own data, so that a run folder can store the
        memory as indices. With an `action` nothing is tuned: the phase is trained with it (where its classifier is
        `auto`, that is still judged). With a `reward` a study tells the policy something else than the local one.
        The input is checked at once, before the first event is asked for.
        """
        given: dict[str, Any] = {"known": known, "origins": origins, "action": action, "next_images": next_images}
        return self._turns.steps(self._events(images, labels, **given, reward=reward))

    @undisturbed()
    def _events(
        self,
        images: Images,
        labels: Labels | None,
        *,
        known: str,
        origins: Tensor | None = None,
        action: Mapping[str, AxisValue] | None = None,
        next_images: int | None = None,
        reward: Reward | None = None,
    ) -> Generator[Event, None, None]:
        arrival = receive(images, labels, self.settings, self.knowledge, known=known, origins=origins)
        arrival = replace(arrival, next_images=check_foresight(self.settings.memory, next_images))
        if action is not None:
            arrival = replace(arrival, action=self.settings.given_action(action, arrival.phase))
        if self._pending is not None and self._pending.digest != arrival.digest:
            raise OtherImages(
                "this learner was saved in the middle of a phase with other images; give it the same ones"
            )
        return self.backend.guard(self._fit(arrival, reward))

    def _fit(self, arrival: Arrival, reward: Reward | None) -> Generator[Event, None, None]:
        self._refuse_if_overtaken(arrival)
        phase, pending, before = None, self._pending, (self.settings, self._around)
        try:
            if self.settings.automatic and arrival.phase == 0:
                given = self.preprocessing.augmentation if self.preprocessing is not None else self._around.augmentation
                chosen = yield from choose_defaults(self.settings, arrival.images, self._around, given)
                self._refuse_if_overtaken(arrival)
                self.settings, self._around = chosen.settings, replace(self._around, augmentation=chosen.augmentation)
                yield chosen.event
            measured = pending.preprocessing if pending is not None else None
            self._phase = phase = Phase(self.settings, self.knowledge, arrival, self._around, reward, measured)
            arrival = phase.arrival  # without the images that were discarded
            if self.memory is not None:  # what was discarded on arrival stays discarded
                self.knowledge = replace(self.knowledge, memory=phase.kept)
            self._pending = None
            learning = phase.learn(pending)
            while True:
                try:
                    event = next(learning)
                except StopIteration as end:
                    learned: Knowledge = end.value
                    break
                yield event
                self._refuse_if_overtaken(arrival)
            self.knowledge = learned
        except BaseException:
            if self._phase is phase and arrival.phase == self.phases_:
                self._pending, (self.settings, self._around) = pending, before
            raise
        finally:
            if self._phase is phase:
                self._phase = None
        yield Phase.end_event(learned)

    @undisturbed()
    def has_learned(self, images: Images, labels: Labels | None = None) -> bool:
        """Whether a phase was learned from exactly these images with these labels, in this order.

        Images are given as to `partial_fit`. Of phases of which the learner has no note (see `notes_images`) it cannot
        be said, and is not.
        """
        noted = self.knowledge.images_digests
        return bool(noted) and digest_images(images, labels, self.settings, self.knowledge) in noted

    @property
    def notes_images(self) -> bool:
        """Whether the learner has a note of the images of every phase.

        It has none of phases that an older poise learned, or after which a class was removed, nor in a file that was
        saved without its memory.
        """
        return len(self.knowledge.images_digests) == self.phases_

    def _refuse_if_overtaken(self, arrival: Arrival) -> None:
        if arrival.phase != self.phases_ or arrival.classes[: arrival.growth.old] != self.knowledge.classes:
            raise UserError(
                "this learner learned another phase in the meantime, or lost a class; call fitting again for this one"
            )

    # Predicting -------------------------------------------------------------------------------------------------

    @with_names_of_sklearn
    @undisturbed()
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
        known = self.knowledge
        if rejected is not None and not reject:
            raise UserError(f"rejected={shown(rejected)} is the label of rejected images; pass reject=True too")
        if reject:
            return self._predict_or_reject(images, known, classifier, rejected)
        return self._predict(images, known, classifier)

    def _predict(self, images: Images, known: Knowledge, classifier: str | None = None) -> NDArray[Any]:
        labels: NDArray[Any] = np.asarray(known.classes)
        return np.asarray(labels[self._proba(images, known, classifier).argmax(axis=1)])

    def predictions(self, images: Images) -> dict[str, NDArray[Any]]:
        """The labels that each classifier, `fc` and `ncm`, gives to the images."""
        known = self.knowledge
        labels = np.asarray(known.classes)
        with self.backend.active():
            found = self._scores(images, known)
            return {name: labels[scores.argmax(dim=1).cpu().numpy()] for name, scores in found.items()}

    @undisturbed()
    def start_predictions(self, images: Images) -> dict[str, NDArray[Any]]:
        """The labels of the model that the next phase starts from, by its name, where another one predicts."""
        known = self.knowledge
        name, start = self.settings.made_method.starts_from, known.start
        if name is None or start is None or start is known.predictor:
            return {}
        with self.backend.active():
            found = self._evaluator(known).extract(start, store_of(images, self.settings, known)).logits
            return {name: np.asarray(known.classes)[found.argmax(dim=1).cpu().numpy()]}

    @with_names_of_sklearn
    @undisturbed()
    def score(
        self,
        images: Images,
        labels: Labels | None = None,
        *,
        sample_weight: Sequence[float] | NDArray[Any] | None = None,
    ) -> float:
        """The share of images whose label is predicted, in [0, 1]; labels of another kind are refused.

        Of a pack it is the share of its test part, where it has one. Images of a class that the learner does not know
        count as wrong, with a warning; the command `poise score` leaves them out. With `sample_weight`, one number per
        image, it is the weighted share.
        """
        known = self.knowledge
        store, wanted = labelled_store(images, labels, self.settings, known, held_out=True)
        weights = None if sample_weight is None else plain_weights(sample_weight, len(wanted))
        share = share_right(wanted, self._predict(store, known).tolist(), weights)
        warn_of_unknown(wanted, known.classes)
        return share
