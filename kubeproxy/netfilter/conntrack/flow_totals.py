"""Sums the bytes of flows by frontend, and counts the open ones by frontend and endpoint.

The kernel has a count for each flow, and deletes the flow some time after its end. So the last count of each flow is
stored, and each increase is added to the sum of its frontend, which never falls. Bytes between the last reading and the
end of a flow are added when the event of its end arrives. Without events they are lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kubeproxy.model import FrontendName
from kubeproxy.netfilter.conntrack.flow_records import FlowRecord

SYN_SENT, SYN_RECV, ESTABLISHED, FIN_WAIT, CLOSE_WAIT, LAST_ACK, TIME_WAIT, CLOSE = range(1, 9)
"""TCP_CONNTRACK_* (linux/netfilter/nf_conntrack_tcp.h)."""

Endpoint = tuple[bytes, bytes]
"""An endpoint's address and port, in network byte order."""
_BITS: Final = 63
"""The number of bits for a byte count. The two counts of a flow and the number of the reading are packed into one
integer, which saves 30 MB for 200,000 flows."""
_MASK: Final = (1 << _BITS) - 1


def is_open(flow: FlowRecord) -> bool:
    """Return whether a TCP connection is established and not ended. A UDP flow counts as open as long as the kernel has
    it."""
    return flow.tcp_state is None or ESTABLISHED <= flow.tcp_state <= LAST_ACK


@dataclass(slots=True)
class FlowTotals:
    """The number of open connections at the last reading, and the bytes since the first reading.

    A reading consists of a call of `begin`, a call of `seen` for each flow, and a call of `finish` if it was complete.
    """

    open: Mapping[FrontendName, Counter[Endpoint]] = field(default_factory=dict)
    """The number of open flows by frontend and endpoint. Endpoints without any are left out."""
    bytes_in: Counter[FrontendName] = field(default_factory=Counter)
    bytes_out: Counter[FrontendName] = field(default_factory=Counter)
    _last: dict[bytes, int] = field(default_factory=dict)
    _open_now: dict[FrontendName, Counter[Endpoint]] = field(default_factory=dict)
    _reading: int = 0
    """The number of the last reading."""
    _based: bool = False
    """Whether a reading was completed. Bytes from before the first complete reading are not counted."""

    def begin(self) -> None:
        """Begin a reading."""
        self._reading += 1
        self._open_now = {}

    def seen(self, name: FrontendName, flow: FlowRecord) -> None:
        """Record a flow from the kernel's table."""
        if flow.bytes_in is None or flow.bytes_out is None:
            self._count(name, flow)
            return
        key, now = flow.key, _packed(flow.bytes_in, flow.bytes_out, self._reading)
        before = self._last.get(key)
        if before == now:
            return  # If the kernel resizes its table during a dump, a flow may appear twice.
        self._last[key] = now
        if before is None or before >> 2 * _BITS != self._reading:
            self._count(name, flow)
        if self._based:
            self._add(name, before or 0, flow.bytes_in, flow.bytes_out)

    def ended(self, name: FrontendName, flow: FlowRecord) -> None:
        """Add the last bytes of a flow that the kernel has deleted."""
        before = self._last.pop(flow.key, 0)
        if self._based and flow.bytes_in is not None and flow.bytes_out is not None:
            self._add(name, before, flow.bytes_in, flow.bytes_out)

    def finish(self) -> None:
        """End a complete reading: forget the flows that it did not contain. If there are events of ended flows, handle
        all pending events first; otherwise those flows would later be counted from 0 again."""
        for key in [key for key, value in self._last.items() if value >> 2 * _BITS != self._reading]:
            del self._last[key]
        self.open = self._open_now
        self._based = True

    def keep(self, names: Collection[FrontendName]) -> None:
        """Forget the sums of all other frontends."""
        for sums in (self.bytes_in, self.bytes_out):
            for name in [name for name in sums if name not in names]:
                del sums[name]

    def _count(self, name: FrontendName, flow: FlowRecord) -> None:
        if is_open(flow):
            self._open_now.setdefault(name, Counter())[flow.route[3:]] += 1

    def _add(self, name: FrontendName, before: int, now_in: int, now_out: int) -> None:
        then_in, then_out = before & _MASK, before >> _BITS & _MASK
        if now_in < then_in or now_out < then_out:  # A new flow with the number of an old one.
            then_in = then_out = 0
        if now_in != then_in:
            self.bytes_in[name] += now_in - then_in
        if now_out != then_out:
            self.bytes_out[name] += now_out - then_out

    def __len__(self) -> int:
        return len(self._last)


def _packed(bytes_in: int, bytes_out: int, reading: int) -> int:
    return bytes_in & _MASK | (bytes_out & _MASK) << _BITS | reading << 2 * _BITS
