"""Allocates proxy ports from a range or from the kernel."""

from __future__ import annotations

import errno
from collections import deque
from typing import NamedTuple

from kubeproxy.dataplane.interface import PortReserver, Reservation
from kubeproxy.model import Address, Protocol
from kubeproxy.model.errors import KernelError

_RECENT = 512
"""How many recently released ports are avoided if the kernel chooses the port. That is a small part of the kernel's
ephemeral range (28,232 ports by default)."""

_ATTEMPTS = 16
"""How many times the kernel is asked for another port before a recently released one is accepted."""

_PORT_TAKEN = frozenset({errno.EADDRINUSE, errno.EACCES})
"""The errors that mean that another process has this port, so that another port may work."""


class PortRange(NamedTuple):
    """The ports from `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


class NoPortError(KernelError):
    """Raised if no proxy port is available."""


class Ports:
    """Allocates proxy ports by reserving them.

    A port number is used only once per protocol, even across address families, because the rules identify ports by
    protocol and number. A released number of the range is reused as late as possible, because connections that the
    kernel still tracks must not reach another Service at that port. If the kernel chooses, the last `_RECENT` released
    numbers are avoided for the same reason. The ports of a range are first allocated in ascending order, so that after
    a restart the same Services get the same ports.
    """

    def __init__(self, reserver: PortReserver, port_range: PortRange | None) -> None:
        self._reserver = reserver
        self._range = port_range
        self._held: set[tuple[Protocol, int]] = set()
        self._pools: dict[Protocol, _Pool] = {}
        self._recent: deque[tuple[Protocol, int]] = deque(maxlen=_RECENT)

    @property
    def port_range(self) -> PortRange | None:
        """Return the range from which ports are allocated, or None if the kernel chooses them."""
        return self._range

    def use_range(self, port_range: PortRange | None) -> None:
        """Allocate ports from this range from now on. Ports already allocated do not change."""
        if port_range != self._range:
            self._range = port_range
            self._pools.clear()

    def holds(self, protocol: Protocol, port: int) -> bool:
        """Return whether a port is allocated."""
        return (protocol, port) in self._held

    def reserve(self, protocol: Protocol, address: Address) -> Reservation:
        """Reserve a port for a listener at `address`. Raise NoPortError, with the reason, if none is available."""
        if self._range is None:
            reservation = self._from_kernel(protocol, address)
        else:
            reservation = self._from_range(self._range, protocol, address)
        self._held.add((protocol, reservation.port))
        return reservation

    def release(self, protocol: Protocol, reservation: Reservation) -> None:
        """Release a port."""
        port = reservation.port
        reservation.release()
        self._held.discard((protocol, port))
        if self._range is None:
            self._recent.append((protocol, port))
        elif protocol in self._pools:
            self._pools[protocol].put_back(port)

    def _from_range(self, port_range: PortRange, protocol: Protocol, address: Address) -> Reservation:
        pool = self._pools.setdefault(protocol, _Pool(port_range))
        skipped: list[int] = []
        try:
            while (port := pool.take()) is not None:
                # The port was allocated before the range was set; `release` puts it back.
                if (protocol, port) in self._held:
                    continue
                try:
                    return self._reserver.reserve(protocol, address, port)
                except OSError as error:
                    skipped.append(port)
                    if error.errno not in _PORT_TAKEN:
                        raise NoPortError(f"cannot bind a proxy port at {address}: {error}") from error
        finally:
            for port in skipped:
                pool.put_back(port)
        raise NoPortError(
            f"all {protocol} ports of --proxy-port-range {port_range} are taken ({len(skipped)} of them by other"
            " processes); widen the range or free ports"
        )

    def _from_kernel(self, protocol: Protocol, address: Address) -> Reservation:
        unsuitable: list[Reservation] = []
        refusal: OSError | None = None
        try:
            while refusal is None and len(unsuitable) < _ATTEMPTS:
                try:
                    reservation = self._reserver.reserve(protocol, address, 0)
                except OSError as error:
                    refusal = error
                    continue
                key = (protocol, reservation.port)
                if key not in self._held and key not in self._recent:
                    return reservation
                unsuitable.append(reservation)
            for i, reservation in enumerate(unsuitable):
                if (protocol, reservation.port) not in self._held:
                    return unsuitable.pop(i)
        finally:
            for reservation in unsuitable:
                reservation.release()
        why = refusal or "all it offers are held for the other family; widen net.ipv4.ip_local_port_range"
        raise NoPortError(f"the kernel has no free {protocol} port at {address}: {why}") from refusal


class _Pool:
    """The free ports of a range: first those never used, then released ones in the order of their release."""

    def __init__(self, port_range: PortRange) -> None:
        self._range = port_range
        self._unused = port_range.first
        self._released: deque[int] = deque()

    def take(self) -> int | None:
        if self._unused <= self._range.last:
            self._unused += 1
            return self._unused - 1
        return self._released.popleft() if self._released else None

    def put_back(self, port: int) -> None:
        if self._range.first <= port < self._unused:
            self._released.append(port)
