from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import ConfusionMatrixDisplay, accuracy_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted
from torch.utils.data import DataLoader, TensorDataset

from poise import Augmentation, Budget, Learner, UserError
from poise.training.events import EpochDone, Event, PhaseDone, TrialDone
from poise.tuning.search import tuner_names

from .samples import Flat, digits, grown, learner, refused, state_bytes

IMAGES, LABELS = digits(0, 1, 2, count=6)
QUICK: dict[str, Any] = {"policy": "fixed", "net": "small", "epochs": 1, "batch": 8, "memory": 4}


def _plain(made: Learner) -> Any:
    """The settings as they are saved, whether they were chosen for the images or given."""
    return json.loads(json.dumps(made.settings.replace(automatic=()).as_json()))


class TestParameters:
    def test_they_are_returned_as_they_were_given(self) -> None:
        given: dict[str, Any] = {
            "action": {"lr": 0.05},
            "memory": Budget(5),
            "space": {"lr": [0.1, 0.02]},
            "net": Flat(),
            "callbacks": [],
        }
        found = Learner("icarl", **given).get_params()
        assert all(found[name] is value for name, value in given.items())
        assert (found["method"], found["epochs"], found["verbose"]) == ("icarl", None, False)

    @pytest.mark.parametrize("policy", tuner_names())
    def test_a_clone_has_the_same_parameters_and_has_learned_nothing(self, policy: str) -> None:
        mine = learner(policy=policy, net=Flat() if policy == "fixed" else "small", options={}, seed=3)
        twin = clone(mine)
        assert twin is not mine
        assert twin.settings == mine.settings
        assert repr(twin) == repr(mine)
        assert twin.phases_ == 0

    def test_the_name_says_what_was_given_and_no_more(self) -> None:
        assert repr(Learner()) == "Learner()"
        assert repr(Learner("icarl", epochs=10, policy="fixed")) == "Learner(method='icarl', epochs=10, policy='fixed')"
        assert repr(Learner(net=Flat())) == "Learner(net=Flat(…))"
        assert len(repr(Learner(space={"lr": [0.1 / n for n in range(1, 90)]}))) < 90

    def test_set_params_is_as_if_made_so_and_refuses_what_means_nothing(self) -> None:
        changed = learner().set_params(epochs=2, memory=3)
        assert changed.settings == learner(epochs=2, memory=3).settings
        assert changed.set_params() is changed
        with refused("did you mean 'epochs'?"):
            changed.set_params(memory=7, epoch=2)
        assert changed.get_params()["memory"] == 3

    @pytest.mark.parametrize(
        ("call", "line"),
        [
            (lambda: Learner(epoch=2), "Learner has no argument 'epoch'; did you mean 'epochs'?"),  # type: ignore[call-arg]
            (lambda: learner().score(IMAGES, clasifier="fc"), "score has no argument 'clasifier'"),  # type: ignore[call-arg]
            (lambda: Augmentation(pda=1), "Augmentation has no argument 'pda'; did you mean 'pad'?"),  # type: ignore[call-arg]
        ],
    )
    def test_a_misspelt_argument_is_answered_with_a_suggestion(self, call: Callable[[], object], line: str) -> None:
        with refused(line):
            call()

    def test_a_learner_that_has_learned_keeps_its_settings_until_it_starts_anew(self) -> None:
        mine = learner().partial_fit(*digits(0, 1))
        mine.set_params(memory=2, verbose=False)
        with refused("memory changed since this learner began to learn; call fit"):
            mine.partial_fit(*digits(2, 3))
        assert mine.predict(digits(0, 1)[0]).shape == (24,)
        mine.set_params(memory=4).partial_fit(*digits(2, 3))
        assert mine.knowledge.classes == (0, 1, 2, 3)
        assert len(mine.set_params(memory=2).fit(*digits(5, 6)).memory_ or ()) == 4

    def test_a_clone_of_a_loaded_learner_paces_its_phases_by_their_images(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        mine = Learner(policy="fixed", device="cpu").partial_fit(*digits(0, 1, count=3))
        assert mine.settings.schedule.images == 6
        mine.save(tmp_path / "model")
        caplog.clear()
        twin = clone(Learner.load(tmp_path / "model", device="cpu"))
        assert twin.get_params()["epochs"] is None
        twin.partial_fit(*digits(0, 1, count=3))
        assert _plain(twin) == _plain(mine)
        assert np.array_equal(twin.predict_proba(IMAGES), mine.predict_proba(IMAGES))
        assert not caplog.messages, "the batch is not one of the user's own"

    def test_a_loaded_learner_has_the_parameters_it_was_saved_with(self, tmp_path: Path) -> None:
        for mine in (learner(policy="online", trials={"length": 1.0}, options={}), learner(net=Flat())):
            mine.partial_fit(IMAGES, LABELS).save(tmp_path / "model")
            own = mine.get_params()["net"]
            loaded = Learner.load(tmp_path / "model", device="cpu", net=None if isinstance(own, str) else own)
            for again in (Learner(**loaded.get_params()), clone(loaded)):
                assert _plain(again) == _plain(mine)
            assert clone(loaded).get_params()["epochs"] == 1

    def test_a_class_made_of_it_has_parameters_of_its_own(self) -> None:
        class Named(Learner):
            def __init__(self, title: str = "none", epochs: int = 3) -> None:
                super().__init__(epochs=epochs, **{name: value for name, value in QUICK.items() if name != "epochs"})
                self.title = title

        copied = clone(Named("mine", epochs=1))
        assert isinstance(copied, Named)
        assert copied.title == "mine"
        assert repr(Named("mine")) == "Named(title='mine')"
        assert vars(Named().set_params(title="other").fit(IMAGES, LABELS))["title"] == "other"


class TestScikitLearn:
    def test_it_is_known_as_a_classifier(self) -> None:
        mine = learner()
        assert is_classifier(mine)
        assert get_tags(mine).target_tags.required
        with pytest.raises(Exception, match="not fitted yet"):
            check_is_fitted(mine)
        check_is_fitted(mine.fit(IMAGES, LABELS))

    def test_fit_starts_anew(self, tmp_path: Path) -> None:
        once, twice = learner().fit(IMAGES, LABELS), learner().partial_fit(*digits(7, 8))
        assert twice.fit(IMAGES, LABELS) is twice
        assert state_bytes(once, tmp_path) == state_bytes(twice, tmp_path)
        assert twice.phases_ == 1

    def test_a_fit_that_fails_leaves_the_learner_as_it_was(self, tmp_path: Path) -> None:
        mine = learner().fit(IMAGES, LABELS)
        before = state_bytes(mine, tmp_path)
        with pytest.raises(UserError):
            mine.fit(IMAGES, LABELS[:-1])
        assert state_bytes(mine, tmp_path) == before

    def test_cross_validation_on_images_as_arrays_and_lists(self) -> None:
        scores = cross_val_score(Learner(**QUICK), IMAGES, LABELS, cv=2)
        assert scores.shape == (2,)
        assert (cross_val_score(Learner(**QUICK), list(IMAGES), LABELS, cv=2, scoring="accuracy") == scores).all()
        names = np.array(["cat", "dog"])[np.array(LABELS[:12])]
        chances = cross_val_score(Learner(**QUICK), IMAGES[:12], names, cv=2, scoring="roc_auc")
        assert ((chances >= 0) & (chances <= 1)).all(), "which reads the columns by classes_"

    def test_a_search_over_parameters(self) -> None:
        search = GridSearchCV(Learner(**QUICK), {"epochs": [1, 2], "memory": [2]}, cv=2).fit(IMAGES, LABELS)
        assert search.best_params_["memory"] == 2
        assert search.best_estimator_.settings.schedule.epochs == search.best_params_["epochs"]
        assert search.predict(IMAGES).shape == (18,)

    def test_folds_in_processes_with_a_network_of_ones_own_and_a_confusion_matrix(self) -> None:
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 6))
        mine, halves = learner(net=net, method="lwf"), KFold(2, shuffle=True, random_state=0)
        here, there = (
            cross_validate(mine, IMAGES, LABELS, cv=halves, n_jobs=jobs, return_estimator=True) for jobs in (1, 2)
        )
        assert there["test_score"].tolist() == here["test_score"].tolist()
        for one, other in zip(here["estimator"], there["estimator"], strict=True):
            np.testing.assert_allclose(one.predict_proba(IMAGES), other.predict_proba(IMAGES), atol=1e-5)
        shown = ConfusionMatrixDisplay.from_estimator(here["estimator"][0], IMAGES, LABELS, ax=Figure().subplots())
        assert shown.confusion_matrix.sum() == len(LABELS)

    def test_the_names_of_sklearn_are_taken_too(self) -> None:
        call: Any = learner(epochs=3)
        call.fit(X=IMAGES, y=LABELS)
        mine = learner(epochs=3).fit(IMAGES, LABELS)
        np.testing.assert_array_equal(call.predict_proba(X=IMAGES), mine.predict_proba(IMAGES))
        np.testing.assert_array_equal(call.predict(X=IMAGES), mine.predict(IMAGES))
        assert call.score(X=IMAGES, y=LABELS) == mine.score(IMAGES, labels=LABELS)
        assert call.partial_fit(*digits(7), known="update").knowledge.classes == (0, 1, 2, 7)
        with refused("fit has no argument 'X'"):
            call.fit(X=IMAGES, images=IMAGES, y=LABELS)

    def test_the_score_is_weighted_as_sklearn_weighs_it(self) -> None:
        mine, weights = learner().fit(IMAGES, LABELS), np.arange(len(LABELS)) % 3
        wanted = accuracy_score(LABELS, mine.predict(IMAGES), sample_weight=weights)
        assert mine.score(IMAGES, LABELS, sample_weight=weights) == pytest.approx(wanted)
        assert mine.score(IMAGES, LABELS, sample_weight=[2.5] * 18) == pytest.approx(mine.score(IMAGES, LABELS))
        wrong: tuple[tuple[Any, str], ...] = (
            ([1.0], "a number of at least 0 for each of 18 images"),
            ([-1.0] * 18, "a number of at least 0"),
            ([0.0] * 18, "some of them above 0"),
        )
        for given, line in wrong:
            with refused(line):
                mine.score(IMAGES, LABELS, sample_weight=given)

    def test_a_learner_that_has_learned_nothing_is_not_fitted_to_sklearn(self, tmp_path: Path) -> None:
        asked: tuple[Callable[[Learner], object], ...] = (
            lambda mine: mine.predict(IMAGES),
            lambda mine: mine.predict(IMAGES, reject=True),
            lambda mine: mine.predict_proba(IMAGES),
            lambda mine: mine.score(IMAGES, LABELS),
            lambda mine: mine.exemplars(),
            lambda mine: mine.export(tmp_path / "none.pt2"),
        )
        for ask in asked:
            with pytest.raises(NotFittedError) as error:
                ask(learner())
            assert isinstance(error.value, UserError)
            assert str(error.value) == "this learner has learned nothing yet; call partial_fit first"
        again = pickle.loads(pickle.dumps(error.value))
        assert isinstance(again, NotFittedError)
        assert again.args == error.value.args

    def test_labels_of_another_kind_are_no_zero(self) -> None:
        mine = learner().fit(IMAGES, LABELS)
        with refused("labels are strings, but this learner was trained with whole numbers"):
            mine.score(IMAGES, [str(label) for label in LABELS])
        with pytest.raises(UserError, match="trained with strings"):
            learner().fit(IMAGES, [f"{label}" for label in LABELS]).score(IMAGES, LABELS)
        assert mine.score(IMAGES, [7] * 18) == 0.0, "a class that it does not know"


class TestCopies:
    @pytest.mark.parametrize("policy", ["fixed", "online", "race", "offline-rl", "bilevel"])
    def test_a_copy_goes_on_like_the_original(self, policy: str, tmp_path: Path) -> None:
        cheap = {"bilevel": {"steps": 1, "rounds": 1}, "offline-rl": {"episodes": 1}}
        space = {} if policy == "bilevel" else {"space": {"lr": [0.1, 0.02]}}
        fresh = learner(policy=policy, policy_options=cheap.get(policy, {}), trials={"length": 1.0}, **space)
        mine = copy.deepcopy(fresh).partial_fit(*digits(0, 1, 2, 3, count=5))
        copies = [mine, copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))]
        for each in copies:
            each.partial_fit(*digits(4, 5, count=5))
        assert len({state_bytes(each, tmp_path) for each in copies}) == 1
        assert {repr(each) for each in copies} == {repr(fresh)} == {repr(pickle.loads(pickle.dumps(fresh)))}

    @pytest.mark.parametrize("net", ["small", Flat()])
    def test_a_copy_in_the_middle_of_a_phase_is_resumed(self, net: Any, tmp_path: Path) -> None:
        settings = {"net": net, "policy": "grid", "space": {"lr": [0.1, 0.02]}, "trials": {"length": 1.0}}
        whole = learner(**settings).partial_fit(*digits(0, 1))
        for kind in (TrialDone, EpochDone):
            current = pickle.loads(pickle.dumps(whole))
            next(event for event in current.fitting(*digits(2, 3)) if isinstance(event, kind))
            resumed = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(current))))  # a copy of a copy
            copied = copy.deepcopy(whole).partial_fit(*digits(2, 3))
            assert state_bytes(resumed.partial_fit(*digits(2, 3)), tmp_path) == state_bytes(copied, tmp_path)

    @pytest.mark.parametrize("start", ["spawn", "forkserver"])
    def test_a_learner_is_given_to_a_process_that_is_started_anew(self, start: Any, tmp_path: Path) -> None:
        mine = grown()
        process = get_context(start).Process(target=Learner.save, args=(mine, tmp_path / "there.safetensors"))
        process.start()
        process.join(120)
        assert process.exitcode == 0
        assert (tmp_path / "there.safetensors").read_bytes() == state_bytes(mine, tmp_path)


class TestInputs:
    """Every method takes every kind of input; which kinds there are is tested with `poise.data.labelled`."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for label, image in zip(LABELS, IMAGES, strict=True):
            place = tmp_path / f"class {label}"
            place.mkdir(exist_ok=True)
            Image.fromarray(image).convert("RGB").resize((40, 40)).save(place / f"{len(list(place.iterdir()))}.png")
        return tmp_path

    def test_a_folder_of_class_folders(self, folder: Path) -> None:
        mine = learner(image_size=8).fit(folder)
        assert mine.knowledge.classes == ("class 0", "class 1", "class 2")
        files = sorted(folder.glob("*/*"))
        assert (mine.predict(folder) == mine.predict(files)).all()
        assert mine.predict(folder).shape == (18,)
        assert mine.score(folder) == mine.score(files, [file.parent.name for file in files])
        pictures = [Image.open(file) for file in files]
        assert (mine.predict_proba(pictures) == mine.predict_proba(files)).all()

    def test_datasets_and_loaders(self, tmp_path: Path) -> None:
        pairs = TensorDataset(torch.from_numpy(IMAGES)[:, None] / 255, torch.tensor(LABELS))
        mine = learner().partial_fit(pairs)
        assert state_bytes(mine, tmp_path) == state_bytes(learner().partial_fit(IMAGES, LABELS), tmp_path)
        for given in (pairs, DataLoader(pairs, batch_size=4)):
            assert (mine.predict_proba(given) == mine.predict_proba(IMAGES)).all()
            assert mine.score(given) == mine.score(IMAGES, LABELS)
        assert mine.score(DataLoader(pairs, batch_size=4, shuffle=True)) == mine.score(IMAGES, LABELS)
        with pytest.raises(UserError, match="shuffle=False"):
            mine.predict(DataLoader(pairs, shuffle=True))


class Stop(Exception):
    pass


@pytest.mark.parametrize("way", ["partial_fit", "saved", "copied"])
def test_a_dictionary_that_is_changed_later_changes_nothing_until_fit_starts_anew(way: str, tmp_path: Path) -> None:
    kept: dict[str, Any] = {"action": {"lr": 0.05}, "options": {"lambda_base": 3.0}, "space": {"lr": [0.05, 0.02]}}
    given, tried = copy.deepcopy(kept), {"policy": "grid", "trials": {"length": 1.0}}
    mine, wanted = (learner(**tried, **each).partial_fit(*digits(0, 1)) for each in (given, kept))
    assert mine.get_params()["action"] is given["action"]  # as scikit-learn wants it
    given["action"]["lr"] = given["options"]["lambda_base"] = 9.0
    given["space"]["lr"].clear()
    if way == "saved":
        mine.save(tmp_path / "model")
        mine = Learner.load(tmp_path / "model")
    elif way == "copied":
        mine = copy.deepcopy(mine)
    files = [state_bytes(each.partial_fit(*digits(2, 3)), tmp_path) for each in (mine, wanted)]
    assert files[0] == files[1]


class TestWatching:
    def test_callbacks_are_told_every_event(self) -> None:
        told: list[Event] = []
        mine = learner(callbacks=[told.append]).partial_fit(*digits(0, 1))
        assert told == list(learner().fitting(*digits(0, 1)))
        mine.set_params(callbacks=None).partial_fit(*digits(2, 3))
        assert isinstance(told[-1], PhaseDone)

    @pytest.mark.parametrize("kind", [TrialDone, EpochDone, PhaseDone])
    def test_an_error_in_a_callback_stops_the_phase_and_nothing_is_learned(
        self, kind: type[Event], tmp_path: Path
    ) -> None:
        def stop(event: Event) -> None:
            if isinstance(event, kind):
                raise Stop

        mine = learner(policy="grid", space={"lr": [0.1, 0.02]}, trials={"length": 1.0}).partial_fit(*digits(0, 1))
        before = state_bytes(mine, tmp_path)
        with pytest.raises(Stop):
            mine.set_params(callbacks=[stop]).partial_fit(*digits(2, 3))
        assert state_bytes(mine, tmp_path) == before
        assert mine.set_params(callbacks=None).partial_fit(*digits(2, 3)).phases_ == 2

    def test_neither_is_part_of_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        plain, watched = learner(), learner(verbose=True, callbacks=[io.StringIO().write])
        watched.set_params(callbacks=[lambda event: None])
        assert plain.settings == watched.settings
        files = [state_bytes(each.partial_fit(*digits(0, 1)), tmp_path) for each in (plain, watched)]
        assert files[0] == files[1]
        shown = capsys.readouterr()
        assert "phase 0: 2 new classes (2 in all), 24 images" in shown.err
        assert not shown.out
