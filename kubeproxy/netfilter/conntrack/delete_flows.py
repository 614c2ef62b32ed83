"""Deletes stale flows from the kernel's conntrack table through ctnetlink, in a thread."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import structlog

from kubeproxy.model import Address, Family, Protocol, family_of
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack import messages as wire
from kubeproxy.netfilter.conntrack.flow_records import naming
from kubeproxy.netfilter.conntrack.sock_diag import tcp_connections
from kubeproxy.netfilter.conntrack.stale_flows import Landings, TrackedFlow, Transition
from kubeproxy.netfilter.local_addresses import local_addresses
from kubeproxy.netfilter.netlink.messages import NETLINK_NETFILTER, NLMSG_ERROR, answers, open_netlink, parse
from kubeproxy.netfilter.ruleset import RuleSet

log = structlog.get_logger(__name__)

_BATCH = 64
"""The number of deletions requested at once. The answers to them fit into the smallest socket buffer."""
_BUFFER_BYTES = 1 << 17
FILTERED: Final = 8
"""The largest number of addresses that are asked for one by one; for each the kernel walks through its table. For more
addresses one reading of all flows costs less."""

_ADVICE = {
    errno.EPERM: "it needs CAP_NET_ADMIN (root, or the capability)",
    errno.ENOBUFS: "its answers did not fit in the socket's buffer",
    errno.EINVAL: "the kernel has no ctnetlink: load the module nf_conntrack_netlink (CONFIG_NF_CT_NETLINK)",
    errno.EPROTONOSUPPORT: "the kernel has no netfilter netlink (CONFIG_NETFILTER_NETLINK)",
    errno.EBUSY: "they are in a flow table of another program, which releases them when they are idle",
}

_Choose = Callable[[Iterable[TrackedFlow], frozenset[Address]], list[TrackedFlow]]
"""A function that returns the flows to delete. It gets the flows and the addresses of this node."""


class KernelConntrack:
    """The implementation of `Conntrack` for this network namespace. It needs CAP_NET_ADMIN."""

    def __init__(self, *, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s

    async def reconcile(self, before: RuleSet | None, now: RuleSet) -> int:
        """See `Conntrack.reconcile`."""
        if before is now:
            return 0
        return await asyncio.to_thread(self._reconcile, before, now)

    def _reconcile(self, before: RuleSet | None, now: RuleSet) -> int:
        transition = Transition(before, now)
        udp = self._delete(
            "stale UDP flows", Protocol.UDP, transition.families, transition.stale, led_to=lambda _: transition.left
        )
        unanswered = self._delete(
            "unanswered TCP flows",
            Protocol.TCP,
            transition.new_tcp_families,
            partial(_unanswered, transition),
            unanswered=True,
        )
        deserted = self._forget_ended(now, ours=False) if before is None else 0
        return udp + unanswered + deserted

    async def forget_ended(self, rules: RuleSet, *, ours: bool) -> int:
        """See `Conntrack.forget_ended`."""
        return await asyncio.to_thread(self._forget_ended, rules, ours=ours)

    def _forget_ended(self, rules: RuleSet, *, ours: bool) -> int:
        landings = Landings(rules)
        return self._delete(
            "TCP flows to closed proxy ports",
            Protocol.TCP,
            landings.families,
            partial(_ended, landings, ours=ours),
            led_to=landings.home,
        )

    async def forget_waiting(self) -> int:
        """Delete the unanswered TCP flows that were translated to this host's addresses, and return their number. Raise
        KernelError if the kernel refuses.

        These flows lead to ports of a process that has ended. After the deletion, the client's next SYN meets the rules
        in force. For clients on this host itself the deletion is necessary: the kernel confirms a flow on the packet's
        way out, before a rule on its way in drops the packet, so retransmissions would follow the old flow.
        """
        return await asyncio.to_thread(
            self._delete, "waiting TCP flows", Protocol.TCP, frozenset(Family), _waiting, unanswered=True
        )

    def _delete(
        self,
        what: str,
        protocol: Protocol,
        families: Collection[Family],
        choose: _Choose,
        *,
        unanswered: bool = False,
        led_to: Callable[[frozenset[Address]], Collection[Address] | None] = lambda _: None,
    ) -> int:
        """Delete the flows of a protocol and of these families that `choose` returns, and return their number.
        `unanswered` says that `choose` returns only unanswered flows. `led_to` returns, for the addresses of this node,
        the addresses to which all flows of interest were translated, or None if `choose` has to see every flow."""
        if not families:
            return 0
        local = frozenset(it.address for it in local_addresses())
        try:
            with Ctnetlink(timeout_s=self._timeout_s) as ctnetlink:
                dumps = (
                    ctnetlink.dump(family, protocol, unanswered=unanswered, led_to=led_to(local))
                    for family in sorted(families)
                )
                deleted, failed = ctnetlink.delete(choose(itertools.chain.from_iterable(dumps), local))
        except OSError as error:
            raise explained(f"cannot look for {what} by ctnetlink", error.errno, str(error)) from error
        if deleted:
            log.info("conntrack flows deleted", flows=what, count=deleted)
        if failed:
            number = failed[0]
            raise explained(f"cannot delete {len(failed)} {what} by ctnetlink", number, os.strerror(number))
        return deleted


def _unanswered(transition: Transition, flows: Iterable[TrackedFlow], local: frozenset[Address]) -> list[TrackedFlow]:
    """Return the unanswered TCP flows that our rules would redirect if they began now."""
    return [flow for flow in transition.untranslated(flows, local=local) if wire.is_unanswered(flow)]


def _waiting(flows: Iterable[TrackedFlow], local: frozenset[Address]) -> list[TrackedFlow]:
    """Return the unanswered TCP flows that were translated to this host."""
    return [flow for flow in flows if flow.is_translated and flow.target in local and wire.is_unanswered(flow)]


def _ended(
    landings: Landings, flows: Iterable[TrackedFlow], local: frozenset[Address], *, ours: bool
) -> list[TrackedFlow]:
    """Return the TCP flows to ports of this node that have no socket. An incomplete handshake may still lead to a
    socket of another process; our own sockets no longer accept when this is called."""
    found = [flow for flow in landings.find(flows, ours=ours, local=local) if ours or wire.has_begun(flow)]
    if not found:
        return []
    try:
        # Read the sockets after the flows. A process that has one of these flows also has its socket by now.
        connections = tcp_connections()
    except OSError as error:  # CONFIG_INET_DIAG may be missing. That is no problem to report.
        log.info("keeping old TCP flows", count=len(found), reason=f"cannot list sockets: {error}")
        return []
    return [flow for flow in found if (flow.target_port, *wire.peer(flow)) not in connections]


class Ctnetlink:
    """A ctnetlink socket of this network namespace, for one thread. The constructor raises OSError if the kernel has no
    ctnetlink."""

    def __init__(self, *, timeout_s: float) -> None:
        self._socket = open_netlink(NETLINK_NETFILTER)
        self._socket.settimeout(timeout_s)
        self._sequence = itertools.count(1)

    def __enter__(self) -> Ctnetlink:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def dump(
        self,
        family: Family,
        protocol: Protocol,
        *,
        unanswered: bool = False,
        led_to: Collection[Address] | None = None,
    ) -> Iterator[TrackedFlow]:
        """Yield the flows of a family and protocol, all or the unanswered ones, and with `led_to` only those that were
        translated to one of these addresses. An old kernel may answer with others, too (see `wire.dump_request`). Raise
        OSError when the kernel refuses.

        The kernel finds the flows of one address among 200,000 in less than a thirtieth of the processor time that
        reading all of them takes here (``python -m tests.tools.bench.flow_readings``).
        """
        if led_to is None:
            yield from self._dump(
                protocol, partial(wire.dump_request, family, protocol=protocol, unanswered=unanswered)
            )
            return
        addresses = {it: ipaddress.ip_address(it).packed for it in led_to if family_of(it) is family}
        # When asked for one IPv6 address, Linux 6.18 leaves out exactly the flows of that address.
        asked = addresses if family is Family.IPV4 and len(addresses) <= FILTERED else [None] if addresses else []
        for target in asked:
            request = partial(
                wire.dump_request, family, protocol=protocol, unanswered=unanswered, translated=True, target=target
            )
            yield from self._dump(protocol, request, naming(addresses.values()))

    def _dump(
        self, protocol: Protocol, request: Callable[[int], bytes], among: re.Pattern[bytes] | None = None
    ) -> Iterator[TrackedFlow]:
        """Send a request and yield the flows in the answers, or with `among` only those whose message matches this
        pattern."""
        sequence = next(self._sequence)
        self._socket.send(request(sequence))
        for message in answers(self._socket, sequence, at_most=_BUFFER_BYTES):
            if among is not None and among.search(message.body) is None:
                continue
            flow = wire.parse_flow(message, protocol)
            if flow is not None:
                yield flow

    def delete(self, flows: Sequence[TrackedFlow]) -> tuple[int, list[int]]:
        """Delete these flows. Return the number of deleted flows, and the errors. A flow that no longer exists counts
        as neither."""
        return self._delete([wire.delete_request(flow, next(self._sequence)) for flow in flows])

    def delete_unanswered(self, flows: Sequence[TrackedFlow], protocol: Protocol, *, at_most: int) -> bool:
        """Delete the flows that are still unanswered; all given flows have the same target. Return False if the kernel
        refuses a deletion. Also return False, and delete nothing, if the kernel would have to walk through its table
        more than `at_most` times."""
        requests = wire.delete_unanswered_requests(flows, protocol, self._sequence)
        if len(requests) > at_most:
            return False
        _, failed = self._delete(requests)
        return not failed

    def _delete(self, requests: Sequence[bytes]) -> tuple[int, list[int]]:
        deleted, failed = 0, list[int]()
        for at in range(0, len(requests), _BATCH):
            batch = requests[at : at + _BATCH]
            self._socket.send(b"".join(batch))
            answers = 0
            while answers < len(batch):
                for message in parse(self._socket.recv(_BUFFER_BYTES)):
                    if message.kind != NLMSG_ERROR:
                        continue
                    answers += 1
                    if not message.error:
                        deleted += 1
                    elif message.error != errno.ENOENT:
                        failed.append(message.error)
        return deleted, failed


def explained(what: str, number: int | None, why: str) -> KernelError:
    """Return an error of ctnetlink as a KernelError that says what to do."""
    advice = _ADVICE.get(number or 0)
    return KernelError(f"{what}: {why}{'; ' + advice if advice else ''}")
