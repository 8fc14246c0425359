"""One learner in several threads: a second phase is refused, predictions and saved files are whole."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset

from poise import Budget, Learner, UserError
from poise.learner.turns import Turns
from poise.training import Event, Progress

from .samples import Pixels, digits, grown, learner, refusal, state_bytes


def in_a_thread(work: Callable[[], object]) -> UserError | None:
    """What another thread is refused with while this one waits for it."""
    found: list[UserError] = []

    def run() -> None:
        try:
            work()
        except UserError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return found[0] if found else None


def during_a_phase(work: Callable[[Learner], object]) -> tuple[Learner, UserError | None]:
    """A learner whose second phase another thread disturbed once."""
    met: list[UserError | None] = []

    def disturb(event: Event) -> None:
        if (isinstance(event, Progress) and event.done > 0) and not met:
            met.append(in_a_thread(lambda: work(mine)))

    mine = learner().partial_fit(*digits(0, 1))
    mine.set_params(callbacks=[disturb]).partial_fit(*digits(2, 3))
    return mine.set_params(callbacks=None), met[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda mine: mine.partial_fit(*digits(4, 5)),
        lambda mine: list(mine.fitting(*digits(4, 5))),
        lambda mine: mine.fit(*digits(4, 5)),
        lambda mine: mine.remove(0),
        lambda mine: mine.delete_exemplars(mine.exemplars()[0].id),
        lambda mine: mine.calibrate_reject(0.5),
    ],
    ids=["partial_fit", "fitting", "fit", "remove", "delete", "calibrate"],
)
def test_a_change_in_another_thread_is_refused_and_the_phase_goes_on(
    change: Callable[[Learner], object], tmp_path: Path
) -> None:
    mine, error = during_a_phase(change)
    assert error is not None
    assert "learning already" in str(error) or "in the middle of a phase" in str(error)
    assert "\n" not in str(error)
    assert state_bytes(mine, tmp_path) == state_bytes(grown(), tmp_path)


def test_threads_that_begin_at_once_lose_no_class() -> None:
    mine, barrier, refused = learner(epochs=3), threading.Barrier(4), list[str]()

    def teach(label: int) -> None:
        barrier.wait()
        try:
            mine.partial_fit(*digits(label, count=20))
        except UserError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=teach, args=(label,)) for label in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(refused) + len(mine.classes_) == 4
    assert mine.phases_ == len(mine.classes_)
    assert all("\n" not in line for line in refused)


def test_a_callback_cannot_teach_the_learner_that_calls_it() -> None:
    def teach(event: Event) -> None:
        mine.partial_fit(*digits(4))

    mine = learner(callbacks=[teach])
    with pytest.raises(UserError) as error:
        mine.partial_fit(*digits(0, 1))
    assert "learning already" in refusal(error)
    assert mine.phases_ == 0
    assert mine.set_params(callbacks=None).partial_fit(*digits(0, 1)).phases_ == 1


def test_other_threads_predict_meanwhile_as_before_the_phase() -> None:
    images = digits(0, 1)[0]
    seen: list[np.ndarray] = []
    _, error = during_a_phase(lambda mine: seen.append(mine.predict_proba(images)))
    assert error is None
    np.testing.assert_array_equal(seen[0], learner().partial_fit(*digits(0, 1)).predict_proba(images))


class Meanwhile(Dataset[Any]):
    """Images of which the second is read only after another thread has changed the learner."""

    def __init__(self, images: Pixels, labels: list[int], change: Callable[[], object]) -> None:
        self.images, self.labels, self.change, self.done = images, labels, change, False

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[Pixels, int]:
        if place == 1 and not self.done:
            self.done = True
            assert in_a_thread(self.change) is None
        return self.images[place], self.labels[place]


@pytest.mark.parametrize(
    "ask",
    [
        lambda mine, images: mine.predict(images),
        lambda mine, images: mine.predict(images, reject=True, rejected=-1),
        lambda mine, images: mine.predict_proba(images),
        lambda mine, images: mine.proba_and_rejected(images),
        lambda mine, images: mine.predictions(images),
        lambda mine, images: mine.score(images),
    ],
    ids=["predict", "reject", "predict_proba", "proba_and_rejected", "predictions", "score"],
)
@pytest.mark.parametrize(
    "change", [lambda mine: mine.remove(0), lambda mine: mine.partial_fit(*digits(4, 5))], ids=["remove", "partial_fit"]
)
def test_what_is_asked_while_another_thread_changes_the_learner_is_answered_by_what_it_knew(
    ask: Callable[[Learner, Any], object], change: Callable[[Learner], object]
) -> None:
    images, labels = digits(0, 1, 2, 3, first=12)
    mine = grown(epochs=4, memory=Budget(6, reserve=3)).calibrate_reject(0.3)
    wanted = ask(mine, Meanwhile(images, labels, lambda: None))
    found = ask(mine, Meanwhile(images, labels, lambda: change(mine)))
    assert len(mine.classes_) != 4  # it was changed meanwhile
    np.testing.assert_equal(found, wanted)


def test_what_another_thread_saves_meanwhile_can_be_continued_to_the_same_bytes(tmp_path: Path) -> None:
    mine, stop = learner(epochs=4).partial_fit(*digits(0, 1)), threading.Event()
    paths: list[Path] = []

    def save() -> None:
        while not stop.is_set() and len(paths) < 5:
            path = tmp_path / f"{len(paths)}.safetensors"
            mine.save(path)
            paths.append(path)

    thread = threading.Thread(target=save)
    thread.start()
    mine.partial_fit(*digits(2, 3))
    stop.set()
    thread.join(60)
    wanted = state_bytes(mine, tmp_path)
    for path in paths:
        again = Learner.load(path)
        if again.phases_ == 1:
            again.partial_fit(*digits(2, 3))
        assert state_bytes(again, tmp_path) == wanted


@pytest.mark.parametrize("part", ["augmentation", "training"])
def test_what_another_thread_saves_in_the_first_phase_can_be_continued_to_the_same_bytes(
    part: str, tmp_path: Path
) -> None:
    path, met = tmp_path / "first.safetensors", list[UserError | None]()

    def save(event: Event) -> None:
        if isinstance(event, Progress) and event.what == part and event.done and not met:
            met.append(in_a_thread(lambda: mine.save(path)))
            met.append(in_a_thread(lambda: mine.save(tmp_path / "none", memory=False)))

    mine = learner(epochs=2, callbacks=[save])
    mine.partial_fit(*digits(0, 1, count=24)).set_params(callbacks=None)
    assert met[0] is None
    assert "is in its first phase and cannot predict yet" in str(met[1])
    again = Learner.load(path)
    assert again.phases_ == 0
    with pytest.raises(UserError, match="learned nothing yet"):
        again.predict(digits(0)[0])
    if part == "training":
        with pytest.raises(UserError, match="with other images"):
            again.partial_fit(*digits(0, 1, first=24))
    assert state_bytes(again.partial_fit(*digits(0, 1, count=24)), tmp_path) == state_bytes(mine, tmp_path)


def test_it_is_copied_in_the_middle_of_a_phase() -> None:
    mine = learner()
    events = mine.fitting(*digits(0, 1))
    for event in events:
        if isinstance(event, Progress) and event.done > 0:
            break
    copied = copy.deepcopy(mine)
    copied.partial_fit(*digits(0, 1))
    assert list(events)
    assert copied.phases_ == mine.phases_ == 1


def test_who_waits_to_look_comes_before_the_next_step() -> None:
    turns, looked, steps = Turns(), threading.Event(), list[int]()
    inside = threading.Event()

    def look() -> None:
        inside.wait(10)
        with turns.look():
            looked.set()

    def count() -> None:
        for number in turns.steps(number for number in range(10**7)):
            steps.append(number)
            inside.set()
            if looked.is_set() or number > 10**6:
                return

    watcher = threading.Thread(target=look)
    watcher.start()
    count()
    watcher.join(10)
    assert looked.is_set()
    assert not turns.taken
