"""What scikit-learn and its users expect: parameters, `fit`, `clone`, tags, a short name, copies and pickles.

Parameters are kept and returned as they were given. What the learner uses are copies, so that a dictionary that is
changed later changes nothing.
"""

from __future__ import annotations

import inspect
import io
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from poise.data import Preprocessing
from poise.errors import UserError, shown, suggestion
from poise.learner.arrival import Images, Labels
from poise.learner.defaults import warn_of_short_phase
from poise.learner.given import checked_callbacks, with_names_of_sklearn
from poise.learner.phase import Surroundings
from poise.learner.saving import Saving
from poise.learner.settings import Settings
from poise.learner.state import LearnerState
from poise.settings import plain_copy
from poise.training import Event, PhaseDone, undisturbed

log = logging.getLogger(__name__)

#: Parameters that change nothing that is learned: they apply at once.
WATCHING: Final = ("verbose", "callbacks")
#: Parameters that a caller could change in place.
CHANGEABLE: Final = ("action", "policy_options", "space", "tune", "trials", "options")


class Conventions(Saving):
    """A learner as scikit-learn knows its estimators."""

    _estimator_type = "classifier"  # what scikit-learn read before there were tags
    _given: dict[str, Any]  # every parameter as it was given
    _made_of: dict[str, Any]  # those that the settings were made of
    _copied: dict[str, Any]  # dictionaries and lists as they were when they were given

    def _note(self, preprocessing: Preprocessing | None) -> None:
        self._remember(_parameters_of(self.settings, self._around, preprocessing))

    def _remember(self, values: Mapping[str, Any]) -> None:
        """Keep the parameters as given."""
        self._given = {name: values[name] for name in self._defaults() if name in values}
        self._made_of = dict(self._given)
        self._copied = {name: plain_copy(self._given[name]) for name in CHANGEABLE if name in self._given}

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Every parameter of the constructor, and its default."""
        known = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return {each.name: each.default for each in known if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}

    # Parameters -------------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Every parameter of the constructor as it was given, or its default. `deep` changes nothing here.

        A class made of this one keeps parameters of its own as attributes, as scikit-learn's do.
        """
        return {
            name: self._given[name] if name in self._given else getattr(self, name, default)
            for name, default in self._defaults().items()
        }

    def set_params(self, **params: Any) -> Self:  # noqa: ANN401 - whatever the constructor takes
        """Change parameters; all are checked before any is changed.

        A learner that has learned something keeps its settings until `fit` starts anew, and refuses `partial_fit` until
        then. `verbose` and `callbacks` apply at once.
        """
        known = self.get_params()
        for name in params:
            if name not in known:
                raise UserError(f"{type(self).__name__} has no parameter '{name}'; {suggestion(name, known)}")
        changed = {**known, **params}
        made = type(self)(**{**known, **self._copied, **params})
        if self.phases_ or self._phase is not None or self._pending is not None or self._turns.taken:
            self._copied = made._copied
        else:
            self._become(made)
            self._made_of = {name: changed[name] for name in self._given}
        self._given = {name: changed[name] for name in self._given}
        return self

    def _refuse_changed(self) -> None:
        """Refuse to learn further with parameters that the learner was not made with."""
        changed = [
            name
            for name, value in self._given.items()
            if name not in WATCHING and not _is_same(value, self._made_of[name])
        ]
        if changed:
            raise UserError(
                f"{', '.join(changed)} changed since this learner began to learn; call fit, which starts anew, or set "
                f"{'it' if len(changed) == 1 else 'them'} back"
            )

    def __repr__(self) -> str:
        defaults = self._defaults()
        given = [
            f"{name}={f'{type(value).__name__}(…)' if isinstance(value, nn.Module) else shown(value, 60)}"
            for name, value in self.get_params().items()
            if not _is_same(value, defaults[name])
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    # Learning ---------------------------------------------------------------------------------------------------

    @with_names_of_sklearn
    def fit(self, images: Images, labels: Labels | None = None, *, next_images: int | None = None) -> Self:
        """Forget everything and learn these images as the first phase. The learner is unchanged if this fails."""
        with self._turns.change():
            given = self._given
            fresh = type(self)(**{**self.get_params(deep=False), **self._copied})
            fresh.partial_fit(images, labels, next_images=next_images)
            with self._turns.look():
                self._become(fresh)
                self._given, self._made_of = given, dict(given)
        return self

    def _become(self, other: Self) -> None:
        """Take over everything of another learner; those that wait for this one still do."""
        vars(self).update({name: value for name, value in vars(other).items() if name != "_turns"})

    @abstractmethod
    def partial_fit(
        self, images: Images, labels: Labels | None = None, *, known: str = "refuse", next_images: int | None = None
    ) -> Self:
        """Learn one phase."""

    @property
    def _is_watched(self) -> bool:
        return bool(self._given.get("verbose"))

    def _learn(self, phase: Iterator[Event]) -> None:
        """Run a phase to its end, show it, tell the callbacks; an error of theirs stops it, and nothing is learned."""
        told = checked_callbacks(self._given.get("callbacks"))
        if self._is_watched:
            from poise import progress  # nobody who watches nothing has to wait for rich

            phase = progress.watch_phase(phase)
        made = self.settings, self._around  # before anything was chosen for these images
        knowledge, pending = self.knowledge, self._pending
        try:
            for event in phase:
                log.debug("%s", event)
                warn_of_short_phase(self, event)
                if not isinstance(event, PhaseDone):
                    knowledge = self.knowledge  # without what was discarded on arrival
                for callback in told:
                    callback(event)
        except BaseException:
            getattr(phase, "close", lambda: None)()
            self.knowledge, self._pending = knowledge, pending
            self.settings, self._around = made
            raise

    # Tags -------------------------------------------------------------------------------------------------------

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

    # Copies and pickles -----------------------------------------------------------------------------------------

    @undisturbed()
    def __getstate__(self) -> dict[str, Any]:
        """Everything, as it would be saved; a phase in its middle is resumed with the same images.

        Tensors are bytes: of those that live no longer than this state, torch hands over only the number of a file that
        is closed before a process that is started anew can open it.
        """
        tensors, meta = self.state().tensors(images=True)
        apart = {"settings", "knowledge", "_around", "_phase", "_pending", "_turns"}
        return {
            "tensors": _tensors_to_bytes(tensors),
            "meta": meta,
            "net": self._around.net,
            "rest": {name: value for name, value in vars(self).items() if name not in apart},
        }

    @undisturbed()
    def __setstate__(self, saved: Mapping[str, Any]) -> None:
        stored, rest = saved["tensors"], saved["rest"]  # an older poise stored the tensors themselves
        tensors = _tensors_from_bytes(stored) if isinstance(stored, bytes) else stored
        state = LearnerState.from_tensors(tensors, saved["meta"], net=saved["net"])
        device, executor = rest["_made_of"].get("device", "auto"), rest["_made_of"].get("executor")
        vars(self).update(vars(type(self).from_state(state, device=device, net=saved["net"], executor=executor)))
        vars(self).update(rest)


def _tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors of any kind as bytes that other processes can read."""
    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, buffer)
    return buffer.getvalue()


def _tensors_from_bytes(data: bytes) -> dict[str, Tensor]:
    """The tensors that `_tensors_to_bytes` was given, on the CPU."""
    loaded: dict[str, Tensor] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return loaded


def _parameters_of(settings: Settings, around: Surroundings, preprocessing: Preprocessing | None) -> dict[str, Any]:
    """The parameters with which a learner of these settings is made again.

    Phases that are paced by their images have no length of their own: it is left open again.
    """
    paced = {"epochs": None} if settings.images is not None else {}
    return {
        **plain_copy(dict(settings)),
        **paced,
        "net": settings.net if around.net is None else around.net,
        "device": str(around.backend.device),
        "augmentation": around.augmentation,
        "executor": around.executor,
        "preprocessing": preprocessing,
    }


def _is_same(one: object, other: object) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and not isinstance(one, nn.Module) and bool(one == other)
