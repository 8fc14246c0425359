"""Signals that ask a job to stop, and what is said then."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from poise.runs.stopping import TRIAL_SECONDS, CheckpointClock, Stop, stopping
from poise.training.events import EpochDone, Event, Progress, StageDone, TrialDone


def test_ctrl_c_says_that_it_stops_and_a_second_one_that_it_stops_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    stop, before = Stop(), signal.getsignal(signal.SIGINT)
    with stopping(stop):
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        first = capfd.readouterr().err.split("\n")
        assert first == ["", "poise: stopping; Ctrl-C again stops at once, without a checkpoint", ""]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert capfd.readouterr().err.split("\n") == ["", "poise: stopping at once", ""]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_are_obeyed_without_a_word(signum: int, capfd: pytest.CaptureFixture[str]) -> None:
    stop = Stop()
    with stopping(stop):
        signal.raise_signal(signum)
        signal.raise_signal(signum)
        assert stop.is_set()
    assert stop.as_exit("done").exit_code == 128 + signum
    assert capfd.readouterr().err == ""


def test_who_was_started_to_ignore_the_end_of_its_terminal_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        stop = Stop()
        with stopping(stop):
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_checkpoints_are_written_after_trials_epochs_and_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("poise.runs.stopping.time", SimpleNamespace(monotonic=lambda: now))
    clock, checkpoints = CheckpointClock(60.0), list[float]()

    def happens(event: Event, after: float) -> None:
        nonlocal now
        now += after
        if clock.is_due(event):
            checkpoints.append(now)
            clock.restart()

    trial = TrialDone(1, {}, {}, "fc", 0.5, False, {})
    happens(trial, 1.0)  # too early, the last one was written a second ago
    assert not checkpoints
    happens(Progress(1, "trials", 64, 128), 10 * TRIAL_SECONDS)
    assert not checkpoints, "never inside a trial"
    happens(trial, 0.0)
    assert checkpoints == [now]
    epoch = EpochDone(1, "main", 1, 2, 0.1, 1.0, {})
    happens(epoch, TRIAL_SECONDS)
    assert len(checkpoints) == 1, "those of a training are large, and wait longer"
    happens(epoch, 60.0)
    assert checkpoints[1:] == [now]
    happens(StageDone(1, "main"), 0.0)
    assert checkpoints[2:] == [now]
