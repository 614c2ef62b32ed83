"""How full connection tracking is, and when there is a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kubeproxy.model.conntrack_usage import ConntrackRoom
from kubeproxy.netfilter.conntrack.usage import look
from tests.support.lab import Host

STATISTICS = """entries  clashres found new drop early_drop
0000012c  00000000 00000000 00000000 00000003 00000000
0000012c  00000000 00000000 00000000 0000000a 00000001
"""


def room(entries: int, *, limit: int = 1000, dropped: int = 0) -> ConntrackRoom:
    return ConntrackRoom(entries=entries, limit=limit, dropped=dropped)


def written(directory: Path, *, count: str = "300\n", limit: str = "1000\n", statistics: str = STATISTICS) -> Path:
    (directory / "nf_conntrack_count").write_text(count)
    (directory / "nf_conntrack_max").write_text(limit)
    (directory / "statistics").write_text(statistics)
    return directory / "statistics"


def test_what_the_kernel_writes_is_read(tmp_path: Path) -> None:
    assert look(settings=tmp_path, statistics=written(tmp_path)) == room(300, dropped=13)


@pytest.mark.parametrize(
    "what", [{"count": "many"}, {"statistics": ""}, {"statistics": "entries\n"}, {"statistics": "drop\nx\n"}]
)
def test_what_it_never_writes_is_not_guessed_at(tmp_path: Path, what: dict[str, str]) -> None:
    assert look(settings=tmp_path, statistics=written(tmp_path, **what)) is None


def test_a_kernel_that_tracks_nothing(tmp_path: Path) -> None:
    assert look(settings=tmp_path, statistics=tmp_path / "none") is None


@pytest.mark.parametrize(
    ("before", "now", "complaint"),
    [
        (None, room(899), None),
        (None, room(900), "is nearly full (900 entries of 1000)"),
        (None, room(5, dropped=7), None),
        (room(5, dropped=7), room(5, dropped=7), None),
        (room(1000, dropped=7), room(500, dropped=9), "2 new connections lost their first packet (500 entries"),
        (None, room(5000, limit=0), None),
    ],
)
def test_complaints(before: ConntrackRoom | None, now: ConntrackRoom, complaint: str | None) -> None:
    text = now.complaint(before)
    assert (text is None) if complaint is None else (text is not None and complaint in text)


@pytest.mark.netns
def test_this_kernel_reports_its_usage() -> None:
    with Host("node") as host:
        rule = "add table ip t; add chain ip t o { type filter hook output priority 0; }; add rule ip t o ct state new"
        host.run(["nft", rule])
        program = "from kubeproxy.netfilter.conntrack.usage import look; print(look())"
        process = host.popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        output = process.communicate(timeout=20)[0]
        assert output.startswith("ConntrackRoom(entries=0, limit=")
        assert output.endswith("dropped=0)\n")
