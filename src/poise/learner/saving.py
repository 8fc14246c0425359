"""A learner as one file or one value, and back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

from torch import nn

from poise import locks, store
from poise.data import Preprocessing
from poise.errors import not_learned, reading
from poise.files import expand_user, explaining_refusals
from poise.learner.phase import Surroundings, with_jitter
from poise.learner.settings import Settings
from poise.learner.state import Knowledge, LearnerState, Pending
from poise.learner.turns import Turns
from poise.learner.views import Views
from poise.nets import adapted_again, net_info
from poise.training import Executor, undisturbed
from poise.words import counted

log = logging.getLogger(__name__)


class Saving(Views):
    """What writes a learner and reads it back."""

    _pending: Pending | None

    @classmethod
    def from_settings(
        cls, settings: Settings, around: Surroundings, preprocessing: Preprocessing | None = None
    ) -> Self:
        """A learner with settings that are resolved already, which has learned nothing."""
        learner = cls.__new__(cls)
        learner._make(settings, around, preprocessing)
        return learner

    def _make(
        self,
        settings: Settings,
        around: Surroundings,
        preprocessing: Preprocessing | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        if knowledge is None:  # of one that has learned nothing
            method = settings.made_method
            prepared = with_jitter(method, preprocessing) if preprocessing is not None else None
            knowledge = Knowledge(action=method.default_action, preprocessing=prepared)
        if (line := settings.doubts()) is not None:
            log.warning("%s", line)
        self.settings, self._around, self.knowledge = settings, around, knowledge
        self._phase = None  # the one under way
        self._pending = None  # one that was saved in its middle
        self._turns = Turns()
        self._note(preprocessing)

    def _note(self, preprocessing: Preprocessing | None) -> None:
        """What else is to be known of a learner that was made, by those that have something to note."""

    @undisturbed()
    def save(self, path: str | Path, *, memory: bool = True) -> None:
        """Write the learner to one file.

        The file contains the training images kept in memory. With `memory=False` it does not; such a learner
        predicts but cannot learn further. A file that is written in the middle of a phase, the first one too, is
        loaded and given the same images to go on from there; of `fitting`, once its event `PhaseStarted` came. If
        `poise learn` is working on this file, that is logged: it will find the file changed, leave it so, and write
        what it learned beside it.
        """
        file = expand_user(path)
        begun = self._turns.taken  # looked at first: the phase may end before the state is taken
        with explaining_refusals("save it again"):
            save_state(self.state(), file, memory=memory, begun=begun)
        owner = locks.owner_of(locks.lock_beside(file))
        if owner is not None:
            log.warning("%s is learning into %s: it will leave this file as it is, and save beside it", owner, file)

    @classmethod
    @undisturbed()
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
        file = expand_user(path)
        state = LearnerState.read(file, net=net)
        with reading(file):
            return cls.from_state(state, device=device, net=net, executor=executor)

    def state(self) -> LearnerState:
        """The learner as a value from which `from_state` makes the same one, in the middle of a phase too."""
        with self._turns.look():
            with self.backend.active():
                pending = self._phase.pending() if self._phase is not None else self._pending
            self.backend.synchronise()
            own, net = self._around.net is not None, self._around.net
            if self.model is not None:
                net = self.model.backbone
            elif self._phase is not None:
                net = self._phase.network
            info = net_info(net)
            return LearnerState(self.settings, self.knowledge, self._around.augmentation, own, pending, info)

    @classmethod
    @undisturbed()
    def from_state(
        cls,
        state: LearnerState,
        *,
        device: str = "auto",
        net: nn.Module | None = None,
        executor: Executor | None = None,
    ) -> Self:
        """The learner that `state` described; `net` is the user's own, if it has one."""
        net = adapted_again(net, state.info, state.settings.net) if net is not None else None
        around = Surroundings.of(state.settings, device, net=net, augmentation=state.augmentation, executor=executor)
        with around.backend.active():
            knowledge = state.knowledge.placed(around.backend.device)
        learner = cls.__new__(cls)
        learner._make(state.settings, around, knowledge=knowledge)
        learner._pending = state.pending
        if state.settings.unregistered is None:
            pending = state.pending.history if state.pending is not None else ()
            state.settings.tuner.refuse_foreign((*state.knowledge.history, *pending))
        return learner


def save_state(
    state: LearnerState,
    path: Path,
    *,
    memory: bool,
    begun: bool = False,
    like: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write a learner to a file; one without its memory predicts and no more.

    Before it has learned anything there is something to save only where a first phase has `begun`. `check` may refuse
    it in the last moment. A new file has the permissions of the one at `like`, if there is one.
    """
    if state.knowledge.predictor is None:
        if not begun and state.pending is None:
            raise not_learned("this learner has learned nothing yet; there is nothing to save")
        if not memory:
            raise not_learned("this learner is in its first phase and cannot predict yet; leave memory=False out")
    store.refuse_bad_place(path)
    tensors, meta = (state if memory else state.predict_only()).tensors(images=True)
    count = len(state.knowledge.memory or ()) if memory else 0
    told = {**meta, "contains_training_images": count > 0}
    store.write_tensors(path, tensors, told, kind="learner", like=like, check=check)
    if count:  # said of a file that is there
        held = counted(count, "training image")
        log.warning("%s contains %s; in Python, save(memory=False) leaves them out", path, held)
