from __future__ import annotations

import io
import re

import pytest
from poise.meter import Done
from rich.console import Console

from poise.progress import Bar, Lines, _now_words, make_display
from poise.training import events

TRIAL = events.TrialDone(1, {"id": 0}, {"lr": 0.1, "classifier": "fc"}, "fc", 0.5, False, {})


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_bar_stays_visible(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    bar = Bar(12, console)
    words = "trial 113 of up to 128: lr=0.05 feature_kd=10 logit_kd=1 classifier=ncm balance=none"
    bar.event(TRIAL, Done(0.44, 754.0, 12_345.6, lambda: words))
    shown = Console(file=io.StringIO(), width=width, color_system=None)
    with shown.capture() as capture:
        shown.print(bar._progress.get_renderable())
    bar.close()
    (line,) = capture.get().splitlines()
    assert len(line) <= width
    assert line.startswith("phase 1, trial 113 of")
    assert re.search(r"━+[╸╺ ]? +44 % 12,346 images/s 1[23] min left", line), line
    assert line.count("━") >= 7


def test_what_others_named_is_printed_as_it_is_and_obeyed_by_nobody() -> None:
    text = "[red]:smile:[/red] \x1b[31mred\x07"
    outs = io.StringIO(), io.StringIO()
    bar = Bar(12, Console(file=outs[0], force_terminal=True, width=100, color_system=None))
    bar.say(text)
    Lines(3, outs[1]).say(text)
    for out in outs:
        assert out.getvalue().splitlines() == ["[red]:smile:[/red] \\x1b[31mred\\x07"]


def test_lines_say_what_is_being_tried_and_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.progress.LINE_SECONDS", -1.0)
    out = io.StringIO()
    lines = Lines(3, out, ["opening"])
    lines.event(events.PhaseStarted(1, 2, 4, 40, 8), Done(0.0))
    lines.event(TRIAL, Done(0.25, 100.0, 1.0, lambda: "trial 2 of 3: lr=1"))
    lines.event(events.StepDone(1, "main", 0, 2, 1, 2, 64), Done(0.5))
    assert out.getvalue().splitlines() == [
        "opening",
        "phase 1 of 0–2: 2 new classes (4 in all), 40 images and 8 kept ones",
        "  trial 1: classifier=fc lr=0.1, reward 0.500, 25 % done, about 2 min left; now trial 2 of 3",
    ]


def test_judging_the_augmentation_is_shown() -> None:
    out = io.StringIO()
    lines = Lines(None, out)
    lines._last -= 60
    lines.event(events.JudgingStep(0, 1, 2, 50, 100, 10), Done(0.1, 45.0, 10.0))
    assert out.getvalue() == "  judging the augmentation, training 1 of 2, 10 % done, about 45 s left\n"


def test_which_step_a_tuner_is_at_is_said_before_and_after_its_end() -> None:
    assert _now_words(events.TrialStep(0, 10, 1, "offline-rl", 1)) == "phase 0, offline-rl: step 2"
    assert _now_words(events.TuningDone(0, "offline-rl", {"number": 1})) == "phase 0, offline-rl: step 2"


def test_a_notebook_gets_a_bar_if_it_can_show_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("poise.progress._has_widgets", lambda: True)
    assert isinstance(make_display(None), Bar)
    monkeypatch.setattr("poise.progress._has_widgets", lambda: False)
    assert isinstance(make_display(None), Lines)
