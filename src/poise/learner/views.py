"""What can be read off a learner: its parts and what it knows, none of which is to be changed from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NoReturn, TypeVar

from torch import Tensor

from poise.actions import Action
from poise.data import Memory, Preprocessing
from poise.errors import not_learned
from poise.learner.arrival import Images, Labels, receive
from poise.learner.labels import ClassLabels
from poise.learner.networks import Shape, architecture
from poise.learner.phase import Phase, Surroundings
from poise.learner.settings import Settings
from poise.learner.state import Knowledge
from poise.learner.turns import Turns
from poise.nets import Model, NetInfo, named_info, net_info
from poise.spaces import ActionSpace
from poise.training import Backend, Evaluator
from poise.tuning import Reward

T = TypeVar("T")


class Known(Generic[T]):
    """A part of what a learner knows, by the name that its users read it with; `meaning` is what `help` shows."""

    def __init__(self, name: str, meaning: str) -> None:
        self._name, self.__doc__ = name, meaning

    def __get__(self, views: Views, owner: type[Any]) -> T:
        if views is None:  # asked of the class: by help(), or by a tool that looks at it
            return self
        value: T = getattr(views.knowledge, self._name)
        return value

    def __set__(self, views: Views, value: object) -> NoReturn:
        raise AttributeError(f"what a learner knows is not changed from outside ({self._name})")


class Views:
    """The parts of a learner, by the names that its users know."""

    settings: Settings
    knowledge: Knowledge
    _around: Surroundings
    _phase: Phase | None
    _turns: Turns

    classes_ = Known[ClassLabels]("labels", "The labels seen so far, in the order in which they arrived.")
    classifier_ = Known[str]("classifier", "Which classifier predicts at present: `fc` or `ncm`.")
    action_ = Known[Action]("action", "The action that the last phase was trained with.")
    phases_ = Known[int]("phases", "How many phases were learned.")
    means_ = Known[Tensor | None](
        "means", "The unit mean feature of each class, rows as in `classes_`: what NCM compares with."
    )
    held_ = Known[int]("held", "The most images that were held at any moment of the last phase, memory and new images.")
    budget_ = Known[int]("budget", "The number of images that were allowed to be held in the last phase.")
    shape_ = Known[Shape | None]("shape", "Channels, height and width of the images.")
    reject_thresholds_ = Known[Mapping[str, float]](
        "reject", "For each classifier, the score below which an image is rejected; empty until `calibrate_reject`."
    )
    model = Known[Model | None]("predictor", "The model that predicts.")
    memory = Known[Memory | None]("memory", "The kept images.")
    preprocessing = Known[Preprocessing | None]("preprocessing", "How images are prepared, once that is known.")

    @property
    def backend(self) -> Backend:
        """The device and the numbers in which the work is done."""
        return self._around.backend

    @property
    def evaluator(self) -> Evaluator:
        """How models are looked at, once images are known."""
        return self._evaluator(self.knowledge)

    def _evaluator(self, known: Knowledge) -> Evaluator:
        if known.preprocessing is None:
            raise not_learned()
        return Evaluator(known.preprocessing, self.backend.alone)

    @property
    def space(self) -> ActionSpace:
        """The actions that the policy chooses from."""
        return self.settings.action_space

    @property
    def architecture(self) -> str:
        """Backbone, its variant and the head, as in `resnet32/lucir+cosine`."""
        described = self.model.architecture if self.model is not None else None
        return described or architecture(self.settings, self.shape_, own_net=self._around.net is not None)

    @property
    def net_info(self) -> NetInfo | None:
        """What is known of a network that was not made here, such as what it was pretrained on."""
        if self.model is not None:
            return net_info(self.model.backbone)
        own = self._around.net
        return net_info(own) if own is not None else named_info(self.settings.net, self.settings.seed)

    def resolved_policy(self) -> dict[str, Any]:
        """What decides the actions, for the record: its name, its options, its space, and how actions are tried."""
        return self.settings.resolved_policy()

    @property
    def phase_under_way(self) -> Phase | None:
        """The phase that is being learned at this moment."""
        return self._phase

    def phase_of(self, images: Images, labels: Labels, reward: Reward | None = None) -> Phase:
        """The phase that these images would start, for studies; the learner stays as it is."""
        with self.backend.active():
            arrival = receive(images, labels, self.settings, self.knowledge)
            return Phase(self.settings, self.knowledge, arrival, self._around, reward)
