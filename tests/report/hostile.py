"""Texts that want to be more than texts: in pages, tables, terminals and names of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from poise import store
from poise.journal import Journal

from .conftest import dump

RUN = "window.hacked=1"
#: What a browser would run, grouped by the place it is written for.
HTML = {
    "an element": [
        f"<script>{RUN}</script>",
        f"<img src=x onerror={RUN}>",
        f"<svg onload={RUN}>",
        f"<iframe srcdoc='<script>{RUN}</script>'>",
        "<meta http-equiv=refresh content='0;url=javascript:window.hacked=1'>",
        "<base href='javascript:'>",
    ],
    "an attribute": [
        f'" onmouseover="{RUN}" x="',
        f"' onmouseover='{RUN}' x='",
        f'"><script>{RUN}</script>',
        f'" autofocus onfocus={RUN} tabindex=1 x="',
    ],
    "the end of something": [
        f"</script><script>{RUN}</script>",
        f"</style><script>{RUN}</script>",
        f"</text></svg><script>{RUN}</script>",
        f"--><script>{RUN}</script><!--",
        f"]]><script>{RUN}</script>",
        f"</title><script>{RUN}</script>",
        f"</pre></details><script>{RUN}</script>",
    ],
    "an address": [
        f"javascript:{RUN}",
        f"JaVaScRiPt:{RUN}",
        f"data:text/html,<script>{RUN}</script>",
        "//example.org/",
    ],
    "a template": ["{{ 7*7 }}", "{% raw %}", "${7*7}", "{0.__class__}", "%s%n"],
    "escaped already": ["&lt;script&gt;", "\\u003cscript\\u003e", "%3Cscript%3E", "&#106;avascript:"],
}
#: What a program for tables would compute.
FORMULAS = [
    "=1+1",
    '=HYPERLINK("http://example.org","x")',
    "+1+cmd|' /C calc'!A0",
    "-2+3+cmd",
    "@SUM(1,1)",
    "\t=1",
    "\r=1",
]
#: What a terminal would obey, and what is no text at all.
ACTING = ["\x1b[2J", "\x1b]0;x\x07", "\x9b31m", "a\rb", "a\x00b", "\u202egnp", "\udcff", "two\nlines", "tab\there"]
#: What would be written elsewhere.
PATHS = ["../../out", "/tmp/out", "..", "a/../../b", "C:\\x", "~/x", "x" * 300, "|rm", "$(touch x)", "-rf"]

ALL = [*(text for group in HTML.values() for text in group), *FORMULAS, *ACTING, *PATHS]


def poison(folder: Path, text: str) -> Path:
    """Put a text into every place of a run folder where a text can be; numbers and what is checked stay."""

    def rewrite(name: str, change: Callable[[dict[str, Any]], None]) -> None:
        value = store.read_json(folder / name)
        change(value)
        dump(folder / name, value)

    def change_recipe(saved: dict[str, Any]) -> None:
        saved |= {"name": text, "fingerprint": text, "class_names": [f"{text}{place}" for place in range(10)]}
        keys = saved["recipe"]
        keys |= {"data": text, "policy_options": {text: text}, "order": text, text: [text, {text: text}]}
        keys |= {"method": text, "exam": text, "net": text}

    def change_result(result: dict[str, Any]) -> None:
        result |= {"recipe": text, "data": text, "method": text, "exam": text, "pretrained_on": text, "order": text}
        result["resolved_policy"] = {"name": text, text: {text: text}}

    rewrite("recipe.json", change_recipe)
    rewrite("machine.json", lambda machine: machine.update({text: text, "hardware": {"gpu": text, "processor": text}}))
    if (folder / "result.json").exists():
        rewrite("result.json", change_result)
    journal = Journal(folder / "journal.jsonl")
    journal.append({"event": text, "phase": 0})
    journal.close()
    return folder
