"""The figures of the paper (`paper.toml`), and beside which runs they belong.

The paper is "Online Hyperparameter Optimization for Class-Incremental Learning" by Yaoyao Liu, Yingying Li, Bernt
Schiele and Qianru Sun (AAAI 2023).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Final

from poise.actions import Action
from poise.data.budget import ALLOCATION
from poise.methods import METHODS, make_method
from poise.recipes import parse_toml, recipe_names, recipe_text
from poise.report.reading import RunRecord, StreamKind
from poise.runfolder import is_tuned, is_whole
from poise.settings import KEYS
from poise.tuning.bilevel import tuned_axes

#: Policies with a row of their own in Table 3; all others except `fixed` stand where the paper says "w/ ours".
OTHER_TUNERS: Final = {"crossval": 5, "offline-rl": 6, "bilevel": 7}
#: What the rows of Table 3 tune.
ALL_TUNED: Final = frozenset({"kd", "classifier", "lr"})
TUNED: Final = {frozenset({"kd"}): 2, frozenset({"kd", "classifier"}): 3, ALL_TUNED: 4}
#: Where the paper uses another name: its RMM is RMM's memory with AANets.
ROWS: Final = {"aanets+rmm": "rmm"}
#: Recipe keys that say how a run trains, and on what, beside its method, network, epochs, augmentation and memory.
_TRAINING_KEYS: Final = (
    *("images_per_class", "batch", "momentum", "weight_decay", "optimiser", "decay", "warmup", "first_lr"),
    *("milestones", "balance_share", "balance_lr", "images", "image_size"),
)
_ORDER: Final = 1993  # of the classes
#: The word of a recipe that says what the data's own augmentation is.
_OWN_AUGMENTATION: Final = {"imagenet": "resized", "imagenet-subset": "resized"}
_SETTINGS: Final = ("tfh", "tfs", "average")
_ABLATED: Final = (StreamKind(5, "tfh"), StreamKind(5, "tfs"), StreamKind(25, "tfh"), StreamKind(25, "tfs"))


@dataclass(frozen=True)
class Published:
    """A figure of the paper, and its deviation where it gives one.

    `unlike` says what was different in the paper's run, or why the figure is in doubt, if that is known: then both are
    shown, and not compared.
    """

    figure: float
    deviation: float | None = None
    unlike: str = ""


def published_accuracy(run: RunRecord, phases: int, setting: str) -> Published | None:
    """Tables 1 and 2: the paper's average accuracy of this method and policy; `setting` may be `average`."""
    entry = _table().get(ROWS.get(run.method, run.method), {})
    data = _figures()["data"].get(run.data, "")
    side = "fixed" if run.fixed and not _changes_action(run, entry, data) else "policy"
    cell = entry.get(data, {}).get(str(phases), {})
    if setting not in _SETTINGS or side not in cell or run.policy in OTHER_TUNERS or run.informed:
        return None
    if not is_tuned(run.policy) and side == "policy":  # other hyperparameters than the paper's baseline
        return None
    if side == "policy" and (every(run) != 1 or not _tunes_all(run)):
        return None  # rows of Tables S1 and 3
    unlike = _differences(run, entry, cell, _SETTINGS.index(setting))
    name = ROWS.get(run.method, run.method)
    printed = printed_accuracy(name, data, phases, setting, tuned=side == "policy")
    if unlike is None or printed is None:
        return None
    doubt = cell.get("doubt", {}).get(setting) if side == "fixed" else None
    return replace(printed, unlike="; ".join([*unlike, *([doubt] if doubt else [])]))


def printed_accuracy(method: str, data: str, phases: int, setting: str, *, tuned: bool = False) -> Published | None:
    """Tables 1 and 2 as they are printed, whether anything was run or not: method and data by their names there."""
    cell = _table().get(method, {}).get(data, {}).get(str(phases), {})
    side, place = "policy" if tuned else "fixed", _SETTINGS.index(setting)
    deviation = cell.get(f"{side}_deviation")
    return Published(cell[side][place], deviation[place] if deviation else None) if side in cell else None


def printed_ablation(table: str, key: str, stream: StreamKind) -> float | None:
    """Tables 3 (`ablation`, by the number of the row) and S1 (`every`) as they are printed, in one stream."""
    found = _figures()[table].get(key)
    return float(found[_ABLATED.index(stream)]) if found and stream in _ABLATED else None


def printed_hours() -> dict[str, float]:
    """Table S2 as it is printed: hours of LUCIR in TFH 5 by tuner, or by how seldom the paper's policy decides."""
    return {name: float(hours) for name, hours in _figures()["hours"].items()}


def ablation_number(run: RunRecord) -> int | None:
    """The row of Table 3 that a run belongs to, if any."""
    if run.fixed:
        return None if _own_action(run) else 1
    if run.policy in OTHER_TUNERS:
        return OTHER_TUNERS[run.policy]
    return None if run.informed or every(run) != 1 else TUNED.get(frozenset(tuned_kinds(run)))


def published_ablation(run: RunRecord, stream: StreamKind) -> Published | None:
    """Table 3: the figure of the run's row."""
    return _ablation_figure("ablation", ablation_number(run), run, stream)


def published_every(run: RunRecord, stream: StreamKind) -> Published | None:
    """Table S1: the figure of a policy that decides as often as the run's."""
    ours = not (run.fixed or run.informed or run.policy in OTHER_TUNERS) and _tunes_all(run)
    return _ablation_figure("every", every(run) if ours else None, run, stream)


def published_hours(run: RunRecord, stream: StreamKind) -> float | None:
    """Table S2: hours of LUCIR in TFH 5 on CIFAR-100."""
    if run.method != "lucir" or run.data != "cifar100" or not _comparable(run):
        return None
    if stream != StreamKind(5, "tfh") or run.informed:
        return None
    hours: Mapping[str, float] = _figures()["hours"]
    if run.fixed or run.policy in OTHER_TUNERS:
        return hours.get(run.policy)
    return hours.get(str(every(run))) if _tunes_all(run) else None


def every(run: RunRecord) -> int | str:
    """The number of phases from one decision of the policy to the next."""
    found = (run.recipe.get("policy_options") or {}).get("every", 1)
    return int(found) if isinstance(found, int | float) else str(found)


def tuned_kinds(run: RunRecord) -> set[str]:
    """What was tuned, in the words of the ablation: `kd`, `lr`, `classifier`, and the names of other axes.

    `bilevel` has no axes: it moves the weights and the rate of the default action, whatever they are.
    """
    default = (run.space or {}).get("default") or {}
    axes = [*run.axes, *(tuned_axes(Action(**default)) if run.policy == "bilevel" and default else ())]
    kinds = {"kd" if axis.endswith("_kd") or axis == "pod" else axis for axis in axes}
    return kinds | ({"classifier"} if default.get("classifier") == "auto" else set())


def _tunes_all(run: RunRecord) -> bool:
    """Whether nothing is left out that the paper's policy tunes; what was tuned beside it does not matter."""
    return tuned_kinds(run) >= ALL_TUNED


def _ablation_figure(table: str, number: int | str | None, run: RunRecord, stream: StreamKind) -> Published | None:
    if run.method != "lucir" or run.data != "cifar100" or not _comparable(run) or stream not in _ABLATED:
        return None
    found = printed_ablation(table, str(number), stream)
    return Published(found) if found is not None else None


def _comparable(run: RunRecord) -> bool:
    """Whether everything that a recipe says of data, memory and training is as in the paper."""
    return _differences(run, {}, {}, 0) == []


def _differences(run: RunRecord, entry: Mapping[str, Any], cell: Mapping[str, Any], place: int) -> list[str] | None:
    """What is known to differ from the paper's run of this cell; None where a comparison would say nothing at all.

    An entry may have another augmentation, length, network and subset of ImageNet than the other methods, and a cell
    another memory in TFS.
    """
    data = _figures()["data"].get(run.data)
    if data is None or run.exam != "test" or not _trains_alike(run, data, entry):
        return None
    protocol = {**_figures()["protocol"][data], **entry.get("protocol", {}).get(data, {})}
    own = {name: run.recipe.get(name) or protocol.get(name) for name in ("epochs", "net")}
    if any(value != protocol.get(name, value) for name, value in own.items()):
        return None
    if run.varied not in ("data", _OWN_AUGMENTATION.get(data), protocol.get("augmentation")):
        return None
    found = ["AutoAugment and Cutout there"] if run.augmentation != protocol.get("augmentation") else []
    found += ["another class order there"] if run.recipe.get("order", _ORDER) != _ORDER else []
    found += ["another 100 classes there"] if protocol.get("data", run.data) != run.data else []
    found += [protocol["unlike"]] if "unlike" in protocol else []
    memory = run.recipe.get("memory") or {}
    per_class, total = memory.get("per_class"), memory.get("total")
    if total is None or per_class is not None:
        if (protocol["per_class"] if per_class is None else per_class) != protocol["per_class"]:
            return None
        found += [f"{cell['total']:,} images in total there"] if place and "total" in cell else []
    elif not place or total != cell.get("total"):
        return None
    return found + ([cell["unlike"]] if place and "unlike" in cell else [])


def _trains_alike(run: RunRecord, data: str, entry: Mapping[str, Any]) -> bool:
    """Whether images, schedule, options and RMM's shares are those of the shipped recipe, and nothing is reserved.

    So must those be with which its phase 0 was trained elsewhere, where they are known.

    Of a bare result the schedule is not known, and counts as alike. Options that the method's released code has by
    setting may be any.
    """
    shipped, whole = _shipped_recipe(data, ROWS.get(run.method, run.method)), is_whole(run.recipe)
    if not shipped or (run.recipe.get("memory") or {}).get("reserve") or not _shares_alike(run, data):
        return False
    if (run.result or {}).get("pretrained_on") or run.other_start:
        return False
    for name in _TRAINING_KEYS:
        wanted = shipped.get(name, _default(name))
        if run.recipe.get(name, _default(name) if whole else wanted) != wanted:
            return False
    usual, options = METHODS[shipped["method"]].options, shipped.get("options", {})
    own, named = ({**usual, **each} for each in (run.recipe.get("options") or {}, options))
    return all(own.get(name) == named.get(name) for name in {*own, *named} - {*entry.get("given", ())})


def _shares_alike(run: RunRecord, data: str) -> bool:
    """Whether RMM's ρ are those of its released code, as far as recipes are shipped for the number of phases."""
    memory = run.recipe.get("memory") or {}
    if memory.get("rule") != "rmm":
        return True
    recipes = (_shipped_recipe(data, name) for name in ("rmm", f"rmm-{run.stream}"))
    own = [recipe["memory"]["allocation"] for recipe in recipes if recipe.get("phases") == run.stream]
    wanted = ALLOCATION if run.setting == "tfs" else own[0] if own else None
    alike = wanted is None or _shares(memory.get("allocation")) == _shares(wanted)
    return alike and memory.get("after_phase_0") != "plain"


def _shares(allocation: Any) -> list[float]:  # noqa: ANN401 - of a recipe: a number, a list or nothing
    """One for each phase, as long as they change."""
    one = ALLOCATION if allocation is None else allocation
    found = list(allocation) if isinstance(allocation, list | tuple) else [one]
    while len(found) > 1 and found[-1] == found[-2]:
        found.pop()
    return found


@cache
def _shipped_recipe(data: str, method: str) -> dict[str, Any]:
    """The recipe of a method in the paper's protocol on these data; empty where there is none."""
    name = f"{data}/{method}"
    return parse_toml(recipe_text(name), name) if name in recipe_names() else {}


@cache
def _default(name: str) -> Any:  # noqa: ANN401 - a value of any key
    """What holds for a key that a recipe does not say."""
    (text,) = (key.default for key in KEYS if key.name == name)
    return None if text == "none" else tomllib.loads(f"value = {text}")["value"]


def _changes_action(run: RunRecord, entry: Mapping[str, Any], data: str) -> bool:
    """Whether the recipe sets something of the action that the method's released code has otherwise."""
    own = entry.get("protocol", {}).get(data, {}).get("action", {})
    given = {*entry.get("given", ())}
    return any(name not in given and own.get(name) != value for name, value in _own_action(run).items())


def _own_action(run: RunRecord) -> dict[str, Any]:
    """What a run without a policy has otherwise than its method; of a bare result it is found by comparing."""
    given = dict(run.recipe.get("action") or {})
    if given or not run.fixed:
        return given
    method = run.recipe["method"]
    resolved = ((run.result or {}).get("resolved_policy") or {}).get("action") or {}
    usual = make_method(method).default_action if method in METHODS else {}
    return {name: value for name, value in resolved.items() if name in usual and usual[name] != value}


@cache
def _figures() -> dict[str, Any]:
    return tomllib.loads((resources.files("poise.report.tables") / "paper.toml").read_text(encoding="utf-8"))


@cache
def _table() -> dict[str, dict[str, Any]]:
    return {entry["method"]: entry for entry in _figures()["accuracy"]}
