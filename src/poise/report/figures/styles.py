"""How a configuration looks wherever it is drawn: one colour is one method, on the page and in print.

Dashed lines and hollow marks are a method's own hyperparameters, solid lines and filled marks a policy's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from poise.policies import DEFAULT_POLICY
from poise.report.figures.description import Style
from poise.report.reading import RunRecord, configurations

#: One colour per method, readable on light and on dark pages; other methods take the colours left over.
METHOD_COLOURS: Final[Mapping[str, str]] = {
    "lucir": "#3a7fc1",
    "icarl": "#d2672f",
    "lwf": "#2f9e77",
    "podnet": "#9a6fc0",
    "aanets": "#bf9422",
    "aanets+rmm": "#cc5a8f",
    "der": "#5f7d8c",
    "foster": "#8a9a2b",
}
OTHER_COLOURS: Final = ("#5aa9c9", "#a0764f", "#7c9a3d", "#8585d1", "#c76e6e", "#6b8f8a")
MARKS: Final = "osD^vPX*"
OWN_DASH: Final = (3.5, 2.0)
POLICY_DASHES: Final = ((), (6.0, 2.0, 1.0, 2.0), (1.0, 1.5), (5.0, 1.0, 1.0, 1.0, 1.0, 1.0))

Styles = Mapping[str, Style]


def method_colours(runs: Sequence[RunRecord]) -> dict[str, str]:
    """A colour for each method of a report: its own, or one that no other method has."""
    methods = {run.method for run in runs}
    strangers = sorted(methods - METHOD_COLOURS.keys())
    spare = {name: OTHER_COLOURS[place % len(OTHER_COLOURS)] for place, name in enumerate(strangers)}
    return {name: METHOD_COLOURS.get(name) or spare[name] for name in sorted(methods)}


def styles_by_label(runs: Sequence[RunRecord], colours: Mapping[str, str]) -> dict[str, Style]:
    """Colours by method, lines and marks by policy; configurations that share both take the next free mark."""
    rows = configurations(runs)
    labels = sorted({row.first.policy_label for row in rows if not row.first.fixed})
    policies = sorted(labels, key=lambda label: label != DEFAULT_POLICY)
    found: dict[str, Style] = {}
    for row in rows:
        colour, fixed = colours[row.first.method], row.first.fixed
        place = 0 if fixed else policies.index(row.first.policy_label)
        taken = {style.mark for style in found.values() if style.colour == colour and style.hollow == fixed}
        marks = [*MARKS[place % len(MARKS) :], *MARKS[: place % len(MARKS)]]
        mark = next((mark for mark in marks if mark not in taken), marks[0])
        dash = OWN_DASH if fixed else POLICY_DASHES[place % len(POLICY_DASHES)]
        found[row.label] = Style(colour, dash, mark, fixed)
    return found
