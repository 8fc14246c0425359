"""A real Chromium without a window, driven through a pipe with the DevTools protocol: no library, no open port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 60.0


class Browser:
    """One page of a running Chromium. Everything the page asks for and complains about is kept."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def attach(self) -> None:
        """Take the first page and listen to it."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """A command and its answer."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": values, **session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                found: dict[str, Any] = answer["result"]
                return found
            self.events.append(answer)

    def open(self, page: Path, width: int = 1300, height: int = 900, scheme: str = "light") -> None:
        """Open a file and wait until it is loaded; what happened before is forgotten."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self.named("Page.loadEventFired"):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """What an expression of the page's own language gives."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true: what the mouse and the keyboard do takes a moment."""
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            assert time.monotonic() < end, f"never came true: {expression}"
            time.sleep(0.02)

    def move(self, x: float, y: float) -> None:
        """The mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """The mouse, pressed and released."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """The keyboard."""
        self.call("Input.insertText", text=text)

    def picture(self, whole: bool = False) -> bytes:
        """The window as PNG, or the whole page."""
        found = self.call(
            "Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": self._all()} if whole else {})
        )
        return base64.b64decode(found["data"])

    def _all(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def named(self, *methods: str) -> list[dict[str, Any]]:
        """What happened of these kinds."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def complaints(self) -> list[str]:
        """Errors and warnings of the page."""
        self.value("0")  # what was said before has arrived by then
        thrown = [str(event["exceptionDetails"]) for event in self.named("Runtime.exceptionThrown")]
        said = [str(each["args"]) for each in self.named("Runtime.consoleAPICalled") if each["type"] != "log"]
        return [*thrown, *said, *(event["entry"]["text"] for event in self.named("Log.entryAdded"))]

    def requests(self) -> list[str]:
        """Addresses that were asked for, but for what lies in the page itself."""
        asked = [event["request"]["url"] for event in self.named("Network.requestWillBeSent")]
        return [url for url in asked if not url.startswith(("data:", "about:"))]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            assert time.monotonic() < end, "Chromium does not answer"
            piece = os.read(self._answers, 1 << 16)
            assert piece, "Chromium ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def opened() -> Iterator[Browser]:
    """A Chromium of our own, in a folder of its own, ended afterwards."""
    assert CHROMIUM is not None
    (commands_out, commands), (answers, answers_in) = os.pipe(), os.pipe()
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        # The pipe is file 3 (to Chromium) and file 4 (from it); a shell puts them there.
        script = f'exec "$0" --remote-debugging-pipe "$@" 3<&{commands_out} 4>&{answers_in}'
        process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, *flags, f"--user-data-dir={home}", "about:blank"],
            pass_fds=(commands_out, answers_in),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_out)
        os.close(answers_in)
        try:
            browser = Browser(commands, answers)
            browser.attach()
            yield browser
            browser.call("Page.navigate", url="about:blank")
        finally:
            process.terminate()
            process.wait(timeout=20)
            os.close(commands)
            os.close(answers)
