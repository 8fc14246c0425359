"""What is shown of work that takes long."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from poise.progress import Display, PhaseDisplay, SweepDisplay, Tally
from poise.training import events
from poise.training.events import Progress

TRIAL = events.TrialDone(1, {"id": 0}, {"lr": 0.1, "classifier": "fc"}, "fc", 0.5, False, {})
PLAN = [Progress(0, "training", 0, 100), Progress(1, "trials", 0, 60), Progress(1, "training", 0, 40)]


def test_done_is_counted_against_the_plan_of_all_phases() -> None:
    tally = Tally(PLAN)
    tally.note(Progress(1, "trials", 20, 0))  # resumed: what came before is done
    assert (tally.done, tally.of) == (120, 200)
    tally.note(Progress(1, "trials", 70, 0))
    assert (tally.done, tally.of) == (170, 210), "more than was planned"
    tally.note(events.ActionDecided(1, "online", {}))
    tally.note(Progress(1, "training", 10, 30))
    assert (tally.done, tally.of) == (180, 210)
    tally.note(events.PhaseDone(1, "fc", 5))
    assert (tally.done, tally.of) == (210, 210)


def test_only_the_axes_that_a_phase_uses_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    action: dict[str, float | str] = {
        "classifier": "fc",
        "logit_kd": 1.0,
        "lr": 0.1,
        "old_rows": "trained",
        "ridge": 0.0,
    }
    display = PhaseDisplay()
    for phase, trains in ((0, True), (1, True), (1, False)):
        event = events.ActionDecided(phase, "fixed", action, trains=trains)
        display.event(event)
        assert event.as_json() == events.ActionDecided(phase, "fixed", action).as_json(), "a journal has no more"
    display.event(events.ActionDecided(1, "fixed", {**action, "ridge": 10.0}, trains=False))
    assert capsys.readouterr().err.splitlines() == [
        "  action: classifier=fc lr=0.1",
        "  action: classifier=fc logit_kd=1 lr=0.1 old_rows=trained",
        "  action: classifier=fc logit_kd=1 old_rows=trained",
        "  action: classifier=fc logit_kd=1 old_rows=trained ridge=10",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_stays_visible(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    display = Display(console)
    words = "phase 1, trial 113 of 128: lr=0.05 feature_kd=10 logit_kd=1 classifier=ncm balance=none"
    display.show("", words, 44, 100)
    shown = Console(file=io.StringIO(), width=width, color_system=None)
    with shown.capture() as capture:
        shown.print(display._bars.get_renderable())
    display.close()
    line = capture.get().splitlines()[-1]
    assert len(line) <= width
    assert line.startswith("phase 1, trial 113 of")
    assert re.search(r"━{7,}[╸╺ ]?━* +44 %", line), line


def test_what_others_named_is_printed_as_it_is_and_obeyed_by_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    text, out = "[red]:smile:[/red] \x1b[31mred\x07", io.StringIO()
    Display(Console(file=out, force_terminal=True, width=100, color_system=None)).say(text)
    Display().say(text)
    for shown in (out.getvalue(), capsys.readouterr().err):
        assert shown.splitlines() == ["[red]:smile:[/red] \\x1b[31mred\\x07"]


def test_without_a_terminal_lines_say_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("poise.progress.LINE_SECONDS", -1.0)
    monkeypatch.setattr("poise.progress.BAR_SECONDS", -1.0)
    display = PhaseDisplay(2, ["opening"])
    display.tally = Tally(PLAN)
    display.event(events.PhaseStarted(1, 2, 4, 40, 8))
    display.event(TRIAL)
    display.event(Progress(1, "trials", 30, 0, "trial 2 of 3: lr=1"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["opening", "phase 1 of 0–1: 2 new classes (4 in all), 40 images and 8 kept ones"]
    assert lines[2].startswith("  trial 1: classifier=fc lr=0.1, reward 0.500, 50 % done")
    assert lines[3].startswith("  trial 2 of 3: lr=1, 65 % done")


def test_cells_of_a_sweep_count_alike(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("poise.progress.LINE_SECONDS", -1.0)
    monkeypatch.setattr("poise.progress.BAR_SECONDS", -1.0)
    display = SweepDisplay(["one", "two"])
    half = Tally([Progress(0, "training", 50, 100)])
    display.note("one", 0, half)
    display.ended("one")
    display.note("two", 1, half)
    assert [line.partition(", about")[0] for line in capsys.readouterr().err.splitlines()] == [
        "  0 of 2 cells done, 1 at work, 25 % done",
        "  1 of 2 cells done, 0 at work, 50 % done",
        "  1 of 2 cells done, 1 at work, 75 % done",
    ]


def test_a_notebook_gets_a_bar_if_it_can_show_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    for can in (True, False):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, can=can: can or None)
        assert Display().is_live is can
