"""What the daemon did to its host, read back: rules of either adapter, listening sockets, descriptors, memory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.lab import Host

_DNAT = re.compile(
    r"-A KUBE-PORTALS-CONTAINER -d (?P<vip>\S+)/32 .*--dport (?P<port>\d+) "
    r".*(?:--to-destination [\d.]+:|--to-ports )(?P<proxy>\d+)"
)


def redirects(host: Host) -> dict[tuple[str, int], int]:
    """(service address, port) -> proxy port, by whichever adapter."""
    found = {
        (element[0]["concat"][0], element[0]["concat"][2]): element[1]
        for item in _nft_table(host)
        if (item.get("map") or {}).get("name") == "redirects4"
        for element in item["map"].get("elem", ())
    }
    for line in xtables(host):
        if match := _DNAT.match(line):
            found[match["vip"], int(match["port"])] = int(match["proxy"])
    return found


def _nft_table(host: Host) -> list[dict[str, Any]]:
    done = host.run(["nft", "-j", "list", "table", "inet", "kubeproxy"], check=False)
    items: list[dict[str, Any]] = json.loads(done.stdout)["nftables"] if done.returncode == 0 else []
    return items


def xtables(host: Host) -> list[str]:
    """The legacy tables, as far as any is in use."""
    with host.entered():
        names = Path("/proc/thread-self/net/ip_tables_names").read_text().split()
    return [
        line
        for name in names
        if name in ("nat", "filter")
        for line in host.run(["iptables-legacy-save", "-t", name]).stdout.splitlines()
        if not line.startswith("#")
    ]


def ruleset(host: Host) -> str:
    """Every rule of both kinds, handles included, counters not."""
    nft = host.run(["nft", "-a", "list", "ruleset"]).stdout
    return nft + "\n".join(re.sub(r" ?\[\d+:\d+]", "", line) for line in xtables(host))


def ours(host: Host) -> list[str]:
    """What of it is ours: all of our nftables table, and the lines of the legacy tables that name our chains."""
    table = host.run(["nft", "-a", "list", "table", "inet", "kubeproxy"], check=False).stdout
    return table.splitlines() + [line for line in xtables(host) if "KUBE-" in line]


NOWHERE = """
table inet nowhere {
    chain postrouting {
        type filter hook postrouting priority 0; policy accept;
        ip daddr 10.96.0.0/16 drop
    }
}
"""
"""Service addresses lead nowhere. Without this a packet that comes before its Service is let out, and remembered by
conntrack as one that is not redirected: whoever has the same source port within two minutes would be lost, too."""


def reset_rules(host: Host) -> None:
    """No rules of anybody but our own `NOWHERE`."""
    host.run(["nft", "-f", "-"], input=f"flush ruleset\n{NOWHERE}")
    with host.entered():
        names = Path("/proc/thread-self/net/ip_tables_names").read_text().split()
    for name in names:
        for option in ("-F", "-X"):
            host.run(["iptables-legacy", "-w", "10", "-t", name, option])


def forget_connections(host: Host) -> None:
    """Conntrack begins anew. A client that was reset is remembered for ten seconds; should its source port be used
    again by then, the packet goes where that connection went, which may be a port of a daemon that is gone."""
    host.run(["conntrack", "-F"])


class Listening(NamedTuple):
    """A listening TCP socket; its inode tells it from a successor on the same port."""

    address: str
    port: int
    inode: int


def listening(host: Host) -> set[Listening]:
    """All of a host's (IPv4)."""
    found = set()
    for line in host.run(["ss", "-4ltneH"]).stdout.splitlines():
        address, _, port = line.split()[3].rpartition(":")
        inode = re.search(r" ino:(\d+)", line)
        assert inode is not None, line
        found.add(Listening(address, int(port), int(inode[1])))
    return found


def descriptors(pid: int) -> int:
    """How many a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_kib(pid: int) -> int:
    """A process's memory that is its own."""
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"RssAnon:\s+(\d+) kB", text)
    assert match is not None
    return int(match[1])
