"""The rules that catch failed connections of the kernel path, as static chains of our table.

They handle only connections whose *original* destination is in the sets ``translated*``, because other programs also
translate addresses and set the same status bits. The chains that send first packets to endpoints pass them on by the
rule of `copying`.

- The first SYN of a client is copied to the rescue process (`kubeproxy.rescue`), which can send it again. Until the
  flow is answered, its timeout is one second, so that a client's own retransmission is balanced again. This rule, and
  the one that stamps the first of the two sets below, are in chains of type nat, which the kernel calls only for the
  first packet of a flow. So a packet of a running connection passes only one of our rules, in one chain.
- A reset that answers a SYN is reported and dropped. The kernel has just deleted its flow (``dying``); RFC 9293
  requires RST and ACK with the sequence number 0.
- An ICMP error about an unanswered connection, or about a datagram, is reported and dropped.
- Two sets have the times of the last SYN to each endpoint and of its last answer.

Packets are dropped or reported only while ``alive`` contains the protocol. The control process renews this element as
long as it and the rescue process work. Otherwise the element expires, and the node behaves as with kube-proxy. The
rates of reports and copies are limited; the rate of drops is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kubeproxy.model import Family

REPORT_PREFIX = "kubeproxy rescue"
"""The NFLOG prefix of reports. Copies have no prefix."""
ALIVE = "alive"
ALIVE_S = 3.0
"""For how many seconds the rules work after the last renewal of `ALIVE`."""
BRIDGE_S = 10.0
"""For how many seconds the rules work while the control process replaces its program. The rescue process lives on for
the same time; after it nothing is reported any more."""
STAMP_S = 5
"""For how many seconds ``asked*`` and ``answered*`` remember an endpoint."""
STAMPS_MAX = 65_536
"""The largest number of endpoints in each set of ``asked*`` and ``answered*``."""
COPIES_PER_S, COPIES_BURST = 10_000, 5_000
"""The rate at which SYNs are copied. A client whose SYN is not copied, and whose endpoint fails, waits a second for its
own retransmission."""
REPORTS_PER_S, REPORTS_BURST = 1_000, 500
"""The rate at which failures are reported. Clients of other failures wait for their own retransmission."""
PACKET_BYTES = 1600
"""How many bytes of a packet are copied. A SYN may carry data (RFC 7413), and an ICMPv6 error quotes 1,232 bytes."""
COPIES_PER_MESSAGE = 256
"""How many copies the kernel collects, for 50 ms at most, before it sends them. A report is sent at once, together with
the waiting copies, so a copy never arrives after its report."""

_FIRST = "tcp flags & (fin | syn | rst | ack) == syn"
_MANGLE = -150

Base = tuple[str, str, int, str]
Rules = tuple[tuple[str, str], ...]
"""The rules of a chain, each as its text and the reason for it."""

HOOKS: Mapping[str, Base | None] = {
    # These hooks are before the translation back, so an answer still has the endpoint's address.
    "rescue_prerouting": ("filter", "prerouting", _MANGLE, "accept"),
    "rescue_output": ("filter", "output", _MANGLE, "accept"),
    "rescue_copy4": None,
    "rescue_copy6": None,
    "rescue_asked": None,
    "rescue_reply": None,
    "rescue_answer": None,
    "rescue_refused": None,
    "rescue_error": None,
    "rescue_unreachable": None,
}
"""The chains with their hooks. A chain without a hook has None."""


class Timed(NamedTuple):
    """The declaration of a set to which rules add expiring elements."""

    name: str
    key: tuple[str, str]

    @property
    def text(self) -> str:
        """Return the declaration in nft's syntax."""
        return f"{{ type {' . '.join(self.key)}; flags dynamic,timeout; timeout {STAMP_S}s; size {STAMPS_MAX}; }}"


_ADDRESS = {Family.IPV4: "ipv4_addr", Family.IPV6: "ipv6_addr"}
TIMED = tuple(
    Timed(f"{name}{family.value}", (_ADDRESS[family], "inet_service"))
    for name in ("asked", "answered")
    for family in Family
)
"""The sets with the times of the last SYN to each endpoint and of its last answer."""
SETS: Mapping[str, tuple[object, ...]] = {
    ALIVE: ("inet_proto", None, ["timeout"]),
    **{it.name: (list(it.key), None, ["timeout"]) for it in TIMED},
}
"""The sets with their types, value and flags, in the form of `nft -j`."""
SET_TIMEOUTS = ("rescue_copy4", "rescue_copy6")
"""The chains with rules that set timeouts."""
_TIMEOUTS = {Family.IPV4: ("rescue4", "ip"), Family.IPV6: ("rescue6", "ip6")}


def creation(table: str, tcp_timeouts: Mapping[str, int]) -> str:
    """Return the commands that create the sets, timeouts and chains. The commands succeed if these exist already.

    The rules work at once, because a process reads the NFLOG group before the rules name the group.

    `tcp_timeouts` has the conntrack timeouts of answered connections in seconds, by state.
    """
    lines = [f"add set {table} {ALIVE} {{ type inet_proto; flags timeout; }}"]
    lines += [f"add set {table} {it.name} {it.text}" for it in TIMED]
    lines += _timeouts(table, tcp_timeouts)
    for chain, hook in HOOKS.items():
        base = " {{ type {} hook {} priority {}; policy {}; }}".format(*hook) if hook else ""
        lines.append(f"add chain {table} {chain}{base}")
    return "\n".join(lines) + "\n" + revival(table)


def revival(table: str) -> str:
    """Return the commands that enable the rules for as long as a renewal does.

    The element is deleted before it is added, because adding an existing element does not renew its timeout.
    """
    alive = ", ".join(f"{protocol} timeout {ALIVE_S:.0f}s" for protocol in ("tcp", "udp"))
    return f"flush set {table} {ALIVE}\nadd element {table} {ALIVE} {{ {alive} }}\n"


def _timeouts(table: str, tcp_timeouts: Mapping[str, int]) -> list[str]:
    policy = ", ".join(f"{state} : {seconds}" for state, seconds in {"syn_sent": 1, **tcp_timeouts}.items())
    return [
        f"add ct timeout {table} {name} {{ protocol tcp; l3proto {l3}; policy = {{ {policy} }}; }}"
        for name, l3 in _TIMEOUTS.values()
    ]


def replacement(table: str, tcp_timeouts: Mapping[str, int]) -> str:
    """Return the commands that replace the timeout objects, which the kernel cannot change. The chains that use them
    must be empty before."""
    lines = [f"flush chain {table} {chain}" for chain in SET_TIMEOUTS]
    lines += [f"delete ct timeout {table} {name}" for name, _ in _TIMEOUTS.values()]
    return "\n".join([*lines, *_timeouts(table, tcp_timeouts)]) + "\n"


def deletion(table: str) -> str:
    """Return the commands that delete all objects of the rescue from the table."""
    lines = [f"flush chain {table} {chain}" for chain in HOOKS]
    lines += [f"delete chain {table} {chain}" for chain in HOOKS]
    lines += [f"delete set {table} {name}" for name in sorted(SETS)]
    lines += [f"delete ct timeout {table} {name}" for name, _ in _TIMEOUTS.values()]
    return "\n".join(lines) + "\n"


def rules(group: int, tcp_timeouts: Mapping[str, int]) -> dict[str, Rules]:
    """Return the rules of each chain, as text and reason. Reports and copies are sent to an NFLOG group."""
    log = f"group {group} snaplen {PACKET_BYTES} queue-threshold"
    report = f'limit rate {REPORTS_PER_S}/second burst {REPORTS_BURST} packets log prefix "{REPORT_PREFIX}" {log} 1'
    first = _first_packets(log, tcp_timeouts)
    return {**_hooks(), **first, **_questions(), **_answers(report), **_errors(report)}


def _hooks() -> dict[str, Rules]:
    """Return the chains that all packets pass through. Most packets leave them after one test."""
    data = (
        ("tcp flags & (syn | rst) == 0 accept", "neither begins a connection nor refuses one"),
        ("ct direction original accept", "no answer, and no error about one's own packet"),
    )
    answers = (
        ("meta l4proto tcp goto rescue_reply", "may be an endpoint's answer"),
        ("ct state related goto rescue_error", "may be about an endpoint"),
    )
    return {
        "rescue_prerouting": (*data, ("iif lo accept", "was in the output hook"), *answers),
        "rescue_output": (
            *data,
            # A reset from a listener of ours is not an endpoint's.
            ("meta l4proto . th sport @guarded accept", "sent by the proxy"),
            *answers,
        ),
    }


def _first_packets(log: str, tcp_timeouts: Mapping[str, int]) -> dict[str, Rules]:
    """Return the chains for a client's first SYN, which set a timeout for its flow and copy it."""
    # A rule is recognized by its comment, so the comment has to include the timeouts.
    kept = (
        "; other states: " + "/".join(f"{seconds}" for seconds in tcp_timeouts.values()) + " s" if tcp_timeouts else ""
    )
    return {
        f"rescue_copy{family.value}": (
            (f'ct timeout set "{_TIMEOUTS[family][0]}"', f"a retransmission is balanced anew{kept}"),
            (
                f"meta l4proto @{ALIVE} limit rate {COPIES_PER_S}/second burst {COPIES_BURST} packets "
                f"log {log} {COPIES_PER_MESSAGE}",
                "a copy, to send it again",
            ),
        )
        for family in Family
    }


def _questions() -> dict[str, Rules]:
    """Return the chain that records when a SYN was sent to an endpoint."""
    return {
        "rescue_asked": tuple(
            (
                f"meta l4proto tcp {original} update @asked{family.value} {{ {ip} daddr . tcp dport }} return",
                f"{family} endpoint asked, {why}",
            )
            for family, ip in _IP.items()
            for original, why in originals(family, "meta l4proto")
        )
    }


def _answers(report: str) -> dict[str, Rules]:
    """Return the chains for an endpoint's answers: a SYN-ACK, or a reset that answers a SYN."""
    return {
        "rescue_reply": _checked("meta l4proto tcp", "meta l4proto", "rescue_answer"),
        "rescue_answer": (
            *(
                (
                    f"tcp flags & (syn | ack) == syn | ack update @answered{family.value} {{ {ip} saddr . tcp sport }} "
                    "accept",
                    f"{family} endpoint has answered",
                )
                for family, ip in _IP.items()
            ),
            (
                "ct status & dying == dying tcp flags & (syn | ack | rst) == ack | rst tcp sequence 0 "
                f"meta l4proto @{ALIVE} goto rescue_refused",
                "a reset answers a SYN",
            ),
        ),
        "rescue_refused": (
            *(
                (f"update @answered{family.value} {{ {ip} saddr . tcp sport }}", f"{family} endpoint has refused")
                for family, ip in _IP.items()
            ),
            (report, "the endpoint refuses"),
            # The rescue process may send only the first packet of this very connection again. Another packet that looks
            # alike may be one that this node has dropped. So the addresses of the reset are changed to those of the
            # client and of the destination that the client chose.
            *(
                (f"{ip} saddr set ct original {ip} daddr {ip} daddr set ct original {ip} saddr", f"{family} {_CLIENT}")
                for family, ip in _IP.items()
            ),
            (
                "meta l4proto tcp tcp sport set ct original proto-dst tcp dport set ct original proto-src "
                "tcp flags set rst",
                _CLIENT,
            ),
            (report, "the client and its destination"),
            ("drop", "the SYN is sent again"),
        ),
    }


def _errors(report: str) -> dict[str, Rules]:
    """Return the chains for ICMP errors."""
    return {
        "rescue_error": (
            ("ct original protocol tcp ct status & seen-reply == seen-reply accept", "has been answered"),
            # This node's own policies have refused the packet. A packet sent again would bypass them.
            ("ct status & confirmed == 0 accept", "has not left this node"),
            # These errors are from the rules that refuse clients in place of a listener, not from an endpoint.
            *(
                (
                    f"oif lo {kind} ct original protocol . ct reply proto-src @guarded accept",
                    f"{family} of a proxy port",
                )
                for family, kind in _UNREACHABLE.items()
            ),
            *(
                (f"{kind} ct original protocol @{ALIVE} {condition} goto rescue_unreachable", f"{family} {why}")
                for family, kind in _UNREACHABLE.items()
                for condition, why in originals(family, "ct original protocol")
            ),
        ),
        "rescue_unreachable": (
            (report, "the endpoint cannot be reached"),
            ("drop", "the packet is sent again"),
        ),
    }


def copying(family: Family) -> tuple[str, str]:
    """Return the rule that copies a client's first SYN, for a chain that sends first packets to an endpoint."""
    return f"{_FIRST} jump rescue_copy{family.value}", "may be a client's first SYN"


def asking() -> tuple[str, str]:
    """Return the rule that records the time of a SYN to an endpoint, for a chain of first packets after their
    translation."""
    return f"{_FIRST} jump rescue_asked", "an endpoint may be asked"


_CLIENT = "the connection as its client began it"
_IP = {Family.IPV4: "ip", Family.IPV6: "ip6"}
_UNREACHABLE = {
    # The code frag-needed is for path MTU discovery, which must work.
    Family.IPV4: "icmp type destination-unreachable icmp code != frag-needed",
    Family.IPV6: "icmpv6 type destination-unreachable",
}


def _checked(condition: str, protocol: str, chain: str) -> Rules:
    """Return the rules that jump to a chain for packets of translated connections."""
    return tuple(
        (f"{condition} {original} goto {chain}", f"{family} {why}")
        for family in Family
        for original, why in originals(family, protocol)
    )


def originals(family: Family, protocol: str) -> Iterator[tuple[str, str]]:
    """Yield the conditions for packets of connections that were translated.

    nft 1.0.6 accepts ``proto-dst`` in a concatenation only after a match of the packet's own protocol."""
    ip, number = _IP[family], family.value
    key = f"{protocol} . ct original proto-dst"
    yield f"ct original {ip} daddr . {key} @translated{number}", "service address"
    yield f"ct original {ip} daddr @node_addresses{number} {key} @translated_node_ports{number}", "node port"
