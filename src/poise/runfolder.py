"""What lies in a run folder, and what the keys of a recipe mean: once for `experiment`, `studies` and `report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from poise.policies import PRESETS, WRAPPER_OPTIONS
from poise.settings import tagged

#: What is run: the resolved recipe, and what the data were.
RECIPE: Final = "recipe.json"
#: What came out, once the run is finished.
RESULT: Final = "result.json"
#: What belongs to the machine and not to the result.
MACHINE: Final = "machine.json"
#: Among its versions, the digest of the file that makes a network of one's own.
OWN_NETWORK: Final = "the network"
#: What happened, event by event.
JOURNAL: Final = "journal.jsonl"
#: The state after the first phase, for `start=`.
PHASE_0: Final = "phase-0.safetensors"
#: The folder of the newest checkpoints.
CHECKPOINTS: Final = "checkpoints"
#: In a folder of `poise crossval`, in place of the recipe.
CROSSVAL: Final = "crossval.json"
#: The page of a report.
PAGE: Final = "index.html"
#: The folder of the page that a run, or a sweep, ends with.
REPORT: Final = "report"

#: The `kind` of a table that `poise probe` wrote.
PROBE: Final = "probe"
#: In such a table, the length of a trial that was trained like the phase itself.
FULL: Final = "full"

#: In `recipe.json`, what the phase 0 that a run started from is recognised by.
START_FINGERPRINT: Final = "start_fingerprint"
#: Recipe keys that say how phase 0 is trained.
PHASE_0_KEYS: Final = tagged("phase 0")
#: Recipe keys that do not say what was compared: chance, and where it was computed.
CHANCE_KEYS: Final = tagged("chance")
#: Recipe keys that say how classes arrive.
STREAM_KEYS: Final = tagged("stream")
#: Recipe keys that say how actions are chosen.
POLICY_KEYS: Final = tagged("policy")
#: What a result repeats of its recipe.
RESULT_KEYS: Final = tagged("result")
#: The parts of a result's `seconds`.
SECONDS: Final = ("train", "policy", "evaluate", "total")
#: Of the total, what was spent until the exam of phase 0; results of before it was counted do not have it.
SECONDS_PHASE_0: Final = "phase_0"


def say_changed_code(name: str) -> str:
    """What a resume says in `machine.json` of code of one's own that was changed since the run began."""
    return f"the code of {name} was changed"


def method_name(keys: Mapping[str, Any]) -> str:
    """The method of a recipe or a result, with RMM's memory `aanets+rmm`: in the paper that is a method of its own.

    >>> method_name({"method": "aanets", "memory": {"rule": "rmm"}}), method_name({"method": "lwf"})
    ('aanets+rmm', 'lwf')
    """
    memory = keys.get("memory")
    rule = memory.get("rule") if isinstance(memory, Mapping) else None
    return f"{keys['method']}+{rule}" if rule == "rmm" else str(keys["method"])


def is_whole(recipe: Mapping[str, Any]) -> bool:
    """Whether all of a recipe is known, and not only what a result repeats of it."""
    return "batch" in recipe


def recipe_of_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a kept result says of its recipe: what it repeats, and what its policy says of itself.

    >>> kept = {"policy": "online", "resolved_policy": {"name": "online", "every": 2, "trials": {"even": False}}}
    >>> {name: value for name, value in recipe_of_result(kept).items() if value}
    {'policy': 'online', 'trials': {'even': False}, 'policy_options': {'every': 2}}
    """
    resolved = result.get("resolved_policy")
    own = resolved if isinstance(resolved, Mapping) else {}
    known = {"trials": own["trials"]} if "trials" in own else {}
    if around := {name: own[name] for name in WRAPPER_OPTIONS if name in own}:
        known["policy_options"] = around
    return {**{key: result.get(key) for key in RESULT_KEYS}, **known}


def holds_more_after_phase_0(memory: object) -> bool:
    """Whether a memory, by its saved keys, holds more after phase 0 than the plain rule keeps, without being told why.

    >>> holds_more_after_phase_0({"rule": "rmm", "allocation": [0.8, 0.6], "after_phase_0": "rmm"})
    True
    """
    if not isinstance(memory, Mapping) or memory.get("knows_increment") or memory.get("after_phase_0") != "rmm":
        return False
    shares = memory.get("allocation")
    return (shares[0] if isinstance(shares, list) else shares) != 0


def backward_transfer(matrix: Sequence[Sequence[float]]) -> float:
    """Mean over all phases but the last of (accuracy in the last exam − in the one after the phase) on their classes.

    `matrix` is a result's accuracy matrix: a row for each exam, a column for the classes of each phase up to there.

    >>> backward_transfer([[80.0], [60.0, 90.0], [50.0, 95.0, 70.0]])
    -12.5
    """
    moved = [last - matrix[phase][phase] for phase, last in enumerate(matrix[-1][:-1])]
    return sum(moved) / max(1, len(moved))


def without_empty_keys(value: object) -> object:
    """A value of a recipe without the keys that hold nothing: a key that was not given counts like one left empty.

    >>> without_empty_keys({"per_class": 20, "total": None, "options": {"every": None}})
    {'per_class': 20}
    """
    if not isinstance(value, Mapping):
        return value
    inner = {key: without_empty_keys(each) for key, each in value.items()}
    return {key: each for key, each in inner.items() if each not in (None, {}, [])}


def is_tuned(policy: str) -> bool:
    """Whether the policy of that name chooses anything, by its registry; one that is not known here does."""
    return policy not in PRESETS or PRESETS[policy].tunes
