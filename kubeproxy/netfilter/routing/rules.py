"""Maintains the routing rules that deliver endpoints' answers to our sockets if clients' addresses are preserved.

Such an answer is addressed to the client. The packet filter finds our socket for the packet and marks it (`MARK`), and
these rules (ip-rule(8)) make the kernel deliver marked packets on this host:

    107: from all iif lo goto 109
    108: from all fwmark 0x1000/0x1000 lookup 27504        table 27504: local default dev lo
    109: from all nop

Rule 107 skips rule 108 for lookups that are not for an incoming packet: those for the node's own packets, and those of
the reverse path filter (rp_filter). If src_valid_mark is set, that filter uses the mark, and would conclude that every
sender is on this host.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kubeproxy.model import MARK, Family
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.netlink.messages import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    attributes,
    dump,
    encode,
    open_netlink,
    parse,
    request,
)

TABLE = 27504
"""The number of our routing table ("kp" in ASCII)."""

PRIORITY = 107
"""The priority of the first of our three rules, which come before the main table and the rules of other programs."""

PROTOCOL = 107
"""The protocol number that identifies our rules and routes. ip(8) shows it as ``proto 107``, because it has no name in
/etc/iproute2/rt_protos."""

_RTM_NEWROUTE, _RTM_DELROUTE, _RTM_GETROUTE = 24, 25, 26
_RTM_NEWRULE, _RTM_DELRULE, _RTM_GETRULE = 32, 33, 34

# linux/fib_rules.h: family, lengths of addresses, type of service, table, -, -, action; flags
_RULE = struct.Struct("=BBBBBxxBI")
_FRA_IIFNAME, _FRA_GOTO, _FRA_PRIORITY, _FRA_FWMARK, _FRA_TABLE, _FRA_FWMASK = 3, 4, 6, 10, 15, 16
_FRA_SUPPRESS_PREFIXLEN, _FRA_PROTOCOL = 14, 21
_TO_TABLE, _GOTO, _NOP = 1, 2, 3

# linux/rtnetlink.h: family, lengths of addresses, type of service, table, protocol, scope, type; flags
_ROUTE = struct.Struct("=BBBBBBBBI")
_RTA_OIF, _RTA_TABLE = 4, 15
_SCOPE_HOST, _LOCAL = 254, 2

_INET = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.EACCES)
"""The errors for IPv6 if it is disabled completely, or (EACCES) on the interface lo."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A rule or route: its header without flags that the kernel sets, and its attributes."""

    is_rule: bool
    header: bytes
    values: frozenset[tuple[int, bytes]]


def add() -> bool:
    """Add missing rules of ours and remove superfluous ones. Return True if anything had to be changed. Raise
    KernelError if the kernel refuses, or if CAP_NET_ADMIN is missing."""
    return _settle(wanted=True)


def remove() -> bool:
    """Remove all our rules and our route. Return True if there were any."""
    return _settle(wanted=False)


def probe() -> None:
    """Check that we may change routing rules, without creating one. Raise KernelError if the kernel refuses.

    This asks the kernel to remove a rule that does not exist. Adding and removing a rule would leave a trace: once a
    network namespace has had a rule of its own, every route lookup in it goes through the rules, which takes some 0.4
    µs per forwarded packet.
    """
    try:
        with open_netlink() as netlink:
            for family in Family:
                try:
                    _probe_family(netlink, family)
                except OSError as error:
                    if family is Family.IPV4 or error.errno not in _NO_SUCH_FAMILY:
                        raise
    except OSError as error:
        raise _refused(error) from error


def _probe_family(netlink: socket.socket, family: Family) -> None:
    marked = _wanted_entries(family)[-1]
    if marked in list(_rules(netlink, family)):
        return
    try:
        request(netlink, _RTM_DELRULE, marked.header + encode(marked.values))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def present() -> bool:
    """Return whether `remove` has anything to remove. Raise KernelError if the kernel cannot list it."""
    found = False
    try:
        with open_netlink() as netlink:
            for family in Family:
                try:
                    found |= any((*_rules(netlink, family), *_routes(netlink, family)))
                except OSError as error:
                    if family is Family.IPV4 or error.errno not in _NO_SUCH_FAMILY:
                        raise
    except OSError as error:
        raise KernelError(f"cannot list routing rules by netlink: {error.strerror}") from error
    return found


def is_removal_of_ours(message: bytes) -> bool:
    """Return whether a notification from the kernel reports the removal of one of our rules."""
    return any(
        it.kind == _RTM_DELRULE and dict(attributes(it.body[_RULE.size :])).get(_FRA_PROTOCOL) == bytes([PROTOCOL])
        for it in parse(message)
    )


def _settle(*, wanted: bool) -> bool:
    changed = False
    try:
        with open_netlink() as netlink:
            for family in Family:
                want = _wanted_entries(family) if wanted else []
                try:
                    changed |= _settle_family(netlink, family, want)
                except OSError as error:
                    if family is Family.IPV4 or error.errno not in _NO_SUCH_FAMILY:
                        raise
    except OSError as error:
        raise _refused(error) from error
    return changed


def _refused(error: OSError) -> KernelError:
    hint = "; it needs CAP_NET_ADMIN" if error.errno == errno.EPERM else ""
    return KernelError(f"cannot change routing rules by netlink: {error.strerror}{hint}")


def _settle_family(netlink: socket.socket, family: Family, want: list[_Entry]) -> bool:
    have = [*_rules(netlink, family), *_routes(netlink, family)]
    surplus = [it for it in have if it not in want]
    missing = [it for it in want if it not in have]
    # A marked packet must find a filled table, so the rule for it is removed first and added last.
    for it in sorted(surplus, key=lambda it: not it.is_rule):
        request(netlink, _RTM_DELRULE if it.is_rule else _RTM_DELROUTE, it.header + encode(it.values))
    for it in missing:
        kind = _RTM_NEWRULE if it.is_rule else _RTM_NEWROUTE
        request(netlink, kind, it.header + encode(it.values), flags=NLM_F_CREATE | NLM_F_EXCL)
    return bool(surplus or missing)


def _wanted_entries(family: Family) -> list[_Entry]:
    """Return the wanted rules and route, in the order in which they must be added."""

    def rule(priority: int, action: int, table: int = 0, **values: bytes) -> _Entry:
        kinds = {"iif": _FRA_IIFNAME, "goto": _FRA_GOTO, "mark": _FRA_FWMARK, "mask": _FRA_FWMASK}
        return _Entry(
            is_rule=True,
            header=_RULE.pack(_INET[family], 0, 0, 0, _short(table), action, 0),
            values=frozenset(
                {
                    (_FRA_PRIORITY, _number(priority)),
                    (_FRA_TABLE, _number(table)),
                    (_FRA_PROTOCOL, bytes([PROTOCOL])),
                    *((kinds[name], value) for name, value in values.items()),
                }
            ),
        )

    return [
        _Entry(
            is_rule=False,
            header=_ROUTE.pack(_INET[family], 0, 0, 0, _short(TABLE), PROTOCOL, _scope(family), _LOCAL, 0),
            values=frozenset({(_RTA_TABLE, _number(TABLE)), (_RTA_OIF, _number(socket.if_nametoindex("lo")))}),
        ),
        rule(PRIORITY + 2, _NOP),
        rule(PRIORITY, _GOTO, iif=b"lo\0", goto=_number(PRIORITY + 2)),
        rule(PRIORITY + 1, _TO_TABLE, TABLE, mark=_number(MARK), mask=_number(MARK)),
    ]


def _rules(netlink: socket.socket, family: Family) -> Iterator[_Entry]:
    """Yield our rules in the kernel."""
    for payload in dump(netlink, _RTM_GETRULE, _INET[family]):
        header = _RULE.unpack_from(payload)
        values = dict(attributes(payload[_RULE.size :]))
        if header[0] != _INET[family] or values.get(_FRA_PROTOCOL) != bytes([PROTOCOL]):
            continue
        if values.get(_FRA_SUPPRESS_PREFIXLEN) == b"\xff" * 4:  # The attribute is not set.
            del values[_FRA_SUPPRESS_PREFIXLEN]
        yield _Entry(is_rule=True, header=_RULE.pack(*header[:-1], 0), values=frozenset(values.items()))


def _routes(netlink: socket.socket, family: Family) -> Iterator[_Entry]:
    """Yield the routes in our table."""
    for payload in dump(netlink, _RTM_GETROUTE, _INET[family]):
        header = _ROUTE.unpack_from(payload)
        values = dict(attributes(payload[_ROUTE.size :]))
        if header[0] != _INET[family] or values.get(_RTA_TABLE) != _number(TABLE):
            continue
        kept = {kind: value for kind, value in values.items() if kind in _ROUTE_ATTRIBUTES}
        yield _Entry(is_rule=False, header=_ROUTE.pack(*header[:-1], 0), values=frozenset(kept.items()))


_ROUTE_ATTRIBUTES = frozenset({1, 2, 4, 5, 7, 8, 9, 15})
"""The attributes that decide where a route leads. All others are statistics, or a metric that the kernel adds."""


def _scope(family: Family) -> int:
    return _SCOPE_HOST if family is Family.IPV4 else 0


def _number(value: int) -> bytes:
    return struct.pack("=I", value)


def _short(table: int) -> int:
    """Return a table's number in the form of the header, which has only one byte for it."""
    return table if table < 256 else 252
