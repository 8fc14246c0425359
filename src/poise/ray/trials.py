"""The trials of a phase on the workers of a cluster.

What they start from is sent once per phase. A trial that continues another goes to the worker that holds it; where that
one is gone, any worker trains it from the beginning, to the same bytes.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from poise.errors import RunFailed
from poise.ray.cluster import Cluster, Pending
from poise.ray.letters import OpenData, write_letter
from poise.ray.staff import Member, Staff
from poise.training.pace import MOST_PIECES
from poise.tuning import Attempt, TrialResult, Trials

MOST_LOST = 3  # workers that one trial may lose, and that may be lost in a row while they open a phase
WAIT_SECONDS = 0.5
Arm = tuple[int, int, bool]  # what a later trial continues


@dataclass(eq=False)
class Sent:
    """A phase's trials as the workers know them."""

    key: int
    at_once: int  # trials on one worker
    stored: dict[bool, Pending] = field(default_factory=dict)  # by whether images are places in the data
    opened: set[Member] = field(default_factory=set)
    lost: int = 0  # workers that were lost while they opened it, since one has
    holders: dict[Arm, Member] = field(default_factory=dict)


class TrialDriver:
    """Hands out the attempts of a round."""

    def __init__(self, cluster: Cluster, staff: Staff, data: OpenData | None) -> None:
        self._cluster, self.staff, self._data = cluster, staff, data
        self._sent: weakref.WeakKeyDictionary[Trials, Sent] = weakref.WeakKeyDictionary()
        self._keys = count()
        self._asked: dict[Member, tuple[str, Sent | None, list[int]]] = {}

    def run(self, trials: Trials, attempts: Sequence[Attempt]) -> Iterator[TrialResult]:
        """The result of every attempt, in the order of asking."""
        sent, told = self._send(trials), 0
        waiting, results = list(range(len(attempts))), dict[int, TrialResult]()
        lost = dict.fromkeys(waiting, 0)
        self._forget_asked()
        while told < len(attempts):
            self.staff.recruit(len(attempts))
            for member in self.staff.idle:
                if member in sent.opened:
                    self._hand_out(member, sent, waiting, attempts)
                elif waiting:
                    self._open(member, sent, trials)
            answers, losses = self.staff.wait(WAIT_SECONDS)
            for member, answer in answers:
                found = self._hear(member, sent, answer)
                results.update(found)
                sent.holders.update({_arm(attempts[place]): member for place in found})
            for member, reason in losses:
                kind, whose, places = self._asked.pop(member, ("", None, []))
                if kind == "open" and whose is sent:
                    self._lose_opening(sent, member, reason)
                for place in places if whose is sent else ():
                    lost[place] += 1
                    if lost[place] == MOST_LOST:
                        raise RunFailed(f"a trial lost its worker {MOST_LOST} times (node {member.name}: {reason})")
                    waiting.append(place)
                waiting.sort()
            while told in results:
                yield results.pop(told)
                told += 1

    def _hear(self, member: Member, sent: Sent, answer: Mapping[str, Any]) -> dict[int, TrialResult]:
        """The results by the places of their attempts; none where the answer is about something else."""
        kind, whose, places = self._asked.pop(member)
        if whose is not sent:  # asked for by somebody who did not wait
            return {}
        if kind == "try":
            if isinstance(answer["results"], Exception):
                raise answer["results"]
            return dict(zip(places, answer["results"], strict=True))
        if answer["problem"] is not None:
            raise RunFailed(f"node {member.name}: {answer['problem']}")
        sent.opened.add(member)
        sent.lost = 0
        return {}

    def _forget_asked(self) -> None:
        """Answers that somebody did not wait for are nobody's: other attempts have these places now."""
        for member, (kind, _, _) in self._asked.items():
            if kind == "try":
                self._asked[member] = kind, None, []

    def _lose_opening(self, sent: Sent, member: Member, reason: str) -> None:
        sent.lost += 1
        if sent.lost == MOST_LOST:
            raise RunFailed(
                f"{MOST_LOST} workers were lost while they opened what trials start from (node {member.name}: {reason})"
            )

    def _send(self, trials: Trials) -> Sent:
        if trials not in self._sent:
            on_gpu = trials.inputs.situation.backend.device.type == "cuda"
            self._sent[trials] = Sent(next(self._keys), MOST_PIECES if on_gpu else 1)
        return self._sent[trials]

    def _open(self, member: Member, sent: Sent, trials: Trials) -> None:
        """Let a worker take over what these trials start from, with all pixels where it cannot open the data."""
        if member.opens not in sent.stored:
            letter = write_letter(trials, self._cluster.pickler, self._data if member.opens else None)
            sent.stored[member.opens] = self._cluster.put(letter)
        self._asked[member] = "open", sent, []
        keep = [each.key for each in self._sent.values()]
        self.staff.ask(member, "open_bench", sent.key, sent.stored[member.opens], keep)

    def _hand_out(self, member: Member, sent: Sent, waiting: list[int], attempts: Sequence[Attempt]) -> None:
        """The next attempts of this worker: those that continue what it holds, and those that nobody holds."""
        staying = [place for place in waiting if sent.holders.get(_arm(attempts[place])) is member]
        anywhere = [place for place in waiting if sent.holders.get(_arm(attempts[place])) not in self.staff.members]
        share = math.ceil(len(anywhere) / max(1, len(self.staff.ready)))
        if some := [*staying, *anywhere[:share]][: sent.at_once]:
            for place in some:
                waiting.remove(place)
            self._asked[member] = "try", sent, some
            self.staff.ask(member, "try_all", sent.key, [attempts[place] for place in some])


def _arm(attempt: Attempt) -> Arm:
    return attempt.trial.arm, attempt.trial.round, attempt.trial.full
