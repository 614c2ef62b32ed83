"""The rules that catch failed connections of the kernel path, as static chains of our table.

They see packets of connections with an *original* destination in the sets ``translated*``, and no others: other
programs translate addresses, too, and set the same status bits. First packets come to them from the chains that lead
to endpoints, by the rule of `copying`.

- The first SYN of a client is copied to the rescue process (`kubeproxy.rescue`), which can send it once more. The flow
  gets a timeout of a second until it is answered, so that a client's own retransmission is balanced anew. This and the
  first of the two sets below are for the chains of type nat, which the kernel calls for the first packet of a flow
  only. So a packet of a running connection meets one rule here, in one chain.
- A reset that answers a SYN is reported and dropped. The kernel has just deleted its flow (``dying``); RFC 9293
  requires RST and ACK with the sequence number 0.
- An ICMP error about a connection without an answer, or about a datagram, is reported and dropped.
- Two sets have the time of the last SYN to each endpoint, and of its last answer.

Only while ``alive`` has the protocol anything is dropped or reported. The control process renews that element as long
as it and the rescue process work; otherwise it expires, and the node behaves as with kube-proxy. Reports and copies
have a limited rate; drops have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kubeproxy.model import Family

REPORT_PREFIX = "kubeproxy rescue"
"""The text with which NFLOG marks reports. Copies have none."""
ALIVE = "alive"
ALIVE_S = 3.0
"""For how long the rules work after the last renewal of `ALIVE`."""
BRIDGE_S = 10.0
"""How long the rules work while the control process executes its next program. The rescue process outlives the control
process for that long; afterwards nothing is reported any more."""
STAMP_S = 5
"""How long ``asked*`` and ``answered*`` remember an endpoint."""
STAMPS_MAX = 65_536
"""The largest number of endpoints in each of these sets."""
COPIES_PER_S, COPIES_BURST = 10_000, 5_000
"""The rate at which SYNs are copied. Beyond it a client of a failed endpoint waits a second for its own
retransmission."""
REPORTS_PER_S, REPORTS_BURST = 1_000, 500
"""The rate at which failures are reported. Beyond it clients wait in the same way."""
PACKET_BYTES = 1600
"""The largest part of a packet that is copied. A SYN may carry data (RFC 7413), and an ICMPv6 error quotes 1,232
bytes."""
COPIES_PER_MESSAGE = 256
"""The number of copies that the kernel collects, for 50 ms at most, before it sends them. A report is sent at once,
together with the copies that are waiting, so a copy never comes after its report."""

_FIRST = "tcp flags & (fin | syn | rst | ack) == syn"
_MANGLE = -150

Base = tuple[str, str, int, str]
Rules = tuple[tuple[str, str], ...]
"""The rules of a chain, each with its reason."""

HOOKS: Mapping[str, Base | None] = {
    # Before the address translation an answer has the address of the endpoint.
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
"""The chains, with None for one without a hook."""


class Timed(NamedTuple):
    """The declaration of a set to which rules add elements that expire."""

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
"""The sets with the last SYN to each endpoint, and with its last answer."""
SETS: Mapping[str, tuple[object, ...]] = {
    ALIVE: ("inet_proto", None, ["timeout"]),
    **{it.name: (list(it.key), None, ["timeout"]) for it in TIMED},
}
"""The sets with their type, values and flags, as `nft -j` lists them."""
SET_TIMEOUTS = ("rescue_copy4", "rescue_copy6")
"""The chains that set timeouts."""
_TIMEOUTS = {Family.IPV4: ("rescue4", "ip"), Family.IPV6: ("rescue6", "ip6")}


def creation(table: str, tcp_timeouts: Mapping[str, int]) -> str:
    """Return the commands that create the sets, timeouts and chains. They succeed if these exist already.

    The rules work from the first packet on, because a process reads the NFLOG group before the rules name it.

    `tcp_timeouts` has the time for which an answered connection is kept, in seconds, by state.
    """
    lines = [f"add set {table} {ALIVE} {{ type inet_proto; flags timeout; }}"]
    lines += [f"add set {table} {it.name} {it.text}" for it in TIMED]
    lines += _timeouts(table, tcp_timeouts)
    for chain, hook in HOOKS.items():
        base = " {{ type {} hook {} priority {}; policy {}; }}".format(*hook) if hook else ""
        lines.append(f"add chain {table} {chain}{base}")
    return "\n".join(lines) + "\n" + revival(table)


def revival(table: str) -> str:
    """Return the commands after which the rules work as long as after a renewal.

    The element is deleted first, because the kernel does not prolong the expiry of an existing element.
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
    """Return the commands that replace the timeouts, which the kernel cannot change. Their chains are empty when the
    commands run."""
    lines = [f"flush chain {table} {chain}" for chain in SET_TIMEOUTS]
    lines += [f"delete ct timeout {table} {name}" for name, _ in _TIMEOUTS.values()]
    return "\n".join([*lines, *_timeouts(table, tcp_timeouts)]) + "\n"


def deletion(table: str) -> str:
    """Return the commands that delete everything that the rescue has in the table."""
    lines = [f"flush chain {table} {chain}" for chain in HOOKS]
    lines += [f"delete chain {table} {chain}" for chain in HOOKS]
    lines += [f"delete set {table} {name}" for name in sorted(SETS)]
    lines += [f"delete ct timeout {table} {name}" for name, _ in _TIMEOUTS.values()]
    return "\n".join(lines) + "\n"


def rules(group: int, tcp_timeouts: Mapping[str, int]) -> dict[str, Rules]:
    """Return the rules of each chain, as text and reason. Reports and copies go to an NFLOG group."""
    log = f"group {group} snaplen {PACKET_BYTES} queue-threshold"
    report = f'limit rate {REPORTS_PER_S}/second burst {REPORTS_BURST} packets log prefix "{REPORT_PREFIX}" {log} 1'
    first = _first_packets(log, tcp_timeouts)
    return {**_hooks(), **first, **_questions(), **_answers(report), **_errors(report)}


def _hooks() -> dict[str, Rules]:
    """Return the chains that see all packets. Most packets leave these chains after one test."""
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
            # A listener of ours that refuses is not an endpoint.
            ("meta l4proto . th sport @guarded accept", "sent by the proxy"),
            *answers,
        ),
    }


def _first_packets(log: str, tcp_timeouts: Mapping[str, int]) -> dict[str, Rules]:
    """Return the chains for a client's first SYN, which set a timeout for its flow and copy it."""
    # The rule is recognized by its comment, so the comment says what the rule sets.
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
    """Return the chain that records when an endpoint was asked."""
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
            # The rescue only sends the first packet of this very connection again, because another packet that begins
            # alike may be one that this node has dropped. So the reset is rewritten to name the client, and the
            # destination that the client has chosen.
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
            # This node's own policies have refused it. If it were sent again, it would bypass them.
            ("ct status & confirmed == 0 accept", "has not left this node"),
            # These come from the rules that refuse clients in place of a listener of ours, not from an endpoint.
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
    """Return the rule that copies a client's first SYN, for a chain that leads first packets to an endpoint."""
    return f"{_FIRST} jump rescue_copy{family.value}", "may be a client's first SYN"


def asking() -> tuple[str, str]:
    """Return the rule that remembers the endpoint, for a chain of first packets after their translation."""
    return f"{_FIRST} jump rescue_asked", "an endpoint may be asked"


_CLIENT = "the connection as its client began it"
_IP = {Family.IPV4: "ip", Family.IPV6: "ip6"}
_UNREACHABLE = {
    # The other code is for path MTU discovery.
    Family.IPV4: "icmp type destination-unreachable icmp code != frag-needed",
    Family.IPV6: "icmpv6 type destination-unreachable",
}


def _checked(condition: str, protocol: str, chain: str) -> Rules:
    """Return the rules that lead packets of translated connections to a chain."""
    return tuple(
        (f"{condition} {original} goto {chain}", f"{family} {why}")
        for family in Family
        for original, why in originals(family, protocol)
    )


def originals(family: Family, protocol: str) -> Iterator[tuple[str, str]]:
    """Yield the conditions for packets of connections that were translated.

    nft 1.0.6 takes ``proto-dst`` in a concatenation only after a match of the packet's own protocol."""
    ip, number = _IP[family], family.value
    key = f"{protocol} . ct original proto-dst"
    yield f"ct original {ip} daddr . {key} @translated{number}", "service address"
    yield f"ct original {ip} daddr @node_addresses{number} {key} @translated_node_ports{number}", "node port"
