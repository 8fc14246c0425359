"""What a page prints is written into it, and nothing else of it changes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import poise

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "page_output.py"))
PAGE = """\
# A page

```python
from pathlib import Path

Path("kept.txt").write_text("3")
```

Words.

```python
print(*range(int(Path("kept.txt").read_text())), sep="\\n")
```

```text
old
```

```console
$ poise --version
```

```text
```

```toml
left = "alone"
```
"""


def test_text_blocks_hold_what_was_printed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    here = Path.cwd()
    TOOL["main"](page)
    expected = PAGE.replace("old\n", "0\n1\n2\n").replace("```text\n```", f"```text\npoise {poise.__version__}\n```")
    assert page.read_text() == expected
    assert Path.cwd() == here
    assert not (here / "kept.txt").exists()


def test_long_progress_is_shortened_and_a_failure_stops_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('begin', *range(20), 'end', sep='\\n  ')\n```\n\n```text\n```\n")
    TOOL["main"](page)
    assert "```text\nbegin\n  0\n  1\n  2\n  …\n  19\n  end\n```" in page.read_text()
    before = "```console\n$ poise run nothing\n```\n"
    page.write_text(before)
    with pytest.raises(SystemExit, match="unknown recipe"):
        TOOL["main"](page)
    assert page.read_text() == before
