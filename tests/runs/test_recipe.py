"""Recipes and overrides: what they mean, and one line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poise.data import Budget
from poise.errors import UserError
from poise.methods import METHODS, Growth
from poise.recipes import RECIPES, recipe_text
from poise.runs import load_recipe, make_recipe
from poise.tuning.search import tuner_names

#: The recipes for data of ImageNet's line.
LARGER = ("lucir", "icarl", "podnet", "aanets", "rmm", "der", "foster")


def refusal(name: str, *words: str) -> str:
    with pytest.raises(UserError) as error:
        load_recipe(name, words)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.toml"


@pytest.mark.parametrize("name", RECIPES)
def test_every_shipped_recipe_loads_and_says_in_its_first_line_what_it_is(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.data.removesuffix("-lucir").removesuffix("-podnet") == name.split("/", maxsplit=1)[0]
    assert recipe_text(name).startswith("# ")


def test_the_shipped_recipes_are_the_promised_ones() -> None:
    promised = {f"{data}/{method}" for data in ("digits", "cifar100") for method in METHODS}
    larger = {f"{data}/{method}" for data in ("imagenet-subset", "imagenet", "tinyimagenet") for method in LARGER}
    assert promised | larger <= RECIPES.keys()


@pytest.mark.parametrize("data", ["imagenet-subset", "imagenet", "tinyimagenet"])
@pytest.mark.parametrize("method", [name for name in LARGER if name not in ("der", "foster")])
def test_on_imagenet_a_phase_has_90_epochs_and_20_images_of_a_class_are_kept(data: str, method: str) -> None:
    recipe = load_recipe(f"{data}/{method}")
    assert (recipe.epochs, recipe.settings.memory.per_class, recipe.order) == (90, 20, 1993)
    steps = method in ("lucir", "icarl")
    assert recipe.milestones == ((0.3333, 0.6666) if steps else None)
    shaped = recipe.settings.schedule.apply_to(recipe.settings.made_method.balancing)
    assert steps or (shaped.epochs(recipe.epochs), shaped.lr) == (20, 0.01)


def test_the_two_subsets_of_imagenet_go_with_those_that_used_them() -> None:
    subsets = {method: load_recipe(f"imagenet-subset/{method}").data for method in LARGER}
    lucirs = {method for method, data in subsets.items() if data == "imagenet-subset-lucir"}
    assert lucirs == {"lucir", "icarl", "foster"}
    assert {subsets[method] for method in LARGER if method not in lucirs} == {"imagenet-subset-podnet"}


def test_der_trains_half_of_the_classes_first_as_released() -> None:
    found = dict[str, tuple[int, list[int]]]()
    for data in ("cifar100", "imagenet-subset", "imagenet", "tinyimagenet"):
        settings = load_recipe(f"{data}/der").settings
        first = settings.schedule.apply_to(*settings.made_method.stages(Growth(0, 50)))
        epochs = first.epochs(settings.schedule.epochs)
        rates = [settings.schedule.rate(first, epoch, epochs, 0.1) for epoch in range(epochs)]
        assert rates[0] == 0.1, "no warm-up"
        found[data] = epochs, [epoch for epoch in range(1, epochs) if rates[epoch] != rates[epoch - 1]]
    assert found["cifar100"] == found["imagenet-subset"] == (200, [60, 120, 160])
    assert found["imagenet"] == (120, [36, 72, 96])
    assert found["tinyimagenet"][0] == 106


def test_der_trains_later_phases_of_imagenet_subset_as_released() -> None:
    settings = load_recipe("imagenet-subset/der").settings
    (main,) = settings.made_method.stages(Growth(50, 10))
    shaped = settings.schedule.apply_to(main)
    rates = [settings.schedule.rate(shaped, epoch, 220, 0.1) for epoch in range(220)]
    assert rates[:3] + rates[19:21] == pytest.approx([0.005, 0.01, 0.015, 0.1, 0.1])
    assert [epoch for epoch in range(21, 220) if rates[epoch] != rates[epoch - 1]] == [80, 140, 180, 200]
    equal = load_recipe("imagenet-subset/der", ["setting=tfs", "options.first=warm"]).settings
    assert equal.made_method.stages(Growth(0, 20)) == (main,)


def test_foster_on_imagenet_says_what_it_lacks() -> None:
    for data in ("imagenet-subset", "imagenet"):
        assert recipe_text(f"{data}/foster").startswith("# FOSTER without AutoAugment")


@pytest.mark.parametrize("method", sorted(METHODS))
def test_cifar100_follows_the_schedule_of_the_paper(method: str) -> None:
    recipe = load_recipe(f"cifar100/{method}")
    epochs = 170 if method in ("der", "foster", "memo") else 160  # those have their own
    assert (recipe.epochs, recipe.batch, recipe.momentum, recipe.weight_decay) == (epochs, 128, 0.9, 5e-4)
    own = METHODS[method].own_memory
    assert recipe.settings.memory == (Budget(rule="all") if own == "all" else Budget(own))
    assert recipe.order == 1993


def test_overrides_are_toml_values_and_bare_words() -> None:
    recipe = load_recipe(
        "digits/lucir", ["setting=tfs", "phases=2", "data = cifar100", "weight_decay=1e-3", 'net="resnet32"']
    )
    assert (recipe.setting, recipe.phases, recipe.data, recipe.net) == ("tfs", 2, "cifar100", "resnet32")
    assert recipe.weight_decay == 1e-3
    assert load_recipe("digits/lucir", ["start=runs/other-run", "data=../my pictures/"]).start == "runs/other-run"
    assert load_recipe("digits/lucir", ["order=[1,0]"]).order == [1, 0]
    assert load_recipe("digits/lucir", ["order=podnet-1"]).order == "podnet-1"
    assert load_recipe("digits/lucir", ["deterministic=true"]).deterministic is True


def test_dots_reach_inside() -> None:
    recipe = load_recipe("digits/lucir", ["action.lr=0.2", "action.classifier=ncm", "options.lambda_base=3"])
    assert recipe.action == {"lr": 0.2, "classifier": "ncm"}
    assert recipe.options == {"lambda_base": 3}


def test_later_overrides_win() -> None:
    assert load_recipe("digits/lucir", ["epochs=3", "epochs=4"]).epochs == 4


@pytest.mark.parametrize(
    ("words", "budget"),
    [
        (["memory=7"], Budget(7)),
        (["memory.per_class=7"], Budget(7)),
        (["memory.total=50"], Budget(None, 50)),
        (["memory.total=50", "memory.per_class=3"], Budget(3)),
        (["memory=20", "memory.reserve=4"], Budget(20, reserve=4)),
        (["memory.total=50", "memory.reserve=2"], Budget(None, 50, 2)),
        (["memory={total=60, reserve=1}"], Budget(None, 60, 1)),
        ([], Budget(5)),
    ],
)
def test_memory_is_per_class_or_in_total(words: list[str], budget: Budget) -> None:
    assert load_recipe("digits/lucir", words).settings.memory == budget


def test_groups_imply_their_setting_and_another_setting_drops_them(file: Path) -> None:
    recipe = load_recipe("digits/lucir", ["groups=[5,3,2]"])
    assert (recipe.setting, recipe.groups) == ("groups", [5, 3, 2])
    assert load_recipe("digits/lucir", ["groups=[[0,1],[2]]"]).groups == [[0, 1], [2]]
    file.write_text('setting = "groups"\ngroups = [5, 5]\n')
    assert load_recipe(str(file)).groups == [5, 5]
    assert load_recipe(str(file), ["setting=tfs"]).groups is None
    file.write_text("groups = [5, 5]\n")
    assert (load_recipe(str(file)).setting, load_recipe(str(file), ["setting=tfs"]).groups) == ("groups", None)


def test_a_file_of_ones_own_has_the_same_keys_and_defaults(file: Path) -> None:
    file.write_text('method = "icarl"\n[memory]\ntotal = 40\n[action]\nlr = 0.05\n')
    recipe = load_recipe(str(file), ["seed=3"])
    assert (recipe.method, recipe.data, recipe.seed, recipe.epochs) == ("icarl", "digits", 3, 160)
    assert recipe.settings.memory == Budget(None, 40)


#: Axes not in alphabetical order: a file that sorts its keys would change the arms.
GRIDS = "space=[{lr=[0.05,0.02],feature_kd=[0.5]},{lr=[0.1],feature_kd=[0,0.3]}]"


def test_a_space_of_several_grids_is_a_list_of_tables(file: Path) -> None:
    file.write_text(
        'method = "lucir"\npolicy = "grid"\n[[space]]\nlr = [0.05, 0.02]\nfeature_kd = [0.5]\n'
        "[[space]]\nlr = [0.1]\nfeature_kd = [0, 0.3]\n"
    )
    recipe = load_recipe(str(file))
    assert recipe.space == [{"lr": [0.05, 0.02], "feature_kd": [0.5]}, {"lr": [0.1], "feature_kd": [0, 0.3]}]
    arms = [(action.lr, action["feature_kd"]) for action in recipe.settings.action_space.actions]
    assert arms == [(0.05, 0.5), (0.02, 0.5), (0.1, 0), (0.1, 0.3), (0.1, 1.0)]  # the default comes last
    again = load_recipe("digits/lucir", ["policy=grid", "action.lr=0.1", GRIDS])
    assert again.space == recipe.space
    assert again.settings.action_space == recipe.settings.action_space


@pytest.mark.parametrize("policy", ["grid", "online"])
def test_a_space_of_several_grids_survives_being_written(policy: str) -> None:
    recipe = load_recipe("digits/lucir", [f"policy={policy}", GRIDS]).resolved()
    written = json.loads(json.dumps(recipe.model_dump(mode="json")))
    again = make_recipe(written)
    assert again == recipe
    assert again.settings == recipe.settings
    assert again.settings.action_space.actions == recipe.settings.action_space.actions


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("space=[{lr=[0.1]},{lt=[0.1]}]", "the space has an axis 'lt'"),
        ("space=[{lr=[0.1]},{lr=[0.1,0.1]}]", "needs values, each once"),
        ("space=[{lr=[0.1]},{balance=['align']}]", "balance=align means nothing to this method"),
    ],
)
def test_a_mistake_in_one_of_several_grids_is_one_line(word: str, line: str) -> None:
    assert line in refusal("digits/lucir", "policy=grid", word)


def test_only_online_holds_out_unevenly_and_judges_by_its_trials() -> None:
    for policy in tuner_names():
        trials = load_recipe("digits/lucir", [f"policy={policy}"]).settings.trials
        assert (trials.even, trials.classifier) == ((False, "trials") if policy == "online" else (True, "full"))
    changed = load_recipe("digits/lucir", ["policy=online", "trials.even=true", "trials.classifier=full"])
    assert (changed.settings.trials.even, changed.settings.trials.classifier) == (True, "full")
    assert load_recipe("digits/lucir", ["policy=exp3", "trials.even=false"]).settings.trials.even is False


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("action.feature=1", "unknown action axis 'feature'"),
        ("action.classifier=fcc", "did you mean 'fc'?"),
        ("options.lamda_base=5", "did you mean 'lambda_base'?"),
        ("memory.totl=3", "did you mean 'memory.total'?"),
        ("safe=1", "did you mean 'policy_options.safe'?"),
        ("tune=none", "leave it out"),
        ("tune=[kd,lr]", "the value of 'tune' is not TOML"),
        ("net=mine.py", "net=mine.py:NAME"),
        ("order=2024-01-01", "order=datetime.date(2024, 1, 1) cannot be used"),
        ("epochs=10:30:00", "epochs=datetime.time(10, 30) must be"),
        ("epochs.main=3", "epochs="),
        ("setting=groups", "setting=groups needs groups"),
        ("digits/lucir epochs=1", "is more than one key=value"),
        ("epochs=", "is not key=value"),
        (".=3", "unknown key ''"),
    ],
)
def test_a_mistake_in_an_override_is_one_line(word: str, line: str) -> None:
    assert line in refusal("digits/lucir", word)


@pytest.mark.parametrize("name", ["2024", "2024-01-15", "1e3", "true", "10:30:00", "007"])
def test_the_name_of_a_folder_may_look_like_a_number_or_a_date(name: str) -> None:
    recipe = load_recipe("digits/lucir", [f"data={name}", f"start={name}"])
    assert (recipe.data, recipe.start) == (name, name)


@pytest.mark.parametrize("words", ["setting=tfs", {"setting": "tfs"}, [3]])
def test_overrides_that_are_no_list_of_texts_are_refused(words: Any) -> None:
    with pytest.raises(UserError, match="must be a list of texts, such as"):
        load_recipe("digits/lucir", words)


def test_groups_with_another_setting_are_refused() -> None:
    assert "groups goes with setting=groups" in refusal("digits/lucir", "setting=tfs", "groups=[2,2]")


def test_a_part_of_a_name_gets_all_recipes_that_have_it() -> None:
    assert "did you mean one of cifar100/lucir, digits/lucir, imagenet" in refusal("LUCIR")
    assert "did you mean one of digits/aanets, digits/der, digits/finetune, " in refusal("digits")


def test_a_path_that_is_no_recipe_file_says_what_it_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    file.write_text("epochs = 1")
    assert "did you mean the file 'mine.toml'?" in refusal("mine")
    file.rename("mine.txt")
    assert "the name of a recipe file must end in .toml" in refusal("mine.txt")
    Path("run").mkdir()
    Path("run/recipe.json").write_text("{}")
    assert refusal("run") == "run is a run folder, not a recipe; continue it with 'poise resume run'"
    for name in ("with\0zero", "something else"):
        assert refusal(name).endswith("see 'poise recipes' for the shipped ones")
    Path("photos").mkdir()
    Path("digits").mkdir()
    assert "poise run folder data=photos" in refusal("photos")
    assert "did you mean one of digits/aanets" in refusal("digits")


def test_a_byte_order_mark_is_read_over(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbfmethod = "icarl"\n')
    assert recipe_text(str(file)) == 'method = "icarl"\n'
    assert load_recipe(str(file)).method == "icarl"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_in_another_encoding_is_one_line_that_says_so(file: Path, encoding: str) -> None:
    file.write_bytes('data = "Blätter"\n'.encode(encoding))
    assert refusal(str(file)) == f"recipe file {file} is not in UTF-8; save it in that encoding"
