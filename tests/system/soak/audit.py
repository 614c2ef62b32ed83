"""Checks the node while there is no traffic: what must be there, and nothing else."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.support.lab import Host
from tests.support.lab.daemon import HEALTHZ, METRICS
from tests.system.e2e import kernel_state
from tests.system.e2e.stage import until
from tests.system.soak import hostile
from tests.system.soak.actions import PATIENCE_S, WORKERS, World, alive
from tests.system.soak.schedule import PLACES, Place

TRIES = 12
"""Questions for each endpoint: every worker has a rotation of its own."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What the daemon uses without clients."""

    control_kib: int
    """Memory of the control process; shared pages count in part."""
    workers_kib: tuple[int, ...]
    control_descriptors: int
    workers_descriptors: tuple[int, ...]

    def grown(self, before: Measure) -> list[str]:
        """What has grown beyond its tolerance. The run time returns memory late, if ever, and the first occurrence of
        an event costs some: a leak is more than that. Descriptors are exact, but for two pipes that each worker may
        keep, and a connection to the API server that is just being made."""
        found = []
        pairs = [("control process", before.control_kib, self.control_kib, 8 << 10)]
        memory = zip(before.workers_kib, self.workers_kib, strict=True)
        pairs += [(f"worker {number}", *pair, 4 << 10) for number, pair in enumerate(memory)]
        for who, was, now, slack in pairs:
            if now > was + slack:
                found.append(f"memory of the {who} has grown from {was} to {now} KiB")
        pairs = [("control process", before.control_descriptors, self.control_descriptors, 3)]
        descriptors = zip(before.workers_descriptors, self.workers_descriptors, strict=True)
        pairs += [(f"worker {number}", *pair, 4) for number, pair in enumerate(descriptors)]
        for who, was, now, slack in pairs:
            if now > was + slack:
                found.append(f"descriptors of the {who} have grown from {was} to {now}")
        return found

    def __str__(self) -> str:
        memory = " + ".join(f"{kib / 1024:.1f}" for kib in (self.control_kib, *self.workers_kib))
        descriptors = " + ".join(map(str, (self.control_descriptors, *self.workers_descriptors)))
        return f"{memory} MiB proportional, {descriptors} descriptors (control process + workers)"


def look(world: World, faults: list[str]) -> Measure:
    """Wait until the node is as it should be, and measure. What is not so in time is a fault."""
    node, daemon = world.network.node, world.daemon

    def demand(condition: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
        try:
            until(condition, what, within_s=within_s)
        except AssertionError as error:
            faults.append(str(error))

    for place in PLACES:
        for host in (world.network.client, node):
            # An endpoint that was dead may be ejected for another half minute.
            demand(lambda: _who(host, place) == expected(place), f"{place.name} answers on {host.name} as it ought to")  # noqa: B023
    demand(lambda: not world.leaving(), "processes with the order to end have ended")
    demand(lambda: len(world.workers(daemon)) == WORKERS, f"there are {WORKERS} workers")
    mine = {daemon.process.pid, *world.workers(daemon)}
    demand(lambda: processes(node) == mine, f"on the node only {sorted(mine)} run")
    demand(lambda: names(node) == ["control", "run"], "one control process, one run")
    places = {(it.address, it.port) for it in PLACES} | hostile.PLACES
    demand(lambda: set(kernel_state.redirects(node)) == places, "the redirects are right")
    wanted = set(kernel_state.redirects(node).values()) | {HEALTHZ[1], METRICS[1]}
    demand(lambda: {it.port for it in kernel_state.listening(node)} <= wanted, "nothing else listens")
    demand(lambda: established(node) == 0, "no connection is left")
    settled = _Settled(lambda: descriptors(mine))
    demand(settled, "the number of open descriptors settles")
    pids = [daemon.process.pid, *world.workers(daemon)]
    control, *workers = [(pss_kib(pid), kernel_state.descriptors(pid)) for pid in pids]
    return Measure(control[0], tuple(kib for kib, _ in workers), control[1], tuple(count for _, count in workers))


class _Settled:
    """Whether a number has stayed the same for four seconds. UDP sessions end after two."""

    def __init__(self, number: Callable[[], int]) -> None:
        self._number = number
        self._last, self._since = -1, time.monotonic()

    def __call__(self) -> bool:
        now = self._number()
        if now != self._last:
            self._last, self._since = now, time.monotonic()
        return time.monotonic() - self._since > 4.0


def expected(place: Place) -> set[str]:
    """The answers when all endpoints are well."""
    return {"one of them"} if "sessionAffinity" in place.spec else {f"pod-{pod}" for pod in place.pods}


def _who(host: Host, place: Place) -> set[str]:
    said = {ask(host, place) for _ in range(TRIES * len(place.pods))}
    if "sessionAffinity" in place.spec and len(said) == 1 and said <= {f"pod-{pod}" for pod in place.pods}:
        return {"one of them"}
    return said


def ask(host: Host, place: Place) -> str:
    """The pod that answers, or the reason why none does."""
    try:
        if place.protocol == "TCP":
            with host.connect(place.asked, timeout=5.0) as sock:
                sock.sendall(b"name\n")
                return sock.recv(100).decode().strip()
        with host.make_socket(kind=socket.SOCK_DGRAM) as sock:
            sock.settimeout(2.0)
            sock.connect(place.asked)
            sock.send(b"who")
            return sock.recv(100).decode().split()[0]
    except OSError as error:
        return repr(error)


def processes(node: Host) -> set[int]:
    """The processes on the node, without zombies."""
    here = Path(f"/proc/self/fd/{node.fd}").readlink()
    found = set()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if (path / "ns/net").readlink() == here and alive(int(path.name)):
                    found.add(int(path.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # ended, or not one of ours
    return found


def names(node: Host) -> list[str]:
    """The purposes of our abstract sockets, listening or just bound."""
    with node.entered():
        text = Path("/proc/thread-self/net/unix").read_text()
    connected = "03"
    rows = [line.split() for line in text.splitlines()[1:]]
    ours = {row[7] for row in rows if len(row) == 8 and row[7].startswith("@kubeproxy/") and row[5] != connected}
    return sorted(name.split("/")[1] for name in ours)


def established(node: Host) -> int:
    """The number of established TCP connections of clients."""
    lines = node.run(["ss", "-4tnH", "state", "established", "state", "close-wait"]).stdout.splitlines()
    return sum(":8001" not in line and not re.search(r":1024[89]|:10256", line) for line in lines)


def descriptors(pids: Iterable[int]) -> int:
    """The number of open descriptors of these processes."""
    return sum(kernel_state.descriptors(pid) for pid in pids if alive(pid))


def pss_kib(pid: int) -> int:
    """The memory of a process; shared pages count in part."""
    match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1])


def rules(node: Host) -> list[str]:
    """Our rules, without what differs from process to process: handles, proxy ports, order."""
    names = {str(port): f"<{address}:{number}>" for (address, number), port in kernel_state.redirects(node).items()}
    text = re.sub(r" # handle \d+", "", "\n".join(kernel_state.ours(node)))
    text = re.sub(r"\b\d{4,5}\b", lambda found: names.get(found[0], found[0]), text)
    return sorted(part.strip() for part in re.split(r"[\n,]", text) if part.strip())
