"""A child process: its channel, and the way in which it has ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import pytest

from kubeproxy.runtime import child_process
from kubeproxy.runtime.child_process import ChildProcess


def python(program: str) -> ChildProcess:
    return ChildProcess(lambda fd: [sys.executable, "-I", "-c", program, str(fd)])


async def ending(process: ChildProcess, reason: str = "closed its channel") -> str:
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    process.reap(reason, found.set_result)
    async with asyncio.timeout(20):
        return await found


async def test_the_channel_ends_at_the_process() -> None:
    process = python("import socket, sys; socket.socket(fileno=int(sys.argv[1])).sendall(b'here')")
    with process.channel as channel:
        assert await asyncio.to_thread(channel.recv, 100) == b"here"
        assert await asyncio.to_thread(channel.recv, 100) == b""
        assert await ending(process) == "exit status 0"
        assert process.has_exited


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("import sys; sys.exit(3)", "exit status 3"),
        ("import os; os.kill(os.getpid(), 15)", "killed by SIGTERM"),
        ("import os; os.kill(os.getpid(), 40)", "killed by signal 40"),
    ],
)
async def test_an_ending_has_the_status_or_the_signal(program: str, found: str) -> None:
    process = python(program)
    with process.channel:
        assert await ending(process) == found


async def test_of_several_reasons_to_kill_it_the_first_counts() -> None:
    process = python("import time; time.sleep(60)")
    with process.channel:
        assert not process.has_exited
        process.kill("silent")
        process.kill("no longer needed")
        assert await ending(process) == "silent"


async def test_a_process_that_does_not_exit_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "EXIT_S", 0.0)
    process = python("import time; time.sleep(60)")
    with process.channel:
        os.kill(process.pid, signal.SIGSTOP)
        assert await ending(process) == "closed its channel"


def test_no_descriptor_is_left_when_it_cannot_start() -> None:
    made: list[int] = []

    def command(fd: int) -> list[str]:
        made.append(fd)
        return ["/nowhere/to/be/found"]

    with pytest.raises(OSError, match="nowhere"):
        ChildProcess(command, kind=socket.SOCK_SEQPACKET)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
