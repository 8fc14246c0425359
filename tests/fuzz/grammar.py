"""What the fuzzer writes: recipes, command lines and files, near enough to right ones to get far into poise.

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
POLICIES = ("fixed", "online", "race", "grid", "random", "hedge", "exp3", "gp", "thompson")

WHOLE_KEYS = (
    *("epochs", "batch", "seed", "phases", "images_per_class", "image_size", "images", "memory.per_class"),
    *("memory.total", "memory.reserve", "trials.horizon", "trials.validation", "trials.longest"),
)
NUMBER_KEYS = (
    *("momentum", "weight_decay", "warmup", "first_lr", "trials.length", "memory.allocation", "action.lr"),
    *("action.feature_kd", "action.logit_kd", "action.adjustment", "options.lambda_base"),
)
OPTIONS = {
    "race": ("rungs", "finalists", "carry", "handicap"),
    "grid": ("rounds", "carry"),
    "random": ("trials", "carry"),
    "hedge": ("rounds",),
    "exp3": ("xi", "iterations", "mixing"),
    "gp": ("trials", "batch", "memory", "kappa"),
    "thompson": ("trials", "batch", "memory"),
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
        Case({"policy": "'gp'", "space": f"{{lr = {values}, feature_kd = [0, 1, 2, 3]}}"}, refused=True),
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


# Command lines ----------------------------------------------------------------------------------------------------

#: What lies in the working folder of a command (see `furniture`).
THINGS = (
    *("photos", "done", "learner", "probe.json", "sweep.toml", "recipe.toml", "empty", "junk.bin", "junk.toml"),
    *("deep.json", "deep.toml", "loop"),
)
_paths = st.one_of(st.sampled_from(THINGS), st.sampled_from(ODD_WORDS))
_counts = st.sampled_from(
    ["0", "1", "2", "-1", "1e9", "nan", "", "x", "true", "9" * 30, "9" * 5000, "²", "0x10", "1_0"]
)
_seconds = st.sampled_from(["0", "60", "-1", "nan", "inf", "1e400", "", "x", "9" * 400])
_recipes = st.sampled_from(["digits/lucir", "digits/lucri", "recipe.toml", "deep.toml", "junk.toml", "nowhere.toml"])
_tiny = [f"{key}={toml(value)}" for key, value in {**TINY, "space": SMALL_SPACE}.items()]

#: By command: what it is usually given, what follows in any case, and its options with their values.
_ALWAYS: Mapping[str, tuple[tuple[st.SearchStrategy[str], ...], Sequence[str]]] = {
    "run": ((_recipes,), _tiny),
    "crossval": ((_recipes,), _tiny),
    "audit": ((_recipes,), [*_tiny, "policy=race"]),
    "probe": ((_recipes,), [*_tiny, "--phase", "1", "--out", "table.json"]),
    "resume": ((_paths,), []),
    "sweep": ((_paths,), []),
    "simulate": ((_paths, _paths), ["--policy", "race", "--runs", "2"]),
    "report": ((_paths, _paths), []),
    "cam": ((_paths,), ["--out", "cam.png"]),
    "track": ((_paths,), []),
    "learn": ((_paths, st.just("photos")), ["--epochs", "1", "--policy", "fixed", "--device", "cpu"]),
    "predict": ((st.just("learner"), _paths), []),
    "score": ((_paths, _paths), []),
    "recipes": ((_recipes,), []),
    "data": ((), []),
}
_OPTIONS: Mapping[str, st.SearchStrategy[str]] = {
    "--out": _paths,
    "--seed": _counts,
    "--checkpoint-every": _seconds,
    "--track": st.sampled_from(["x", "", "wandbb"]),
    "--lanes": _counts,
    "--phase": _counts,
    "--lengths": st.sampled_from(["1", "1,2", "0", "", ",", "x", "9" * 5000, "1e9", "-1"]),
    "--rounds": st.sampled_from(["0", "1", "x", "9" * 30]),
    "--policy": st.sampled_from((*POLICIES, "x", "")),
    "--runs": st.sampled_from(["0", "1", "3", "1000000000", "x", "9" * 5000]),
    "--phases": st.sampled_from(["0", "1", "3", "1000000000", "x"]),
    "--truth": st.sampled_from(["exam", "full", "x"]),
    "--classifier": st.sampled_from(["fc", "ncm", "x", ""]),
    "--length": _counts,
    "--truth-from": _paths,
    "--images": _paths,
    "--to": st.sampled_from(["x", "wandbb", ""]),
    "--method": st.sampled_from((*METHODS, *ODD_WORDS)),
    "--batch": st.sampled_from(["0", "2", "x", "9" * 30, "true"]),
    "--memory": st.one_of(_counts, st.sampled_from(["all", "true", "1.5"])),
    "--net": st.sampled_from(["small", "~nosuchuser/a.py:f", *ODD_WORDS]),
    "--image-size": st.sampled_from(["8", "16", "7", "100000000", "x", "true", "9" * 5000]),
    "--device": st.sampled_from(["cpu", "x", "cuda:99", "cpu:9", "cuda:" + "9" * 30]),
    "--top": st.sampled_from(["0", "1", "3", "9" * 30, "x"]),
    "--reject": st.sampled_from(["saved", "0.5", "0", "1", "nan", "inf", "1e-300", "x", "true", "9" * 400]),
    "--json": st.just(""),
    "--update": st.just(""),
    "--restart": st.just(""),
    "--cam": st.just(""),
    "--full": st.just(""),
    "--paired": st.just(""),
}
_FLAGS = ("--json", "--update", "--restart", "--cam", "--full", "--paired")
_OWN = {
    "run": ("--out", "--seed", "--checkpoint-every", "--track"),
    "crossval": ("--out", "--seed", "--lanes"),
    "audit": ("--out", "--seed"),
    "probe": ("--phase", "--out", "--lengths", "--rounds", "--full"),
    "resume": ("--checkpoint-every", "--track"),
    "sweep": ("--out", "--lanes", "--checkpoint-every"),
    "simulate": (
        *("--policy", "--runs", "--phases", "--truth", "--classifier", "--length", "--truth-from", "--seed"),
        "--paired",
    ),
    "report": ("--out", "--cam"),
    "cam": ("--images", "--out"),
    "track": ("--to",),
    "learn": (
        *("--method", "--batch", "--memory", "--net", "--image-size", "--seed", "--update", "--restart"),
        *("--checkpoint-every", "--device"),
    ),
    "predict": ("--top", "--reject", "--json", "--device"),
    "score": ("--json", "--device"),
}


class CommandLine(NamedTuple):
    """The words of a command, and what is promised of them."""

    words: Sequence[str]
    refused: bool = False


@st.composite
def command_lines(draw: st.DrawFn) -> CommandLine:
    """A command with arguments and options, some of which may be wrong."""
    command = draw(st.sampled_from(sorted(_ALWAYS)))
    arguments, always = _ALWAYS[command]
    words = [command, *(draw(argument) for argument in arguments), *always]
    for option in draw(st.lists(st.sampled_from(_OWN.get(command, ("--x",))), max_size=3, unique=True)):
        value = draw(_OPTIONS.get(option, st.just("x")))
        words += [option] if option in _FLAGS else [option, value] if draw(st.booleans()) else [f"{option}={value}"]
    refused = "" in words or any(word.startswith("--") and word.partition("=")[1:] == ("=", "") for word in words)
    if "=" in "".join(always) and draw(st.booleans()):
        key, value = draw(st.sampled_from(ALL_KEYS)), draw(st.sampled_from(ODD_WORDS))
        words.append(f"{key}={value}")
        refused = refused or "\n" in value or not value.strip()
    if draw(st.integers(0, 9)) == 0:  # a word lost, or one too many
        words.pop(draw(st.sampled_from([place for place, word in enumerate(words) if not word.startswith("epochs=")])))
        refused = False
    return CommandLine(words, refused)


# Documents --------------------------------------------------------------------------------------------------------

_JUNK: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(
        [10**9, 2**63, -(2**63), 1e308, -1.5, "", "x", "5", "~nosuchuser", "\x1b[2J", [], {}, [[]], [1, "a"]]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.recursive(st.integers(0, 3), lambda inner: st.lists(inner, max_size=2), max_leaves=4),
)


def changed(document: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The document with one to three of its values replaced, removed, repeated or moved."""

    @st.composite
    def change(draw: st.DrawFn) -> dict[str, Any]:
        copied: Any = json.loads(json.dumps(document))
        for _ in range(draw(st.integers(1, 3))):
            _change_once(draw, copied)
        return dict(copied)

    return change()


def _change_once(draw: st.DrawFn, node: Any) -> None:
    while True:
        places: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not places:
            return
        place = draw(st.sampled_from(places))
        inner = node[place]
        if isinstance(inner, dict | list) and inner and draw(st.integers(0, 4)):
            node = inner
            continue
        what = draw(st.sampled_from(["replace", "replace", "replace", "remove", "wrap", "repeat"]))
        if what == "replace":
            node[place] = draw(_JUNK)
        elif what == "remove":
            del node[place]
        elif what == "wrap":
            node[place] = [inner]
        elif isinstance(node, list):
            node.append(inner)
        else:
            node[draw(st.text(max_size=3))] = inner
        return


def damaged(text: bytes) -> st.SearchStrategy[bytes]:
    """The bytes of a file, cut off or with some of them changed."""
    places = st.integers(0, max(len(text) - 1, 0))
    cut = places.map(lambda place: text[:place])
    flips = st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)

    def flip(changes: list[tuple[int, int]]) -> bytes:
        found = bytearray(text)
        for place, value in changes:
            found[place] = value
        return bytes(found)

    return st.one_of(cut, flips.map(flip), st.binary(max_size=200))
