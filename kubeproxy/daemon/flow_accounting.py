"""Counts the connections of the kernel path and their bytes, and reports ended connections to the access log.

Both tasks use connection tracking. The whole table is read when a status or a scrape asks for counts (`KernelTraffic`),
and while rollouts wait for connections to end (`DrainReporter`). The kernel's notifications of ended connections are
read twice a second if there is an access log. Both tasks run in a thread, which releases the interpreter lock often, so
that the event loop can run. Only one of them runs at a time, so that the counts of an ended flow are added to the sums
before they are forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from kubeproxy.dataplane.interface import Ended
from kubeproxy.model import Address, FrontendName, Target
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack.delete_flows import explained
from kubeproxy.netfilter.conntrack.flow_ends import FlowEnds
from kubeproxy.netfilter.conntrack.flow_outcomes import lingering_s, outcome, span
from kubeproxy.netfilter.conntrack.flow_owners import FlowOwners, Holder, text
from kubeproxy.netfilter.conntrack.flow_records import PROTOCOLS, FlowRecord
from kubeproxy.netfilter.conntrack.flow_table import translated_flows
from kubeproxy.netfilter.conntrack.flow_totals import FlowTotals, is_open
from kubeproxy.netfilter.conntrack.sysctls import DIRECTORY, tcp_timeouts
from kubeproxy.netfilter.local_addresses import local_addresses
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.observability.logs.ratelimit import RateLimitedLog
from kubeproxy.observability.picture import KernelFlowsState

log = structlog.get_logger(__name__)

ENDS_CPU_S: Final = 0.1
"""How much CPU time one fetch of ended connections may take. With two fetches per second that is a fifth of a core.
Further notifications wait in the kernel."""
LINES_MAX: Final = 4096
"""The largest number of lines given to the access log at a time, the same as for a worker."""
READ_SHARE: Final = 0.05
"""The largest share of one processor that reading the table may take, for all callers together."""
READ_PAUSE_LIMIT_S: Final = 30.0
"""The longest pause between two readings."""
BASE_LOOK_S: Final = 0.2
"""How often to check whether the first rules with a kernel path are in force."""


class FlowCounts(NamedTuple):
    """The connections of one frontend on the kernel path."""

    open: int
    bytes_in: int
    bytes_out: int


NO_FLOWS: Final = FlowCounts(0, 0, 0)


class FlowAccounting:
    """The flows of this network namespace that our rules send straight to endpoints.

    `run` takes the first counts, and bytes are counted from then on. `read` and `ended` do nothing until a rule of this
    process uses the kernel path.
    """

    def __init__(
        self,
        *,
        rules: Callable[[], RuleSet | None],
        holder: Holder,
        taken: asyncio.Event,
        superseded: asyncio.Event,
        has_predecessor: Callable[[], bool],
        on_skipped: Callable[[int], None],
        settings: Path = DIRECTORY,
    ) -> None:
        """`rules` returns the rules in force. `taken` is set when they redirect to this process. Until then a
        predecessor, if there is one, logs ended connections. Once `superseded` is set a successor logs them.
        `on_skipped` is called with the number of ended connections that exceeded the limit of the access log."""
        self._rules = rules
        self._owners = FlowOwners(holder, _local)
        self._totals = FlowTotals()
        self._taken, self._superseded = taken, superseded
        self._has_predecessor = has_predecessor
        self._on_skipped = on_skipped
        self._settings = settings
        self._wanted = asyncio.Event()
        self._spread = False
        self._ends_wanted = False
        self._ends: FlowEnds | None = None
        self._ended: deque[Ended] = deque()
        self._skipped = 0
        self._ends_seen = self._overflows = 0
        self._problem = ""
        self._reading_s = 0.0
        self._read_at = self._next_at = -math.inf
        """When the last reading began, and when the next one may begin, in seconds of `time.monotonic`."""
        self._open_to: Counter[bytes] = Counter()
        """The number of open TCP connections by endpoint, as of the last reading."""
        self._one_at_a_time = threading.Lock()
        """Held while the thread works, because cancelling a task does not stop its thread."""
        self._log = RateLimitedLog(log, interval_s=math.inf)

    def expect(self) -> None:
        """Begin to follow the kernel path, which is wanted from now on."""
        self._wanted.set()
        self._follow_ends()

    async def run(self) -> None:
        """Read the flows once, as soon as our rules use the kernel path. Bytes transferred before belong to the
        previous instance's counts."""
        await self._taken.wait()
        await self._wanted.wait()
        while True:
            if self.has_spread():
                return await self.read()
            await asyncio.sleep(BASE_LOOK_S)

    def use_ends(self, on: bool) -> None:
        """Follow ended connections for the access log, or stop following them."""
        self._ends_wanted = on
        self._follow_ends()

    def _follow_ends(self) -> None:
        """Begin or end the subscription to ended connections. It begins at once, because the kernel does not report
        connections that are older than the subscription. If the thread is working, it does this at its next call."""
        if not self._one_at_a_time.acquire(blocking=False):
            return
        try:
            if not self._ends_wanted:
                self._close_ends()
            elif self._wanted.is_set() and self._ends is None and not self._superseded.is_set():
                with contextlib.suppress(OSError):  # `ended` tries again and reports the failure.
                    self._ends = FlowEnds()
        finally:
            self._one_at_a_time.release()

    async def refresh(self) -> None:
        """Read the flows for `counts`, unless readings have used up their share of time."""
        if time.monotonic() >= self._next_at:
            await self.read()

    async def open_to(self, addresses: Collection[Address]) -> Mapping[Address, int]:
        """Return the number of open TCP connections on the kernel path to each of these addresses. Addresses without
        connections are left out.

        The counts are from a reading that began after this call. Raise KernelError if the conntrack entries cannot be
        read."""
        asked = time.monotonic()
        while self.has_spread() and self._rules() is not None and self._read_at < asked:
            await asyncio.sleep(self._next_at - time.monotonic())
            await self.refresh()
        if self._problem:
            raise KernelError(self._problem)
        return {
            address: count for address in addresses if (count := self._open_to[ipaddress.ip_address(address).packed])
        }

    async def read(self) -> None:
        """Read the flows for `counts`. A failure is logged once, and the last counts stay."""
        if not self.has_spread() or (rules := self._rules()) is None:
            return
        began, cpu_s = time.monotonic(), 0.0

        def read() -> None:
            nonlocal cpu_s
            cpu_began = time.thread_time()
            try:
                self._read(rules)
            finally:
                cpu_s = time.thread_time() - cpu_began

        try:
            await self._in_thread(read)
        except KernelError as error:
            self._problem = str(error)
            self._log.warning("kernel path's flows not counted", key="read", reason=str(error))
        else:
            self._problem = ""
            self._log.reset("read")
        self._reading_s = time.monotonic() - began
        self._read_at = max(self._read_at, began)
        # CPU time is used, because on a busy node a reading spends much of its time waiting for a processor, which
        # costs nothing.
        self._next_at = time.monotonic() + min(READ_PAUSE_LIMIT_S, cpu_s / READ_SHARE)
        self._report_losses()

    def counts(self, names: Collection[FrontendName]) -> Mapping[FrontendName, FlowCounts]:
        """Return the counts of those of the named frontends that have had connections since this process began. Forget
        all frontends that are not named."""
        totals = self._totals
        totals.keep(names)
        found = totals.open.keys() | totals.bytes_in.keys() | totals.bytes_out.keys()
        return {
            name: FlowCounts(sum(totals.open.get(name, {}).values()), totals.bytes_in[name], totals.bytes_out[name])
            for name in found
            if name in names
        }

    def open_by_endpoint(self, name: FrontendName) -> Mapping[Target, int]:
        """Return the number of open connections and UDP flows on the kernel path to each endpoint of a frontend, as of
        the last reading. Endpoints without any are left out."""
        found = self._totals.open.get(name, Counter())
        return {_target(address, port): count for (address, port), count in found.items()}

    async def ended(self) -> Sequence[Ended]:
        """Return the connections that have ended since the last call. A connection counts as ended when the kernel
        deletes its conntrack entry."""
        if not self._ends_wanted or not self._wanted.is_set():
            return ()
        rules = self._rules()
        try:
            await self._in_thread(lambda: self._take_ends(rules))
        except KernelError as error:
            self._log.warning(
                "kernel path's connections not logged", key="ends", reason=str(error), effect="no lines for them"
            )
            return ()
        self._report_losses()
        return [self._ended.popleft() for _ in range(len(self._ended))]  # The reading thread may append meanwhile.

    def state(self) -> KernelFlowsState | None:
        """Return the state for the status and metrics, or None if no rule of this process has used the kernel path
        yet."""
        if not self.has_spread():
            return None
        return KernelFlowsState(
            bytes_counted=self._counts_bytes(),
            problem=self._problem,
            reading_s=self._reading_s,
            ends_followed=self._ends is not None,
            ends=self._ends_seen,
            overflows=self._overflows,
        )

    def has_spread(self) -> bool:
        """Return whether rules of this process have ever used the kernel path. Connections outlive the rules."""
        if not self._spread and (rules := self._rules()) is not None:
            self._spread = bool(rules.spreads)
        return self._spread

    def close(self) -> None:
        """End the subscription to ended connections."""
        with self._one_at_a_time:
            self._close_ends()

    def _counts_bytes(self) -> bool:
        try:
            return (self._settings / "nf_conntrack_acct").read_text().strip() == "1"
        except OSError:
            return False

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except OSError as error:
            raise explained("cannot follow flows by ctnetlink", error.errno, str(error)) from error
        except RuntimeError as error:  # No thread can be started.
            raise KernelError(f"cannot read flows: {error}; raise the limit on processes") from error

    # In the thread.

    def _read(self, rules: RuleSet) -> None:
        with self._one_at_a_time:
            self._owners.use(rules)
            self._totals.begin()
            open_to = Counter[bytes]()
            for flow in translated_flows():
                if flow.tcp_state is not None and is_open(flow):
                    open_to[flow.route[3]] += 1
                if (name := self._owners.of(flow)) is not None:
                    self._totals.seen(name, flow)
            if self._ends is not None:
                # The kernel reports the end of a flow before it removes the flow.
                self._note_ends(self._ends, cpu_s=math.inf)
            self._totals.finish()
            self._open_to = open_to
            self._owners.forget_unused()

    def _take_ends(self, rules: RuleSet | None) -> None:
        with self._one_at_a_time:
            if self._ends is None:
                if self._superseded.is_set():
                    return
                self._ends = FlowEnds()
            if rules is not None:
                self._owners.use(rules)
            elif not self._has_predecessor():
                return  # Notifications wait in the kernel until the rules are known.
            self._note_ends(self._ends, cpu_s=ENDS_CPU_S)
            if not self._ends_wanted or self._superseded.is_set():
                self._close_ends()

    def _note_ends(self, ends: FlowEnds, *, cpu_s: float) -> None:
        ours = self._taken.is_set() or not self._has_predecessor()
        rules = self._rules()
        set_by_rules = rules.tcp_timeouts if rules is not None and rules.rescue is not None else {}
        lingering = lingering_s(set_by_rules or tcp_timeouts(directory=self._settings))
        for flow in ends.take(cpu_s=cpu_s):
            if (name := self._owners.of(flow)) is None:
                continue
            self._ends_seen += 1
            self._totals.ended(name, flow)
            if not ours:
                continue
            if len(self._ended) < LINES_MAX:
                self._ended.append(as_ended(flow, name, lingering, now=time.time()))
            else:
                self._skipped += 1

    def _close_ends(self) -> None:
        if self._ends is not None:
            self._ends.close()
            self._ends = None

    # In the event loop.

    def _report_losses(self) -> None:
        if self._skipped:
            skipped, self._skipped = self._skipped, 0
            self._on_skipped(skipped)
        if self._ends is not None and (overflows := self._ends.take_overflows()):
            self._overflows += overflows
            self._log.warning(
                "ends of connections were lost",
                key="overflow",
                effect="lines of the access log are missing, and bytes of these connections",
                remedy="count them in kubeproxy_kernel_end_overflows_total; no access log, or fewer connections",
            )


def as_ended(flow: FlowRecord, name: FrontendName, lingering: Mapping[int, int], *, now: float) -> Ended:
    """Return a conntrack entry as a record for the access log. If the kernel has not recorded when the connection
    ended, `now` (Unix seconds) is used."""
    number, _, _, target, target_port = flow.route
    began, ended = span(flow, lingering) or (now, None)
    return Ended(
        frontend=name,
        protocol=PROTOCOLS[number],
        client=_target(flow.source, flow.source_port),
        endpoint=_target(target, target_port),
        attempts=None,
        began=began,
        dial_s=None,
        duration_s=None if ended is None else ended - began,
        bytes_in=flow.bytes_in,
        bytes_out=flow.bytes_out,
        reason=outcome(flow),
        path="kernel",
    )


def _target(address: bytes, port: bytes) -> Target:
    return Target(text(address), int.from_bytes(port, "big"))


def _local() -> frozenset[Address]:
    return frozenset(local_address.address for local_address in local_addresses())
