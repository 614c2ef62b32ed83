"""One host: a network namespace held by a descriptor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _setns(fd: int) -> None:
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "setns")


def _unshare() -> None:
    if _libc.unshare(CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "unshare(CLONE_NEWNET)")


def _dies_with(pid: int) -> Sequence[str]:
    """The first words of a command that ends with the process `pid`, its parent. A killed test, demo or benchmark must
    not leave its programs running. A shell handles a parent that was killed before the command has requested its
    signal."""
    return ["setpriv", "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(pid)]


def can_make_hosts() -> bool:
    """Whether this process may make network namespaces (root, or root of a user namespace)."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _libc.unshare(CLONE_NEWNET) == 0 else 1)
    return os.waitpid(pid, 0)[1] == 0


class Host:
    """A network namespace with its loopback up. The kernel removes it when no process or descriptor uses it any
    more."""

    def __init__(self, name: str) -> None:
        self.name = name
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _unshare()
            self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        finally:
            _setns(home)
            os.close(home)
        self._processes: list[subprocess.Popen[Any]] = []
        # No other host is on these wires: waiting for duplicate addresses and routers would only cost seconds.
        self.sysctl("net.ipv6.conf.default.accept_dad", 0)
        self.sysctl("net.ipv6.conf.default.router_solicitations", 0)
        self.ip("link set lo up")

    @classmethod
    def at(cls, path: str, name: str) -> Self:
        """A host that another process holds, by the path of its network namespace."""
        host = cls.__new__(cls)
        host.name = name
        host.fd = os.open(path, os.O_RDONLY)
        host._processes = []
        return host

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread to the host; sockets made meanwhile stay there. Never await inside."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _setns(self.fd)
            yield
        finally:
            _setns(home)
            os.close(home)

    def make_socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """A socket of this host."""
        with self.entered():
            return socket.socket(family, kind)

    def connect(self, address: tuple[str, int], *, timeout: float = 5.0) -> socket.socket:
        """A connected TCP socket of this host (blocking, with that timeout)."""
        sock = self.make_socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        sock.settimeout(timeout)
        try:
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return sock

    def listen(self, address: tuple[str, int], *, backlog: int = 512) -> socket.socket:
        """A listening TCP socket of this host; port 0 lets the kernel choose."""
        sock = self.make_socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(backlog)
        except BaseException:
            sock.close()
            raise
        return sock

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on this host. It is killed when the host is closed, or when the thread that started it ends.

        A shell looks the program up, so a missing program is an exit status of 127, not an error here.
        """
        options.setdefault("stdin", subprocess.DEVNULL)
        with self.entered():
            process: subprocess.Popen[Any] = subprocess.Popen([*_dies_with(os.getpid()), *command], **options)
        self._processes.append(process)
        return process

    def run(
        self,
        command: Sequence[str],
        *,
        input: str | None = None,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on this host to its end; its output as text. AssertionError, with that output, if it fails."""
        # A child starts on the host that its parent's thread is on: no nsenter needed.
        with self.entered():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
            )
        with process:
            try:
                stdout, stderr = process.communicate(input, timeout=60)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode != 0:
            raise AssertionError(f"{self.name}: {' '.join(command)}: exit {process.returncode}: {stderr or stdout}")
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def ip(self, *commands: str) -> str:
        """`ip COMMAND` on this host, one or several in one process; their output."""
        if len(commands) == 1:
            return self.run(["ip", *commands[0].split()]).stdout
        return self.run(["ip", "-batch", "-"], input="".join(f"{command}\n" for command in commands)).stdout

    def sysctl(self, name: str, value: int | str) -> None:
        """Set a network sysctl of this host."""
        # /proc/sys/net shows the namespace of the thread that opens it.
        with self.entered(), open(f"/proc/sys/{name.replace('.', '/')}", "w") as setting:
            setting.write(str(value))

    def close(self) -> None:
        """End the host's programs and close the namespace."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._processes.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Host {self.name}>"


@dataclass(frozen=True, slots=True)
class Link:
    """One end of a veth pair: its host and the name of the interface there."""

    host: Host
    interface: str


def join(left: Host, right: Host, *, left_name: str, right_name: str) -> tuple[Link, Link]:
    """A cable between two hosts: a veth pair, both ends up, without addresses."""
    left.ip(
        f"link add {left_name} type veth peer name {right_name} netns /proc/{os.getpid()}/fd/{right.fd}",
        f"link set {left_name} up",
    )
    right.ip(f"link set {right_name} up")
    return Link(left, left_name), Link(right, right_name)
