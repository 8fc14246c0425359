"""The table of keys: values are checked, said and unsaid keys told apart, and written without loss."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.errors import UserError
from poise.learner import Settings
from poise.settings import (
    KEYS,
    SECTIONS,
    Keys,
    LearnerKeys,
    MemoryKeys,
    RecipeKeys,
    ScheduleKeys,
    TrialSettings,
    tagged,
)


@pytest.mark.parametrize(
    ("kind", "values", "word"),
    [
        (RecipeKeys, {"epoch": 3}, "did you mean 'epochs'?"),
        (RecipeKeys, {"total": 40}, "did you mean 'memory.total'?"),
        (RecipeKeys, {"adjustment": 1}, "did you mean 'action.adjustment'?"),
        (RecipeKeys, {"lr": 0.1}, "the learning rate is action.lr"),
        (RecipeKeys, {"memory": {"totl": 3}}, "did you mean 'memory.total'?"),
        (RecipeKeys, {"trials": {"epochs": 3}}, "known: trials.balance_length, "),
        (RecipeKeys, {"setting": "tsf"}, "did you mean 'tfs'?"),
        (RecipeKeys, {"epochs": 0}, "epochs=0 must be at least 1"),
        (RecipeKeys, {"epochs": 2.0}, "epochs=2.0 must be a whole number"),
        (RecipeKeys, {"momentum": 1}, "momentum=1 must be below 1"),
        (RecipeKeys, {"first_lr": 0}, "first_lr=0 must be above 0"),
        (RecipeKeys, {"deterministic": "yes"}, "must be true or false"),
        (RecipeKeys, {"options": [3]}, "options=[3] must be a table"),
        (RecipeKeys, {"options": {"a": [1]}}, "options.a=[1] must be a number or text"),
        (RecipeKeys, {"memory": "lots"}, "memory='lots' cannot be used; give the number"),
        (RecipeKeys, {"space": {"lr": 0.1}}, "0.1 in {'lr': 0.1} cannot be used; give a name such as paper"),
        (RecipeKeys, {"net": "none"}, "leave it out"),
        (RecipeKeys, {"data": ""}, "data='' must have at least 1 character"),
        (RecipeKeys, {"trials": 3}, "trials=3 must be a table"),
        (ScheduleKeys, {"milestones": [0.5, 0.25]}, "must be rising shares"),
        (MemoryKeys, {"per_class": 5, "total": 9}, "not both"),
        (MemoryKeys, {"per_class": None}, "not neither"),
        (MemoryKeys, {"per_class": 3, "reserve": 3}, "below memory.per_class"),
        (MemoryKeys, {"per_class": 20, "rule": "all"}, "leave the other keys"),
        (MemoryKeys, {"allocation": 0.5}, "goes with memory.rule=rmm"),
        (MemoryKeys, {"rule": "rmm", "allocation": [0.5, 1.5]}, "1.5 in [0.5, 1.5] cannot be used"),
        (MemoryKeys, {"rule": "rmm", "allocation": []}, "memory.allocation=[] cannot be used; give a share"),
        (MemoryKeys, {"rule": "rmm", "per_class": 0}, "keeps none"),
        (MemoryKeys, {"rule": "rmm", "knows_increment": True, "after_phase_0": "plain"}, "leave memory.after_phase_0"),
        (TrialSettings, {"length": 1.5}, "trials.length=1.5 must be at most 1"),
        (TrialSettings, {"environment": "both", "horizon": 1}, "use it with trials.environment=local"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(kind: type[Any], values: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError) as error:
        kind(**values)
    assert word in str(error.value)
    assert "\n" not in str(error.value)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "epochs": st.integers(1, 500),
            "momentum": st.floats(0, 0.99),
            "milestones": st.just((0.25, 0.5)) | st.none(),
            "memory": st.integers(0, 100) | st.just("all") | st.fixed_dictionaries({"total": st.integers(1, 9)}),
            "trials": st.fixed_dictionaries({}, optional={"length": st.floats(0.1, 1), "even": st.booleans()}),
            "policy_options": st.dictionaries(st.sampled_from(["safe", "every"]), st.integers(1, 3)),
            "space": st.just([{"lr": [0.1, 0.05]}]) | st.just("paper") | st.none(),
            "order": st.integers(0, 9) | st.just("sorted") | st.just([1, 0]),
            "groups": st.just([2, 1]) | st.just([[0, 1], [2]]) | st.none(),
        },
    )
)
def test_written_keys_are_read_as_they_were(values: dict[str, Any]) -> None:
    keys = RecipeKeys(**values)
    again = RecipeKeys(**json.loads(json.dumps(keys.as_json())))
    assert again == keys
    assert again.trials.said() == keys.trials.said()
    assert RecipeKeys(**keys.changed()) == keys
    assert keys.changed().keys() <= values.keys()


def test_said_and_unsaid_keys_are_told_apart() -> None:
    said = TrialSettings(length=0.1)
    assert said == TrialSettings()
    assert (said.said(), TrialSettings().said(), said.changed()) == ({"length": 0.1}, {}, {})
    assert said.whole().said() == dict(TrialSettings())
    assert said.replace(even=False).said() == {"length": 0.1, "even": False}
    with pytest.raises(UserError, match="horizon"):
        said.replace(horizon=-1)


def test_short_forms_and_sizes_of_a_memory() -> None:
    given: list[Any] = [7, "all", {"total": 50}]
    assert [LearnerKeys(memory=value).memory for value in given] == [
        MemoryKeys(per_class=7),
        MemoryKeys(rule="all"),
        MemoryKeys(per_class=None, total=50),
    ]
    given = [{}, {"rule": "plain"}, {"per_class": 20}, {"total": 9}]
    memories = [Settings.resolve(method="finetune", memory=value).memory for value in given]
    assert [memory.per_class for memory in memories] == [0, 0, 20, None]


def test_values_are_copies_and_plain() -> None:
    options = {"alpha": np.float32(0.5)}
    given: dict[str, Any] = {"options": options, "tune": {"lr", "kd"}, "seed": np.uint8(4), "memory": np.int64(5)}
    keys = LearnerKeys(**given)
    options.clear()
    assert (keys.options, keys.tune, type(keys.seed)) == ({"alpha": 0.5}, ["kd", "lr"], int)
    assert keys.memory == MemoryKeys(per_class=5)
    wrong: dict[str, Any] = {"epochs": np.bool_(True), "seed": np.float64(2)}
    for name, value in wrong.items():
        with pytest.raises(UserError, match=f"{name}="):
            LearnerKeys(**{name: value})


def test_every_key_has_a_section_a_type_and_a_meaning() -> None:
    tables: dict[str, type[Keys]] = {"memory": MemoryKeys, "trials": TrialSettings}
    names = {f"{table}.{name}" for table, kind in tables.items() for name in kind.model_fields}
    assert {key.name for key in KEYS} == {*RecipeKeys.model_fields} | names
    assert all(key.kind and key.meaning for key in KEYS)
    for field in RecipeKeys.model_fields.values():
        extra: Any = field.json_schema_extra
        assert extra["tags"][0] in SECTIONS
    assert tagged("chance") == ("precision", "deterministic", "seed", "start", "device")
