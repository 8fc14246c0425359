"""The recipes that the fuzzer writes, near enough to right ones to get far into poise.

Values are of two kinds. *Sensible* ones, and ones at the edge, may be accepted or refused; whichever it is has to be
clean. *Wrong* ones are of the kinds that must never be accepted in silence: they must be refused before anything is
trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

#: A run of two short phases on the digits.
TINY = {"setting": "groups", "groups": [2, 1], "epochs": 1, "batch": 64, "policy": "fixed"}
#: Two actions to choose from: enough to tune, soon done.
SMALL_SPACE = {"lr": [0.1, 0.05]}
METHODS = ("lucir", "icarl", "lwf", "podnet", "aanets", "ranpac", "simplecil", "slca", "finetune", "replay", "joint")
POLICIES = ("fixed", "online", "race", "grid", "random", "hedge", "exp3")

WHOLE_KEYS = (
    *("epochs", "batch", "seed", "phases", "images_per_class", "image_size", "images", "memory.per_class"),
    *("memory.total", "memory.reserve", "trials.horizon", "trials.validation", "trials.longest"),
)
NUMBER_KEYS = (
    *("momentum", "weight_decay", "warmup", "first_lr", "trials.length", "memory.allocation", "action.lr"),
    "trials.balance_length",
    *("action.feature_kd", "action.logit_kd", "action.adjustment", "options.lambda_base"),
)
OPTIONS = {
    "race": ("rungs", "finalists"),
    "grid": ("rounds",),
    "random": ("trials",),
    "hedge": ("rounds",),
    "exp3": ("xi", "iterations"),
    "online": ("fewest", "again", "carry", "handicap", "head_start"),
}

#: No number of any key, as TOML writes them. Deep nesting and long integers have to be short enough for a command line.
WRONG_NUMBERS = (
    *("true", "false", "'5'", '"0.1"', "nan", "inf", "-inf", "1e39", "1e308", "-1e308", "[[]]", "{a = 1}"),
    *("9" * 5000, "0x" + "f" * 4000, "-" + "9" * 5000, "[" * 2000 + "]" * 2000, "{a=" * 1000 + "1" + "}" * 1000),
    *(str(10**30), str(2**63), "1979-05-27", "''"),
)
#: Words, paths and text of all kinds, for keys and arguments.
ODD_WORDS = (
    *("", " ", ".", "..", "/", "~", "~nosuchuser", "~nosuchuser/x", "-", "--", "=", "nowhere", "/dev/null", "a" * 300),
    *(
        "../../etc/passwd",
        "x\ny",
        "é",
        "汉字",
        "\u202e",
        "\x1b[31m",
        "'",
        '"',
        "\\",
        "%s",
        "{}",
        "$HOME",
        "*",
        "\udcff",
    ),
)


def toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else str(value)


class Case(NamedTuple):
    """Keys of a recipe as TOML writes them, and what is promised of them."""

    keys: Mapping[str, str]
    refused: bool = False
    said: str = ""  # what must be said where it is accepted

    def overrides(self) -> list[str]:
        """As words of a command."""
        return [f"{key}={value}" for key, value in self.keys.items()]

    def file(self) -> str:
        """As the text of a recipe."""
        return "".join(f"{key} = {value}\n" for key, value in self.keys.items())


small_counts = st.integers(-1, 3)
edges = st.sampled_from([0, 1, 2, 3, -1, 10**9, 10**9 + 1, 2**31, 2**63 - 1])
small_numbers = st.one_of(
    st.floats(0, 1), st.sampled_from([0, 0.5, 1, -1.0, 1e-300, 1e-37, 3e38, 0.999999999, 1e-9]), st.floats(-1e3, 1e3)
)


def _sensible(key: str) -> st.SearchStrategy[Any]:
    """Values of a key, those at the edge included; nothing that would train for hours."""
    lasting = {"epochs", "batch", "trials.horizon", "image_size", "phases"}
    if key in lasting:
        return st.one_of(st.integers(16, 200), st.integers(-1, 1)) if key == "batch" else small_counts
    if key in WHOLE_KEYS:
        return st.one_of(small_counts, edges)
    if key in NUMBER_KEYS:
        return small_numbers
    choices: dict[str, st.SearchStrategy[Any]] = {
        "method": st.sampled_from(METHODS),
        "policy": st.sampled_from(POLICIES),
        "net": st.sampled_from(["small", "smal", "", "x:y", "resnet32", "a.py:f"]),
        "order": st.one_of(st.integers(-1, 2**32), st.sampled_from(["sorted", "podnet-1", "x", [0, 1], [True]])),
        "optimiser": st.sampled_from(["sgd", "adamw", "adam"]),
        "decay": st.sampled_from(["steps", "cosine", ""]),
        "groups": st.lists(st.one_of(st.integers(-1, 4), st.lists(st.integers(-1, 10), max_size=3)), max_size=4),
        "memory": st.one_of(st.integers(-1, 30), st.sampled_from(["all", "none", {"total": 30}, {"rule": "rmm"}])),
        "exam": st.sampled_from(["dev", "test", "x"]),
        "space": st.sampled_from(["paper", "pappr", {}, [], {"lr": []}, {"lr": [0.1, 0.1]}, {"feature_kd": [0, 1]}]),
        "tune": st.lists(st.sampled_from(["kd", "lr", "classifier", "x", ""]), max_size=2),
        "trials.environment": st.sampled_from(["local", "lookahead", "both", "x"]),
        "trials.classifier": st.sampled_from(["full", "trials", "paper", "x"]),
        "action.classifier": st.sampled_from(["fc", "ncm", "auto", "x"]),
        "action.balance": st.sampled_from(["none", "align", "finetune", "x"]),
        "device": st.sampled_from(["cpu", "auto", "cuda:9", "x", "cpu:1"]),
        "precision": st.sampled_from(["auto", "fp32", "tf32", "x"]),
        "deterministic": st.booleans(),
        "setting": st.sampled_from(["tfs", "groups", "x"]),
        "start": st.sampled_from(ODD_WORDS),
        "data": st.sampled_from(("digits", *ODD_WORDS)),
    }
    return choices[key]


ALL_KEYS = (
    *WHOLE_KEYS,
    *NUMBER_KEYS,
    *("method", "policy", "net", "order", "optimiser", "decay", "groups", "memory", "exam", "space", "tune"),
    *("trials.environment", "trials.classifier", "action.classifier", "action.balance", "device", "precision"),
    *("deterministic", "setting", "start", "data"),
)


@st.composite
def fair_cases(draw: st.DrawFn) -> Case:
    """A tiny run with some keys set to sensible values or ones at the edge."""
    keys: dict[str, Any] = dict(TINY)
    for key in draw(st.lists(st.sampled_from(ALL_KEYS), max_size=5, unique=True)):
        keys[key] = draw(_sensible(key))
    if keys.get("policy", "fixed") != "fixed":
        keys.setdefault("space", SMALL_SPACE)
        names = OPTIONS.get(str(keys["policy"]), ())
        for name in draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) if names else ():
            keys[f"policy_options.{name}"] = draw(st.one_of(st.integers(-1, 4), small_numbers))
    return Case({key: toml(value) for key, value in _without_clashes(keys).items()})


def _without_clashes(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Without `memory` beside `memory.total`: TOML itself refuses to have both."""
    whole = {key.partition(".")[0] for key in keys if "." in key}
    return {key: value for key, value in keys.items() if key not in whole}


@st.composite
def wrong_numbers(draw: st.DrawFn) -> Case:
    """A tiny run with one number that is none."""
    keys = {key: toml(value) for key, value in TINY.items()}
    if draw(st.booleans()):
        policy = draw(st.sampled_from(sorted(OPTIONS)))
        option = draw(st.sampled_from(OPTIONS[policy]))
        keys |= {"policy": toml(policy), "space": toml(SMALL_SPACE)}
        key = f"policy_options.{option}"
    else:
        key = draw(st.sampled_from((*WHOLE_KEYS, *NUMBER_KEYS)))
    keys[key] = draw(st.sampled_from(WRONG_NUMBERS))
    return Case(keys, refused=True)


@st.composite
def wrong_words(draw: st.DrawFn) -> Case:
    """A tiny run with something else that must not be accepted in silence."""
    keys = {key: toml(value) for key, value in TINY.items()}
    values = "[" + ", ".join(f"{number / 1e5:.5f}" for number in range(1, 301)) + "]"
    wrong: Sequence[Case] = (
        Case({"policy": "'fixed'", "policy_options.safe": "1.0"}, refused=True),
        Case({"policy": "'fixed'", "policy_options.every": "2"}, refused=True),
        Case({"policy": "'fixed'", "policy_options.rungs": "2"}, refused=True),
        Case({"policy": "'race'", "policy_options.rungs": "1000000"}, refused=True),
        Case({"policy": "'grid'", "space": f"{{lr = {values}, feature_kd = {values}}}"}, refused=True),
        Case({"data": "'~nosuchuser'"}, refused=True),
        Case({"start": "'~nosuchuser/run'"}, refused=True),
        Case({"data": "''"}, refused=True),
        Case({"start": "''"}, refused=True),
        Case({"net": "'~nosuchuser/net.py:make'"}, refused=True),
        Case({"deterministic": "1"}, refused=True),
        Case({"deterministic": "'yes'"}, refused=True),
        Case({"groups": "[true, 2]"}, refused=True),
        Case({"groups": "['2', 1]"}, refused=True),
        Case({"image_size": "100000000"}, refused=True),
        Case({"epochs": "1000000000"}, refused=True),
        Case({"policy": "'fixed'", "space": '"joint"'}, said="does not use space"),
        Case({"policy": "'fixed'", "tune": '["lr"]'}, said="does not use tune"),
        Case({"policy": "'fixed'", "trials.length": "0.5"}, said="does not use trials"),
        Case({"policy": "'race'", "tune": "[]"}, said="nothing to tune"),
        Case({"policy": "'race'", "space": "{lr = [0.1]}"}, said="nothing to tune"),
    )
    chosen = draw(st.sampled_from(wrong))
    return chosen._replace(keys={**keys, **chosen.keys})


def recipes() -> st.SearchStrategy[Case]:
    """Recipes of all kinds."""
    return st.one_of(fair_cases(), wrong_numbers(), wrong_words())
