"""The state of a host, read back: rules of either adapter, listening sockets, descriptors, memory."""

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
    """(service address, port) -> proxy port, for either adapter."""
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
    """The legacy tables that are in use."""
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
    """All rules of both kinds, with handles, without counters."""
    nft = host.run(["nft", "-a", "list", "ruleset"]).stdout
    return nft + "\n".join(re.sub(r" ?\[\d+:\d+]", "", line) for line in xtables(host))


def ours(host: Host) -> list[str]:
    """The rules of kubeproxy: its nftables table, and the lines of the legacy tables that name its chains."""
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
"""Service addresses lead nowhere.

Without this the node forwards a packet that arrives before its Service, and conntrack stores the connection as one
without redirection: a client with the same source port within two minutes would get no answer, too.
"""


def reset_rules(host: Host) -> None:
    """Remove all rules except `NOWHERE`."""
    host.run(["nft", "-f", "-"], input=f"flush ruleset\n{NOWHERE}")
    with host.entered():
        names = Path("/proc/thread-self/net/ip_tables_names").read_text().split()
    for name in names:
        for option in ("-F", "-X"):
            host.run(["iptables-legacy", "-w", "10", "-t", name, option])


def forget_connections(host: Host) -> None:
    """Flush conntrack.

    Conntrack keeps a reset connection for ten seconds. If a client uses the same source port within that time, the
    packet goes to the old destination, which may be the port of a daemon that has ended.
    """
    host.run(["conntrack", "-F"])


class Listening(NamedTuple):
    """A listening TCP socket. The inode distinguishes it from a later one on the same port."""

    address: str
    port: int
    inode: int


def listening(host: Host) -> set[Listening]:
    """All listening sockets of a host (IPv4)."""
    found = set()
    for line in host.run(["ss", "-4ltneH"]).stdout.splitlines():
        address, _, port = line.split()[3].rpartition(":")
        inode = re.search(r" ino:(\d+)", line)
        assert inode is not None, line
        found.add(Listening(address, int(port), int(inode[1])))
    return found


def descriptors(pid: int) -> int:
    """The number of open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_kib(pid: int) -> int:
    """The private memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"RssAnon:\s+(\d+) kB", text)
    assert match is not None
    return int(match[1])
