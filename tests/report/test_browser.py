"""The page in a real Chromium: it opens from the disk, sorts, filters, answers the mouse, and asks for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from poise.report import gather

from .browser import CHROMIUM, Browser, opened
from .conftest import Write

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="NO BROWSER TEST WAS RUN: there is no Chromium here (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened() as found:
        yield found


@pytest.fixture
def page(pairs: Path, write: Write, tmp_path: Path) -> Path:
    """A report over finished, unfinished and broken runs."""
    write("all/going", finished=False, policy="exp3", chances=True, seed=3)
    (pairs / "empty").mkdir()
    return gather([pairs]).write(tmp_path / "out")


def cells(browser: Browser, column: int) -> list[str]:
    """A column of the table of runs, as it stands."""
    script = (
        "Array.from(document.querySelectorAll('#t-runs tbody tr:not([hidden])'), "
        f"(row) => row.cells[{column}].textContent.trim())"
    )
    found = browser.value(script)
    assert isinstance(found, list)
    return [str(text) for text in found]


def middle(browser: Browser, selector: str) -> tuple[float, float]:
    """Where an element is, after it was brought into view."""
    box = browser.value(
        f"(() => {{ const found = document.querySelector({selector!r}); found.scrollIntoView({{block: 'center'}});"
        " const box = found.getBoundingClientRect();"
        " return [box.left + box.width / 2, box.top + box.height / 2]; })()"
    )
    return float(box[0]), float(box[1])


def test_tables_sort_and_filter(browser: Browser, page: Path) -> None:
    browser.open(page)
    heading = '#t-runs th[data-column="8"]'
    browser.click(*middle(browser, heading))
    browser.until(f"document.querySelector({heading!r}).getAttribute('aria-sort') === 'descending'")
    best = cells(browser, 8)
    assert len(best) == 14
    assert best[-1] == "–", "what has no figure goes to the end"
    assert [float(text) for text in best[:-1]] == sorted((float(text) for text in best[:-1]), reverse=True)
    browser.click(*middle(browser, heading))
    browser.until(f"document.querySelector({heading!r}).getAttribute('aria-sort') === 'ascending'")
    worst = cells(browser, 8)
    assert [float(text) for text in worst[:-1]] == sorted(float(text) for text in best[:-1])
    assert worst[-1] == "–"
    browser.click(*middle(browser, '#t-runs th[data-column="0"]'))
    browser.until("document.querySelector('#t-runs th[data-column=\"0\"]').hasAttribute('aria-sort')")
    assert cells(browser, 0) == sorted(cells(browser, 0))
    browser.click(*middle(browser, 'input[data-table="t-runs"]'))
    browser.type("online tfs")
    browser.until("document.querySelector('#table-runs output').textContent !== ''")
    assert cells(browser, 0) == [f"online-tfs-{seed}" for seed in range(3)]
    assert browser.value("document.querySelector('#table-runs output').textContent") == "3 of 14"
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_a_curve_says_its_value_and_a_link_opens_a_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.value("getComputedStyle(document.getElementById('tip')).visibility") == "hidden"
    browser.move(*middle(browser, "#figure-accuracy-toy svg circle[data-tip*='lucir, online, phase 2']"))
    browser.until("getComputedStyle(document.getElementById('tip')).visibility === 'visible'")
    said = browser.value("document.getElementById('tip').textContent")
    assert "lucir, online, phase 2 (3 classes)" in str(said)
    assert "3 seeds" in str(said)
    browser.move(1, 1)
    browser.until("getComputedStyle(document.getElementById('tip')).visibility === 'hidden'")
    assert browser.value("document.getElementById('run-online-tfs-1').open") is False
    browser.click(*middle(browser, "#t-runs a[href='#run-online-tfs-1']"))
    browser.until("document.getElementById('run-online-tfs-1').open")
    assert browser.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1400])
def test_it_fits_wide_and_narrow_windows_in_the_light_and_in_the_dark(
    browser: Browser, page: Path, width: int, scheme: str
) -> None:
    browser.open(page, width, scheme=scheme)
    assert browser.value("document.documentElement.scrollWidth") <= width, "only tables and charts scroll sideways"
    back, ink = (browser.value(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")
    assert back != ink
    assert len(browser.picture()) > 10_000
    assert browser.complaints() == []
