"""Waits until the connections to a pod have ended, for its preStop hook or for an operator's command.

Every connection to a pod passes through connection tracking on the pod's own node, whichever node or proxy sent it. So
only the pod's node can tell when the pod may end. A hook's call is also the earliest sign that the pod will end. From
then on this node sends the pod no new connections, as if its EndpointSlices showed it as terminating.

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
"""How often connections are read while calls wait."""
LOOK_SHARE: Final = 0.2
"""The largest share of one processor's time that readings may take."""
LOOK_LIMIT_S: Final = 10.0
"""The longest time between two readings."""
SETTLE_S: Final = 2.0
"""How long a pod stays after this node has seen it as terminating. The proxies of other nodes learn of that at about
the same time, and some act only once a second."""
NEWS_S: Final = 5.0
"""How long the EndpointSlices may take to show the pod as terminating. After that the wait continues without this
information, because other nodes may not have it either (if the API server is unreachable)."""
QUIET_S: Final = 10.0
"""For how long after that datagrams and short connections may delay the end of a pod."""
UNDO_S: Final = 10.0
"""How long a pod is remembered after its last call. If an operator has called, the pod gets no new connections during
that time."""
DOUBT_S: Final = 600.0
"""How long a pod that does not terminate is remembered. The kubelet calls any address that the author of a pod gives as
`host` of a hook or a probe. So a call may concern another author's pod, and may be repeated at will."""
MOST: Final = 1000
"""The largest number of waiting calls. The kubelet runs 110 pods by default, and each container of a pod may call."""
MOST_OF_POD: Final = 100
"""The largest number of waiting calls for one pod."""
GATHER_S: Final = 0.02
"""For how long calls are collected before the proxier is told about them, because many pods may leave at once."""

Read = Callable[[Collection[Address]], Mapping[Address, Seen]]
"""A function that reads the connections to addresses, in a thread. It raises KernelError if the kernel refuses."""


class End(StrEnum):
    """The reason why a wait ended."""

    IDLE = "idle"
    """No connection is left."""
    TIMEOUT = "timeout"
    """The time is over."""
    MOVED = "moved"
    """This process ends. Another process may continue the wait."""
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
    """The state of a pod while calls wait for it, and for a while afterwards. Times are in seconds of the loop's
    clock."""

    identity: str
    """The pod's name, as returned by `LocalPods.identity`."""
    in_service: bool
    """Whether a Service had the pod at the first call."""
    asked_at: float
    news_at: float | None = None
    """When this node saw the pod as terminating, or None if its EndpointSlices do not show it as terminating."""
    waiting: int = 0
    last_at: float = -math.inf
    """When the last call for the pod ended."""
    by_hand: int = 0
    """How many of the waiting calls come from an operator."""
    hand_at: float = -math.inf
    """When the last call from an operator ended."""
    seen: Seen | None = None
    read_at: float = -math.inf
    """When the last reading of the pod's connections began."""
    addresses: set[Address] = field(default_factory=set)
    """All addresses that the pod has had in EndpointSlices. The kubelet calls one of them, but clients may use one of
    each family."""

    def note(self, now: float, *, terminates: bool) -> None:
        """Record whether the EndpointSlices show the pod as terminating."""
        if not terminates:
            self.news_at = None
        elif self.news_at is None:
            self.news_at = now

    def leaves(self, now: float) -> bool:
        """Return whether the pod is to get no new connections."""
        by_hand = self.by_hand > 0 or now < self.hand_at + UNDO_S
        return by_hand or self.news_at is not None or now < self.asked_at + NEWS_S

    def may_end(self, began: float) -> bool:
        """Return whether the pod may end according to the last reading. `began` is when the call began."""
        if self.seen is None or self.seen.open:
            return False
        if not self.in_service:
            return True
        known_s = self.read_at - (began + NEWS_S if self.news_at is None else self.news_at)
        return known_s >= SETTLE_S and (not self.seen.recent or known_s >= QUIET_S)


class PodDrains:
    """Holds the waiting calls. While `run` is running it reads the connections for them."""

    def __init__(
        self, local_pods: LocalPods, on_leaving: Callable[[frozenset[Leaving]], None], *, read: Read = connections_to
    ) -> None:
        """`on_leaving` is called whenever the set of pods that are to get no new connections changes, with the new
        set."""
        self._local_pods = local_pods
        self._on_leaving = on_leaving
        self._read = read
        self._leaving: frozenset[Leaving] = frozenset()
        self._pods: dict[Address, _Pod] = {}
        self._changed = asyncio.Condition()
        """Notified after each reading, and when this process ends."""
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
        """Wait until a pod has no connections, for at most `timeout_s` seconds, and return the outcome.

        Meanwhile this node sends the pod no new connections. If the call is from an operator, that lasts for `UNDO_S`
        seconds more. For any other call it ends after `NEWS_S` seconds, unless the EndpointSlices show the pod as
        terminating."""
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
        """End all waiting calls. Another process may continue them."""
        self._ended = True
        async with self._changed:
            self._changed.notify_all()

    async def run(self) -> None:
        """Read the connections for all waiting calls, and allow new connections again to pods that stay, until
        cancelled."""
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
        """Read the connections to these addresses, and return the CPU time of the reading in seconds."""
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
        """Forget pods without recent calls. Those that still exist get new connections again."""
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
        """Tell the proxier which pods, with all their addresses, are to get no new connections."""
        self._gathering = None
        now = _now()
        leaving = self._local_pods.leaving({it: pod.identity for it, pod in self._pods.items() if pod.leaves(now)})
        if leaving != self._leaving:
            self._leaving = leaving
            self._on_leaving(leaving)


def _now() -> float:
    return asyncio.get_running_loop().time()
