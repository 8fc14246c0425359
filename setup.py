"""The part of the build that pyproject.toml cannot say: a package index shows the readme without the files beside it.

Links in README.md are relative to the repository. If `[project.urls]` of pyproject.toml names a Repository, the readme
of the built package has absolute ones in their place.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)(\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\])\((?!https?:|mailto:|#)([^)]+)\)")


def repository() -> str:
    """The address of the repository without a slash at its end; empty if pyproject.toml names none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project.get("urls", {}).get("Repository", "")).rstrip("/")


def with_absolute_links(text: str, address: str) -> str:
    """Make the links of a page at the top of the repository absolute; without an address they stay as they are."""

    def absolute(link: re.Match[str]) -> str:
        picture, label, target = link.groups()
        # The index fetches images through a proxy of its own, which needs the file and not the page about it.
        return f"{picture}{LINK.sub(absolute, label)}({address}/{'raw' if picture else 'blob'}/HEAD/{target})"

    if not address:
        return text
    return "".join(part if part.startswith("```") else LINK.sub(absolute, part) for part in FENCE.split(text))


if __name__ == "__main__":
    readme = with_absolute_links((ROOT / "README.md").read_text("utf-8"), repository())
    setup(long_description=readme, long_description_content_type="text/markdown")
