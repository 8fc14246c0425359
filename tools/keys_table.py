"""Write the table of keys on the page about recipes from the table that the code reads.

    python tools/keys_table.py docs/recipes.md

It replaces what stands between two marks. A test compares the page with what this writes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from poise.settings import KEYS

MARKS = "<!-- keys: make api -->\n", "<!-- end -->\n"


def main() -> None:
    """Write the table into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="the file that is written")
    path: Path = parser.parse_args().page
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    print(path)


def with_table(text: str) -> str:
    """The text with the present table of keys between its marks."""
    before, _, rest = text.partition(MARKS[0])
    rows = (f"| `{key.name}` |{_default(key.default)}| {key.meaning} |\n" for key in KEYS)
    table = "".join(["| key | default | meaning |\n|---|---|---|\n", *rows])
    return before + MARKS[0] + table + MARKS[1] + rest.partition(MARKS[1])[2]


def _default(words: str) -> str:
    return "" if words in ("none", "{}") else f" `{words}` "


if __name__ == "__main__":
    main()
