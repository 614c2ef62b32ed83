"""The schedule of events: a pure function of the seed and the length."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kubeproxy.model import Scheduler
from tests.support.lab.node import NODE_V4, NODE_V6, PodLinks

PODS = 6
SOUND = (0, 1)
"""Pods without faults. Every steady service has one of them."""
MORTAL = 5
"""The pod with a backend that is killed now and then, but never silent: only a refusal shows by UDP that there is no
backend."""


@dataclass(frozen=True, slots=True)
class Place:
    """A service, and where clients reach it."""

    name: str
    address: str
    port: int = 80
    protocol: str = "TCP"
    pods: tuple[int, ...] = (0, 1, 2, 3)
    """Its endpoints when all is well."""
    steady: bool = True
    """Whether it always has an endpoint that is alive. The others may vanish, be emptied, have dead ones only."""
    spec: dict[str, Any] = field(default_factory=dict)
    """Special fields of its specification."""
    node_port: int = 0
    """Where clients reach it at the node's addresses, instead of its cluster IPs."""

    @property
    def address6(self) -> str:
        """Its cluster IP of the other family."""
        third, fourth = self.address.split(".")[2:]
        return f"fd00:96::{fourth}" if third == "0" else f"fd00:96::{third}:{fourth}"

    @property
    def addresses(self) -> tuple[str, str]:
        """Its cluster IPs."""
        return self.address, self.address6

    @property
    def asked(self) -> tuple[tuple[str, int], ...]:
        """Where clients reach it, in both families."""
        if self.node_port:
            return (NODE_V4, self.node_port), (NODE_V6, self.node_port)
        return (self.address, self.port), (self.address6, self.port)

    @property
    def masqueraded(self) -> bool:
        """Whether endpoints see an address of the node instead of the client's on the kernel path, too."""
        return self.node_port > 0


PLACES = (
    Place("web", "10.96.0.10"),
    Place("shop", "10.96.0.11", pods=(1, 2, 3, 4)),
    Place("sticky", "10.96.0.12", pods=(0, 1, 4), spec={"sessionAffinity": "ClientIP"}),
    Place("outside", "10.96.0.13", pods=(0, 5), spec={"type": "NodePort"}, node_port=30080),
    Place("names", "10.96.0.14", port=53, protocol="UDP", pods=(0, 1, 5)),
    Place("guest-1", "10.96.1.1", pods=(0, 2), steady=False),
    Place("guest-2", "10.96.1.2", pods=(1, 3, 5), steady=False),
    Place("guest-3", "10.96.1.3", pods=(2, 3, 4), steady=False),
)
BY_NAME = {place.name: place for place in PLACES}


class Balance(NamedTuple):
    """How a service asks for its clients to be spread."""

    scheduler: Scheduler = Scheduler.ROUND_ROBIN
    weights: tuple[int, int] = (1, 1)
    """Of pods with an even number, and of the others. Each have EndpointSlices of their own."""
    slow_start_s: int = 0

    @property
    def by_workers(self) -> bool:
        """Return whether workers serve such a service on every data path."""
        return self.scheduler is Scheduler.LEAST_CONNECTIONS

    def weight_of(self, pod: int) -> int:
        """Return the weight of a pod."""
        return self.weights[pod % 2]


EVEN = Balance()
WEIGHTS = (1, 1, 2, 4)
SLOW_STARTS_S = (0, 0, 2)
REBALANCED = 0.3
"""The share of the changes of a service that change how it spreads its clients, too."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `at_s` counts from the begin of the act; the event starts then, or as soon as its track is free."""

    at_s: float
    track: str
    kind: str
    target: str = ""
    """The service or pod."""
    pods: tuple[int, ...] = ()
    """The service's endpoints from now on."""
    balance: Balance = EVEN
    """How the service spreads its clients from now on."""
    wait_s: float = 0.0
    """Within the event: until the next process starts, the new instance is killed, or what was stopped goes on."""


@dataclass(frozen=True, slots=True)
class Act:
    """A stretch of time. After it, all faults end, and the audit checks the node."""

    name: str
    seconds: float
    events: tuple[Event, ...]
    data_path: str = "userspace"
    """The data path at its end."""
    balances: Mapping[str, Balance] = field(default_factory=dict)
    """How each service spreads its clients at its end."""


PROCESS = ("kill worker", "kill control", "execute anew", "stop and start", "successor", "kill successor", "reload")
PATHS = ("userspace", "kernel", "auto")
"""Values of dataPath."""
KERNEL_PROCESS = ("stop control", *(f"path {path}" for path in PATHS))
"""Events of the process track that only a run with both paths has."""
RESCUE = ("kill rescue", "stop rescue")
"""What happens to the rescue process; the control process starts another."""
API = ("refuse", "silence", "500", "begin anew", "cut watches", "garbage")
FAULTS = ("silence", "refuse", "kill", "unreachable", "shun", "flap")
"""`shun`: a pod that this node reaches and clients of another host do not. `flap`: refusing and answering in turns."""
UPHEAVAL_S = 400.0
"""The length of an act with restarts in a long run, about."""
FLAPS, FLAP_S = 5, 0.3
NETFILTER = ("delete table", "flush table", "flush chain", "flush map")
KERNEL_NETFILTER = ("flush spreads", "flush slots", "no forwarding")


def acts(seed: int, seconds: float, *, both_paths: bool = True) -> tuple[Act, ...]:
    """The acts of a run. The first ones have all faults, restarts included; a long time has several, as the node is
    looked at after each. The others have the same processes to the end: one for them to warm up, and one in which
    nothing may grow. `both_paths`: Services go by the kernel, too."""
    parts = max(1, round(0.6 * seconds / UPHEAVAL_S))
    shares = [("upheaval" if part == 0 else f"upheaval {part + 1}", 0.6 / parts) for part in range(parts)]
    shares += [("warming up", 0.15), ("endurance", 0.25)]
    rng = random.Random(f"{seed} paths")
    path = {name: rng.choice(PATHS) for name, _ in shares}
    # Memory is compared, so these two end alike.
    path["warming up"] = path["endurance"] = rng.choice(("kernel", "auto"))
    balances = {name: balances_of(f"{seed} {name}") for name, _ in shares}
    balances["endurance"] = balances["warming up"]
    return tuple(
        replace(
            _act(f"{seed} {name}", name, seconds * share, both_paths=both_paths),
            data_path=path[name] if both_paths else "userspace",
            balances=balances[name],
        )
        for name, share in shares
    )


def balances_of(seed: str) -> dict[str, Balance]:
    """How each service spreads its clients at some moment without events."""
    rng = random.Random(f"{seed} balances")
    draw = _deck(rng, tuple(Scheduler))
    return {place.name: _balance(rng, Scheduler(draw())) for place in PLACES}


def _balance(rng: random.Random, scheduler: Scheduler) -> Balance:
    return Balance(scheduler, (rng.choice(WEIGHTS), rng.choice(WEIGHTS)), rng.choice(SLOW_STARTS_S))


def first_path(seed: int) -> str:
    """The data path with which a run with both begins."""
    return random.Random(f"{seed} first path").choice(PATHS)


def links(seed: int) -> PodLinks:
    """The links of a run's pods."""
    return random.Random(f"{seed} links").choice(list(PodLinks))


def _act(seed: str, name: str, seconds: float, *, both_paths: bool) -> Act:
    """The schedule of one act. Each track has a seed of its own, so that a shorter run is the beginning of a longer
    one."""
    tracks = [track(random.Random(f"{seed} {track.__name__}")) for track in (_services, _api)]
    netfilter = (*NETFILTER, *KERNEL_NETFILTER) if both_paths else NETFILTER
    tracks.append(_netfilter(random.Random(f"{seed} _netfilter"), netfilter))
    tracks += [_pod(random.Random(f"{seed} {pod}"), pod) for pod in range(len(SOUND), PODS)]
    kinds = (PROCESS if name.startswith("upheaval") else ()) + (KERNEL_PROCESS if both_paths else ())
    if kinds:
        tracks.append(_process(random.Random(f"{seed} process"), kinds))
    if both_paths:
        tracks.append(_rescue(random.Random(f"{seed} rescue")))
    events = (event for track in tracks for event in _before(track, seconds))
    return Act(name, seconds, tuple(sorted(events, key=lambda event: event.at_s)))


def _before(track: Iterator[Event], seconds: float) -> Iterator[Event]:
    for event in track:
        if event.at_s >= seconds:
            return
        yield event


def _deck(rng: random.Random, kinds: Sequence[str]) -> Callable[[], str]:
    """Each kind once, in any order, then again: so that a short run has all of them."""
    left: list[str] = []

    def draw() -> str:
        if not left:
            left.extend(rng.sample(kinds, len(kinds)))
        return left.pop()

    return draw


def _process(rng: random.Random, kinds: Sequence[str]) -> Iterator[Event]:
    at_s, draw = 2.0, _deck(rng, kinds)
    while True:
        kind = draw()
        wait_s = rng.uniform(0.5, 6.0) if kind == "stop control" else rng.uniform(0.0, 3.0)
        yield Event(round(at_s, 3), "process", kind, wait_s=round(wait_s, 3))
        at_s += rng.uniform(3.0, 8.0)


def _rescue(rng: random.Random) -> Iterator[Event]:
    at_s, draw = 2.0, _deck(rng, RESCUE)
    while True:
        at_s += rng.uniform(3.0, 12.0)
        yield Event(round(at_s, 3), "rescue", draw(), wait_s=round(rng.uniform(0.2, 4.0), 3))


def _api(rng: random.Random) -> Iterator[Event]:
    at_s, draw = 3.0, _deck(rng, API)
    while True:
        at_s += rng.uniform(2.0, 8.0)
        kind = draw()
        yield Event(round(at_s, 3), "api", kind)
        at_s += rng.uniform(1.0, 6.0)
        yield Event(round(at_s, 3), "api", f"end of {kind}")


def _pod(rng: random.Random, pod: int) -> Iterator[Event]:
    at_s = 1.0
    draw = _deck(rng, ("kill",) if pod == MORTAL else FAULTS)
    while True:
        at_s += rng.uniform(1.0, 12.0)
        kind = draw()
        times, pause_s = (1, rng.uniform(0.5, 5.0)) if kind != "flap" else (FLAPS, FLAP_S)
        kind = "refuse" if kind == "flap" else kind
        for _ in range(times):
            yield Event(round(at_s, 3), "pods", kind, target=str(pod))
            at_s += pause_s
            yield Event(round(at_s, 3), "pods", f"end of {kind}", target=str(pod))
            at_s += pause_s * (times > 1)


def _netfilter(rng: random.Random, kinds: Sequence[str]) -> Iterator[Event]:
    at_s, draw = 4.0, _deck(rng, kinds)
    while True:
        at_s += rng.uniform(5.0, 15.0)
        yield Event(round(at_s, 3), "netfilter", draw(), wait_s=round(rng.uniform(0.5, 7.0), 3))


def _services(rng: random.Random) -> Iterator[Event]:
    at_s, draw = 0.0, _deck(rng, tuple(Scheduler))
    there = {place.name for place in PLACES}
    balances: dict[str, Balance] = {}
    while True:
        at_s += rng.uniform(0.2, 1.5)
        place = rng.choice(PLACES)
        fate = 0.0 if place.steady else rng.random()
        if place.name not in balances or rng.random() < REBALANCED:
            balances[place.name] = _balance(rng, Scheduler(draw()))
        balance = balances[place.name]
        if place.name not in there:
            there.add(place.name)
            yield Event(round(at_s, 3), "services", "appears", place.name, _some(rng, place), balance)
        elif fate < 0.6:
            yield Event(round(at_s, 3), "services", "endpoints", place.name, _some(rng, place), balance)
        elif fate < 0.8:
            yield Event(round(at_s, 3), "services", "endpoints", place.name, balance=balance)
        else:
            there.remove(place.name)
            yield Event(round(at_s, 3), "services", "vanishes", place.name)


def _some(rng: random.Random, place: Place) -> tuple[int, ...]:
    """Endpoints for a service; those of a steady one include one that is alive."""
    if not place.steady:
        return tuple(sorted(rng.sample(range(PODS), rng.randint(1, 3))))
    others = (MORTAL,) if place.protocol == "UDP" else tuple(range(len(SOUND), PODS))
    chosen = {rng.choice(SOUND), *rng.sample(others, rng.randint(0, min(3, len(others))))}
    return tuple(sorted(chosen | {pod for pod in SOUND if rng.random() < 0.3}))
