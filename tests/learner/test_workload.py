from __future__ import annotations

import pytest

from poise.meter import Done, Meter
from poise.progress import watch_phase
from poise.training import Workload, events

from .samples import digits, learner


def test_a_real_phase_is_shown_from_its_first_trial_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    learned = learner(policy="grid", space={"lr": [0.1, 0.02]}, trials={"length": 1.0}, action={"lr": 0.1}).partial_fit(
        *digits(0, 1)
    )
    meter, seen = Meter(learned), list[Done]()
    words = []
    for event in learned.fitting(*digits(2, 3)):
        seen.append(meter.note(event))
        words.append(seen[-1].trying())
    shares = [done.share for done in seen]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert any(text.startswith("trial 2 of 2: ") for text in words), "and not of up to 2: a grid is known beforehand"
    watch_phase(learned, learned.fitting(*digits(4, 5)))
    assert "phase 2: 2 new classes (6 in all), 24 images and 16 kept ones" in capsys.readouterr().err


def test_the_work_of_a_phase_is_what_it_trains_on() -> None:
    """Steps and trials add up to the images that were announced."""
    learned = learner(
        policy="grid",
        epochs=2,
        space={"lr": [0.1, 0.02]},
        trials={"length": 0.5},
        action={"classifier": "fc", "lr": 0.1},
    )
    learned.partial_fit(*digits(0, 1))
    trained, work = 0, Workload(0)
    for event in learned.fitting(*digits(2, 3)):
        work = learned.outlook().work or work
        trained += 0 if isinstance(event, events.TrialStep) else events.trained_images(event)
    assert sum(work.stages.values()) == trained
    assert (work.trials, work.exact, work.judging) == (2, True, 0.0)
    assert work.tuning == 2 * 1 * (24 + 8), "two trials of one epoch over new images and memory"
