"""How `make docs` builds these pages into a site. They are plain Markdown, which also reads well without it."""

import re
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ADDRESS = runpy.run_path(str(ROOT / "setup.py"))["repository"]()

project = "poise"
html_title = "poise"
extensions = ["myst_parser"]
html_theme, pygments_dark_style = "furo", "github-dark"
html_static_path, html_css_files = ["_static"], ["site.css"]
html_extra_path = ["example-report.html"]
html_show_copyright = html_copy_source = False
myst_heading_anchors = 4
smartquotes = False  # a table of keys shows text to copy
#: Files of the repository that are no page: at its address, or beside `site/` where pyproject.toml names none.
myst_url_schemes = {
    **dict.fromkeys(("http", "https", "mailto")),
    "file-of-repository": {"url": (f"{ADDRESS}/blob/HEAD" if ADDRESS else "..") + "/{{path}}#{{fragment}}"},
}


def read(app: Any, name: str, text: list[str]) -> None:  # noqa: ANN401 - as Sphinx calls it
    """Name the files outside, and give the index the sidebar: the pages in the order in which it links to them.

    A row of its table whose second cell is empty begins a group of them.
    """
    text[0] = text[0].replace("](../", "](file-of-repository:")
    if name == "index":
        parts, seen = ["", *re.split(r"^\| \**([^|*\[]+?)\** \| \|$", text[0], flags=re.MULTILINE)], set[str]()
        for title, rows in zip(parts[::2], parts[1::2], strict=True):
            pages = [page for page in dict.fromkeys(re.findall(r"\]\((\w[\w-]*)\.md", rows)) if page not in seen]
            seen.update(pages)
            if pages:
                caption = [f":caption: {title}"] if title else []
                text[0] += "\n".join(["", "```{toctree}", ":hidden:", *caption, "", *pages, "```", ""])


def setup(app: Any) -> None:  # noqa: ANN401
    """Called by Sphinx."""
    app.connect("source-read", read)
