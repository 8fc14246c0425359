"""What a saved learner may hold: one check of its values and tensors, before anything is made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from poise.actions import AXES, checked
from poise.data.stores import describe
from poise.errors import Malformed, UserError
from poise.nets import Head, Model, is_named
from poise.schema import (
    anything,
    check,
    either,
    keyed,
    listed,
    mapped,
    maybe,
    number,
    refuse,
    scalar,
    text,
    truth,
    whole,
    word,
)
from poise.tuning import CLASSIFIERS

#: Pixels of one image in all channels: more would not fit into memory a batch at a time.
MOST_PIXELS: Final = 2**26
#: The longest side of an image that is kept whole, larger than networks see it.
MOST_SIDE: Final = 2**14
#: By how many pixels an image can be moved and still be seen.
MOST_PAD: Final = 2**12


def _action(value: object, where: str) -> None:
    mapped(scalar)(value, where)
    for name, each in value.items() if isinstance(value, Mapping) else ():
        try:
            checked(name, each) if name in AXES or not isinstance(each, str) else None
        except UserError as error:
            raise Malformed(f"is not as poise writes it: {error}") from error


_HITS = mapped(whole(), *CLASSIFIERS)
_SHARE = number(0, 1)
_TRIAL = keyed(
    {"id": whole(), "arm": whole(), "epochs": whole(1)}, {"continues": maybe(whole()), "round": whole(), "full": truth}
)
_OUTCOME = keyed({"trial": _TRIAL, "reward": _SHARE, "per_class": listed(_SHARE), "diverged": truth})
_STEP = keyed({"round": whole(), "action": _action, "loss": maybe(number()), "gradient": maybe(mapped(number()))})


def _experience(value: object, where: str) -> None:
    listed(anything, 3)(value, where)
    assert isinstance(value, list | tuple)
    for each, inner in zip(value, (listed(number()), whole(), _SHARE), strict=True):
        inner(each, where)


_EPISODE = keyed({"number": whole(), "steps": listed(_experience)})
_ENTRY = keyed(
    {"phase": whole()},
    {
        "tried": _OUTCOME,
        "totals": _HITS,
        "decided": whole(),
        "judged": _HITS,
        "chosen": _action,
        "stepped": _STEP,
        "played": _EPISODE,
    },
)
_AUGMENTATION = keyed(
    {},
    {
        "pad": whole(0, MOST_PAD),
        "flip": truth,
        "brightness": _SHARE,
        "autoaugment": truth,
        "cutout": _SHARE,
        "resized": _SHARE,
    },
)
_PREPROCESSING = keyed({"mean": listed(number()), "std": listed(number(0)), "augmentation": _AUGMENTATION})
_POSITION = keyed(
    {"stage": whole(), "epoch": whole(), "step": whole(), "names": listed(text), "students": listed(text)}
)
_MODEL = keyed(
    {"net": text, "grown": listed(listed(whole(), 2)), "frozen": listed(listed(text), 2)}, {"expands": truth}
)
_LEARNER = keyed(
    {
        "settings": mapped(anything, "method"),  # `Settings` checks them
        "augmentation": maybe(_AUGMENTATION),
        "own_net": truth,
        "models": mapped(_MODEL),
        "shape": maybe(listed(whole(1, MOST_PIXELS), 3)),
        "preprocessing": maybe(_PREPROCESSING),
        "classes": listed(either("a label, a number or a text", text, whole(-(2**63), 2**63 - 1))),
        "classifier": word(*CLASSIFIERS),
        "action": _action,
        "phases": whole(),
        "hits": _HITS,
        "history": listed(_ENTRY),
        "held": whole(),
        "budget": whole(),
        "rho": _SHARE,
        "pending": maybe(
            keyed(
                {"digest": text, "history": listed(_ENTRY), "action": maybe(_action), "position": mapped(anything)},
                {"switches": mapped(scalar), "preprocessing": _PREPROCESSING},
            )
        ),
    },
    {
        "mean_images": listed(whole()),
        "reject": mapped(number()),
        "images_digests": listed(text),
        "net_info": mapped(anything),
        "short_side": whole(1, MOST_SIDE),
    },
)


def check_values(meta: Mapping[str, Any]) -> None:
    """Refuse plain values that no learner was saved with: their types and ranges."""
    _LEARNER(meta, "")


def check_learner(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Refuse values and tensors that no learner was saved with: types, ranges, counts, and weights that are NaN."""
    check_values(meta)
    known, shape = len(meta["classes"]), meta["shape"]
    check(len(set(meta["classes"])) == known, "classes", "all different", meta["classes"])
    check(bool(known) is bool(meta["phases"]), "phases", f"as many as {known} classes need", meta["phases"])
    check(shape is None or math.prod(shape) <= MOST_PIXELS, "shape", f"at most {MOST_PIXELS} pixels", shape)
    least = min(shape[1:]) if shape is not None else 1
    check(meta.get("short_side", least) >= least, "short_side", f"at least {least} pixels", meta.get("short_side"))
    noted = len(meta.get("images_digests", ()))
    check(noted <= meta["phases"], "images_digests", f"at most {meta['phases']}, one for each phase", noted)
    check(len(meta.get("mean_images", ())) in (0, known), "mean_images", f"one for each of {known} classes", "others")
    needed = {"shape": shape, "preprocessing": meta["preprocessing"], "models.predictor": "predictor" in meta["models"]}
    for name, value in {**needed, "means": tensors.get("means") is not None}.items() if known else ():
        check(value, name, "there where classes are known", value)
    for name in meta["models"]:
        check(name in ("predictor", "start") and known, f"models.{name}", "predictor or start", name)
        grown = len(meta["models"][name]["grown"])
        check(grown <= meta["phases"], f"models.{name}.grown", f"no longer than {meta['phases']} phases", grown)
    pending = meta["pending"]
    if pending is not None and (pending["action"] is not None or pending["position"]):
        check(pending["action"] is not None, "pending.action", "there where a training was begun", None)
        _POSITION(pending["position"], "pending.position")
    foreign = meta["own_net"] or is_named(meta["settings"].get("net"))
    for name, tensor in tensors.items():
        _check_finite(name, tensor, masks=foreign and ".backbone." in name and ".momentum" not in name)
    _check_memory(tensors, known, shape)


def _check_finite(name: str, tensor: Tensor, *, masks: bool) -> None:
    """Refuse what is not a number, and what is infinite but for `masks` in a network that poise did not make."""
    if not tensor.is_floating_point():
        return
    bad = torch.isnan(tensor) if masks else ~torch.isfinite(tensor)
    check(not bool(bad.any()), f"tensor {name}", "finite", f"{int(bad.sum())} of {tensor.numel()} values that are not")
    if name.endswith("running_var"):
        check(not bool((tensor < 0).any()), f"tensor {name}", "at least 0", "negative variances")


def _check_memory(tensors: Mapping[str, Tensor], known: int, shape: Sequence[int] | None) -> None:
    """Refuse kept images without a label among the known classes, or of another size."""
    parts = ("exemplars", "reserve")
    names = [f"memory.{part}.{name}" for part in parts for name in ("labels", "origins")]
    there = [name for name in names if name in tensors]
    check(len(there) in (0, len(names)), "the memory", f"of {', '.join(names)}", there)
    for name in there:
        value = tensors[name]
        check(value.dtype == torch.int64 and value.ndim == 1, f"tensor {name}", "int64 [N]", describe(value))
        most = known - 1 if name.endswith("labels") else 2**62
        inside = not len(value) or (int(value.min()) >= -name.endswith("origins") and int(value.max()) <= most)
        check(inside, f"tensor {name}", f"at most {most} and not negative", "others")
    for part in parts if there else ():
        labels, origins, pixels = (tensors.get(f"memory.{part}.{name}") for name in ("labels", "origins", "pixels"))
        sizes = tensors.get(f"memory.{part}.sizes")
        if sizes is not None:
            _check_sizes(part, sizes, pixels, shape)
        for name, each in (("origins", origins), ("pixels", pixels) if sizes is None else ("sizes", sizes)):
            if each is not None and labels is not None:
                check(
                    each.ndim > 0 and len(each) == len(labels),
                    f"tensor memory.{part}.{name}",
                    f"{len(labels)} entries",
                    describe(each),
                )
        if pixels is not None and shape is not None and sizes is None:
            fits = pixels.dtype == torch.uint8 and list(pixels.shape[1:]) == list(shape)
            check(fits, f"tensor memory.{part}.pixels", f"uint8 [N, {', '.join(map(str, shape))}]", describe(pixels))


def _check_sizes(part: str, sizes: Tensor, pixels: Tensor | None, shape: Sequence[int] | None) -> None:
    """Refuse heights and widths of whole images that are smaller than what is seen of them, or do not fit the bytes."""
    name = f"memory.{part}.sizes"
    check(sizes.dtype == torch.int64 and sizes.shape[1:] == (2,), f"tensor {name}", "int64 [N, 2]", describe(sizes))
    least = torch.tensor(shape[1:] if shape is not None else (1, 1), device="cpu")
    inside = not len(sizes) or (bool((sizes >= least).all()) and int(sizes.max()) <= MOST_SIDE)
    check(inside, f"tensor {name}", f"at least {least.tolist()} and at most {MOST_SIDE}", "others")
    count = int(sizes.prod(dim=1).sum()) * (shape[0] if shape is not None else 1)
    fits = pixels is not None and pixels.dtype == torch.uint8 and list(pixels.shape) == [count]
    check(fits, f"tensor memory.{part}.pixels", f"uint8 [{count}]", "missing" if pixels is None else describe(pixels))


def check_head(head: Head, state: Mapping[str, Tensor]) -> None:
    """Refuse rows that this kind of head does not have: other names, types, or lengths where those are given."""
    own = head.state_dict()
    if own.keys() != state.keys():
        name = sorted(own.keys() ^ state.keys())[0]
        refuse(f"tensor head.{name}", "there" if name in own else "left out", "there" if name in state else "missing")
    for name, made in own.items():
        found = state[name]
        alike = found.dtype == made.dtype and found.ndim == made.ndim
        fits = alike and all(length in (0, given) for length, given in zip(made.shape, found.shape, strict=True))
        check(fits, f"tensor head.{name}", f"{describe(made)}, 0 being any length", describe(found))
    for pair in head.parts:
        for name, rows in zip(pair, head.parts[0], strict=True):
            count = len(state[rows])
            check(len(state[name]) == count, f"tensor head.{name}", f"{count} entries", describe(state[name]))


def check_types(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Refuse values of another type than those of this network: they would be rounded without a word."""
    for name, made in own.items():
        if name in state:
            check(state[name].dtype == made.dtype, f"tensor {name}", f"{made.dtype}", f"{state[name].dtype}")


def check_models(models: Mapping[str, Model], means: Tensor | None, classes: int) -> None:
    """Refuse models and class means for another number of classes, and means of other features than the predictor's."""
    for name, model in models.items():
        check(model.head.classes == classes, f"the head of {name}", f"of {classes} classes", model.head.classes)
    if means is not None and "predictor" in models:
        shape = [classes, models["predictor"].head.width]
        fits = means.dtype == torch.float32 and list(means.shape) == shape
        check(fits, "tensor means", f"float32 {shape}", describe(means))
