"""What can be read off a learner: its parts and what it knows, none of which is to be changed from outside."""

from __future__ import annotations

from torch import Tensor

from poise.actions import Action, ActionSpace
from poise.data import Memory, Preprocessing
from poise.errors import UserError
from poise.learner.phase import Surroundings
from poise.learner.settings import Settings
from poise.learner.state import Knowledge, Label, Shape, architecture
from poise.nets import Model
from poise.training import Backend, Evaluator


class Views:
    """The parts of a learner, by the names that its users know."""

    settings: Settings
    knowledge: Knowledge
    _around: Surroundings

    @property
    def classes_(self) -> tuple[Label, ...]:
        """The labels seen so far, in the order in which they arrived."""
        return self.knowledge.classes

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
        return self.knowledge.phases

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
    def model(self) -> Model | None:
        """The model that predicts."""
        return self.knowledge.predictor

    @property
    def memory(self) -> Memory | None:
        """The kept images."""
        return self.knowledge.memory

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How images are prepared, once that is known."""
        return self.knowledge.preprocessing

    @property
    def backend(self) -> Backend:
        """The device and the numbers in which the work is done."""
        return self._around.backend

    @property
    def space(self) -> ActionSpace:
        """The actions that the policy chooses from."""
        return self.settings.action_space

    @property
    def architecture(self) -> str:
        """Backbone, its variant and the head, as in `resnet32/lucir+cosine`."""
        return architecture(self.settings, self.shape_, own_net=self._around.net is not None)

    @property
    def evaluator(self) -> Evaluator:
        """How models are looked at, once images are known."""
        if self.preprocessing is None:
            raise UserError("this learner has learned nothing yet; call partial_fit first")
        return Evaluator(self.preprocessing, self.backend)
