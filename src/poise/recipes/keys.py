"""The keys of a recipe, each with its type, its default and one line of meaning, for `poise recipes --keys`.

What they do is in `poise.runs.recipe`, and at greater length in docs/recipes.md. There is no torch here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from poise.errors import UserError, suggestion

#: The command that lists them, for help texts and error lines.
LIST_KEYS: Final = "poise recipes --keys"


class Key(NamedTuple):
    """A key of a recipe.

    Attributes:
        name: with dots where it is in a table.
        kind: what its value may be.
        default: as it is written in TOML; `none` where nothing is said.
        meaning: one line.
    """

    name: str
    kind: str
    default: str
    meaning: str


_ROWS: Final = (
    ("data", "text", '"digits"', "a data set ('poise data' lists them), a folder of class folders, or a pack"),
    ("image_size", "whole number", "none", "height and width of images from class folders or a pack, 8 to 4096"),
    (
        "images_per_class",
        "whole number or list",
        "none",
        "training images of each class, at most; [100, 5]: from 100 down to 5",
    ),
    ("method", "text", '"lucir"', "lucir, icarl, lwf, podnet, aanets, der, foster, simplecil, ranpac, slca, …"),
    ("options", "table", "{}", "options of the method, e.g. options.lambda_base=10"),
    ("net", "text", "none", "small, resnet32, resnet18, …, PACKAGE:NAME; none: what suits the data"),
    ("setting", "text", '"tfh"', "kind of stream: tfh (half of the classes first), tfs (equal phases) or groups"),
    ("phases", "whole number", "5", "phases after the first half (tfh), or in all (tfs)"),
    ("groups", "list", "none", "sizes of groups of classes, e.g. [5,3,2], or the classes, [[0,1],[2,3]]"),
    ("order", "whole number or text or list", "1993", "class order: a seed, sorted, podnet-1 …, or a list"),
    ("memory", "whole number or text or table", "{per_class = 20}", "images kept of each class (0: none), or all"),
    ("memory.per_class", "whole number", "20", "images kept of each class; 0: none"),
    ("memory.total", "whole number", "none", "images kept in total, shared evenly; in place of memory.per_class"),
    ("memory.reserve", "whole number", "0", "kept images of each class only used for validation, never trained on"),
    ("memory.rule", "text", '"plain"', "plain, rmm (exemplars share the room for new images), or all: every image"),
    ("memory.allocation", "number or list", "none", "of rmm: that share ρ, or one for each phase; if not set 0.5"),
    (
        "memory.knows_increment",
        "true or false",
        "false",
        "of rmm: the released rule, which knows the size of the next phase",
    ),
    ("memory.after_phase_0", "text", "none", "of rmm: what is kept after phase 0, rmm or plain; if not set rmm"),
    ("epochs", "whole number", "160", "epochs of the main stage of every phase"),
    ("batch", "whole number", "128", "images in a training step, at least 2"),
    ("momentum", "number", "0.9", "momentum of SGD"),
    ("weight_decay", "number", "0.0005", "weight decay: part of the gradient in SGD, decoupled in AdamW"),
    ("optimiser", "text", '"sgd"', "sgd or adamw"),
    ("decay", "text", '"steps"', "how the learning rate falls: steps, as the method's stages say, or cosine"),
    ("warmup", "number", "0.0", "share of a stage's epochs in which the learning rate rises to its full value"),
    ("policy", "text", '"online"', "what chooses the action of a phase: online, fixed, race, exp3, …"),
    ("policy_options", "table", "{}", "options of the policy and its wrappers, e.g. policy_options.safe=1.0"),
    ("space", "text or table or list", "none", "the actions: paper, joint, …, or a grid; none: the policy's own"),
    ("tune", "list", "none", 'tune only these kinds of axes, e.g. ["kd","classifier","lr"]; none: all'),
    ("trials", "table", "{}", "how actions are tried; keys not set have the policy's own values"),
    ("trials.environment", "text", "none", "local, lookahead or both; if not set local, for online both"),
    (
        "trials.horizon",
        "whole number",
        "none",
        "repeats of a local training, with itself as teacher; if not set 0",
    ),
    ("trials.validation", "whole number", "none", "images held out of each class; if not set 10, for online 30"),
    ("trials.length", "number", "none", "length of a trial, as a share of epochs; if not set 0.1, for online 0.3"),
    ("trials.longest", "whole number", "none", "the most epochs of a trial; if not set no limit, for online 16"),
    (
        "trials.balance_length",
        "number",
        "none",
        "least length of a trial's balanced fine-tuning, as a share of the phase's; if not set shortened as the trial",
    ),
    (
        "trials.even",
        "true or false",
        "none",
        "hold out equally many images of each class; if not set true, for online false",
    ),
    (
        "trials.classifier",
        "text",
        "none",
        "how auto is decided: full, trials, paper; if not set full, for online trials",
    ),
    (
        "action",
        "table",
        "{}",
        "changes to the method's default action from phase 1 on, e.g. action.lr=0.05; classifier and adjustment count "
        "in phase 0 too",
    ),
    ("first_lr", "number", "none", "learning rate of phase 0; none: the method's own"),
    ("exam", "text", '"test"', "what each phase is tested on: test, or dev, held-out training images"),
    ("start", "text", "none", "folder of another run; start from its state after phase 0"),
    ("seed", "whole number", "0", "seed of every random draw"),
    ("device", "text", '"auto"', "auto, cpu, cuda or cuda:N"),
    ("precision", "text", '"auto"', "auto (bf16 on a GPU that has it, else fp32), fp32, tf32 or bf16"),
    ("deterministic", "true or false", "false", "byte-identical runs on a GPU too, more slowly"),
    ("choose", "true or false", "false", "choose keys that are not set for the images of the first phase"),
    ("images", "whole number", "none", "number of images that epochs is meant for; other phases are scaled"),
    ("augmentation", "text", '"data"', "data (its own), judged, resized, autoaugment, cutout, autoaugment+cutout"),
    ("milestones", "list", "none", "shares of the main stage after which the learning rate is ×0.1; none: its own"),
    ("balance_share", "number", "none", "length of balance=finetune as a share of epochs; none: the method's own"),
    ("balance_lr", "number", "none", "learning rate of balance=finetune; none: the method's own"),
)
#: Every key of a recipe, in the order of docs/recipes.md.
KEYS: Final = tuple(Key(*row) for row in _ROWS)
_NAMES: Final = frozenset(key.name for key in KEYS)
_TABLES: Final = tuple(name for name in sorted(_NAMES) if any(other.startswith(f"{name}.") for other in _NAMES))


def refuse_unknown_keys(values: Mapping[str, Any], tables: Mapping[str, Collection[str]] | None = None) -> None:
    """Refuse values of a recipe whose key does not exist; names of options and of axes are checked elsewhere.

    `tables` are such names by the table that they belong into, for who writes them without it.
    """
    _refuse_unknown(values, "", tables or {})
    for table in _TABLES:
        if isinstance(inner := values.get(table), dict):
            _refuse_unknown(inner, f"{table}.")


def _refuse_unknown(
    values: Mapping[str, Any], prefix: str, tables: Mapping[str, Collection[str]] = MappingProxyType({})
) -> None:
    inner = {name.removeprefix(prefix) for name in _NAMES if name.startswith(prefix)}
    known = {name for name in inner if "." not in name}
    for name in values:
        if name not in known:
            nearest = ("" if prefix else _in_a_table(name, tables)) or suggestion(name, known, prefix)
            raise UserError(f"unknown key '{prefix}{name}'; {nearest} (all keys: '{LIST_KEYS}')")


def _in_a_table(name: str, tables: Mapping[str, Collection[str]]) -> str:
    """The end of an error line about a key that exists, but in a table; empty if there is none.

    >>> _in_a_table("total", {}), _in_a_table("safe", {"policy_options": ["safe"]}), _in_a_table("epoch", {})
    ("did you mean 'memory.total'?", "did you mean 'policy_options.safe'?", '')
    """
    if name in ("lr", "learning_rate"):
        return "the learning rate is action.lr, that of phase 0 first_lr"
    found = sorted(key for key in _NAMES if key.endswith(f".{name}"))
    found += [f"{table}.{name}" for table, names in tables.items() if name in names]
    return f"did you mean '{found[0]}'?" if found else ""


def takes_list(name: str) -> bool:
    """Whether a key of this name can be a list or a table.

    >>> takes_list("groups"), takes_list("memory"), takes_list("data")
    (True, True, False)
    """
    return not _kinds(name).isdisjoint({"list", "table"})


def takes_only_text(name: str) -> bool:
    """Whether a key of this name can be nothing but text.

    >>> takes_only_text("data"), takes_only_text("order"), takes_only_text("epochs")
    (True, False, False)
    """
    return _kinds(name) == {"text"}


def _kinds(name: str) -> set[str]:
    return {kind for key in KEYS if key.name == name for kind in key.kind.split(" or ")}


def refuse_none(name: str, value: object) -> None:
    """Refuse `none` for a key that has nothing as its default: as it is listed, not as it is written."""
    if value == "none" and any(key.name == name and key.default == "none" for key in KEYS):
        raise UserError(f"key '{name}' cannot be set to none; leave it out")


def said_by(values: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - a value of any key
    """What the values of a recipe say about a key, with dots where it is in a table; None: nothing."""
    table, _, inner = name.partition(".")
    found = values.get(table)
    if not inner:
        return found
    if table == "memory" and found is not None and not isinstance(found, dict):  # its short form
        found = {"rule": found} if found == "all" else {"per_class": found}
    return found.get(inner) if isinstance(found, dict) else None


def flat_keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values flattened: keys joined by dots, and their values; a table without keys is a value.

    >>> list(flat_keys({"memory": {"total": 2000}, "seed": 1, "options": {}}))
    [('memory.total', 2000), ('seed', 1), ('options', {})]
    """
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat_keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
