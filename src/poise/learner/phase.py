"""One phase, to be read beside Algorithm 1 of the paper: begin, choose an action, train with it, keep what may be kept.

Y. Liu, Y. Li, B. Schiele, Q. Sun: Online Hyperparameter Optimization for Class-Incremental Learning, AAAI 2023.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from poise import draws
from poise.actions import Action
from poise.data import ALL_IMAGES, Augmentation, ImageSet, Memory, Preprocessing, suitable_augmentation
from poise.errors import UserError
from poise.learner.extras import best_temperature, left_out_scores
from poise.learner.inputs import NewPhase, hold_out, without_copies
from poise.learner.networks import build_model
from poise.learner.settings import Runtime, Settings, is_given
from poise.learner.state import Knowledge, Pending
from poise.methods import Growth, Method
from poise.nets import Model, NetInfo, net_info
from poise.policies import Planned
from poise.training.context import PhaseContext, PhaseData, features_suffice, keep_memory, measure_means
from poise.training.device import changed_switches, read_switches
from poise.training.evaluate import ClassMeans, both_classifiers
from poise.training.events import ActionDecided, EpochDone, Event, PhaseStarted, Progress, StageDone
from poise.training.trainer import Trainer
from poise.tuning.classifier import AUTO, ClassifierRule, judge_before
from poise.tuning.environments import TrialInputs
from poise.tuning.results import Reward, decided_rewards, judged_hits
from poise.tuning.search import Choice, Task
from poise.tuning.trials import Trials

log = logging.getLogger(__name__)


class Phase:
    """One phase under way: `begin` prepares it, `learn` is Algorithm 1.

    The knowledge it starts from stays as it is; the phase ends with a new one.
    """

    def __init__(
        self,
        settings: Settings,
        knowledge: Knowledge,
        arrival: NewPhase,
        runtime: Runtime,
        reward: Reward | None = None,
    ) -> None:
        self.settings = settings
        self.before = knowledge
        self.arrival = arrival
        self.runtime = runtime
        self.reward = reward or Reward()
        self.trainer: Trainer | None = None
        self._saved: tuple[dict[str, Tensor], dict[str, Any]] | None = None  # of the training, after its last epoch

    # Algorithm 1 ------------------------------------------------------------------------------------------------

    def learn(self, pending: Pending | None = None) -> Generator[Event, None, Knowledge]:
        """Algorithm 1 in phase i, after `begin`; from where a saved phase stopped if there is one.

        In:  the old model Θ_{i−1}; the training data, exemplars ℰ_{0:i−1} and new images 𝒟_i.
        Out: the new model Θ_i and the new exemplars ℰ_{0:i}, with the policy's weights **w** as a history of trials.
        """
        arrival, action = self.arrival, pending.action if pending is not None else None
        phase, growth, images = arrival.phase, arrival.growth, len(self.kept.exemplars) + len(self.new)
        if pending is None:
            yield PhaseStarted(phase, growth.new, len(arrival.classes), len(self.stored), len(self.kept))
        tuner = self.settings.tuner
        if arrival.action is None and (tuner.kind.tunes or tuner.default.classifier == AUTO):
            yield from planned_work(self.settings, phase, growth, images)  # else a training says itself how long it is
        # Policy learning: try actions on local environments h_i made of the training data, until the policy has enough;
        # then let it choose a_i. The first phase (i = 0) is plain classification.
        if action is None:
            choice = yield from self._choose()
            action = choice.action
            if action.classifier == AUTO:
                yield from judge_before(self.task, action)
            self.task.release()
            self.trainer = self.make_trainer(action)
            yield self._decision_event(choice, trains=self.trainer.planned > 0)
        else:
            assert pending is not None
            self.trainer = self.make_trainer(action)
            self.trainer.restore(pending.tensors, pending.position)
        # CIL training: Θ_i for M₂ epochs with a_i (Algorithm 2).
        self._saved = self.trainer.state()
        for event in self.trainer.run():
            if isinstance(event, EpochDone | StageDone):  # the phase can be resumed from here
                self._saved = self.trainer.state()
            yield event
        # Select new exemplars ℰ_{0:i} by herding.
        return self._keep(self.trainer)

    def begin(self, pending: Pending | None = None) -> None:
        """Cut to the budget, hold out the reserve, normalise, set up the model: all that Algorithm 1 is given."""
        settings, known, arrival = self.settings, self.before, self.arrival
        kept = known.memory or Memory.empty(arrival.images.shape)
        generator = draws.generator(settings.seed, "arrival", arrival.phase)
        self.kept, self.stored, self.discarded = settings.memory.arriving(
            kept, arrival.images, arrival.phase, arrival.growth.old, known.rho, generator
        )
        if len(self.kept) + len(self.stored) < len(kept) + len(arrival.images):  # views still hold what was discarded
            self.kept, self.stored = self.kept.compacted(), self.stored.compacted()
        self.new, self.reserve = hold_out(arrival, self.stored, settings, kept)
        # without the images that were discarded: nothing may hold those any longer
        self.before, self.arrival = replace(known, memory=self.kept), replace(arrival, images=self.stored)
        # A first phase that is resumed does not measure its images again.
        self.material = self._material(pending.preprocessing if pending is not None else None)
        self.context = self.material.context
        #: Whether nothing of the network is trained in this phase.
        self.is_frozen = self.material.whole is not None or self.context.model.is_frozen
        own = settings.made_method.default_action.classifier
        self.rule = ClassifierRule(own, known.classifier, known.phases)
        self.task = Task(arrival.phase, self._make_trials, self.rule.classifier_for, known.history, reward=self.reward)
        if pending is not None:
            self.task.history.extend(pending.history)
            if (line := changed_switches(pending.switches, self.context.backend)) is not None:
                log.warning("this phase goes on under other switches (%s): its bytes may differ", line)

    # What is trained --------------------------------------------------------------------------------------------

    def _material(self, measured: Preprocessing | None) -> PhaseData:
        """The training data: images or, where the network is frozen, their features, computed here and only here."""
        settings, known, arrival, backend = self.settings, self.before, self.arrival, self.runtime.backend
        self.given = is_given(settings, self.runtime)
        start = None if settings.made_method.starts_anew else known.start
        model = start if start is not None else build_model(settings, arrival.images.shape, self.runtime.net)
        if not model.is_frozen and settings.made_method.freezes(arrival.phase, given=self.given):
            model = model.copy()  # what is known stays as it is until the phase ends
            model.freeze_backbone()
        self.preprocessing = known.preprocessing if known.phases else None  # of images, where features replace those
        if self.preprocessing is None:
            self.preprocessing = self._first_preprocessing(measured, net_info(model.backbone))
        context = PhaseContext(
            model=model,
            method=settings.made_method,
            growth=arrival.growth if start is not None else Growth(0, len(arrival.classes)),
            preprocessing=self.preprocessing,
            schedule=settings.schedule.scaled_to(len(self.kept.exemplars) + len(self.new)),
            backend=backend,
            seed=settings.seed,
            phase=arrival.phase,
            updates=bool(arrival.growth.old) and not arrival.growth.new,
            means=ClassMeans(known.means, known.mean_images) if known.means is not None else None,
        )
        material = PhaseData(context, self.kept, self.new, self.reserve, self.discarded)
        actions = settings.action_space.actions if arrival.phase else (settings.first_action(given=self.given),)
        possible = actions if arrival.action is None else (arrival.action,)
        still = model.is_frozen or not any(map(attrgetter("backbone_rate"), possible))
        if still and features_suffice(context, self.stored.shape, still=still):
            kept = known.features
            return material.as_features(kept if kept is not None and len(kept) == len(self.kept) else None)
        if self.runtime.executor is not None:  # trials elsewhere are told the places of images in the data set
            return material
        return material.on_device()

    def _first_preprocessing(self, measured: Preprocessing | None, info: NetInfo | None) -> Preprocessing:
        """The preprocessing from the first phase on: the caller's, what was `measured`, or the network's own."""
        given, shape = self.before.preprocessing or measured, self.arrival.images.shape
        if given is None:
            given = first_preprocessing(self.settings.made_method, self.new, self.runtime.augmentation, info)
            if info is not None and (line := info.doubts(shape)) is not None:
                log.warning("%s", line)
        count = len(given.mean)
        if count not in (shape[0], info.channels if info is not None else None):
            raise UserError(f"preprocessing has {count} means, but images have {shape[0]} channels; give one for each")
        return given

    @property
    def network(self) -> nn.Module:
        """The backbone that the phase starts from, whether it is run or not."""
        return (self.material.whole or self.context.model).backbone

    # Policy learning --------------------------------------------------------------------------------------------

    def _choose(self) -> Generator[Event, None, Choice]:
        """The action of this phase: the caller's, the first phase's own, or what the tuner chooses."""
        given, tuner = self.arrival.action, self.settings.tuner
        if given is None and self.arrival.phase == 0:
            given = self.settings.first_action(given=self.given)
        if given is not None:
            return (yield from tuner.accept(self.task, given))
        return self.context.backend.broadcast((yield from tuner.choose(self.task)))

    def _make_trials(self) -> Trials:
        """Set up trials of actions on this phase's training images."""
        budget, arrival, material, witness = self.settings.memory, self.arrival, self.material, self.reward.witness
        inputs = TrialInputs(
            self.context,
            material.kept,
            material.new,
            material.reserve,
            budget.quota(len(arrival.classes)) - budget.reserve,
            self.settings.trials,
            rho=budget.rho(max(arrival.phase, 1)),  # pseudo tasks of the first phase are about the later ones
            first_rho=budget.rho(0),
            arrived=arrival.count,
            stored_share=len(self.stored) / arrival.count,
            classes=arrival.classes,
            planned=self.settings.schedule.epochs,
        )

        def witness_whole(model: Model, means: Tensor, classes: Sequence[Any]) -> Any:  # noqa: ANN401 - a study's word
            """A study's witness looks at models that take images."""
            assert witness is not None
            return witness(material.complete(model), means, classes)

        return Trials(inputs, executor=self.runtime.executor, witness=witness_whole if witness is not None else None)

    def _decision_event(self, choice: Choice, *, trains: bool) -> ActionDecided:
        phase, action = self.arrival.phase, dict(choice.action)
        if phase == 0 or self.arrival.action is not None:
            return ActionDecided(phase, "given" if phase else "none", action, trains=trains)
        rewards = decided_rewards((*self.task.past, *self.task.history)) if self.settings.kind.tunes else {}
        reward = rewards.pop(phase, None)
        past = sum(rewards.values())
        return ActionDecided(phase, self.settings.policy, action, choice.distribution, reward, past, trains)

    # CIL training -----------------------------------------------------------------------------------------------

    def make_trainer(self, action: Action) -> Trainer:
        """The phase's own training, on a copy of the model."""
        context, material = self.context, self.material
        feed = context.feed(material.kept.exemplars, material.new)
        return Trainer(context, context.grow_model(material.arrived), context.teacher(), action, feed)

    def pending(self) -> Pending:
        """The values that are needed to resume this phase."""
        trainer, tensors, position = self.trainer, dict[str, Tensor](), dict[str, Any]()
        if trainer is not None:
            tensors, position = self._saved or trainer.state()
        return Pending(
            digest=self.arrival.digest,
            history=tuple(self.task.history),
            action=trainer.action if trainer is not None else None,
            position=position,
            switches=read_switches(self.context.backend),
            preprocessing=self.preprocessing if self.before.preprocessing is None else None,
            tensors=tensors,
        )

    # Exemplars --------------------------------------------------------------------------------------------------

    def _keep(self, trainer: Trainer) -> Knowledge:
        """Choose what to keep and which classifier counts."""
        arrival, budget, phase = self.arrival, self.settings.memory, self.arrival.phase
        predictor, start = trainer.model, trainer.start
        for model in (predictor, start):
            model.eval().extras.clear()
        rho = budget.rho(phase, trainer.action.allocation)
        quota = budget.after(len(arrival.classes), arrival.count, rho, arrival.next_images)
        evaluator, material = self.context.evaluator, self.material
        arrived = ImageSet.joined([self.new, self.discarded])
        places = without_copies(arrived, self.kept.exemplars, every=budget.rule == ALL_IMAGES)
        candidates = material.arrived.select(places)  # in the order of these images, which they may be features of
        memory = keep_memory(evaluator, predictor, material.kept, candidates, quota, material.reserve, budget.reserve)
        means, mean_images = measure_means(self.context, predictor, memory.exemplars, material.arrived)
        judged = judged_hits(self.task.history)
        hits = {name: count + judged[name] for name, count in self.before.hits.items()}
        shown = material.complete(predictor)
        scores, judges = dict[str, Tensor](), memory.reserve
        if len(judges):
            scores = both_classifiers(evaluator.extract(predictor, judges), means)
            for name, found in scores.items():
                hits[name] += int((found.argmax(dim=1).cpu() == judges.labels.cpu()).sum())
        elif predictor.is_frozen and self.given:
            judges = memory.exemplars if len(memory.exemplars) else material.new
            scores = left_out_scores(self.settings.made_method, trainer.action, predictor, means, judges, evaluator)
        kept = torch.cat([memory.exemplars.pixels, memory.reserve.pixels])  # features, where those stand for images
        return Knowledge(
            action=trainer.action,
            classes=arrival.classes,
            phases=phase + 1,
            classifier=self.rule.classifier_after(trainer.action, hits),
            shape=arrival.images.shape,
            short_side=self.before.short_side or int(arrival.images.store.sizes.min()),
            preprocessing=self.preprocessing,
            predictor=shown,
            start=shown if start is predictor else material.complete(start),
            means=means,
            mean_images=mean_images,
            memory=material.images(memory).compacted(),
            features=kept if material.whole is not None and material.whole.is_frozen else None,
            hits=hits,
            temperatures={name: best_temperature(found, judges.labels) for name, found in scores.items()},
            history=(*self.before.history, *self.task.history),
            held=len(self.kept) + len(self.stored) + len(self.discarded),
            budget=budget.of_phase(arrival.growth.old, arrival.count, len(self.kept)),
            rho=rho,
            images_digests=(*self.before.images_digests, arrival.digest),
        )


def first_preprocessing(
    method: Method, images: ImageSet, augmentation: Augmentation | None, info: NetInfo | None
) -> Preprocessing:
    """Preprocessing with the network's own constants where it has some, else measured on the first phase's images.

    The augmentation suits the size of the images, if none is given.
    """
    augmentation = augmentation or suitable_augmentation(min(images.shape[1:]))
    own = info.preprocessing(augmentation) if info is not None else None
    return with_jitter(method, own or Preprocessing.measured(images.store, augmentation))


def with_jitter(method: Method, preprocessing: Preprocessing) -> Preprocessing:
    """The preprocessing with the brightness jitter of the method's line of work, where it has one."""
    if not method.brightness:
        return preprocessing
    return replace(preprocessing, augmentation=replace(preprocessing.augmentation, brightness=method.brightness))


def planned_work(settings: Settings, phase: int, growth: Growth, images: int) -> list[Progress]:
    """The parts of a phase that trains on so many images, nothing of them done yet."""
    method, action, kind, schedule = settings.made_method, settings.default_action, settings.kind, settings.schedule
    automatic, balances = action.classifier == AUTO, action.balance == "finetune" and growth.old
    stages = (*method.stages(growth), *((method.balancing,) if balances else ()))
    schedule, plan, parts = schedule.scaled_to(images), Planned(), dict[str, float]()
    if kind.tunes or automatic:
        plan, trainings = settings.tuner.plan(phase), settings.trials.trainings(growth.new) if phase else 1
        tuning = plan.epochs * schedule.epochs / settings.schedule.epochs * images * trainings
        parts["trials" if kind.asks else kind.name] = tuning + plan.steps * min(schedule.batch, images)
        judged = phase > 0 and automatic and settings.trials.classifier == "full"
        if judged and not (plan.full or settings.memory.reserve):
            parts["classifiers"] = schedule.epochs * images * trainings
    parts["training"] = images * sum(schedule.apply_to(stage).epochs(schedule.epochs) for stage in stages)
    words = f"{plan.trials} trials"
    return [Progress(phase, part, 0, round(count), words) for part, count in parts.items() if count]
