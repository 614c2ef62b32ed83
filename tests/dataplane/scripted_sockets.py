"""Clients and endpoints that follow scripts: python -m tests.dataplane.scripted_sockets FIRST_SEED COUNT

A seed is a script: what clients and endpoints do, in which order, on real sockets, with a clock that the script sets.
For each seed one line tells all that can be seen from outside, and what the data plane has counted. So two forms of the
data plane that mean the same print the same. Nothing in a line depends on ports or on real time.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
import time
import zlib
from contextlib import ExitStack
from typing import Any

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.context import Context
from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.messages import SetEndpoints, Tune
from kubeproxy.dataplane.tcp.connection import Connection
from kubeproxy.dataplane.tcp.flow import send_backlogs
from kubeproxy.dataplane.tcp.listener import Listener
from kubeproxy.model import Balancing, Scheduler, Target
from kubeproxy.runtime import compiled
from tests.dataplane.conftest import LOOPBACK, frontend, refusing_target, silent_target
from tests.support.clock import Clock

STEPS = 30
SIZES = (1, 100, 5_000, 70_000, 400_000)
BYTES = random.Random(7).randbytes(SIZES[-1])


class Side:
    """A client, or the endpoint's side of a connection. It reads all that comes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.setblocking(False)
        self.sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # a byte that waits in the kernel comes some time later
        self.waiting = b""
        self.checksum = self.received = 0
        self.end = ""
        self.done = False
        """Whether it sends no more."""

    def send(self, data: bytes, flags: int = 0) -> None:
        """Send bytes, some of them now and the others by `move`."""
        if not self.done:
            self.waiting += data
            self._write(flags)

    def _write(self, flags: int = 0) -> int:
        try:
            sent = self.sock.send(self.waiting, flags) if self.waiting else 0
        except BlockingIOError:
            return 0
        except OSError:
            self.waiting, self.done = b"", True
            return 0
        self.waiting = self.waiting[sent:]
        return sent

    def move(self) -> int:
        """Read and write what is possible, and return how many bytes that was."""
        moved = self._write()
        while not self.end:
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError as error:
                self.end = type(error).__name__
                break
            if not data:
                self.end = "FIN"
            self.checksum = zlib.crc32(data, self.checksum)
            self.received += len(data)
            moved += len(data)
        return moved

    def finish(self) -> None:
        """Send FIN, and go on reading."""
        if not self.done and not self.waiting:
            self.done = True
            try:
                self.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self.end = self.end or "dead"

    def leave(self, *, reset: bool) -> None:
        """Close the socket."""
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()
        self.done, self.end = True, self.end or "left"

    def seen(self) -> tuple[int, int, str]:
        """Return what has come so far."""
        return self.received, self.checksum, self.end


class Script:
    """One script, from its seed."""

    def __init__(self, seed: int, stack: ExitStack) -> None:
        self._rng = random.Random(seed)
        self._clock = Clock()
        self._reactor = Reactor(clock=self._clock)
        # How much a read finds differs from run to run, and with it whether a flow takes a pipe. So either clients take
        # all descriptors, or there are pipes.
        limit = self._rng.choice((12, 40, 4000))
        self._sizes: tuple[int, ...] = SIZES if limit == 4000 else SIZES[:3]
        self._context = Context(reactor=self._reactor, budget=DescriptorBudget(limit), send=send_backlogs)
        self._context.tune = Tune(access_log=True)
        family, host = (socket.AF_INET6, "::1") if seed % 2 else (socket.AF_INET, "127.0.0.1")
        server = stack.enter_context(socket.create_server((host, 0), family=family))
        stack.callback(self._close)
        self._address = server.getsockname()[:2]
        self._listener = Listener(self._context, server, rng=random.Random(seed))
        self._listener.counters.frontend = frontend()
        self._servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        for each in self._servers:
            each.setblocking(False)
        targets = [Target(LOOPBACK, each.getsockname()[1]) for each in self._servers]
        self._targets = [*targets, stack.enter_context(refusing_target()), stack.enter_context(silent_target())]
        self._clients: list[Side] = []
        self._sides: list[Side] = []
        self._stack = stack
        self._endpoints(self._rng.choice((None, None, 60)))

    def _close(self) -> None:
        for live in list(self._context.live):
            live.abort()
        self._reactor.turn()
        self._context.pipes.close()
        self._context.routes.close()
        self._reactor.shut()

    def _endpoints(self, affinity_timeout_s: int | None) -> None:
        often = (0.8, 0.8, 0.8, 0.4, 0.1)  # the last two refuse, and are silent
        chosen = [target for target, part in zip(self._targets, often, strict=True) if self._rng.random() < part]
        weights = tuple(self._rng.choice((1, 1, 3)) for _ in chosen) if self._rng.random() < 0.3 else ()
        balancing = Balancing(Scheduler.ROUND_ROBIN, weights)
        self._listener.set_endpoints(SetEndpoints(frontend(), tuple(chosen), affinity_timeout_s, balancing=balancing))

    def _settle(self) -> None:
        """Run turns, and let all sides read and write, until nothing happens any more."""
        quiet = 0
        while quiet < 4:
            moved = self._reactor.turn()
            for server in self._servers:
                try:
                    self._sides.append(Side(self._stack.enter_context(server.accept()[0])))
                    moved += 1
                except BlockingIOError:
                    pass
            moved += sum(side.move() for side in (*self._clients, *self._sides) if side.sock.fileno() >= 0)
            if not moved:
                quiet += 1
                time.sleep(0.0002)
            else:
                quiet = 0

    def _step(self) -> str:
        """Do one thing, and return what it was."""
        rng = self._rng
        action = rng.choices(
            ("connect", "send", "urge", "finish", "send and leave", "reset", "time", "endpoints", "abort"),
            (6, 12, 1, 3, 3, 2, 2, 1, 1),
        )[0]
        sides = [side for side in (*self._clients, *self._sides) if side.sock.fileno() >= 0]
        if action == "connect":
            for _ in range(rng.choice((1, 1, 3))):
                self._clients.append(Side(self._stack.enter_context(socket.create_connection(self._address))))
                if rng.random() < 0.5:
                    self._clients[-1].send(BYTES[: rng.choice(self._sizes)])
        elif action == "time":
            self._clock.now += rng.choice((0.01, 0.3, 1.1, 40.0))
        elif action == "endpoints":
            self._endpoints(rng.choice((None, 60)))
        elif action == "abort":
            connections = [live for live in self._context.live if isinstance(live, Connection)]
            if len(connections) == 1:
                connections[0].abort()
        elif sides:
            side = rng.choice(sides)
            match action:
                case "send":
                    side.send(BYTES[: rng.choice(self._sizes)])
                case "urge":
                    side.send(b"!", socket.MSG_OOB)
                case "finish":
                    side.finish()
                case "send and leave":
                    side.send(BYTES[: rng.choice(SIZES[:3])])
                    side.leave(reset=False)
                case "reset":
                    side.leave(reset=True)
        return action

    def run(self) -> dict[str, Any]:
        """Run the script, and return what was seen after each step, and what was counted."""
        steps = []
        for _ in range(STEPS):
            action = self._step()
            self._settle()
            context, opened = self._context, self._listener.balancer.open
            steps.append(
                (
                    action,
                    [side.seen() for side in self._clients],
                    [side.seen() for side in self._sides],
                    [opened.get(target, 0) for target in self._targets],
                    (len(context.live), context.budget.refusals > 0),
                )
            )
        counters = self._listener.counters.read(affinity_entries=0)
        names = {target: number for number, target in enumerate(self._targets)}
        log = [
            (ended.reason, ended.attempts, ended.bytes_in, ended.bytes_out, ended.endpoint and names[ended.endpoint])
            for ended in self._context.connection_log.take()
        ]
        fields = {name: getattr(counters, name) for name in counters.__struct_fields__ if name != "frontend"}
        return {"steps": steps, "counters": fields, "log": log}


def main() -> None:
    """Run the scripts of some seeds."""
    print(compiled.form())
    first, count = map(int, sys.argv[1:])
    for seed in range(first, first + count):
        with ExitStack() as stack:
            print(json.dumps({"seed": seed, **Script(seed, stack).run()}, default=repr))


if __name__ == "__main__":
    main()
