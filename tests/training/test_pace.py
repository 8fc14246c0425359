"""How many pieces are at work at once: measured, never above the memory, and known the next time."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from poise.training.pace import Gauge, Pace

GIGA = 10**9


class Machine:
    """A device whose time and memory are what the pieces at work make of them."""

    def __init__(self, rate: Callable[[int], float], memory: int = 100 * GIGA, each: int = GIGA) -> None:
        self.rate, self.memory, self.each = rate, memory, each
        self.now, self.captured, self.waits = 0.0, 0, 0
        self.lanes: set[int] = set()  # those that were captured, and stay so

    def gauge(self) -> Gauge:
        return Gauge(
            clock=lambda: self.now,
            free=lambda: self.memory - self.each * len(self.lanes),
            captured=lambda: self.captured,
            wait=self._wait,
        )

    def _wait(self) -> None:
        self.waits += 1

    def work(self, pace: Pace, pieces: int = 1000, steps: int = 60, turns: int = 5000) -> list[int]:
        """Let pieces of so many steps work at that pace; returns how many did in each round of turns."""
        waiting, active, counts = pieces, dict[int, int](), list[int]()
        while (waiting or active) and len(counts) < turns:
            while waiting and len(active) < pace.allowed:
                place = next(place for place in range(len(active) + 1) if place not in active)
                waiting, active[place] = waiting - 1, steps
                pace.begin(place)
            pace.look(waiting)
            counts.append(len(active))
            for place in list(active):
                if place not in self.lanes:  # the first time takes long
                    self.now, self.captured = self.now + 2.0, self.captured + 1
                    self.lanes.add(place)
                seconds = 128 / self.rate(counts[-1])
                self.now += seconds
                pace.count_images(128)
                active[place] -= 1
                if not active[place]:
                    del active[place]
                    pace.end(place)
        assert not any(count > self.memory // self.each for count in counts)
        return counts


def saturating(limit: int) -> Callable[[int], float]:
    """Twice as fast with twice as many pieces, up to so many."""
    return lambda pieces: 10_000.0 * min(pieces, limit)


@pytest.mark.parametrize(("limit", "found"), [(1, 1), (2, 2), (4, 4), (8, 8), (1000, 8)])
def test_as_many_as_make_it_faster(limit: int, found: int, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(saturating(limit))
    pace = Pace(gauge=machine.gauge())
    with caplog.at_level(logging.INFO):
        counts = machine.work(pace)
    assert pace.allowed == found
    assert counts[0] == 1
    assert max(counts) == min(2 * found, 8)  # what does not pay was tried
    (line,) = caplog.messages
    assert line.startswith(f"lanes: {found}, {10_000 * found:,} images/s")


@pytest.mark.parametrize(("gain", "found"), [(1.04, 1), (1.06, 2)])
def test_a_gain_of_less_than_five_percent_does_not_count(gain: float, found: int) -> None:
    machine = Machine(lambda pieces: 10_000.0 * (gain if pieces > 1 else 1.0))
    pace = Pace(gauge=machine.gauge())
    machine.work(pace)
    assert pace.allowed == found


@pytest.mark.parametrize(("memory", "found"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 4), (8, 4), (9, 8), (100, 8)])
def test_no_more_than_fit_into_the_memory_with_some_to_spare(memory: int, found: int) -> None:
    machine = Machine(saturating(16), memory=memory * GIGA)
    pace = Pace(gauge=machine.gauge())
    machine.work(pace)
    assert pace.allowed == found


def test_a_single_bad_window_settles_nothing() -> None:
    machine = Machine(saturating(4))
    windows = {3: 0, 7: 0}  # by how often was waited before: the first one of two pieces, then of four

    def hiccup(pieces: int) -> float:
        if machine.waits not in windows:
            return saturating(4)(pieces)
        windows[machine.waits] += 1
        return 100.0

    machine.rate = hiccup
    pace = Pace(gauge=machine.gauge())
    machine.work(pace)
    assert all(windows.values())
    assert pace.allowed == 4


def test_what_was_measured_beside_others_counts_for_nothing() -> None:
    machine = Machine(saturating(1))
    pace = Pace(gauge=machine.gauge())
    machine.work(pace, pieces=2, steps=10)  # a window has begun
    assert machine.waits == 1
    machine.now += 1000.0  # in which others had the device
    pace.start_over()
    machine.work(pace)
    assert pace.allowed == 1, "two are not faster than one"


def test_more_pieces_than_allowed_are_not_measured_as_the_allowed() -> None:
    machine = Machine(saturating(8))
    pace = Pace(gauge=machine.gauge())
    for piece in range(4):  # which were begun beside others
        pace.begin(piece)
    for _ in range(1000):
        pace.look(waiting=8)
        for _ in range(4):
            machine.now += 0.01
            pace.count_images(128)
    assert machine.waits == 0
    for piece in range(4):
        pace.end(piece)
    machine.work(pace)
    assert pace.allowed == 8


def test_memory_that_others_took_says_nothing_about_later() -> None:
    pace = Pace(gauge=Machine(saturating(8)).gauge(), kind="shared")
    pace.allow_at_most(1, beside_others=True)
    assert Pace(gauge=Machine(saturating(8)).gauge(), kind="shared").beside_others == 1
    machine = Machine(saturating(8))
    later = Pace(gauge=machine.gauge(), kind="shared")
    machine.work(later)
    assert later.allowed == 8


def test_short_pieces_are_measured_over_several_of_them() -> None:
    machine = Machine(saturating(8))
    pace = Pace(gauge=machine.gauge())
    machine.work(pace, pieces=3000, steps=3)
    assert pace.allowed == 8


def test_with_nothing_waiting_it_stays_and_goes_on_later() -> None:
    machine = Machine(saturating(8))
    pace = Pace(gauge=machine.gauge(), kind="few at first")
    machine.work(pace, pieces=2, steps=3000)
    assert pace.allowed == 2
    machine.work(pace)
    assert pace.allowed == 8


def test_what_was_found_is_known_the_next_time() -> None:
    machine = Machine(saturating(4))
    machine.work(Pace(gauge=machine.gauge(), kind="known"))
    waits = machine.waits
    again = Pace(gauge=machine.gauge(), kind="known")
    assert machine.work(again, pieces=12)[0] == 4
    assert machine.waits == waits, "nothing is measured any more"
    assert Pace(gauge=machine.gauge(), kind="unknown").allowed == 1


def test_a_shortage_is_final() -> None:
    machine = Machine(saturating(16))
    pace = Pace(gauge=machine.gauge(), kind="short")
    pace.allow_at_most(0)
    machine.work(pace)
    assert (pace.allowed, Pace(gauge=machine.gauge(), kind="short").allowed) == (1, 1)


def test_time_spent_elsewhere_does_not_count() -> None:
    machine = Machine(saturating(2))
    pace, plain = Pace(gauge=machine.gauge()), machine.rate

    def rate(pieces: int) -> float:
        machine.now += 3.0
        pace.leave_out(3.0)
        return plain(pieces)

    machine.rate = rate
    machine.work(pace)
    assert pace.allowed == 2


def test_a_number_is_taken_as_it_is() -> None:
    machine = Machine(saturating(16))
    pace = Pace(3, gauge=machine.gauge())
    assert set(machine.work(pace, pieces=9)) == {3}
    assert machine.waits == 0
