"""The system calls by which the proxier binds ports of this host.

`port_allocator` and `port_claims` make these calls in the middle of decisions that are otherwise pure, because only
binding a port shows whether it is free. Tests replace both calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kubeproxy.dataplane.interface import PortReserver
from kubeproxy.model import Address, Protocol
from kubeproxy.netfilter.port_holders import Holder

FindHolders = Callable[[Protocol, Address, int], Sequence[Holder]]
"""A function that returns the processes that use a port at an address. It raises OSError if the kernel refuses."""


def no_holders(protocol: Protocol, address: Address, port: int) -> Sequence[Holder]:
    """Return no process. Tests use this."""
    return ()


class PortSystemCalls(NamedTuple):
    """The functions that reserve a port, and that find the processes that use a port."""

    reserver: PortReserver
    find_holders: FindHolders = no_holders
