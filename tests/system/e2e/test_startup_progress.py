"""On a terminal the daemon shows the progress of a long start."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab.daemon import KUBEPROXY, environment
from tests.system.e2e.stage import Stage, until

pytestmark = pytest.mark.netns

MANY = 1500
SERVING = "\x1b[1mserving\x1b[0m"
SERVICE = """\
apiVersion: v1
kind: Service
metadata: {{name: s{number}}}
spec: {{clusterIP: 10.97.{high}.{low}, ports: [{{port: 80}}]}}
---
"""


@contextlib.contextmanager
def screen(fd: int) -> Iterator[list[str]]:
    """The text on a terminal, line by line."""
    seen: list[str] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the terminal has no writer any more
            while data := os.read(fd, 65536):
                seen.append(data.decode())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        reader.join()
        os.close(fd)


def test_a_line_is_drawn_until_all_is_served(stage: Stage, tmp_path: Path) -> None:
    manifest = tmp_path / "many.yaml"
    manifest.write_text("".join(SERVICE.format(number=n, high=n // 200, low=n % 200 + 1) for n in range(MANY)))
    ours, theirs = pty.openpty()
    with screen(ours) as seen:
        process = stage.node.popen(
            [
                KUBEPROXY,
                "run",
                "--manifests",
                str(manifest),
                "--kubernetes=never",
                "--workers=1",
                "--shutdown-grace=0s",
            ],
            stdout=theirs,
            stderr=theirs,
            env={**environment(tmp_path), "TERM": "xterm"},
        )
        os.close(theirs)
        try:
            until(lambda: SERVING in "".join(seen), "it serves", within_s=30)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    text = "".join(seen)
    assert "\r\x1b[Kstarting: " in text
    assert "\r\x1b[K\x1b[2m" in text, "a line of the log takes its place"
    after = text[text.index(SERVING) :]
    assert "starting" not in after
    assert "\r\x1b[K" in after, "it is gone"
