"""The system calls by which the proxier takes ports of this host.

`port_allocator` and `port_claims` make these calls immediately, in the middle of decisions that are otherwise pure,
because only binding a port shows whether it is free. Tests replace both calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kubeproxy.dataplane.interface import PortReserver
from kubeproxy.model import Address, Protocol
from kubeproxy.netfilter.port_holders import Holder

FindHolders = Callable[[Protocol, Address, int], Sequence[Holder]]
"""A function that returns the processes that have a port at an address. It raises OSError when the kernel refuses."""


def no_holders(protocol: Protocol, address: Address, port: int) -> Sequence[Holder]:
    """Return no process."""
    return ()


class PortSystemCalls(NamedTuple):
    """The calls that reserve a port, and that find the processes that have a port."""

    reserver: PortReserver
    find_holders: FindHolders = no_holders
