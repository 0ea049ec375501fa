"""Debian's Chromium, driven over its own debugging pipe: for the tests of the page, and for its pictures."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")
TALKATIVE = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


def program() -> str | None:
    """The path of Chromium, None where none is installed."""
    return shutil.which("chromium")


class Tab:
    """A page in the browser. `said` collects what it writes to the console, refusals of its policy too."""

    def __init__(self, to_browser: FileIO, from_browser: BufferedReader) -> None:
        self._out, self._in = to_browser, from_browser
        self._waiting, self._number, self._session = b"", 0, None
        self._events: list[str] = []  # that came in while an answer was waited for
        self.said: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def size(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """Be a window, or a phone, of so many CSS pixels."""
        mobile = width < 600
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def headers(self, **headers: str) -> None:
        """Send these with each request from now on."""
        self._call("Network.setExtraHTTPHeaders", headers=headers)

    def open(self, url: str) -> None:
        """Go to an address, and wait until all of it is there."""
        self._events.clear()
        self._call("Page.navigate", url=url)
        self._until("Page.loadEventFired")

    def follow(self) -> None:
        """Press Enter on what has the focus, and wait until the page that it leads to is there."""
        self._events.clear()
        self.press("Enter", "\r")
        self._until("Page.loadEventFired")

    def press(self, key: str, text: str = "") -> None:
        """Press a key and let it go. `text` is what it types."""
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=text, **_code(key))
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, **_code(key))

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get(
            "value"
        )

    def picture(self, path: Path, *, below: str = "") -> None:
        """Save what the window shows as a PNG; with `below`, from the element of that id on."""
        if below:
            self.ask(f"document.getElementById({below!r}).scrollIntoView()")
        data = self._call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        path.write_bytes(base64.b64decode(data))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._events.append(answer.get("method", ""))
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _until(self, event: str) -> None:
        while event not in self._events:
            self._events.append(self._next().get("method", ""))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            part = self._in.read1(1 << 16)
            if not part:
                raise RuntimeError("Chromium has ended.")
            self._waiting += part
        text, _, self._waiting = self._waiting.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if message.get("method") in TALKATIVE:
            self.said.append(message["params"])
        return message


@contextmanager
def tab() -> Iterator[Tab]:
    """A tab of a browser of its own, which ends with the block. Raises FileNotFoundError without Chromium."""
    found = program()
    if found is None:
        raise FileNotFoundError("There is no chromium on the PATH: apt-get install chromium")
    there, to_browser = os.pipe()
    from_browser, back = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # the shell puts the two ends where Chromium looks for them, file descriptors 3 and 4
        command = f'exec "$0" "$@" 3<&{there} 4>&{back}'
        options = [*OPTIONS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            ["bash", "-c", command, found, *options],
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        try:
            with os.fdopen(to_browser, "wb", buffering=0) as out, os.fdopen(from_browser, "rb") as back_in:
                yield Tab(out, back_in)
        finally:
            process.terminate()
            process.wait()


def _code(key: str) -> dict[str, int]:
    return {"windowsVirtualKeyCode": {"Tab": 9, "Enter": 13}[key]}
