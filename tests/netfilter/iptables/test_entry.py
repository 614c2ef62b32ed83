"""Rules as the kernel's bytes, compared with what iptables reads in them."""

from __future__ import annotations

import sys
from itertools import product

import pytest

from kubeproxy.model import Address, Family, Protocol
from kubeproxy.netfilter.iptables import entry as iptables_entry
from tests.support.lab import Host

V4, V6 = Family.IPV4, Family.IPV6
TCP, UDP = Protocol.TCP, Protocol.UDP


def portal(family: Family, target: bytes, protocol: Protocol = TCP) -> bytes:
    vip = Address("10.96.0.1" if family is V4 else "fd96::1")
    return iptables_entry.rule(
        family, target, iptables_entry.match_port(protocol, 80), protocol=protocol, destination=vip
    )


def closed(family: Family, target: bytes, protocol: Protocol) -> bytes:
    return iptables_entry.rule(family, target, iptables_entry.match_port(protocol, 7001), protocol=protocol)


def dropped(family: Family, *matches: bytes) -> bytes:
    return iptables_entry.rule(family, iptables_entry.jump("DROP"), *matches)


FIRST = iptables_entry.match_state(iptables_entry.NEW | iptables_entry.INVALID | iptables_entry.UNTRACKED)
DIRECT = iptables_entry.match_state(iptables_entry.DNAT, invert=True)

NAT_CASES = [
    (
        V4,
        portal(V4, iptables_entry.redirect(V4, 7001)),
        "-d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 7001",
    ),
    (
        V6,
        portal(V6, iptables_entry.redirect(V6, 7001)),
        "-d fd96::1/128 -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 7001",
    ),
    (
        V4,
        portal(V4, iptables_entry.dnat(Address("10.2.0.1"), 7001), UDP),
        "-d 10.96.0.1/32 -p udp -m udp --dport 80 -j DNAT --to-destination 10.2.0.1:7001",
    ),
    (
        V6,
        portal(V6, iptables_entry.dnat(Address("fd00::1"), 7001), UDP),
        "-d fd96::1/128 -p udp -m udp --dport 80 -j DNAT --to-destination [fd00::1]:7001",
    ),
]
NAT_CASES += [
    (
        family,
        iptables_entry.rule(family, iptables_entry.jump("RETURN"), source=source, interface="eth0"),
        f"-s {source} -i eth0 -j RETURN",
    )
    for family, source in ((V4, "10.3.0.0/16"), (V6, "fd00:3::/32"))
]
T, U = "-p tcp -m tcp --dport 7001", "-p udp -m udp --dport 7001"
FILTER_CASES = [
    (V4, closed(V4, iptables_entry.jump("DROP"), UDP), f"{U} -j DROP"),
    (V6, closed(V6, iptables_entry.jump("DROP"), TCP), f"{T} -j DROP"),
    (V4, closed(V4, iptables_entry.reject(V4), TCP), f"{T} -j REJECT --reject-with icmp-port-unreachable"),
    (V6, closed(V6, iptables_entry.reject(V6), TCP), f"{T} -j REJECT --reject-with icmp6-port-unreachable"),
    (V4, closed(V4, iptables_entry.reject(V4), UDP), f"{U} -j REJECT --reject-with icmp-port-unreachable"),
    (V6, closed(V6, iptables_entry.reject(V6), UDP), f"{U} -j REJECT --reject-with icmp6-port-unreachable"),
    (V4, iptables_entry.rule(V4, iptables_entry.jump("DROP"), source="10.3.0.0/23"), "-s 10.3.0.0/23 -j DROP"),
    (V6, iptables_entry.rule(V6, iptables_entry.jump("DROP"), source="fd00:8000::/17"), "-s fd00:8000::/17 -j DROP"),
    (V6, iptables_entry.rule(V6, iptables_entry.jump("DROP"), source="fd00::1"), "-s fd00::1/128 -j DROP"),
    (V4, dropped(V4, DIRECT), "-m conntrack ! --ctstate DNAT -j DROP"),
    (
        V6,
        dropped(V6, FIRST, iptables_entry.match_comment("a word")),
        '-m conntrack --ctstate INVALID,NEW,UNTRACKED -m comment --comment "a word" -j DROP',
    ),
]
MANGLE_CASES = [
    (
        family,
        iptables_entry.rule(
            family, iptables_entry.mark(0x1000), iptables_entry.match_transparent(), iptables_entry.match_elsewhere()
        ),
        "-m socket --transparent -m addrtype ! --dst-type LOCAL -j MARK --set-xmark 0x1000/0x1000",
    )
    for family in Family
] + [
    (
        family,
        iptables_entry.rule(
            family,
            iptables_entry.jump("RETURN"),
            iptables_entry.match_transparent(wildcard=True),
            iptables_entry.match_until(1_900_000_000),
        ),
        "-m socket --transparent --nowildcard -m time --datestop 2030-03-17T17:46:40 -j RETURN",
    )
    for family in Family
]
CASES = [("nat", *case) for case in NAT_CASES] + [("filter", *case) for case in FILTER_CASES]
CASES_OF_PREROUTING = [("mangle", *case) for case in MANGLE_CASES]

WRITER = """
import ctypes, sys, iptc
family, table, chain, *entries = sys.argv[1:]
table = (iptc.Table if family == "4" else iptc.Table6)(table, autocommit=False)
for raw in map(bytes.fromhex, entries):
    table.append_entry(chain, ctypes.create_string_buffer(raw, len(raw)))
table.commit()
"""


@pytest.mark.netns
def test_iptables_reads_what_was_meant() -> None:
    with Host("node") as node:
        for family, table in product(Family, ("nat", "filter", "mangle")):
            cases = [case[2:] for case in (*CASES, *CASES_OF_PREROUTING) if case[:2] == (table, family)]
            # The socket that a packet is for is known only where it comes in.
            chain = "PREROUTING" if table == "mangle" else "OUTPUT"
            entries = [entry.hex() for entry, _ in cases]
            node.run([sys.executable, "-c", WRITER, str(family.value), table, chain, *entries])
            program = "iptables-legacy" if family is V4 else "ip6tables-legacy"
            env = {"XTABLES_LOCKFILE": "/dev/null", "PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
            listed = node.run([program, "-t", table, "-S", chain], env=env).stdout.splitlines()
            assert listed[1:] == [f"-A {chain} {text}" for _, text in cases]


@pytest.mark.parametrize("family", Family)
def test_fields_of_the_kernel_are_not_part_of_a_rule(family: Family) -> None:
    entry = portal(family, iptables_entry.redirect(family, 7001))
    noted = bytearray(entry)
    end = iptables_entry.head_size(family)
    noted[end - 16 : end] = b"\x2a" * 16  # counters
    noted[end - 20 - (4 if family is V6 else 0)] = 0x11  # comefrom
    name = entry.index(b"REDIRECT\0")
    noted[name + 9 : name + 29] = b"leftovers of a buffer"[:20]
    assert iptables_entry.size_of(family, bytes(noted[:end])) == len(entry)
    assert iptables_entry.canonical(family, bytes(noted), "REDIRECT") == entry


def test_a_jump_comes_back_as_an_offset_and_is_named_again() -> None:
    entry = iptables_entry.rule(V4, iptables_entry.jump("KUBE-PROXY-PORTS"), iptables_entry.match_comment("why"))
    offset = iptables_entry.rule(
        V4, b"\x28\0" + bytes(30) + b"\x10\x02\0\0" + bytes(4), iptables_entry.match_comment("why")
    )
    assert iptables_entry.canonical(V4, offset, "KUBE-PROXY-PORTS") == entry
    assert iptables_entry.canonical(V4, offset, "SOMEWHERE") != entry


@pytest.mark.parametrize("family", Family)
def test_an_entry_gets_another_target_and_loses_its_source(family: Family) -> None:
    port = iptables_entry.match_port(TCP, 80)
    vip, source = ("10.96.0.1", "10.0.0.0/8") if family is V4 else ("fd96::1", "fd00::/8")
    before = iptables_entry.rule(
        family, iptables_entry.redirect(family, 1), port, protocol=TCP, destination=Address(vip), source=source
    )
    after = iptables_entry.rule(family, iptables_entry.jump("DROP"), port, protocol=TCP, destination=Address(vip))
    assert iptables_entry.with_target(family, before, iptables_entry.jump("DROP")) == after
    assert [iptables_entry.target_of(family, entry) for entry in (before, after)] == ["REDIRECT", "DROP"]


@pytest.mark.parametrize("cut", [113, 120, 144, 160])
def test_invalid_bytes_are_no_rule_of_ours(cut: int) -> None:
    entry = portal(V4, iptables_entry.redirect(V4, 7001))
    assert iptables_entry.canonical(V4, entry[:cut], "") != entry
