"""Images of no known class: a threshold on the largest score, set by images of known classes."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poise.data import ImageSet
from poise.errors import UserError, check_number, not_learned
from poise.learner.arrival import Images, store_of
from poise.learner.given import with_names_of_sklearn
from poise.learner.labels import Label
from poise.learner.state import Knowledge
from poise.learner.turns import one_at_a_time
from poise.learner.views import Views
from poise.training import NCM_TEMPERATURE, both_classifiers
from poise.tuning import CLASSIFIERS

log = logging.getLogger(__name__)


class Rejecting(Views):
    """Scores of images, and what becomes of those whose largest score is too small."""

    @one_at_a_time
    def calibrate_reject(self, rate: float = 0.05, images: Images | None = None) -> Self:
        """Set the reject threshold of each classifier, so that about `rate` of the images of known classes fall below.

        `images` are images of known classes, as they will come, that nothing was trained on. Without them the reserve
        is used (`memory=Budget(20, reserve=4)`), or else the kept images: those were trained on, so that more new
        images are rejected than asked for. A threshold belongs to the model it was measured on: a further phase, and
        whatever changes classes or kept images, takes it away.
        """
        check_number("rate", rate, below=1, positive=True)
        known = self.knowledge
        with self.backend.active():
            scores = self._scores(self._images_to_calibrate() if images is None else images, known)
            largest = {name: values.max(dim=1).values.double().cpu() for name, values in scores.items()}
        thresholds = {name: _lower_quantile(values, rate) for name, values in largest.items()}
        self.knowledge = replace(known, reject=thresholds)
        return self

    def _images_to_calibrate(self) -> ImageSet:
        if not self.memory:
            raise UserError("this learner keeps no images to set a reject threshold with; give some: images=…")
        if len(self.memory.reserve):
            return self.memory.reserve
        log.warning("the reject threshold is set with images that were trained on: more than asked will be rejected")
        return self.memory.exemplars

    def proba_and_rejected(
        self, images: Images, *, classifier: str | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """What `predict_proba` says, and which images `predict(reject=True)` rejects; the network runs once."""
        return self._proba_and_rejected(images, self.knowledge, classifier)

    def _proba_and_rejected(
        self, images: Images, known: Knowledge, classifier: str | None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        chosen = _classifier(classifier, known)
        if known.predictor is None:
            raise not_learned()
        if chosen not in known.reject:
            raise UserError("no reject threshold is set for this model; call calibrate_reject first")
        with self.backend.active():
            scores = self._scores(images, known)[chosen]
            below: NDArray[np.bool_] = (scores.max(dim=1).values.double() < known.reject[chosen]).cpu().numpy()
            return _probabilities(scores, chosen), below

    def _predict_or_reject(
        self, images: Images, known: Knowledge, classifier: str | None, rejected: Label | None
    ) -> NDArray[Any]:
        """The label of each image, or `rejected` where its largest score is below the threshold."""
        if rejected in known.classes:
            raise UserError(f"rejected={rejected!r} is a known class; choose a label that none has")
        chances, below = self._proba_and_rejected(images, known, classifier)
        rows = chances.argmax(axis=1)
        found = [rejected if out else known.classes[row] for row, out in zip(rows.tolist(), below, strict=True)]
        same_kind = type(rejected) is type(known.classes[0])
        return np.array(found) if same_kind else np.array(found, dtype=object)

    @with_names_of_sklearn
    def predict_proba(self, images: Images, *, classifier: str | None = None) -> NDArray[np.float32]:
        """A probability for each image and class, columns as in `classes_`.

        `fc`: the softmax of the head's logits. `ncm`: the softmax of the cosines to the class means at
        temperature 0.1, so that the most probable class is always the nearest mean.
        """
        return self._proba(images, self.knowledge, classifier)

    def _proba(self, images: Images, known: Knowledge, classifier: str | None) -> NDArray[np.float32]:
        chosen = _classifier(classifier, known)
        with self.backend.active():
            return _probabilities(self._scores(images, known)[chosen], chosen)

    def _scores(self, images: Images, known: Knowledge) -> dict[str, Tensor]:
        """One score per image and class from each classifier: logits, and cosines to the means.

        `known` is what the learner knew when it was asked. To read the images takes time, and another thread may end
        a phase or remove a class meanwhile.
        """
        if known.predictor is None or known.means is None:
            raise not_learned()
        store = store_of(images, self.settings, known)
        return both_classifiers(self._evaluator(known).extract(known.predictor, store), known.means)


def _classifier(name: str | None, known: Knowledge) -> str:
    """The classifier of that name, or the one that counts."""
    chosen = name or known.classifier
    if chosen not in CLASSIFIERS:
        raise UserError(f"unknown classifier '{chosen}'; use fc or ncm")
    return chosen


def _probabilities(scores: Tensor, classifier: str) -> NDArray[np.float32]:
    """The softmax of logits; of cosines at a low temperature."""
    scaled = scores if classifier == "fc" else scores / NCM_TEMPERATURE
    found: NDArray[np.float32] = scaled.softmax(dim=1).cpu().numpy()
    return found


def _lower_quantile(values: Tensor, rate: float) -> float:
    """The k-th smallest of n values, k = ⌊rate · (n + 1)⌋: another value falls below it with a chance of k / (n + 1).

    >>> _lower_quantile(torch.arange(99, 0, -1).double(), 0.05)
    5.0
    """
    place = math.floor(round(rate * (len(values) + 1), 9))
    if place < 1:
        raise UserError(
            f"{len(values)} images are too few for a reject rate of {rate:g}; "
            f"give at least {least_images(rate)}: images=…"
        )
    return float(torch.sort(values).values[place - 1])


def least_images(rate: float) -> int:
    """How many images of known classes a threshold for this rate needs at least: n with rate · (n + 1) ≥ 1.

    >>> least_images(0.05), least_images(0.4)
    (19, 2)
    """
    return math.ceil(round(1 / rate, 9)) - 1
