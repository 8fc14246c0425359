"""Figures: one description of each (`description`), its numbers, and how it is printed; the page renders the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from poise.report.figures.compared import compared_figures, gains_figure, ranking_figure
from poise.report.figures.description import Figure
from poise.report.figures.single import run_panels, single_figures
from poise.report.figures.styles import method_colours, styles_by_label
from poise.report.reading import RunRecord, by_exam

__all__ = ["Figure", "describe_figures", "gains_figure", "method_colours", "ranking_figure", "run_panels"]


def describe_figures(runs: Sequence[RunRecord]) -> list[Figure]:
    """Every figure these runs have data for: each about one data set and exam, those of single runs about one stream.

    Only what was run is drawn, and spread only for at least three seeds.
    """
    colours, found = method_colours(runs), []
    for where, inside in by_exam(runs).items():
        styles, name = styles_by_label(inside, colours), inside[0].exam_name
        found += [_place(figure, name, where) for figure in compared_figures(inside, styles)]
        for stream, figure in single_figures(inside, styles):
            found.append(_place(figure, f"{name} {stream}", f"{where}, {stream}"))
    return found


def _place(figure: Figure, name: str, where: str) -> Figure:
    """The figure with its data set and exam in name and title."""
    slug = re.sub(r"[^a-z0-9]+", "-", f"{figure.name} {name}".lower()).strip("-")
    return replace(figure, name=slug, title=f"{figure.title} ({where})")
