"""The command lines that the fuzzer writes: commands with arguments and options, right and wrong ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from .grammar import ALL_KEYS, METHODS, ODD_WORDS, POLICIES, SMALL_SPACE, TINY, toml

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


def _short(**keys: Any) -> list[str]:
    """The words of a short run."""
    return [f"{key}={toml(value)}" for key, value in {**TINY, "space": SMALL_SPACE, **keys}.items()]


#: By command: what it is usually given, what follows in any case, and its options with their values.
_ALWAYS: Mapping[str, tuple[tuple[st.SearchStrategy[str], ...], Sequence[str]]] = {
    "run": ((_recipes,), _short()),
    "crossval": ((_recipes,), _short()),
    "audit": ((_recipes,), _short(policy="race")),
    "probe": ((_recipes,), [*_short(), "--phase", "1", "--out", "table.json"]),
    "resume": ((_paths,), []),
    "sweep": ((_paths,), []),
    "simulate": ((_paths, _paths), ["--policy", "race", "--runs", "2"]),
    "report": ((_paths, _paths), []),
    "cam": ((_paths,), ["--out", "cam.png"]),
    "track": ((_paths,), []),
    "learn": ((_paths, st.just("photos")), ["--epochs", "1", "--policy", "fixed", "--device", "cpu"]),
    "predict": ((st.just("learner"), _paths), []),
    "score": ((_paths, _paths), []),
    "info": ((_paths,), []),
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
    "info": ("--json",),
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
        words = [*(word for word in words if not word.startswith(f"{key}=")), f"{key}={value}"]
        refused = refused or "\n" in value or not value.strip()
    if draw(st.integers(0, 9)) == 0:  # a word lost, or one too many
        words.pop(draw(st.sampled_from([place for place, word in enumerate(words) if not word.startswith("epochs=")])))
        refused = False
    return CommandLine(words, refused)
