"""A plan: a recipe with its data opened. Every mistake in them is found before anything is written or trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poise import store
from poise.data import (
    STRONGER,
    Augmentation,
    Budget,
    ImageSet,
    PixelStore,
    Stream,
    class_order,
    class_sizes,
    keep_some,
    make_stream,
)
from poise.data.sources import FolderSource, PackSource, Source, digest, open_source
from poise.data.sources.registry import find, is_name, is_published
from poise.errors import UserError, reading
from poise.learner import Learner, LearnerState, Lookup, Runtime, Settings, planned_work
from poise.methods import METHODS, Growth, is_registered
from poise.nets import NetInfo
from poise.nets.adapt import named_info
from poise.runs.examiner import Examiner, split_for_development
from poise.runs.folder import CROSSVAL, RECIPE, RunFolder
from poise.runs.recipe import Recipe, make_recipe
from poise.training.events import Progress
from poise.training.lanes import Executor
from poise.tuning.search import tuner_names
from poise.words import counted


@dataclass(frozen=True)
class Plan:
    """A recipe with its data opened: everything that is decided before the first image is trained on.

    Attributes:
        sizes: at most how many training images a class has, where the recipe says it.
    """

    name: str
    recipe: Recipe
    source: Source
    stream: Stream
    sizes: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def settings(self) -> Settings:
        """The settings that the learner is made with: the recipe's keys, and the data's own net where it names none."""
        settings = self.recipe.settings
        judged = {"automatic": ("augmentation",)} if self.recipe.augmentation == "judged" else {}
        net = settings.net if settings.net is not None else self.source.net
        # A copy keeps what was made of the other keys; a source's own net is poise's, so `names_net` holds for it, too.
        return settings.model_copy(update={**judged, "net": net})

    @cached_property
    def net_info(self) -> NetInfo | None:
        """What is known of a network of others that it names."""
        return named_info(self.settings.net, self.settings.seed)

    @property
    def augmentation(self) -> Augmentation | None:
        """How training images are varied; None where that is judged when they arrive."""
        if self.settings.automatic:
            return None
        own, word = self.source.augmentation, self.recipe.augmentation
        return own.stronger(word) if word in STRONGER else own

    @property
    def stronger(self) -> dict[str, str]:
        """The name of what is done to training images beyond shifts, mirroring and brightness, if anything is."""
        word = self.augmentation.name if self.augmentation is not None else ""
        word = self.recipe.augmentation if self.recipe.augmentation in STRONGER else word
        return {"augmentation": word} if word else {}

    @property
    def notes(self) -> list[str]:
        """Lines for the user about what was chosen for the data, and about keys that change nothing."""
        chosen = [note.replace(f"net {self.source.net}", f"net {self.settings.net}") for note in self.source.notes]
        remarks, listed, phases = self.settings.remarks(), self.settings.memory.allocation, len(self.stream.groups)
        if isinstance(listed, tuple) and len(listed) != phases:  # RMM's ρ
            given, last = len(listed), f"{listed[-1]:g}"
            short = f"{last} stays in force from phase {given} on"
            used = short if given < phases else f"those after the first {phases} are not used"
            said = f"memory.allocation lists {counted(given, 'number')} for {counted(phases, 'phase')}: {used}"
            remarks = [*remarks, said]
        return [*chosen, *remarks]

    def __reduce__(self) -> tuple[Callable[..., Plan], tuple[str, Recipe]]:
        return make_plan, (self.name, self.recipe)  # words, of which the same plan is made elsewhere

    def new_learner(self, executor: Executor | None = None) -> Learner:
        """A learner as the recipe describes it, which has learned nothing; `executor` says where its trials run."""
        augmentation, preprocessing, info = self.augmentation, self.source.preprocessing, self.net_info
        around = Runtime.of(self.settings, self.recipe.device, augmentation=augmentation, executor=executor)
        own = info is not None and info.mean is not None  # the network's own constants, not those of the data
        if own or augmentation is None or preprocessing is None:
            return Learner.from_settings(self.settings, around)
        return Learner.from_settings(self.settings, around, replace(preprocessing, augmentation=augmentation))

    def restored_learner(self, state: LearnerState, executor: Executor | None = None) -> Learner:
        """The learner that was saved in this run's folder, or is to continue in it."""
        return Learner.from_state(state, device=self.recipe.device, executor=executor)

    def images(self) -> tuple[ImageSet, ImageSet]:
        """Training images and exam images. With `exam=dev` nothing of the test set is read."""
        train = self.source.train()
        train, held_out = split_for_development(train) if self.recipe.exam == "dev" else (train, None)
        train = keep_some(train, self.sizes) if self.sizes else train
        return train, self.source.test() if held_out is None else held_out

    def as_json(self) -> dict[str, Any]:
        """The plan as plain values, from which `reopen` makes it again."""
        return {
            "name": self.name,
            "recipe": self.recipe.as_json(),
            "fingerprint": self.source.fingerprint,
        }

    def training_images(self) -> ImageSet:
        """Training images alone, for a rank that examines nothing."""
        train = self.source.train()
        return keep_some(split_for_development(train)[0] if self.recipe.exam == "dev" else train, self.sizes)

    def images_per_phase(self, train: ImageSet) -> list[tuple[int, int]]:
        """About how many exemplars and new images each phase holds."""
        sizes = torch.bincount(train.labels, minlength=len(self.source.class_names)).tolist()
        return self.settings.memory.images_per_phase([[sizes[label] for label in group] for group in self.stream])

    def work(self, train: ImageSet) -> list[Progress]:
        """About how many images each part of each phase is trained on."""
        known, found = 0, list[Progress]()
        for phase, (group, (kept, new)) in enumerate(zip(self.stream, self.images_per_phase(train), strict=True)):
            found += planned_work(self.settings, phase, Growth(known, len(group)), kept + new)
            known += len(group)
        return found

    def identity(self) -> dict[str, Any]:
        """The keys that two runs must agree in to share a phase 0."""
        return {
            "data": digest([self.source.fingerprint, str(self.sizes)]) if self.sizes else self.source.fingerprint,
            "exam": self.recipe.exam,
            "classes": list(self.stream.groups[0]),
            "seed": self.recipe.seed,
            **self.stronger,
            **({"next group": list(self.stream.groups[:2][-1])} if self.settings.memory.knows_increment else {}),
        }

    def default_folder(self, policy: str | None = None) -> Path:
        """`runs/RECIPE-SETTING-N-POLICY-sSEED`, with the method that runs; `policy`, where something else is run."""
        recipe = self.recipe
        phases = len(self.stream) if recipe.setting == "groups" else recipe.phases
        name = Path(self.name).stem if self.name.endswith(".toml") else self.name
        *data, last = name.split("/")
        if data and last in METHODS:  # a recipe for it, with which another one may be run
            last = recipe.method.rpartition(":")[2]
        name = "-".join([*data, last])
        return Path("runs") / f"{name}-{recipe.setting}-{phases}-{policy or recipe.policy}-s{recipe.seed}"


Opening = Callable[[str, int | None], Source]  # opens the data of this name in this size


def open_outlined(data: str, size: int | None) -> Source:
    """Open data for an estimate: of ImageNet's data sets, which need not be here, the published numbers do."""
    return open_source(data, size=size, outlined=True)


def make_plan(name: str, recipe: Recipe, opening: Opening | None = None) -> Plan:
    """Open the data and lay out the stream; every mistake in them is found here."""
    source = opening(recipe.data, recipe.image_size) if opening else open_source(recipe.data, size=recipe.image_size)
    order = class_order(recipe.order, len(source.class_names))
    uneven = _uneven_groups(recipe, len(order)) if recipe.choose else {}
    setting, groups = uneven.get("setting", recipe.setting), uneven.get("groups", recipe.groups)
    phases = None if setting == "groups" else recipe.phases
    stream = make_stream(setting, order=order, phases=phases, groups=groups)
    recipe.settings.memory.quota(len(stream.classes))
    if recipe.settings.kind.before_phase_0 and recipe.start is None:
        recipe.settings.kind.check_first_phase(len(stream.groups[0]))
    sizes = {} if recipe.images_per_class is None else class_sizes(recipe.images_per_class, stream.classes)
    recipe = recipe.chosen_for(_first_images(source, stream, sizes)) if recipe.choose else recipe
    recipe = recipe.replace(**uneven) if uneven else recipe
    own = isinstance(source, FolderSource | PackSource) and not _is_known_name(recipe.data)
    paths = {"start": recipe.start, "data": recipe.data if own else None}  # in full: to be resumed from anywhere
    full = {key: str(store.expand_user(path).resolve()) for key, path in paths.items() if path is not None}
    return Plan(name, recipe.resolved(**full), source, stream, sizes)


def _uneven_groups(recipe: Recipe, classes: int) -> dict[str, Any]:
    """The keys that split so many classes as evenly as can be, where the recipe's number of phases does not divide."""
    phases = recipe.phases
    if recipe.setting != "tfs" or phases is None or not 1 <= phases <= classes or classes % phases == 0:
        return {}
    least, larger = divmod(classes, phases)
    return {"setting": "groups", "groups": [least + (place < larger) for place in range(phases)]}


def _first_images(source: Source, stream: Stream, wanted: Mapping[int, int]) -> ImageSet:
    """As many blank images as the first phase has: for all that is chosen by their number and size."""
    sizes, shape = source.outline()
    labels = torch.tensor(
        [label for label in stream[0] for _ in range(min(sizes[label], wanted.get(label, sizes[label])))]
    )
    return ImageSet(torch.zeros(1, *shape, dtype=torch.uint8).expand(len(labels), *shape), labels, labels)


def _is_known_name(data: str) -> bool:
    """Whether a data set is opened by this name; otherwise the word is the path of a folder or of a pack."""
    return is_published(data) or (is_name(data) and find(data) is not None)


def plan_of_words(words: Mapping[str, Any], opening: Opening | None = None) -> Plan:
    """The plan that was described by `Plan.as_json`, its data opened here; `fingerprint` may be that of others."""
    return make_plan(words["name"], make_recipe(words["recipe"]), opening)


def reopen(path: Path) -> tuple[RunFolder, Plan]:
    """The folder of a run and its plan, with the data checked to be the same."""
    folder = RunFolder(path)
    if not folder.exists:
        if (path / CROSSVAL).exists():
            raise UserError(f"{path} holds a crossval; give the same 'poise crossval' command again to continue it")
        if some := next(iter(sorted(path.glob(f"*/{RECIPE}"))), None):
            sweep = "or give the same 'poise sweep' command again to continue them all"
            raise UserError(f"{path} is not a run folder, but holds some; give one, such as {some.parent}, {sweep}")
        raise UserError(f"{path} is not a run folder; start one with 'poise run'")
    saved = folder.description()
    _refuse_unregistered(saved.recipe, path)
    try:
        recipe = make_recipe(saved.recipe)
    except UserError as error:
        raise UserError(f"{folder.recipe}: {error}") from error
    _refuse_vanished(recipe.data, folder)

    def open_same(data: str, size: int | None) -> Source:
        source = open_source(data, size=size)
        if source.fingerprint != saved.fingerprint:
            raise UserError(f"the data '{data}' are not those that {path} was started with; restore them first")
        return source

    return folder, make_plan(saved.name, recipe, open_same)


def _refuse_unregistered(recipe: Mapping[str, Any], path: Path) -> None:
    """Refuse the run of a method or policy that nobody registered here: it can only be the user's own."""
    for key, known in (("method", is_registered), ("policy", tuner_names().__contains__)):
        if isinstance(word := recipe.get(key), str) and not known(word):
            raise not_registered(f"{path} uses the {key} '{word}'")


def not_registered(use: str) -> UserError:
    """The error about a use of the user's own code that this command does not know."""
    return UserError(
        f"{use} of your own, which is not registered here; give this command through the file that registers it, with "
        "'python FILE.py' in place of 'poise'"
    )


def _refuse_vanished(data: str, folder: RunFolder) -> None:
    """Refuse data that are not where the run in this folder found them, and say how to go on."""
    if _is_known_name(data) or store.expand_user(data).exists():
        return
    mend = f"register them ('poise data add {data} --from FOLDER')" if is_name(data) else "put them back"
    raise UserError(
        f"the data '{data}' of {folder.path} are not there any more; {mend}, "
        f"or change the key data in {folder.recipe} to where they lie now"
    )


def refuse_other_exam(folder: RunFolder, examiner: Examiner) -> None:
    """Refuse exam images that are not those the run in this folder was started with."""
    if folder.description().exam_images not in (None, examiner.fingerprint):
        raise UserError(f"the exam images are not those {folder.path} was started with; restore them first")


def images_by_origin(train: ImageSet) -> Lookup:
    """From origins to images."""
    where = torch.full((int(train.origins.max()) + 1,), -1, dtype=torch.long)
    where[train.origins] = torch.arange(len(train))

    def look_up(origins: Tensor) -> PixelStore:
        return train.store.select(where[origins])

    return look_up


# Starting after the phase 0 of another run ----------------------------------------------------------------------------


def read_start(path: Path, settings: Settings, identity: Mapping[str, Any], lookup: Lookup) -> LearnerState:
    """The state after phase 0 of the run in this folder; refused where these settings would have led to another."""
    _refuse_early(settings)
    file = RunFolder(path).phase_0
    if not file.exists():
        raise UserError(f"start={path} has no {file.name}; give the folder of a run that finished phase 0")
    tensors, meta = store.read_tensors(file, kind="phase 0")
    with reading(file, "give another start"):
        theirs, learner = dict(meta["identity"]), meta["learner"]
        method = learner["settings"]["method"]
    _refuse_other_identity(path, theirs, identity)
    if not is_registered(method):  # how its network is made is not known here
        raise not_registered(f"start={path} was trained with the method '{method}'")
    with reading(file, "give another start"):
        state = LearnerState.from_tensors(tensors, learner, lookup=lookup)
    network = state.replace(settings=settings).architecture
    _refuse_other_state(path, state.architecture, network, state.settings.memory, settings.memory)
    return state.started_with(settings)


def refuse_start_of(path: Path, other: Plan, plan: Plan) -> None:
    """Refuse to start from the phase 0 of a run that is still to come, where it would be refused afterwards."""
    _refuse_early(plan.settings)
    _refuse_other_identity(path, other.identity(), plan.identity())
    networks = other.new_learner().architecture, plan.new_learner().architecture
    _refuse_other_state(path, *networks, other.settings.memory, plan.settings.memory)


def _refuse_early(settings: Settings) -> None:
    if settings.kind.before_phase_0:
        raise UserError(
            f"policy={settings.policy} learns before the first phase and cannot start after it; leave start out"
        )


def _refuse_other_identity(path: Path, theirs: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse a phase 0 of other data, classes, augmentation or chance."""
    for name in ("augmentation", *identity):
        if theirs.get(name) != identity.get(name):
            raise UserError(f"start={path} has other {name}; start from a run of the same data, order and seed")


def _refuse_other_state(path: Path, network: str, wanted: str, theirs: Budget, budget: Budget) -> None:
    """Refuse a phase 0 of another network than is wanted, or after which other images were kept."""
    if network != wanted:
        raise UserError(f"start={path} was trained with {network}, this run has {wanted}; they must agree")
    there, here = theirs.storing_phase_0(), budget.storing_phase_0()
    if there == here:
        return
    causal = here.rule == "rmm" and not here.knows_increment
    helps = causal and budget.replace(after_phase_0="plain").storing_phase_0() == there
    todo = ", leave start out, or set memory.after_phase_0=plain" if helps else ", or leave start out"
    kept, keeps = (
        ", ".join(f"{key}={value}" for key, value in each.changed().items()) or "memory=20" for each in (there, here)
    )
    raise UserError(
        f"start={path} kept other images after phase 0 ({kept}) than this run keeps ({keeps}); "
        f"start from a run with this memory{todo}"
    )


# Before it is run -----------------------------------------------------------------------------------------------------


def describe_plan(plan: Plan) -> str:
    """Phases with their trials, the default action, and the bytes of the images, as text."""
    recipe, stream = plan.recipe, plan.stream
    train, _ = plan.images()
    refuse_early(plan, train)
    learner, held = plan.new_learner(), plan.images_per_phase(train)
    lines = [
        *plan.notes,
        f"{plan.name}: {recipe.method} on {plan.source.name}, {recipe.setting}, {len(stream)} phases, "
        f"order {recipe.order}, exam {recipe.exam}, seed {recipe.seed}",
        f"network {learner.architecture}, {recipe.epochs} epochs a phase, batch {recipe.batch}, "
        f"device {learner.backend.device}, {learner.backend.precision}",
        f"policy {recipe.policy}, {plan.settings.action_space}",
        f"default action {learner.settings.default_action}",
        *([f"phase 0 is that of {recipe.start}"] if recipe.start is not None else []),
        "",
        "phase  new classes  classes  new images  kept images  trials",
    ]
    seen = 0
    for phase, (group, (kept, new)) in enumerate(zip(stream, held, strict=True)):
        seen += len(group)
        # Of a tuner that is no policy these are rounds or episodes.
        trials = plan.settings.tuner.plan(phase).trials
        lines.append(f"{phase:5d}  {len(group):11d}  {seen:7d}  {new:10d}  {kept:11d}  {trials:>6}")
    largest = train.store.nbytes * max(kept + new for kept, new in held) // max(len(train), 1)
    where = "" if train.store.in_memory else ", which stay in the pack"
    lines += [
        "",
        f"memory  {_size(train.store.nbytes)} of images{where}, {_size(largest)} of them in the largest phase",
    ]
    return "\n".join(lines)


def refuse_early(plan: Plan, train: ImageSet, *, reads: bool = True) -> None:
    """Refuse a `start` that the run would refuse before it trains.

    That cannot be said where the images are not here, nor unless the run `reads` a phase 0 that is there already.
    """
    if reads and plan.recipe.start is not None and plan.source.is_here:
        read_start(Path(plan.recipe.start), plan.settings, plan.identity(), images_by_origin(train))


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
