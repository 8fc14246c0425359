"""The learner: one phase per `partial_fit`, then `predict`. It never sees a test image nor a later phase."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poise import draws, store
from poise._version import __version__
from poise.actions import Action, AxisValue, make_space, tuned_space
from poise.data import Augmentation, Budget, ImageSet, Memory, Preprocessing, draw_reserve, to_pixels
from poise.data.sources import LEAST_SIZE, suitable_augmentation, suitable_net
from poise.errors import Damaged, Diverged, UserError, check_number, check_whole
from poise.methods import Growth, Method, make_method
from poise.nets import Model, build_backbone, build_head, check_backbone, feature_width
from poise.policies import NOT_THE_POLICYS, RULES, Policy, Setup, Trial, decision_entry, replay
from poise.policies.reinforce import state_of
from poise.training import (
    ActionDecided,
    Event,
    PhaseDone,
    PhaseStart,
    PhaseStarted,
    Schedule,
    Trainer,
    TrialDone,
    TuningDone,
    both_classifiers,
    class_means,
    extract,
    give_back,
    guesses,
    make_backend,
)
from poise.tuning import (
    TUNERS,
    TrialResult,
    Trials,
    TrialSettings,
    Witness,
    decider_options,
    make_decider,
    own_space,
    trial_settings,
    tuner_options,
)
from poise.tuning.bilevel import HyperStep, tuned
from poise.tuning.offline import Episode, OfflineOptions, episodes, learned

log = logging.getLogger(__name__)

Label = int | str
Labels = Sequence[Label] | NDArray[Any] | Tensor
Shape = tuple[int, int, int]  # channels, height, width
Images = NDArray[np.uint8] | Tensor | Sequence[str | Path]

NCM_TEMPERATURE = 0.1  # of the cosines to class means in `predict_proba`


@dataclass(frozen=True)
class Settings:
    """What a learner was made with: plain values, saved with it."""

    method: str = "lucir"
    options: Mapping[str, float | str] = field(default_factory=dict)
    net: str | None = None
    action: Mapping[str, AxisValue] = field(default_factory=dict)
    first_lr: float | None = None
    policy: str = "online"
    policy_options: Mapping[str, bool | float | str] = field(default_factory=dict)
    space: str | Mapping[str, Sequence[AxisValue]] = "paper"
    tune: Sequence[str] | None = None
    trials: TrialSettings = field(default_factory=TrialSettings)
    memory: Budget = field(default_factory=Budget)
    schedule: Schedule = field(default_factory=Schedule)
    image_size: int | None = None
    precision: str = "auto"
    deterministic: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, 0)
        if self.image_size is not None:
            check_whole("image_size", self.image_size, LEAST_SIZE)
        if self.first_lr is not None:
            check_number("first_lr", self.first_lr, positive=True)
        for name in ("options", "action", "policy_options"):
            if not isinstance(getattr(self, name), Mapping):
                raise UserError(f"{name}={getattr(self, name)!r} must be a mapping, such as {{'lr': 0.05}}")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The settings that `asdict` turned into plain values."""
        memory, schedule = Budget(**values["memory"]), Schedule(**values["schedule"])
        trials = TrialSettings(**values.get("trials", {}))
        return cls(**{**values, "memory": memory, "schedule": schedule, "trials": trials})


@dataclass(frozen=True)
class _Arrival:
    """New images, checked: labels are head rows, classes all classes after this phase."""

    phase: int
    images: ImageSet  # all that arrived; once the phase begins, those that are stored
    count: int  # of all that arrived
    classes: tuple[Label, ...]
    growth: Growth
    digest: str
    next_images: int | None = None  # how many come next, for a memory that is to know it
    action: Action | None = None  # if the caller decided it


@dataclass
class _Job:
    """A phase under way; `announced` counts the events around policy learning that were yielded."""

    arrival: _Arrival
    start: PhaseStart
    kept: Memory  # as it was before this phase, cut to what may be held in it
    new: ImageSet  # what may be trained on and herded from
    reserve: ImageSet
    unstored: ImageSet  # what RMM's released code herds and imprints from though it was discarded
    policy: Policy  # the learner's own changes only when the phase is done
    history: list[dict[str, Any]] = field(default_factory=list)  # trials of this phase, and its decision
    trainer: Trainer | None = None
    trials: Trials | None = None  # kept for a judgement beside the training
    announced: int = 0

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What is needed to go on with this phase."""
        begun = {"announced": self.announced, "history": list(self.history), "digest": self.arrival.digest}
        if self.trainer is None:
            return {}, {**begun, "action": None}
        tensors, position = self.trainer.state()
        return tensors, {**begun, **position, "action": dict(self.trainer.action)}


class Learner:
    """A class-incremental classifier in the style of scikit-learn.

    >>> learner = Learner(method="lucir", epochs=30)            # doctest: +SKIP
    >>> learner.partial_fit(images, labels)                     # doctest: +SKIP
    >>> learner.partial_fit(more_images, labels_of_new_classes) # doctest: +SKIP
    >>> learner.predict(some_images)                            # doctest: +SKIP

    Args:
        method: name of a method (`lucir`, `icarl`, `lwf`, `podnet`, `aanets`, or one registered by you).
        net: backbone name (`small`, `resnet32`, `resnet18`, chosen by image size if not given), or a module
            of one's own that maps float images [B, C, H, W] to features [B, d].
        memory: images kept per class, or a `Budget` (a fixed total, a reserve, RMM's rule).
        epochs: training length of each phase; the other schedule values belong to the method's line of work.
        action: axes of the method's default action to change, from the second phase on (`lr`, `classifier`, weights).
        first_lr: learning rate of the first phase; the method's own if not given.
        policy: what decides the action of each phase: `online` tries actions first, which takes longer; `fixed` trains
            with the method's own; others are in `poise.policies`.
        policy_options: options of the policy, and wrappers around it such as `{"safe": 1.0, "every": 2}`.
        space: the actions it chooses from: `paper`, `joint`, `wide`, `paper3`, `wide3`, `full`, `online`, or a grid of
            one's own; if not given, the one that the policy brings along.
        tune: only these kinds of axes: `kd`, `classifier` (an axis of the space, or apart from it), `lr`.
        trials: how actions are tried: the environment, how many images validate, how long a trial is; what is not given
            is as the policy brings it along.
        preprocessing: normalisation and augmentation; if not given, the normalisation is measured on the first
            phase's images and `augmentation` (default: pad an eighth of the size, mirror) is used.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: `auto`, `fp32`, `tf32` or `bf16`.
        deterministic: byte-identical results on a GPU too (a CPU always gives them).
        seed: of every random draw.

    Attributes:
        classes_: the labels seen so far, in the order in which they arrived.
        classifier_: which classifier predicts at present: `fc` or `ncm`.
        action_: the action that the last phase was trained with.
        phases_: how many phases were learned.
        held_: the most images that were held at any moment of the last phase, memory and new images.
        budget_: how many that may have been.
    """

    def __init__(
        self,
        method: str = "lucir",
        *,
        net: str | nn.Module | None = None,
        memory: int | Budget = 20,
        epochs: int = 160,
        batch: int = 128,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        action: Mapping[str, AxisValue] | None = None,
        first_lr: float | None = None,
        policy: str = "online",
        policy_options: Mapping[str, bool | float | str] | None = None,
        space: str | Mapping[str, Sequence[AxisValue]] | None = None,
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
    ) -> None:
        if not isinstance(net, str | nn.Module | None):
            raise UserError(
                f"net={net!r} is neither a name nor a module; a class of your own must be made first: net=Net()"
            )
        self.settings = Settings(
            method=method,
            options=options or {},
            net=net if isinstance(net, str) else None,
            action=action or {},
            first_lr=first_lr,
            policy=policy,
            policy_options=decider_options(policy, policy_options or {}),
            space=own_space(policy, space, tune),
            tune=tune,
            trials=trials if isinstance(trials, TrialSettings) else trial_settings(policy, trials or {}),
            memory=memory if isinstance(memory, Budget) else Budget(per_class=memory),
            schedule=Schedule(epochs, batch, momentum, weight_decay),
            image_size=image_size,
            precision=precision,
            deterministic=deterministic,
            seed=seed,
        )
        self.backend = make_backend(device, precision, deterministic)
        self._method: Method = make_method(method, options)
        self.space = tuned_space(
            self._method.default_action,
            self.settings.action,
            tuned=policy != "fixed",
            space=self.settings.space,
            tune=tune,
            choices=self._method.choices,
            epochs=epochs,
            allocation=self.settings.memory.default_allocation,
        )
        self._action = self.space.actions[self.space.default]
        self._history: list[dict[str, Any]] = []
        self.policy = self._replayed()
        self._own_net = net if isinstance(net, nn.Module) else None
        if isinstance(net, str):
            check_backbone(net, self._method.variant)
        self._augmentation = augmentation
        self.preprocessing = self._with_jitter(preprocessing) if preprocessing is not None else None
        self.classes_: tuple[Label, ...] = ()
        self.classifier_ = "fc"
        self.action_ = self._method.default_action
        self.phases_ = self.held_ = self.budget_ = 0
        self._rho = 0.0  # the allocation that the memory was stored with
        self.shape_: Shape | None = None
        self.model: Model | None = None
        self.memory: Memory | None = None
        self._means: Tensor | None = None
        self._judged = {"fc": 0, "ncm": 0}  # hits on images that the judged models had not been trained on
        self._judges_beside = self.backend.device.type == "cuda"  # the training, not before it; the same numbers
        self._job: _Job | None = None
        self._pending: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    # Learning ---------------------------------------------------------------------------------------------------

    def partial_fit(
        self, images: Images, labels: Labels, *, known: str = "refuse", next_images: int | None = None
    ) -> Self:
        """Learn one phase: new classes with their images. The learner is unchanged if this fails.

        New images of a class that is known already are refused, unless `known="update"`: then they are trained
        on, and that class's memory is chosen anew from its old exemplars and the new images.

        With RMM's memory, exemplars that were discarded to make room stay discarded, whatever follows. `next_images`,
        how many images the next phase brings, is for the rule of its released code (`knows_increment`) and no other.
        """
        for event in self.fitting(images, labels, known=known, next_images=next_images):
            log.debug("%s", event)
        return self

    def fitting(
        self,
        images: Images,
        labels: Labels,
        *,
        known: str = "refuse",
        origins: Tensor | None = None,
        action: Mapping[str, AxisValue] | None = None,
        next_images: int | None = None,
    ) -> Iterator[Event]:
        """The same phase as a generator of events; `state()` may be called between any two of them.

        `origins` says where each image came from in the caller's own data, so that a run folder can store the
        memory as indices. With an `action` nothing is tuned: the phase is trained with it (where its classifier is
        `auto`, that is still judged). The input is checked at once, before the first event is asked for.
        """
        arrival = replace(self._arrival(images, labels, known, origins), next_images=self._foreseen(next_images))
        if action is not None:
            given = self._action.replace(**action)
            make_space({}, given, choices=self._method.choices)  # refuses words that mean nothing to the method
            arrival = replace(arrival, action=given)
        if self._pending is not None and self._pending[1]["digest"] != arrival.digest:
            raise UserError("this learner was saved in the middle of a phase with other images; give it the same ones")
        return self.backend.guarded(self._fit(arrival))

    def trials(
        self, images: Images, labels: Labels, *, known: str = "refuse", witness: Witness | None = None
    ) -> Trials:
        """The trials of the phase that these images would start, for studies; the learner stays as it is.

        A `witness` sees the temporary models; what it says is recorded beside the rewards and never becomes one.
        """
        if self.phases_ == 0:
            raise UserError("nothing is tried in the first phase; learn it first")
        with self.backend.active():
            return self._trials(self._begin(self._arrival(images, labels, known, None)), witness)

    def _fit(self, arrival: _Arrival) -> Generator[Event, None, None]:
        self._refuse_if_overtaken(arrival)
        self._job = job = self._begin(arrival)
        arrival = job.arrival  # without the images that were discarded
        if self.memory is not None:
            self.memory = job.kept
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                self._take_up(job, *pending)
            if job.announced == 0:
                job.announced = 1
                new, classes, images = arrival.growth.new, len(arrival.classes), len(arrival.images)
                yield PhaseStarted(self.phases_, new, classes, images, len(job.kept))
            if job.trainer is None:
                action = yield from self._decided(job)
                job.trainer = self._main_trainer(job, action)
            if job.announced == 1:
                job.announced = 2
                yield self._announcement(job, job.trainer.action)
            yield from self._trained(job, job.trainer)
            self._refuse_if_overtaken(arrival)
            self._finish(job, job.trainer)
        except BaseException:
            if self._job is job:
                self._pending = pending
            raise
        finally:
            if self._job is job:
                self._job = None
        yield PhaseDone(self.phases_ - 1, self.classifier_, len(self.memory or ()))

    def _take_up(self, job: _Job, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Go on with a phase where it was when the learner was saved."""
        job.announced, job.history = meta["announced"], list(meta.get("history", []))
        replay(job.policy, job.history)
        if meta["action"] is not None:
            job.trainer = self._main_trainer(job, Action(**meta["action"]))
            job.trainer.restore(tensors, meta)

    def _announcement(self, job: _Job, action: Action) -> ActionDecided:
        if self.phases_ == 0:
            return ActionDecided(0, "none", dict(action))
        if job.arrival.action is not None:
            return ActionDecided(self.phases_, "given", dict(action))
        chances = job.policy.distribution()
        return ActionDecided(
            self.phases_,
            self.settings.policy,
            dict(action),
            chances.tolist() if chances is not None else None,
            reward=_decided_rewards(job.history).get(self.phases_),
            past_reward=sum(_decided_rewards(self._history).values()),
        )

    def _refuse_if_overtaken(self, arrival: _Arrival) -> None:
        if arrival.phase != self.phases_:
            raise UserError("this learner learned another phase in the meantime; call fitting again for this one")

    @property
    def first_classifier(self) -> str:
        """The classifier that counts after the first phase."""
        return "fc" if self._action.classifier == "auto" else self._action.classifier

    def _decided(self, job: _Job) -> Generator[Event, None, Action]:
        """The action of this phase: Algorithm 1's policy learning, then its decision.

        The first phase is plain classification, in which nothing is tuned. Where nothing can be held out to validate
        on, the default stays.
        """
        if self.phases_ == 0:
            own = self._method.default_action
            action = own.replace(
                lr=own.lr if self.settings.first_lr is None else self.settings.first_lr,
                classifier=self._action.classifier,
            )
            action = job.arrival.action or action
            yield from self._offline(job, action)
            return action
        trials = self._trials(job)
        given = job.arrival.action
        if given is not None:
            action = given
        elif self.settings.policy in TUNERS:
            action = yield from self._tuned(job, trials)
        else:
            action = yield from self._learned(job, trials)
        if self._is_judged_by_trials(job, action) and trials.possible:
            yield from self._judge_classifiers(job, trials, action)
            if self._is_unjudged(job, action):
                trials.rest()
                job.trials = trials
        return action

    def _trained(self, job: _Job, trainer: Trainer) -> Generator[Event, None, None]:
        """The training itself, and beside it the judgement of classifiers where that is left to do."""
        judging = self._judging(job, trainer)
        for event in trainer.run():
            yield event
            if (told := next(judging, None)) is not None:
                yield told
        yield from (told for told in judging if told is not None)

    def _judging(self, job: _Job, trainer: Trainer) -> Generator[TrialDone | None, None, None]:
        """A judgement by a training of full length, told at the end, with pauses in which the phase is trained."""
        action = trainer.action
        if not self._is_unjudged(job, action):
            return
        trials = job.trials or self._trials(job)
        if not trials.possible:
            return
        asked = self._judging_trial(job), action, "fc", job.policy.setup.short
        result, going = None, trials.beside(*asked)
        try:
            while result is None:
                try:
                    next(going)
                except StopIteration as end:
                    result = end.value
                else:
                    yield None
        except torch.cuda.OutOfMemoryError:
            log.warning("out of memory beside the training of phase %d: classifiers are judged after it", self.phases_)
        if result is None:
            del trials, going  # with what was captured
            job.trials = None
            give_back()
            while trainer.stage < len(trainer.stages):
                yield None
            result = self._trials(job).run(*asked)
        job.trials = None
        yield self._judgement(job, result.totals(), asked[0], action, "fc", result)

    def _is_judged_by_trials(self, job: _Job, action: Action) -> bool:
        """Whether `auto` has no reserve to be decided by."""
        return self.phases_ > 0 and action.classifier == "auto" and not len(job.reserve) and not len(job.kept.reserve)

    def _is_unjudged(self, job: _Job, action: Action) -> bool:
        """Whether a judgement by a training of full length is still to be done."""
        done = self.settings.trials.classifier != "full" or any("judged" in entry for entry in job.history)
        return not done and self._is_judged_by_trials(job, action)

    @staticmethod
    def _judging_trial(job: _Job) -> Trial:
        """Of full length; no arm of the policy's, nor continuing one."""
        return Trial(0, -1, job.policy.setup.full, full=True)

    def _trials(self, job: _Job, witness: Witness | None = None) -> Trials:
        images, classes = (job.kept, job.new, job.reserve), job.arrival.classes
        settings, rho = self.settings.trials, self.settings.memory.rho(self.phases_)
        return Trials(job.start, *images, self._quota(job), settings, rho=rho, classes=classes, witness=witness)

    def _quota(self, job: _Job) -> int:
        """How many images of each class may be kept to train on after this phase, by the plain rule."""
        return self.settings.memory.quota(len(job.arrival.classes)) - self.settings.memory.reserve

    def _learned(self, job: _Job, trials: Trials) -> Generator[Event, None, Action]:
        """Ask, try, tell; then decide."""
        if _is_decided(job.history):
            return self.space.actions[job.policy.decide()]
        if job.policy.phase != self.phases_:  # else it was replayed into the middle of this phase
            job.policy.begin(self.phases_)
        while asked := job.policy.ask():
            if not trials.possible:
                log.warning("phase %d has nothing to validate on; its action is not tuned", self.phases_)
                job.policy = self._replayed()
                return self._action
            chances = job.policy.distribution()
            actions = [self.space.actions[trial.arm] for trial in asked]
            wanted = [(trial, action, self.counted(action)) for trial, action in zip(asked, actions, strict=True)]
            results = trials.run_all(wanted, job.policy.setup.short)
            for (trial, action, counts), result in zip(wanted, results, strict=True):
                self._refuse_if_overtaken(job.arrival)
                job.policy.tell([result.outcome])
                entry = result.outcome.as_json(self.phases_)
                job.history.append({**entry, "totals": result.totals()} if trial.full else entry)
                yield self._tried(asdict(trial), action, counts, result, chances)
        arm = job.policy.decide()
        job.history.append(decision_entry(self.phases_, arm))
        return self.space.actions[arm]

    def _offline(self, job: _Job, first: Action) -> Generator[Event, None, None]:
        """What `offline-rl` learns before anything else: episodes on pseudo tasks made of the first phase."""
        if self.settings.policy != "offline-rl":
            return
        options = tuner_options("offline-rl", self.settings.policy_options)
        assert isinstance(options, OfflineOptions)
        done, rho = _episodes(job.history), self.settings.memory.rho(1)
        for episode in episodes(job.start, job.new, self._quota(job), self.space, options, done, first, rho):
            job.history.append({"phase": 0, "episode": episode.as_json()})
            yield TuningDone(0, "offline-rl", episode.as_json())

    def _tuned(self, job: _Job, trials: Trials) -> Generator[Event, None, Action]:
        """The action of a tuner that is no policy over trials."""
        for entry in job.history:
            if "tuned" in entry:
                return Action(**entry["tuned"])
        options = tuner_options(self.settings.policy, self.settings.policy_options)
        action, environment = self._action, trials.local()
        if isinstance(options, OfflineOptions):
            state, played = state_of(*job.arrival.growth, len(job.kept.exemplars)), _episodes(self._history)
            if len(played) < options.episodes:
                raise UserError("this learner's first phase was learned without offline-rl; start from the first phase")
            action = self.space.actions[learned(self.space, options, played).decide(state)]
        elif environment is None:
            log.warning("phase %d has nothing to validate on; its action is not tuned", self.phases_)
        else:
            images = environment.kept, environment.new, environment.valid
            done = [HyperStep.from_json(entry["hyper"]) for entry in job.history if "hyper" in entry]
            action = done[-1].action if done else action
            for step in tuned(job.start, *images, self._action, options, done):
                action = step.action
                job.history.append({"phase": self.phases_, "hyper": step.as_json()})
                yield TuningDone(self.phases_, "bilevel", step.as_json())
        job.history.append({"phase": self.phases_, "tuned": dict(action)})
        return action

    def _tried(
        self,
        trial: dict[str, Any],
        action: Action,
        counts: str,
        result: TrialResult,
        chances: NDArray[np.float64] | None = None,
    ) -> TrialDone:
        outcome = result.outcome
        shown = chances.tolist() if chances is not None else None
        return TrialDone(
            self.phases_, trial, dict(action), counts, outcome.reward, outcome.diverged, result.as_json(), shown
        )

    def _judge_classifiers(self, job: _Job, trials: Trials, action: Action) -> Generator[Event, None, None]:
        """Count hits of both classifiers without a reserve, as `trials.classifier` says.

        `full`: a model trained with the decided action at full length on a local training part, perhaps a finalist of
        the policy; on a GPU it is trained later, beside the phase's own training. `paper`: in the first tuned phase
        only, a short training that suits FC and one that suits NCM.
        """
        settings, judged = job.policy.setup, sum("judged" in entry for entry in job.history)
        if self.settings.trials.classifier == "paper":
            first = not any(self._judged.values())
            candidates = list(_paper_candidates(action).items())[judged:] if first else []
            for number, (name, one) in enumerate(candidates, start=judged):
                trial = Trial(number, -1 - number, settings.short)  # no arm of the policy's, nor continuing one
                result = trials.run(trial, one, name, settings.short)
                yield self._judgement(job, {name: result.totals()[name]}, trial, one, name, result)
        elif not judged and (totals := _finalist_totals(job.history)) is not None:
            job.history.append({"phase": self.phases_, "judged": totals})
        elif not judged and not self._judges_beside:
            trial = self._judging_trial(job)
            result = trials.run(trial, action, "fc", settings.short)
            yield self._judgement(job, result.totals(), trial, action, "fc", result)

    def _judgement(
        self, job: _Job, hits: dict[str, int], trial: Trial, action: Action, counts: str, result: TrialResult
    ) -> TrialDone:
        """Write a judgement of classifiers down, then tell it."""
        job.history.append({"phase": self.phases_, "judged": {**dict.fromkeys(self._judged, 0), **hits}})
        return self._tried({**asdict(trial), "purpose": "classifier"}, action, counts, result)

    def resolved_policy(self) -> dict[str, Any]:
        """What decides the actions, for the record: its name, its options, its space, and how actions are tried."""
        if self.settings.policy == "fixed":
            return self.policy.resolved()
        found = self.policy.description if self.settings.policy in TUNERS else self.policy.resolved()
        return {**found, "space": self.space.as_json(), "trials": asdict(self.settings.trials)}

    def counted(self, action: Action) -> str:
        """The classifier whose hits are the reward: the action's; where it is `auto`, the one in force."""
        if action.classifier != "auto":
            return action.classifier
        own = self._method.default_action.classifier
        return self.classifier_ if self.phases_ > 1 or own == "auto" else own

    def _replayed(self) -> Policy:
        """A policy that knows what this learner has learned from its phases, and no more."""
        settings = self.settings
        short = settings.trials.short(settings.schedule.epochs)
        setup = Setup(self.space, short, settings.schedule.epochs, settings.seed)
        return replay(make_decider(settings.policy, setup, settings.policy_options), self._history)

    def _remember(self, meta: Mapping[str, Any]) -> None:
        """Take over what a saved learner had learned from its trials.

        The policies of an older poise may have asked for others: what they learned is then forgotten, the model is not.
        """
        self._history, older = list(meta.get("history", [])), meta.get("rules") != RULES
        begun = (meta["pending"] or {}).get("history", [])
        try:
            self.policy = self._replayed()
            if older and begun:
                replay(self._replayed(), begun)
        except Damaged as error:
            if not older:
                raise
            if begun:
                raise UserError(
                    "this was saved in the middle of a phase by an older poise, whose policy asked for other trials; "
                    "finish the phase with that version, or start again"
                ) from error
            log.warning(
                "saved by an older poise: policy=%s starts anew, what it learned from its trials is left out",
                self.settings.policy,
            )
            self._history = [entry for entry in self._history if NOT_THE_POLICYS & entry.keys()]
            self.policy = self._replayed()

    def _begin(self, arrival: _Arrival) -> _Job:
        """What the phase starts from, with what may be stored of memory and images; the learner stays as it is."""
        kept = self.memory or Memory.empty(arrival.images.shape)
        stored = self.settings.memory.arriving(
            kept,
            arrival.images,
            self.phases_,
            arrival.growth.old,
            self._rho,
            draws.generator(self.settings.seed, "arrival", self.phases_),
        )
        arrival = replace(arrival, images=stored.new)
        new, reserve = self._hold_out(arrival)
        start = PhaseStart(
            model=self.model if self.model is not None else self.blank_model(arrival.images.shape),
            method=self._method,
            growth=arrival.growth,
            preprocessing=self.preprocessing or self._first_preprocessing(new),
            schedule=self.settings.schedule,
            backend=self.backend,
            seed=self.settings.seed,
            phase=self.phases_,
        )
        return _Job(arrival, start, stored.memory, new, reserve, stored.unstored, self._replayed())

    def _main_trainer(self, job: _Job, action: Action) -> Trainer:
        start = job.start
        model = start.grown(ImageSet.joined([job.new, job.unstored]))
        return start.trainer(model, start.teacher(), action, start.feed(job.kept.exemplars, job.new))

    def _finish(self, job: _Job, trainer: Trainer) -> None:
        """Choose what to keep and which classifier counts. Only now does the learner change."""
        model, preprocessing, backend = trainer.model.eval(), trainer.preprocessing, self.backend
        classes, budget = len(job.arrival.classes), self.settings.memory
        arrived = set(job.new.labels.tolist())
        candidates = ImageSet.joined([job.kept.exemplars.of_labels(arrived), job.new, job.unstored])
        features = extract(model, candidates.pixels, preprocessing, backend).features
        if not bool(torch.isfinite(features).all()):
            raise Diverged(f"the features of phase {self.phases_} are not finite; lower the learning rate")
        allocation = trainer.action.allocation if self.phases_ else None  # at first no increment is known
        rho = budget.rho(self.phases_) if allocation is None else allocation
        quota = budget.after(classes, job.arrival.count, rho, job.arrival.next_images)
        memory = job.kept.updated(candidates, features, job.reserve, quota, budget.reserve)
        means = class_means(model, memory.exemplars, classes, preprocessing, backend)
        hits = {name: count + _judged_hits(job.history)[name] for name, count in self._judged.items()}
        if len(memory.reserve):
            truth = memory.reserve.labels.to(backend.device)
            for name, rows in guesses(model, means, memory.reserve.pixels, preprocessing, backend).items():
                hits[name] += int((rows == truth).sum())
        self.classifier_ = self._choose_classifier(trainer.action, hits)
        self.model, self.memory, self._means, self._judged = model, memory, means, hits
        self.preprocessing, self.shape_ = preprocessing, job.arrival.images.shape
        self.classes_, self.action_ = job.arrival.classes, trainer.action
        self.phases_, self._history = self.phases_ + 1, [*self._history, *job.history]
        self.policy, self._rho = job.policy, rho
        self.held_ = len(job.kept) + len(job.arrival.images) + len(job.unstored)
        self.budget_ = budget.of_phase(job.arrival.growth.old, job.arrival.count)

    def _choose_classifier(self, action: Action, hits: Mapping[str, int]) -> str:
        """What `auto` becomes: FC in the first phase, then the one with more hits so far where it was judged.

        With as many hits, or none, the method's own classifier counts.
        """
        if action.classifier != "auto":
            return action.classifier
        if self.phases_ == 0:
            return self.first_classifier
        if hits["fc"] == hits["ncm"]:
            return self._method.default_action.classifier
        return max(hits, key=lambda name: hits[name])

    # Predicting -------------------------------------------------------------------------------------------------

    def predict(self, images: Images, *, classifier: str | None = None) -> NDArray[Any]:
        """The label of each image, by the classifier that counts or by the one named."""
        return self._labels(self.predict_proba(images, classifier=classifier).argmax(axis=1))

    def predict_proba(self, images: Images, *, classifier: str | None = None) -> NDArray[np.float32]:
        """A probability for each image and class, columns as in `classes_`.

        `fc`: the softmax of the head's logits. `ncm`: the softmax of the cosines to the class means at
        temperature 0.1, so that the most probable class is always the nearest mean.
        """
        chosen = classifier or self.classifier_
        if chosen not in ("fc", "ncm"):
            raise UserError(f"unknown classifier '{chosen}'; use fc or ncm")
        with self.backend.active():
            scores = self._scores(images)[chosen]
            scores = scores if chosen == "fc" else scores / NCM_TEMPERATURE
            probabilities: NDArray[np.float32] = scores.softmax(dim=1).cpu().numpy()
        return probabilities

    def predictions(self, images: Images) -> dict[str, NDArray[Any]]:
        """The labels that each classifier, `fc` and `ncm`, gives to the images."""
        with self.backend.active():
            rows = {name: scores.argmax(dim=1).cpu().numpy() for name, scores in self._scores(images).items()}
        return {name: self._labels(found) for name, found in rows.items()}

    @property
    def means_(self) -> Tensor | None:
        """The unit mean feature of each class, rows as in `classes_`: what NCM compares with."""
        return self._means

    def score(self, images: Images, labels: Labels) -> float:
        """The share of images whose label is predicted, in [0, 1]."""
        wanted = _plain_labels(labels)
        predicted = self.predict(images).tolist()
        if len(wanted) != len(predicted):
            raise UserError(f"{len(predicted)} images and {len(wanted)} labels; give one label per image")
        return float(np.mean([a == b for a, b in zip(wanted, predicted, strict=True)]))

    def _scores(self, images: Images) -> dict[str, Tensor]:
        if self.model is None or self._means is None or self.preprocessing is None:
            raise UserError("this learner has learned nothing yet; call partial_fit first")
        found = extract(self.model, self._pixels(images), self.preprocessing, self.backend)
        return both_classifiers(found, self._means)

    def _labels(self, rows: NDArray[Any]) -> NDArray[Any]:
        labels: NDArray[Any] = np.asarray(self.classes_)
        return np.asarray(labels[rows])

    # Saving -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, memory: bool = True) -> None:
        """Write the learner to one file.

        The file contains the training images kept in memory. With `memory=False` it does not; such a learner
        predicts but cannot learn further.
        """
        if self.model is None:
            raise UserError("this learner has learned nothing yet; there is nothing to save")
        if not Path(path).absolute().parent.is_dir():
            raise UserError(f"the folder {Path(path).absolute().parent} does not exist; make it first")
        if Path(path).is_dir():
            raise UserError(f"{path} is a folder; give the name of a file in it")
        tensors, meta = self.state(images=memory)
        meta["contains_training_images"] = memory
        if not memory:
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("memory.")}
            meta["history"] = []  # of trials: only learning needs it, and the policy that made it
            meta["settings"] |= {"policy": "fixed", "policy_options": {}, "space": "paper", "tune": None}
        else:
            log.warning(
                "%s contains %d training images; save(memory=False) leaves them out", path, len(self.memory or ())
            )
        store.write_tensors(Path(path), tensors, meta, kind="learner")

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto", net: nn.Module | None = None) -> Self:
        """Read a learner; `net` gives the backbone again if it was one's own."""
        tensors, meta = store.read_tensors(Path(path), kind="learner")
        return cls.from_state(tensors, meta, device=device, net=net)

    def state(self, *, images: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain values from which `from_state` makes the same learner, in the middle of a phase too.

        Without `images` the memory is stored as the `origins` its images were given with.
        """
        self.backend.synchronise()
        tensors: dict[str, Tensor] = {}
        if self.model is not None and self._means is not None:
            tensors |= {f"model.{name}": value for name, value in self.model.state_dict().items()}
            tensors["means"] = self._means
        if self.memory is not None:
            for part, kept in (("exemplars", self.memory.exemplars), ("reserve", self.memory.reserve)):
                tensors[f"memory.{part}.labels"] = kept.labels
                tensors[f"memory.{part}.origins"] = kept.origins
                if images:
                    tensors[f"memory.{part}.pixels"] = kept.pixels
        pending = self._pending
        if self._job is not None:
            pending = self._job.state()
        if pending is not None:
            tensors |= {f"pending.{name}": value for name, value in pending[0].items()}
        return tensors, {
            "poise": __version__,
            "settings": asdict(self.settings),
            "augmentation": asdict(self._augmentation) if self._augmentation is not None else None,
            "own_net": self._own_net is not None,
            "architecture": self.architecture,
            "shape": self.shape_,
            "preprocessing": self.preprocessing.as_json() if self.preprocessing is not None else None,
            "classes": list(self.classes_),
            "classifier": self.classifier_,
            "action": dict(self.action_),
            "phases": self.phases_,
            "held": self.held_,
            "budget": self.budget_,
            "rho": self._rho,
            "judged": self._judged,
            "history": self._history,
            "rules": RULES,
            "pending": pending[1] if pending is not None else None,
        }

    @classmethod
    def from_state(
        cls,
        tensors: Mapping[str, Tensor],
        meta: Mapping[str, Any],
        *,
        device: str = "auto",
        net: nn.Module | None = None,
        lookup: Callable[[Tensor], Tensor] | None = None,
    ) -> Self:
        """The learner that `state` described; `lookup` turns origins into pixels where images were left out."""
        settings = Settings.from_json(meta["settings"])
        if meta["own_net"] and net is None:
            raise UserError("this learner was trained with a net of your own; pass it again: Learner.load(path, net=…)")
        if net is not None and not meta["own_net"]:
            raise UserError(
                f"this learner was trained with {meta['architecture']}, not with a net of your own; leave net out"
            )
        learner = cls(
            **{
                **{name: value for name, value in vars(settings).items() if name != "schedule"},
                **asdict(settings.schedule),
                "net": net if meta["own_net"] else settings.net,
                "preprocessing": Preprocessing.from_json(meta["preprocessing"]) if meta["preprocessing"] else None,
                "augmentation": Augmentation(**meta["augmentation"]) if meta.get("augmentation") else None,
                "device": device,
            }
        )
        with learner.backend.active():
            learner._restore(tensors, meta, lookup)
        return learner

    def _restore(
        self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], lookup: Callable[[Tensor], Tensor] | None
    ) -> None:
        self.classes_ = tuple(meta["classes"])
        self.classifier_, self.phases_ = meta["classifier"], meta["phases"]
        self.held_, self.budget_ = meta.get("held", 0), meta.get("budget", 0)
        self._rho = meta.get("rho", 0.0)
        self.action_ = Action(**meta["action"])
        self._judged = dict(meta["judged"] if "judged" in meta else meta["reserve_hits"])
        self._remember(meta)
        if meta["pending"] is not None:
            self._pending = _under("pending.", tensors), dict(meta["pending"])
        if self.phases_ == 0:
            return
        channels, height, width = meta["shape"]
        self.shape_ = (channels, height, width)
        model = self.blank_model(self.shape_, self.phases_)
        weights = _under("model.", tensors)
        model.head.adopt(_under("head.", weights))
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise UserError(
                "the net does not fit the saved weights; pass one made like the net that was saved"
            ) from error
        self.model = model.placed(self.backend.device).eval()
        self._means = tensors["means"].to(self.backend.device)
        if "memory.exemplars.labels" in tensors:
            self.memory = Memory(
                *(_stored_images(_under(f"memory.{part}.", tensors), lookup) for part in ("exemplars", "reserve"))
            )

    @property
    def architecture(self) -> str:
        """Backbone, its variant and the head, as in `resnet32/lucir+cosine`."""
        if self._own_net is not None:
            return f"own net+{self._method.head}"
        name = self.settings.net or (suitable_net(min(self.shape_[1:])) if self.shape_ else "auto")
        return f"{name if '/' in name else f'{name}/{self._method.variant}'}+{self._method.head}"

    # Small parts ------------------------------------------------------------------------------------------------

    def _arrival(self, images: Images, labels: Labels, known: str, origins: Tensor | None) -> _Arrival:
        """What arrives, checked: a mistake is found here, before anything is trained."""
        if known not in ("refuse", "update"):
            raise UserError(f"known='{known}' must be 'refuse' or 'update'")
        if self.phases_ and self.memory is None:
            raise UserError("this learner was saved without its memory: it can predict but not learn further")
        pixels, plain = self._pixels(images).cpu(), _plain_labels(labels)
        if len(pixels) != len(plain):
            raise UserError(f"{len(pixels)} images and {len(plain)} labels; give one label per image")
        if len({type(label) for label in (*plain, *self.classes_)}) > 1:
            raise UserError("labels are partly numbers and partly strings; use one kind, the same in every phase")
        arrived = sorted(set(plain))
        repeated = [label for label in arrived if label in self.classes_]
        if repeated and known == "refuse":
            raise UserError(
                f"class {repeated[0]!r} is known already; pass known='update' to train on new images of known classes"
            )
        new = [label for label in arrived if label not in self.classes_]
        classes = (*self.classes_, *new)
        self.settings.memory.quota(len(classes))
        rows = {label: row for row, label in enumerate(classes)}
        where = torch.full((len(plain),), -1, dtype=torch.long) if origins is None else origins.cpu()
        arrived_images = ImageSet(pixels, torch.tensor([rows[label] for label in plain]), where)
        digest = hashlib.blake2b(pixels.numpy().tobytes(), digest_size=16)
        digest.update(json.dumps([list(classes), arrived_images.labels.tolist()]).encode())
        growth = Growth(len(self.classes_), len(new))
        return _Arrival(self.phases_, arrived_images, len(arrived_images), classes, growth, digest.hexdigest())

    def _foreseen(self, next_images: int | None) -> int | None:
        """What was said of the next phase, refused where the memory must not know it."""
        if self.settings.memory.knows_increment == (next_images is not None):
            return next_images
        if next_images is None:
            raise UserError("memory.knows_increment must be told how many images come next: pass next_images=…")
        raise UserError("only a memory with knows_increment may be told what comes next; leave next_images out")

    def _pixels(self, images: Images) -> Tensor:
        size = self.shape_[1:] if self.shape_ else None
        if size is None and self.settings.image_size is not None:
            size = (self.settings.image_size, self.settings.image_size)
        pixels = to_pixels(images, size, channels=self.shape_[0] if self.shape_ else 3)
        if self.shape_ is not None and pixels.shape[1:] != self.shape_:
            raise UserError(f"images of shape {tuple(pixels.shape[1:])}, but this learner was trained on {self.shape_}")
        return pixels

    def _hold_out(self, arrival: _Arrival) -> tuple[ImageSet, ImageSet]:
        """The new images that may be trained on, and a random reserve of each new class that may not."""
        generator = draws.generator(self.settings.seed, "reserve", self.phases_)
        fresh = (arrival.images.labels >= arrival.growth.old).nonzero().flatten()
        picks = fresh[draw_reserve(arrival.images.labels[fresh], self.settings.memory.reserve, generator)]
        trainable = torch.ones(len(arrival.images), dtype=torch.bool)
        trainable[picks] = False
        trainable[self._in_reserve(arrival)] = False
        if not trainable.any():
            raise UserError("every one of these images is in the reserve already, which is never trained on")
        return arrival.images.select(trainable.nonzero().flatten()), arrival.images.select(picks)

    def _in_reserve(self, arrival: _Arrival) -> list[int]:
        """Which arrived images of known classes are copies of reserve images: those must not be trained on."""
        if self.memory is None or len(self.memory.reserve) == 0:
            return []
        stored = {image.tobytes() for image in self.memory.reserve.pixels.cpu().numpy()}
        known = (arrival.images.labels < arrival.growth.old).nonzero().flatten().tolist()
        found = [index for index in known if arrival.images.pixels[index].numpy().tobytes() in stored]
        if found:
            log.warning("%d images are in the reserve already and are not trained on", len(found))
        return found

    def blank_model(self, shape: Shape, phases: int = 1) -> Model:
        """A model for images of this shape that has learned nothing, with the network of so many phases."""
        if self._own_net is not None:
            backbone: nn.Module = copy.deepcopy(self._own_net)
        else:
            name = self.settings.net or suitable_net(min(shape[1:]))
            backbone = build_backbone(name, self._method.variant, shape[0], self.settings.seed)
        for _ in range(1, phases):
            backbone = self._method.expanded(backbone)
        return Model(backbone, build_head(self._method.head, feature_width(backbone, shape)))

    def _first_preprocessing(self, images: ImageSet) -> Preprocessing:
        augmentation = self._augmentation or suitable_augmentation(min(images.shape[1:]))
        return self._with_jitter(Preprocessing.measured(images.pixels, augmentation))

    def _with_jitter(self, preprocessing: Preprocessing) -> Preprocessing:
        augmentation = preprocessing.augmentation
        jitter = self._method.brightness or augmentation.brightness
        return replace(preprocessing, augmentation=replace(augmentation, brightness=jitter))


def _episodes(history: Iterable[Mapping[str, Any]]) -> list[Episode]:
    return [Episode.from_json(entry["episode"]) for entry in history if "episode" in entry]


def _is_decided(history: Sequence[Mapping[str, Any]]) -> bool:
    return any("decided" in entry for entry in history)


def _decided_rewards(history: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """For each phase, the reward of the decided arm in its last trial there, where it was tried."""
    rewards: dict[tuple[int, int], float] = {}
    found: dict[int, float] = {}
    for entry in history:
        if "trial" in entry:
            rewards[entry["phase"], entry["trial"]["arm"]] = entry["reward"]
        elif (entry["phase"], entry.get("decided")) in rewards:
            found[entry["phase"]] = rewards[entry["phase"], entry["decided"]]
    return found


def _finalist_totals(history: Iterable[Mapping[str, Any]]) -> dict[str, int] | None:
    """The hits of the decided arm where it was trained at full length, if it was."""
    totals: dict[int, dict[str, int]] = {}
    for entry in history:
        if "totals" in entry:
            totals[entry["trial"]["arm"]] = entry["totals"]
        elif entry.get("decided") in totals:
            return totals[entry["decided"]]
    return None


def _judged_hits(history: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    found = [entry["judged"] for entry in history if "judged" in entry]
    return {name: sum(hits[name] for hits in found) for name in ("fc", "ncm")}


def _paper_candidates(action: Action) -> dict[str, Action]:
    """The released code's two candidates: FC with feature distillation, NCM with logit distillation."""
    suited = {
        "fc": {"feature_kd": 1.0, "logit_kd": 0.0, "margin": 1.0},
        "ncm": {"feature_kd": 0.0, "logit_kd": 1.0, "margin": 0.0},
    }
    return {
        name: action.replace(**{axis: value for axis, value in axes.items() if axis in action})
        for name, axes in suited.items()
    }


def _plain_labels(labels: Labels) -> list[Label]:
    values = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else labels
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f"labels came as {type(labels).__name__}; give a list or array with one label per image")
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    for value in plain:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise UserError(f"label {value!r} is neither a whole number nor a string")
    return plain


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _stored_images(stored: Mapping[str, Tensor], lookup: Callable[[Tensor], Tensor] | None) -> ImageSet:
    pixels = stored.get("pixels")
    if pixels is None:
        assert lookup is not None, "a memory of indices needs the data they point into"
        pixels = lookup(stored["origins"])
    return ImageSet(pixels, stored["labels"], stored["origins"])
