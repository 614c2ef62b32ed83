"""Chromium on one of the laboratory's hosts, spoken to by the DevTools protocol over a pair of pipes.

(Pipes, because they lead into a network namespace without a port: https://chromedevtools.github.io/devtools-protocol/.)
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.support.lab import Host

ANSWER_S = 20.0
LOOK_S = 0.05
_EXEC = """\
import fcntl, os, sys
ours = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for place, number in enumerate(ours, 3):
    os.dup2(number, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads at 3 and writes at 4."""


def chromium() -> str | None:
    """The program; None: there is none."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


@dataclass
class Seen:
    """What a page did besides being shown."""

    errors: list[str] = field(default_factory=list)
    """Of the console, of scripts, of the security policy."""
    requests: list[str] = field(default_factory=list)


class Chromium:
    """A browser with one page, and further flags. A context manager."""

    def __init__(self, host: Host, *more: str, width: int = 1280, height: int = 900) -> None:
        program = chromium()
        assert program is not None
        self.seen = Seen()
        self.errors = self.seen.errors
        self._profile = tempfile.mkdtemp(prefix="kubeproxy-chromium-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
            f"--disable-background-networking --remote-debugging-pipe --user-data-dir={self._profile} about:blank"
        )
        self._log = Path(self._profile, "log").open("wb")  # noqa: SIM115 - closed by close()
        self._process = host.popen(
            [sys.executable, "-c", _EXEC, str(theirs_in), str(theirs_out), program, *more, *flags.split()],
            pass_fds=(theirs_in, theirs_out),
            # What it is killed over it does not clear away: that goes with its profile.
            env={**os.environ, "TMPDIR": self._profile},
            stdout=self._log,
            stderr=self._log,
            process_group=0,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        try:
            page = self.command("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.command("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.command(f"{domain}.enable")
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its result. AssertionError when it fails or is not answered in time."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self._receive(deadline, what=method)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _receive(self, deadline: float, *, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser does not answer {what}"
            piece = os.read(self._in, 1 << 20)
            assert piece, f"the browser has ended: {Path(self._profile, 'log').read_text(errors='replace')[-2000:]}"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(json.dumps(parameters["entry"]))
            case "Network.requestWillBeSent":
                self.seen.requests.append(parameters["request"]["url"])

    def resize(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """Another size of the window."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """``dark`` or ``light``."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        """Go there."""
        result = self.command("Page.navigate", url=url)
        assert "errorText" not in result, result

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page. AssertionError when it throws."""
        result = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, *, within_s: float = 20.0, why: Callable[[], str] = str) -> Any:
        """Its value as soon as that is true. AssertionError with the page's text when it does not become so."""
        deadline = time.monotonic() + within_s
        while not (value := self.evaluate(expression)):
            text = self.evaluate("document.body ? document.body.innerText : ''")
            assert time.monotonic() < deadline, (
                f"not so within {within_s} s: {expression}\n{text}\n{self.errors}\n{why()}"
            )
            time.sleep(LOOK_S)
        return value

    def press(self, key: str) -> None:
        """A key, as if typed."""
        text = {"text": key} if len(key) == 1 else {}
        self.command("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        self.command("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.command("Input.insertText", text=text)

    def screenshot(self) -> bytes:
        """What is shown, as PNG."""
        return base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        """End it, and all that it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._log.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
