"""Checks the node while there is no traffic: what must be there, and nothing else."""

from __future__ import annotations

import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from math import gcd
from pathlib import Path
from typing import Any

from kubeproxy.model import Balancing, Scheduler, Target, parse_address, seed_of
from kubeproxy.model.maglev import place_of, table_of
from tests.support.lab import Host, Network
from tests.support.lab.daemon import HEALTHZ, METRICS
from tests.support.lab.node import CLIENT_V4, CLIENT_V6
from tests.system.e2e import kernel_state
from tests.system.e2e.stage import TARGET, until
from tests.system.soak import hostile
from tests.system.soak.actions import PATIENCE_S, WORKERS, World, alive, all_children
from tests.system.soak.schedule import PLACES, Balance, Place

PIPES_MAX = 2 * 32 + 16
"""A worker's pool, and pipes to children and of the run time."""
TRIES = 6
"""Questions for each endpoint: every worker has a rotation of its own."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What the daemon uses without clients."""

    control_kib: int
    """Memory of the control process; shared pages count in part."""
    others_kib: tuple[int, ...]
    """That of the workers, and of the rescue process after them."""
    control_descriptors: int
    """Without pipes: a worker keeps up to 32 for later connections."""
    others_descriptors: tuple[int, ...]

    def grown(self, before: Measure) -> list[str]:
        """What has grown beyond its tolerance. The run time returns memory late, if ever, and the first occurrence of
        an event costs some: a leak is more than that. Descriptors are exact, but for a connection to the API
        server that is just being made."""
        found = []
        pairs = [("control process", before.control_kib, self.control_kib, 8 << 10)]
        memory = zip(before.others_kib, self.others_kib, strict=True)
        pairs += [(f"process {number}", *pair, 4 << 10) for number, pair in enumerate(memory)]
        for process, was, now, slack in pairs:
            if now > was + slack:
                found.append(f"memory of the {process} has grown from {was} to {now} KiB")
        pairs = [("control process", before.control_descriptors, self.control_descriptors, 3)]
        descriptors = zip(before.others_descriptors, self.others_descriptors, strict=True)
        pairs += [(f"process {number}", *pair, 0) for number, pair in enumerate(descriptors)]
        for process, was, now, slack in pairs:
            if now > was + slack:
                found.append(f"descriptors of the {process} have grown from {was} to {now}")
        return found

    def __str__(self) -> str:
        memory = " + ".join(f"{kib / 1024:.1f}" for kib in (self.control_kib, *self.others_kib))
        descriptors = " + ".join(map(str, (self.control_descriptors, *self.others_descriptors)))
        return f"{memory} MiB proportional, {descriptors} descriptors (control process + workers + rescue process)"


def look(world: World, faults: list[str]) -> Measure:
    """Wait until the node is as it should be, and measure. What is not so in time is a fault."""
    node, daemon = world.network.node, world.daemon

    def demand(condition: Callable[[], object], what: str) -> None:
        try:
            # What has failed once is reported soon, instead of after all the other demands have waited as long.
            until(condition, what, within_s=5.0 if faults else PATIENCE_S)
        except AssertionError as error:
            faults.append(str(error))

    def agree(differ: Callable[[], list[str]], what: str) -> None:
        try:
            until(lambda: not differ(), what, within_s=5.0 if faults else PATIENCE_S)
        except AssertionError as error:
            faults.append(f"{error}: {'; '.join(differ())[:4000]}")

    for place in PLACES:
        for host in (world.network.client, node):
            for address in place.asked:
                # An endpoint that was dead may be ejected for another half minute.
                demand(
                    lambda: _answer(world, host, place, address),  # noqa: B023
                    f"{place.name} answers on {host.name} at {address} as it should",
                )
    demand(lambda: not world.leaving(), "processes with the order to end have ended")
    demand(lambda: len(world.workers(daemon)) == WORKERS, f"there are {WORKERS} workers")
    wanted_rescuers = int(world.data_path != "userspace")
    demand(lambda: len(world.rescuers(daemon)) == wanted_rescuers, f"there are {wanted_rescuers} rescue processes")
    mine = {daemon.process.pid, *world.workers(daemon), *world.rescuers(daemon)}
    demand(lambda: processes(node) - world.observers == mine, f"on the node only {sorted(mine)} run")
    if world.netfilter == "nftables":
        agree(lambda: differences(wanted_slots(world), slots(world)), "the kernel leads to exactly the endpoints")
        demand(world.rescued, "the rules of the rescue work")
        rebuilt(world, agree, demand)
    demand(lambda: all(map(alive, all_children(daemon))), "no child is a zombie")
    demand(lambda: names(node) == ["control", "run"], "one control process, one run")
    places = {(it.address, it.port) for it in PLACES} | hostile.PLACES
    demand(lambda: set(kernel_state.redirects(node)) == places, "the redirects are right")
    wanted = set(kernel_state.redirects(node).values()) | {HEALTHZ[1], METRICS[1]}
    # The socket of preStop hooks is on loopback, on a port that the kernel chose.
    demand(
        lambda: {it.port for it in kernel_state.listening(node) if it.address != "127.0.0.1"} <= wanted,
        "nothing else listens for others",
    )
    demand(lambda: established(node) == 0, "no connection is left")
    settled = _Settled(lambda: descriptors(mine))
    demand(settled, "the number of open descriptors settles")
    pids = [daemon.process.pid, *world.workers(daemon), *world.rescuers(daemon)]
    control, *others = [(pss_kib(pid), descriptors([pid])) for pid in pids]
    for pid in pids:
        demand(lambda: len(pipes(pid)) <= PIPES_MAX, f"process {pid} has few pipes")  # noqa: B023
    return Measure(control[0], tuple(kib for kib, _ in others), control[1], tuple(count for _, count in others))


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


def _answer(world: World, host: Host, place: Place, address: tuple[str, int]) -> bool:
    """Whether those pods answer a host that the service's scheduler has for it, when all are well."""
    balance = world.balances[place.name]
    said = {ask(host, place, address) for _ in range(TRIES * len(place.pods))}
    pods = {f"pod-{pod}" for pod in place.pods}
    if "sessionAffinity" not in place.spec:
        if balance.scheduler is not Scheduler.SOURCE_HASH:
            return said == pods
        # The kernel chooses the address of the node's own clients, perhaps another one for each data path.
        if host is world.network.client:
            return said == {_hashed(place, balance, 6 if ":" in address[0] else 4)}
    return len(said) == 1 and said <= pods


def _hashed(place: Place, balance: Balance, family: int) -> str:
    """The pod that the other host's address stands for."""
    table = _table(place, balance, family)
    client = ip_address(CLIENT_V6 if family == 6 else CLIENT_V4).packed
    target = table[place_of(client, None, seed=seed_of("default", place.name), size=len(table))]
    return f"pod-{place.pods[_targets(place, family).index(target)]}"


def _table(place: Place, balance: Balance, family: int) -> tuple[Target, ...]:
    weights = tuple(map(balance.weight_of, place.pods))
    return table_of(_targets(place, family), Balancing(balance.scheduler, weights))


def _targets(place: Place, family: int) -> list[Target]:
    address_of = Network.pod_v6 if family == 6 else Network.pod_v4
    return [Target(parse_address(address_of(pod)), TARGET) for pod in place.pods]


def ask(host: Host, place: Place, address: tuple[str, int]) -> str:
    """The pod that answers, or the reason why none does."""
    try:
        if place.protocol == "TCP":
            with host.connect(address, timeout=5.0) as sock:
                sock.sendall(b"name\n")
                return sock.recv(100).decode().split()[0]
        with host.make_socket(_family(address), socket.SOCK_DGRAM) as sock:
            sock.settimeout(2.0)
            sock.connect(address)
            sock.send(b"name")
            return sock.recv(100).decode().split()[0]
    except (OSError, IndexError) as error:
        return repr(error)


def _family(address: tuple[str, int]) -> int:
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


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
    lines = node.run(["ss", "-tnH", "state", "established", "state", "close-wait"]).stdout.splitlines()
    return sum(":8001" not in line and not re.search(r":1024[89]|:10256", line) for line in lines)


def descriptors(pids: Iterable[int]) -> int:
    """The number of open descriptors of these processes, without pipes."""
    return sum(kernel_state.descriptors(pid) - len(pipes(pid)) for pid in pids if alive(pid))


def pipes(pid: int) -> list[Path]:
    """The ends of pipes that a process has open."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if str(path.readlink()).startswith("pipe:"):
                found.append(path)
    return found


def pss_kib(pid: int) -> int:
    """The memory of a process; shared pages count in part."""
    match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1])


def wanted_slots(world: World) -> Iterator[str]:
    """The destinations and endpoints to which the kernel is to lead clients when all is well."""
    if world.data_path == "userspace":
        return
    for place in PLACES:
        balance = world.balances[place.name]
        if balance.by_workers:
            continue
        for family in (4, 6):
            for number, target in _slots_of(place, balance, family):
                for where in _wheres(place, family):
                    yield f"{place.protocol.lower()} {where}{number} to {target.address} {target.port}"
    # Nothing is served there: it is no loop.
    yield f"udp {hostile.LOOPS[-1].address} {hostile.PORT + 1} to {PLACES[0].address} {hostile.PORT + 1}"


def _wheres(place: Place, family: int) -> list[str]:
    """The destinations of a service in one family."""
    found = [f"{place.address6 if family == 6 else place.address} {place.port}"]
    return found + [f"IPv{family} node port {place.node_port}"] * bool(place.node_port)


def _slots_of(place: Place, balance: Balance, family: int) -> Iterator[tuple[str, Target]]:
    """The endpoints in the slots of an address. A hash leads to numbers of slots, so these matter."""
    if balance.scheduler.hashes:
        for number, target in enumerate(_table(place, balance, family)):
            yield f" slot {number}", target
        return
    unit = gcd(*map(balance.weight_of, place.pods))
    for pod, target in zip(place.pods, _targets(place, family), strict=True):
        for _ in range(balance.weight_of(pod) // unit):
            yield "", target


_SLOTS = re.compile(r"(node_port_)?(tcp|udp)_slots([46])")


def slots(world: World) -> Iterator[str]:
    """The destinations and endpoints to which the kernel leads clients."""
    hashed = [place for place in PLACES if world.balances[place.name].scheduler.hashes]
    numbered = {where for place in hashed for family in (4, 6) for where in _wheres(place, family)}
    for item in table(world.network.node):
        name = _SLOTS.fullmatch((item.get("map") or {}).get("name", ""))
        if name is None:
            continue
        for key, value in item["map"].get("elem", ()):
            *place, number = key["concat"]
            where = f"IPv{name[3]} node port {place[0]}" if name[1] else f"{place[0]} {place[1]}"
            slot = f" slot {number}" if where in numbered else ""
            yield "{} {}{} to {} {}".format(name[2], where, slot, *value["concat"])


def table(node: Host) -> list[dict[str, Any]]:
    """Our table, as nft lists it."""
    done = node.run(["nft", "-j", "list", "table", "inet", "kubeproxy"], check=False)
    items: list[dict[str, Any]] = json.loads(done.stdout)["nftables"] if done.returncode == 0 else []
    return items


_TRANSIENT = re.compile(r"(asked|answered)[46]|alive|clients[46]-.*")
"""Sets that the kernel or a clock fills."""


def rules(node: Host) -> list[str]:
    """Our rules, maps and sets, without counts, times and handles."""
    found = []
    for item in table(node):
        ((kind, what),) = item.items()
        if kind == "metainfo":
            continue
        what = {key: value for key, value in what.items() if key != "handle"}
        if kind in ("set", "map") and _TRANSIENT.fullmatch(what["name"]):
            what.pop("elem", None)
        elements = what.pop("elem", [])
        chain = what["name"] if kind == "chain" else what.get("chain", "")
        if not _SPREAD_CHAIN.fullmatch(chain):
            found.append(f"{kind} {json.dumps(what, sort_keys=True)}")
        for element in elements:
            if kind == "map" and _SLOTS.fullmatch(what["name"]):
                found += _slot(what["name"], element)
            else:
                found.append(f"{kind} {what['name']}: {_without_counts(element)}")
    return sorted(found)


_SPREAD_CHAIN = re.compile(r"(own_)?(node_port_)?(tcp|udp)_spread[46](_(port|address)[0-9a-f]{8})?_[0-9]+")
"""Chains that `rules` leaves out: one that is no longer needed may stay until the next full update."""


def _slot(name: str, element: Any) -> Iterator[str]:
    """A slot and its endpoint, separately: which slot an endpoint has follows from the changes before."""
    key, value = element
    yield f"slot {name}: {key['concat']}"
    yield f"slots {name}: {key['concat'][:-1]} to {value['concat']}"


def _without_counts(element: object) -> str:
    text = json.dumps(element, sort_keys=True)
    return re.sub(r'"counter": {[^}]*}', "", text)


def rebuilt(world: World, agree: Callable[..., None], demand: Callable[..., None]) -> None:
    """Demand that the rules, which many small changes have made, are those that the daemon makes from nothing."""
    node, before = world.network.node, rules(world.network.node)
    node.run(["nft", "delete", "table", "inet", "kubeproxy"])
    agree(lambda: differences(before, rules(node)), "the rules are those made from nothing")
    demand(world.rescued, "the rules of the rescue work again")


def differences(wanted: Iterable[str], found: Iterable[str]) -> list[str]:
    """The lines that are missing, with a minus, and those that are too many, with a plus."""
    wanted, found = Counter(wanted), Counter(found)
    missing, many = sorted((wanted - found).elements()), sorted((found - wanted).elements())
    return [f"-{line}" for line in missing] + [f"+{line}" for line in many]
