"""The demo tells the truth: its sentences, its exit status, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "tests.tools.demo"]
ASK = "import urllib.request; print(urllib.request.urlopen('http://10.96.0.10/', timeout=5).read().decode())"


@pytest.mark.netns
@pytest.mark.parametrize(
    ("netfilter", "data_path"), [("auto", "userspace"), ("iptables", "userspace"), ("auto", "kernel")]
)
def test_everything_holds(netfilter: str, data_path: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--netfilter", netfilter, "--data-path", data_path],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    story = done.stdout
    assert done.returncode == 0, story + done.stderr
    assert "FAILED" not in story
    if data_path == "userspace":
        assert story.count("    pod-1 10, pod-2 10, pod-3 10\n") == 2, "from the client and from the node"
        assert "    pod-1 10, pod-3 10, pod-4 10\n" in story
    else:
        assert re.search(r"data path kernel, to 3 endpoints in equal shares", story)
        assert "the endpoint sees its client as 10.2.0.2 1\n" in story
    assert re.search(r"after: +pod-1 \d+, pod-3 \d+\n +ok +no request failed\n", story)
    assert re.search(r"log: +warning +endpoint ejected .*10\.3\.1\.2:8080", story)
    assert re.search(r"status: default/hello is ejected: 10\.3\.1\.2:8080", story)
    assert re.search(r"pod-4 first answered \d+ ms after the edit\n", story)
    assert "kubeproxy ended with exit status 0\n" in story
    assert re.search(r"nothing is left behind\n+Everything held\.", story)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.netns
@pytest.mark.parametrize(("ending", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_kept_running_it_ends_on_a_signal_and_takes_everything_along(
    ending: signal.Signals, status: int, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [*DEMO, "--keep"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as demo:
        try:
            story = read_until(demo, "Ctrl-C ends it.", within_s=60)
            command = re.search(r"from the client +(nsenter \S+) ", story)
            assert command is not None
            # Python in the place of curl, which not every machine has.
            asked = subprocess.run(
                [*command[1].split(), sys.executable, "-c", ASK], capture_output=True, text=True, check=False
            )
            assert asked.stdout.startswith("pod-"), asked.stderr
            node = re.search(r'export NODE="(nsenter [^"]+)"', story)
            status_line = re.search(r"\$NODE (\S+ status)\n", story)
            assert node is not None
            assert status_line is not None
            shown = subprocess.run(
                [*node[1].split(), *status_line[1].split()], capture_output=True, text=True, check=False
            )
            assert "default/hello" in shown.stdout, shown.stderr
            members = children(demo.pid)
            assert len(members) >= 4, "three backends and the daemon"
            demo.send_signal(ending)
            assert demo.wait(30) == status
        finally:
            demo.kill()
    assert [pid for pid in members if Path(f"/proc/{pid}").exists()] == []
    assert list(tmp_path.iterdir()) == []


def read_until(process: subprocess.Popen[bytes], mark: str, *, within_s: float) -> str:
    """What it printed so far, when it has printed `mark`; AssertionError if it does not in time."""
    assert process.stdout is not None
    deadline = time.monotonic() + within_s
    text = b""
    while mark.encode() not in text:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(process.stdout.fileno(), 65536) if ready else b""
        assert more, f"{mark!r} did not come: {text.decode()}"
        text += more
    return text.decode()


def children(parent: int) -> list[int]:
    """Its child processes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(entry.name))
    return found
