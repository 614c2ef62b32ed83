"""Waits until the connections to a pod have ended, for its preStop hook or for an operator's command.

Every connection to a pod passes connection tracking on the pod's own node, whichever proxy on whichever node has led it
there. So only this node can tell when the pod may end. The call is also the earliest sign that the pod will end. From
then on this node sends the pod no new connections, as if the pod were terminating in its EndpointSlices.

All waiting calls share one reading of the conntrack table, and readings may take only a share of the processor's time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import structlog

from kubeproxy.model import Address
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack.connections_to import Seen, connections_to
from kubeproxy.proxier.local_pods import Leaving, LocalPods

log = structlog.get_logger(__name__)

LOOK_S: Final = 0.5
"""How often connections are read while a pod waits."""
LOOK_SHARE: Final = 0.2
"""The largest share of one processor's time that readings may take."""
LOOK_LIMIT_S: Final = 10.0
"""The longest time between two readings."""
SETTLE_S: Final = 2.0
"""How long a pod stays after this node has seen it terminating. The proxies of other nodes learn of it at about that
time, and some act only once a second."""
NEWS_S: Final = 5.0
"""How long the EndpointSlices may take to show the pod as terminating. If the API server is away, other nodes do not
learn of it either."""
QUIET_S: Final = 10.0
"""How long, after that, datagrams and new connections that end at once may delay the end of a pod."""
UNDO_S: Final = 10.0
"""How long a pod is remembered after its last call. If an operator has called, the pod gets no new connections in that
time."""
DOUBT_S: Final = 600.0
"""How long a pod that has not terminated is remembered. The kubelet asks any address that a pod's author gives as
`host` of a hook or a probe, so a call may be about another author's pod, and may come again and again."""
MOST: Final = 1000
"""The largest number of calls that wait at a time. The kubelet runs 110 pods by default, and each container of a pod
may ask."""
MOST_OF_POD: Final = 100
"""The largest number of calls that wait for one pod."""
GATHER_S: Final = 0.02
"""For how long calls are gathered before the proxier learns of them, because many pods may leave at once."""

Read = Callable[[Collection[Address]], Mapping[Address, Seen]]
"""A function that reads the connections to addresses, in a thread. It raises KernelError when the kernel refuses."""


class End(StrEnum):
    """The reason why a wait ended."""

    IDLE = "idle"
    """No connection is left."""
    TIMEOUT = "timeout"
    """The time is over."""
    MOVED = "moved"
    """This process ends, and another one may continue the wait."""
    CROWD = "crowd"
    """Too many calls were already waiting."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a wait."""

    end: End
    open: int | None
    """The number of open connections to the pod, as last read, or None if they could not be read."""
    waited_s: float
    left_s: float
    """The rest of the time, in seconds."""

    @property
    def text(self) -> str:
        """Return the outcome in words."""
        match self.end:
            case End.IDLE:
                return f"no connection is left after {self.waited_s:.1f} s"
            case End.TIMEOUT if self.open is None:
                return f"the time is over after {self.waited_s:.1f} s; the connections could not be read"
            case End.TIMEOUT:
                return f"the time is over after {self.waited_s:.1f} s; open connections: {self.open}"
            case End.MOVED:
                return f"kubeproxy ends; ask the next one for {self.left_s:.1f} s"
            case End.CROWD:
                return "too many calls wait already"


@dataclass(slots=True)
class _Pod:
    """The state of a pod while calls wait for it, and for `UNDO_S` afterwards. Times are the loop's."""

    identity: str
    """The pod, as `LocalPods.identity` names it."""
    in_service: bool
    """Whether a Service had the pod when it asked first."""
    asked_at: float
    news_at: float | None = None
    """When this node saw the pod terminating, or None if it does not terminate according to the EndpointSlices."""
    waiting: int = 0
    last_at: float = -math.inf
    """When its last call ended."""
    by_hand: int = 0
    """How many of the waiting calls come from an operator."""
    hand_at: float = -math.inf
    """When the last of these calls ended."""
    seen: Seen | None = None
    read_at: float = -math.inf
    """When the last reading with this pod began."""
    addresses: set[Address] = field(default_factory=set)
    """All addresses that the pod's EndpointSlices have had. The kubelet asks at one of them, and clients use one of
    each family."""

    def note(self, now: float, *, terminates: bool) -> None:
        """Record whether the EndpointSlices show the pod as terminating."""
        if not terminates:
            self.news_at = None
        elif self.news_at is None:
            self.news_at = now

    def leaves(self, now: float) -> bool:
        """Return whether the pod gets no new connections."""
        by_hand = self.by_hand > 0 or now < self.hand_at + UNDO_S
        return by_hand or self.news_at is not None or now < self.asked_at + NEWS_S

    def may_end(self, began: float) -> bool:
        """Return whether the last reading lets the pod end, for a call that began at that time."""
        if self.seen is None or self.seen.open:
            return False
        if not self.in_service:
            return True
        known_s = self.read_at - (began + NEWS_S if self.news_at is None else self.news_at)
        return known_s >= SETTLE_S and (not self.seen.recent or known_s >= QUIET_S)


class PodDrains:
    """The waiting calls. `run` reads the connections for them, until cancelled."""

    def __init__(
        self, local_pods: LocalPods, on_leaving: Callable[[frozenset[Leaving]], None], *, read: Read = connections_to
    ) -> None:
        """`on_leaving` is called with the pods that are to get no new connections, whenever these change."""
        self._local_pods = local_pods
        self._on_leaving = on_leaving
        self._read = read
        self._leaving: frozenset[Leaving] = frozenset()
        self._pods: dict[Address, _Pod] = {}
        self._changed = asyncio.Condition()
        """The condition that is notified after each reading, and when this process ends."""
        self._asked = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        self._ended = False
        self._unread = False
        """Whether the last reading failed."""

    @property
    def waiting(self) -> int:
        """Return how many calls wait."""
        return sum(pod.waiting for pod in self._pods.values())

    async def wait(self, address: Address, timeout_s: float, *, by_hand: bool = False) -> Outcome:
        """Wait until no connection to a pod is left, at most `timeout_s`. Meanwhile have this node send it no new
        connections, if a person has asked or if the pod terminates, which its EndpointSlices have to show within
        `NEWS_S`."""
        began = _now()
        ends_at = began + timeout_s
        pods, pod = self._local_pods, self._pods.get(address)
        if self.waiting >= MOST or (pod is not None and pod.waiting >= MOST_OF_POD):
            return Outcome(End.CROWD, None, 0.0, timeout_s)
        identity = pods.identity(address)
        if pod is None or (not pod.waiting and pod.identity != identity):
            pod = self._pods[address] = _Pod(identity, in_service=bool(pods.at(address)), asked_at=began)
        pod.waiting += 1
        pod.by_hand += by_hand
        self._gather()
        self._asked.set()
        end = End.TIMEOUT
        try:
            async with asyncio.timeout_at(ends_at), self._changed:
                await self._changed.wait_for(lambda: self._ended or (pod.read_at >= began and pod.may_end(began)))
                end = End.MOVED if self._ended else End.IDLE
        except TimeoutError:
            pass
        finally:
            pod.waiting -= 1
            pod.last_at = _now()
            if by_hand:
                pod.by_hand, pod.hand_at = pod.by_hand - 1, pod.last_at
            self._asked.set()
        count = pod.seen.open if pod.seen is not None and pod.read_at >= began else None
        outcome = Outcome(end, count, _now() - began, max(0.0, ends_at - _now()))
        log.info("pod has drained" if end is End.IDLE else "pod has not drained", address=address, outcome=outcome.text)
        return outcome

    async def end(self) -> None:
        """End all calls, because another process may continue them."""
        self._ended = True
        async with self._changed:
            self._changed.notify_all()

    async def run(self) -> None:
        """Read the connections for all calls that wait, and give new connections again to pods that stay."""
        while True:
            if not self._pods:
                self._asked.clear()
                await self._asked.wait()
            waiting = [address for address, pod in self._pods.items() if pod.waiting]
            cpu_s = await self._look(waiting) if waiting else 0.0
            self._forget()
            self._asked.clear()
            try:
                async with asyncio.timeout(min(LOOK_LIMIT_S, max(LOOK_S, cpu_s / LOOK_SHARE))):
                    await (self._asked.wait() if not waiting else asyncio.Event().wait())
            except TimeoutError:
                continue

    async def _look(self, addresses: Collection[Address]) -> float:
        """Read the connections to these addresses, and return the CPU time that it took."""
        began, cpu_s = _now(), 0.0
        pods = {address: self._pods[address] for address in addresses}
        others = self._local_pods.addresses_of({pod.identity for pod in pods.values() if pod.identity})
        for address, pod in pods.items():
            known = self._local_pods.at(address)
            pod.note(began, terminates=all(endpoint.terminating for endpoint in known))
            pod.addresses |= {address, *others.get(pod.identity, ())}
        every = frozenset[Address]().union(*(pod.addresses for pod in pods.values()))

        def read() -> Mapping[Address, Seen]:
            nonlocal cpu_s
            cpu_began = time.thread_time()
            try:
                return self._read(every)
            finally:
                cpu_s = time.thread_time() - cpu_began

        try:
            found = await asyncio.to_thread(read)
        except KernelError as error:
            if not self._unread:
                log.warning("connections to pods not read", reason=str(error), effect="their hooks wait to the end")
            self._unread = True
            return cpu_s
        self._unread = False
        for pod in pods.values():
            seen = [found[address] for address in pod.addresses if address in found]
            pod.seen = Seen(sum(it.open for it in seen), recent=any(it.recent for it in seen))
            pod.read_at = began
        async with self._changed:
            self._changed.notify_all()
        return cpu_s

    def _forget(self) -> None:
        """Give new connections again to pods that stay. Pods that are gone need none."""
        now = _now()
        for address, pod in list(self._pods.items()):
            known_s = DOUBT_S if pod.news_at is None else UNDO_S
            if not pod.waiting and now >= pod.last_at + known_s:
                del self._pods[address]
        self._gather()

    def _gather(self) -> None:
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_S, self._apply)

    def _apply(self) -> None:
        """Have the proxier send no new connections to the pods that leave, at any of their addresses."""
        self._gathering = None
        now = _now()
        leaving = self._local_pods.leaving({it: pod.identity for it, pod in self._pods.items() if pod.leaves(now)})
        if leaving != self._leaving:
            self._leaving = leaving
            self._on_leaving(leaving)


def _now() -> float:
    return asyncio.get_running_loop().time()
