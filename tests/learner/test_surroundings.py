"""A learner inside another program: what that one set for itself neither breaks the learner nor changes its bytes."""

from __future__ import annotations

import importlib
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise import Learner, UserError
from poise.testing import check_resuming

from .samples import Flat, digits, learner, state_bytes


def a_life(folder: Path, **settings: Any) -> list[bytes]:
    """Whatever a program does with a learner, and all that came of it."""
    images, labels = digits(0, 1, 2, 3)
    mine = learner(**settings).partial_fit(*digits(0, 1))
    for _ in mine.fitting(*digits(2, 3)):
        mine.state()
    found = [mine.predict_proba(images), mine.predict(images), mine.predictions(images)["ncm"]]
    found.append(np.array(mine.score(torch.from_numpy(images), torch.tensor(labels, device="cpu"))))
    saved = state_bytes(mine, folder)
    again = Learner.load(folder / "state.safetensors").partial_fit(*digits(4, 5))
    again.delete_exemplars(again.exemplars()[0].id).remove(0).calibrate_reject(0.5)
    found.append(again.predict(images, reject=True, rejected=-1))
    return [saved, state_bytes(again, folder), *(values.tobytes() for values in found)]


def test_the_bytes_are_the_same_and_what_the_program_set_is_still_set(tmp_path: Path) -> None:
    trying: dict[str, Any] = {"policy": "grid", "space": {"lr": [0.1, 0.05]}, "trials": {"environment": "both"}}
    alone = a_life(tmp_path, **trying)
    contexts = (torch.inference_mode(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"))
    with ExitStack() as stack:
        for each in contexts:
            stack.enter_context(each)
        assert a_life(tmp_path, **trying) == alone
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_default_device().type == "meta"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_of_ones_own_made_in_another_format_learns(dtype: torch.dtype) -> None:
    mine = learner(net=Flat().to(dtype), method="lwf").partial_fit(*digits(0, 1)).partial_fit(*digits(2, 3))
    assert mine.predict_proba(digits(0)[0]).dtype == np.float32


class Dropping(nn.Module):
    """A network that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Dropout(0.5))

    def forward(self, images: Tensor) -> Tensor:
        return cast("Tensor", self.layers(images))


def test_a_network_that_draws_random_numbers_is_given_those_of_the_seed(tmp_path: Path) -> None:
    net = Dropping()

    def make(seed: int = 0) -> Learner:
        return learner(net=net, method="lwf", seed=seed).partial_fit(*digits(0, 1))

    torch.manual_seed(1)
    before, wanted = global_state(), state_bytes(make(), tmp_path)
    assert global_state() == before
    torch.manual_seed(2)
    assert state_bytes(make(), tmp_path) == wanted
    check_resuming(make, *digits(2, 3), net=net)
    unlike = [make(seed).model for seed in (0, 1)]
    weights = [model.state_dict()["backbone.layers.1.weight"] for model in unlike if model is not None]
    assert not torch.equal(*weights)


# Global generators ----------------------------------------------------------------------------------------------------


def global_state() -> list[str]:
    """Global generators, and the flags that a program may have set."""
    flags = (
        torch.get_num_threads(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(),
    )
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one is the point
    return [str(torch.get_rng_state().tolist()), str(numpy_state), str(random.getstate()), str(flags)]


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "online", "epochs": 2},
        {"policy": "bilevel", "policy_options": {"rounds": 2, "steps": 2}},
        {"method": "podnet"},
        {"method": "aanets"},
        {"method": "ranpac"},
        {"method": "slca"},
        {"net": Flat(), "method": "lwf"},
        {"net": None, "epochs": None, "batch": None},
        {"deterministic": True},
    ],
    ids=lambda settings: "-".join(map(str, settings.values()))[:30],
)
def test_global_generators_and_flags_are_left_as_they_were_between_any_two_events(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    importlib.import_module("sklearn.cluster")  # which draws numbers when it is first imported
    torch.manual_seed(1)
    random.seed(1)
    before = global_state()
    mine = learner(**settings)
    for _ in mine.fitting(*digits(0, 1)):
        assert global_state() == before
    mine.partial_fit(*digits(2, 3)).predict(digits(0)[0])
    mine.score(*digits(0, 1))
    mine.save(tmp_path / "model")
    Learner.load(tmp_path / "model", net=settings.get("net")).partial_fit(*digits(4))
    with pytest.raises(UserError):
        mine.partial_fit(*digits(0))
    assert global_state() == before
