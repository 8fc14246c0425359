"""Signals that ask a job to stop, and what is said then."""

from __future__ import annotations

import signal

import pytest

from poise.experiment.stopping import Stop, stopping


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
    assert stop.interrupted("done").exit_code == 128 + signum
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
