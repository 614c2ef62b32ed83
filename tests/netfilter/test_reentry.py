"""`kubeproxy.netfilter.reentry`: packets enter at the interface that they name, whichever comes or goes."""

from __future__ import annotations

import fcntl
import json
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from kubeproxy.netfilter import reentry
from kubeproxy.rescue.packets import Syn, again, parse
from tests.rescue.test_packets import CLIENT, CLIENT6, POD, POD6, SYN, ip, tcp
from tests.support.lab import Host

pytestmark = pytest.mark.netns

GROUP = 27_504
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000


@pytest.fixture
def node() -> Iterator[Host]:
    with Host("node") as made:
        made.ip("link add one type veth peer name other", "link set one up", "link set other up")
        made.sysctl("net.ipv4.conf.all.rp_filter", 0)
        made.sysctl("net.ipv4.conf.default.rp_filter", 0)
        hook = "add table inet seen; add chain inet seen c { type filter hook prerouting priority 0; }"
        made.run(["nft", hook])
        yield made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def again_of(client: str, pod: str) -> bytes:
    """A SYN with its checksums."""
    syn = parse(ip(client, pod, 6, tcp(SYN)))
    assert isinstance(syn, Syn)
    return again(syn) or b""


def number(node: Host, name: str) -> int:
    found: int = json.loads(node.ip(f"-j link show dev {name}"))[0]["ifindex"]
    return found


def entered(node: Host, name: str) -> int:
    """How many SYNs have come by an interface since the last call for it."""
    node.run(["nft", f'add rule inet seen c iifname "{name}" tcp flags syn counter'], check=False)
    listing = node.run(["nft", "list", "chain", "inet", "seen", "c"]).stdout
    counted = re.findall(rf'iifname "{name}" tcp flags syn counter packets (\d+)', listing)
    return sum(map(int, counted))


@pytest.mark.parametrize(("client", "pod"), [(CLIENT, POD), (CLIENT6, POD6)], ids=["IPv4", "IPv6"])
def test_packets_enter_by_the_interface_that_they_name(stack: ExitStack, node: Host, client: str, pod: str) -> None:
    packet = again_of(client, pod)
    with node.entered():
        sender = stack.enter_context(closing(reentry.ReentrySocket(GROUP)))
        filters = stack.enter_context(closing(reentry.Reentry(GROUP)))
    for name in ("one", "other"):
        assert entered(node, name) == 0
        sender.send(packet, number(node, name))
        assert entered(node, name) == 1
    # One that comes later, of a kind without link addresses.
    with node.entered(), open("/dev/net/tun", "r+b", buffering=0) as tun:
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", b"later", IFF_TUN | IFF_NO_PI))
        node.ip("link set later up")
        filters.look()
        assert entered(node, "later") == 0
        sender.send(packet, number(node, "later"))
        assert entered(node, "later") == 1
    gone = number(node, "one")
    node.ip("link del one")
    with node.entered():
        filters.look()
    for link in (gone, 1):
        sender.send(packet, link)
    assert entered(node, "lo") == 0, "nothing enters by loopback"


def test_what_enters_by_no_interface_is_lost_and_the_socket_hears_nothing(stack: ExitStack, node: Host) -> None:
    with node.entered():
        sender = stack.enter_context(closing(reentry.ReentrySocket(GROUP)))
        reentry.Reentry(GROUP).close()
    sender.send(again_of(CLIENT, POD), 4711)
    assert not any(entered(node, name) for name in ("one", "other", "lo"))
    sender._socket.bind(("one", 3))
    with node.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as neighbour:
        neighbour.bind(("other", 0))
        neighbour.send(bytes(12) + bytes.fromhex("0800") + again_of(CLIENT, POD))
    with pytest.raises(BlockingIOError):
        sender._socket.recv(2000)
    with pytest.raises(OSError):
        sender._socket.setsockopt(1, 27, 0)  # SO_DETACH_FILTER


def test_devices_are_found_and_removed(node: Host) -> None:
    with node.entered():
        assert reentry.groups() == set()
        for group in (GROUP, GROUP + 1):
            reentry.ReentrySocket(group).close()
        reentry.ReentrySocket(GROUP).close()
        assert reentry.groups() == {GROUP, GROUP + 1}
        reentry.remove(GROUP)
        reentry.remove(GROUP)
        assert reentry.groups() == {GROUP + 1}
    assert "kubeproxy27504" not in node.ip("link")
