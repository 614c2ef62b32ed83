from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from kubeproxy.dataplane.interface import Ended
from kubeproxy.model import Address, Family, FrontendName, Protocol, ServicePortName, Target
from kubeproxy.model.errors import KernelError
from kubeproxy.observability.logs.access_log import AccessLog, json_line, text_line
from tests.observability.conftest import WEB_IPV4
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("fresh_structlog")

DEADLINE_S = 30.0


SERVED = Ended(
    frontend=WEB_IPV4,
    protocol=Protocol.TCP,
    client=Target(Address("192.0.2.9"), 50123),
    endpoint=Target(Address("10.0.0.1"), 8080),
    attempts=2,
    began=1_800_000_000.0,
    dial_s=0.2500004,
    duration_s=1.5,
    bytes_in=120,
    bytes_out=4096,
    reason="closed",
)
FAILED = replace(
    SERVED, endpoint=None, dial_s=None, attempts=3, bytes_in=0, bytes_out=0, reason="every endpoint refused"
)


class Source:
    """Ended connections, each given once."""

    def __init__(self) -> None:
        self.ended: list[Ended] = []
        self.broken = False
        self.lost = 0

    async def __call__(self) -> Sequence[Ended]:
        if self.broken:
            raise KernelError("worker 1 gives no answer")
        ended, self.ended = self.ended, []
        return ended

    def lose(self, lines: int) -> None:
        self.lost += lines


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def log(source: Source) -> AccessLog:
    return AccessLog(source, on_lost=source.lose, fetch_s=0.01)


def test_a_line_has_client_endpoint_bytes_and_reason() -> None:
    assert text_line(SERVED) == (
        "2027-01-15T08:00:01.500000Z service=default/web port=http protocol=TCP client=192.0.2.9:50123 "
        "endpoint=10.0.0.1:8080 attempts=2 bytes_in=120 bytes_out=4096 dial_s=0.25 duration_s=1.5 end=closed "
        "path=userspace\n"
    )
    assert text_line(FAILED).endswith(
        "endpoint=- attempts=3 bytes_in=0 bytes_out=0 dial_s=- duration_s=1.5 "
        'end="every endpoint refused" path=userspace\n'
    )
    odd = replace(
        SERVED,
        frontend=FrontendName(ServicePortName("a", "b\nc", ""), Family.IPV6),
        client=Target(Address("2001:db8::1"), 1),
    )
    assert ' service="a/b\\nc" port=- protocol=TCP client=[2001:db8::1]:1 ' in text_line(odd)
    assert text_line(odd).count("\n") == 1


def test_a_line_of_the_kernel_path_says_so_and_what_is_not_known() -> None:
    unknown = replace(
        SERVED,
        attempts=None,
        dial_s=None,
        duration_s=None,
        bytes_in=None,
        bytes_out=None,
        reason="reset",
        path="kernel",
    )
    assert text_line(unknown) == (
        "2027-01-15T08:00:00.000000Z service=default/web port=http protocol=TCP client=192.0.2.9:50123 "
        "endpoint=10.0.0.1:8080 attempts=- bytes_in=- bytes_out=- dial_s=- duration_s=- end=reset path=kernel\n"
    )
    assert json.loads(json_line(unknown))["duration_s"] is None


def test_a_json_line_has_the_same_fields() -> None:
    assert json.loads(json_line(FAILED)) == {
        "ts": "2027-01-15T08:00:01.500000Z",
        "service": "default/web",
        "port": "http",
        "protocol": "TCP",
        "client": "192.0.2.9:50123",
        "endpoint": None,
        "attempts": 3,
        "bytes_in": 0,
        "bytes_out": 0,
        "dial_s": None,
        "duration_s": 1.5,
        "end": "every endpoint refused",
        "path": "userspace",
    }


async def test_lines_are_appended_to_the_file_that_has_the_name(log: AccessLog, source: Source, tmp_path: Path) -> None:
    path, rotated = tmp_path / "access.log", tmp_path / "access.log.1"
    path.write_text("what was there\n")
    log.use(str(path), as_json=False)
    source.ended = [SERVED, FAILED]
    await log.flush()
    assert path.read_text() == "what was there\n" + text_line(SERVED) + text_line(FAILED)
    path.rename(rotated)
    source.ended = [FAILED]
    await log.flush()
    assert path.read_text() == text_line(FAILED)
    assert path.stat().st_mode & 0o777 & ~0o640 == 0
    assert rotated.read_text().count("\n") == 3
    assert source.lost == 0


async def test_many_lines_keep_their_order(log: AccessLog, source: Source, tmp_path: Path) -> None:
    log.use(str(tmp_path / "access.log"), as_json=True)
    source.ended = [replace(SERVED, bytes_in=number) for number in range(2500)]
    await log.flush()
    lines = (tmp_path / "access.log").read_text().splitlines()
    assert [json.loads(line)["bytes_in"] for line in lines] == list(range(2500))


async def test_lines_of_several_processes_are_ordered_by_time(log: AccessLog, source: Source, tmp_path: Path) -> None:
    log.use(str(tmp_path / "access.log"), as_json=True)
    source.ended = [replace(SERVED, duration_s=float(number), bytes_in=number) for number in (3, 1, 2)]
    await log.flush()
    lines = (tmp_path / "access.log").read_text().splitlines()
    assert [json.loads(line)["bytes_in"] for line in lines] == [1, 2, 3]


async def test_connections_are_fetched_only_while_a_place_is_set(
    log: AccessLog, source: Source, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    running = asyncio.create_task(log.run())
    source.ended = [SERVED]
    await asyncio.sleep(0.1)
    assert source.ended, "nothing is fetched without a place"
    log.use(str(first), as_json=False)
    await until(lambda: first.exists() and first.read_text().count("\n") == 1)
    log.use(str(second), as_json=False)
    source.ended = [SERVED]
    await until(lambda: second.exists() and second.read_text().count("\n") == 1)
    log.use("", as_json=False)
    await until(lambda: not log._writing.locked())
    await asyncio.sleep(0.05)
    source.ended = [SERVED]
    await asyncio.sleep(0.1)
    assert source.ended
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_file_that_cannot_be_written_is_logged_once_and_lost_lines_are_counted(
    log: AccessLog, source: Source, tmp_path: Path
) -> None:
    path = tmp_path / "missing" / "access.log"
    log.use(str(path), as_json=False)
    with capture_logs() as logs:
        for _ in range(3):
            source.ended = [SERVED, SERVED]
            await log.flush()
        assert source.lost == 6
        assert log.complaint() == f"cannot write {path}: No such file or directory"
        path.parent.mkdir()
        source.ended = [SERVED]
        await log.flush()
    assert log.complaint() is None
    assert path.read_text() == text_line(SERVED)
    assert [(entry["log_level"], entry["reason"], entry["lines_lost"]) for entry in logs] == [
        ("error", "No such file or directory", 2)
    ]


async def test_a_pipe_without_reader_does_not_block(log: AccessLog, source: Source, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    log.use(str(tmp_path / "pipe"), as_json=False)
    source.ended = [SERVED]
    with capture_logs() as logs:
        async with asyncio.timeout(DEADLINE_S):
            await log.flush()
    assert source.lost == 1
    assert logs[0]["reason"] == "No such device or address"


async def test_lines_in_the_log_itself(log: AccessLog, source: Source) -> None:
    log.use("-", as_json=False)
    source.ended = [SERVED]
    with capture_logs() as logs:
        await log.flush()
    assert logs == [
        {
            "event": "connection ended",
            "log_level": "info",
            "service": "default/web",
            "port": "http",
            "protocol": "TCP",
            "client": "192.0.2.9:50123",
            "endpoint": "10.0.0.1:8080",
            "attempts": 2,
            "bytes_in": 120,
            "bytes_out": 4096,
            "dial_s": 0.25,
            "duration_s": 1.5,
            "end": "closed",
            "path": "userspace",
        }
    ]


async def test_a_failed_fetch_is_logged_once_and_tried_again(log: AccessLog, source: Source) -> None:
    log.use("-", as_json=False)
    source.broken = True
    with capture_logs() as logs:
        await log.flush()
        await log.flush()
        assert [entry["reason"] for entry in logs] == ["worker 1 gives no answer"]
        source.broken, source.ended = False, [SERVED]
        await log.flush()
    assert logs[-1]["event"] == "connection ended"
