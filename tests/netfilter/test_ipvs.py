"""What kube-proxy's ipvs mode leaves, with a stand-in for the kernel's IPVS: this project's test kernels have none.

Its messages have the form that linux/ip_vs.h and net/netfilter/ipvs/ip_vs_ctl.c give them."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeproxy.model import Address
from kubeproxy.model.errors import KernelError, KubeproxyError
from kubeproxy.netfilter import cleanup, ipvs, kube_proxy_rules
from kubeproxy.netfilter.local_addresses import LocalAddress
from kubeproxy.netfilter.netlink.messages import HEADER, NLMSG_DONE, NLMSG_ERROR, attributes, encode

FAMILY = 0x21
DUMP, ACK = 0x300, 0x4

Server = tuple[str, int, tuple[str, ...]]
"""Address, port, destinations."""

CLUSTER_IP: Server = ("10.96.0.10", 53, ("10.2.0.1:53", "10.2.0.2:53"))
CLUSTER_IP_6: Server = ("fd00::10", 53, ())
NODE_PORT: Server = ("192.0.2.1", 30053, ("10.2.0.2:53",))
OF_KEEPALIVED: Server = ("192.0.2.1", 30443, ("192.0.2.2:443", "10.2.0.1:53"))
OF_KUBERNETES: Server = ("10.96.0.10", 443, ("192.0.2.2:6443", "192.0.2.3:6443"))
OF_KUBE_VIP: Server = ("192.0.2.1", 6443, OF_KUBERNETES[2])
WITHOUT_DESTINATION: Server = ("192.0.2.1", 30080, ())
ELSEWHERE: Server = ("198.51.100.1", 53, ("10.2.0.1:53",))


def family_of(address: str) -> bytes:
    return struct.pack("=H", socket.AF_INET6 if ":" in address else socket.AF_INET)


def packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed.ljust(16, b"\0")


def attributes_of(server: Server) -> list[tuple[int, bytes]]:
    address, port, _ = server
    udp = struct.pack("=H", socket.IPPROTO_UDP)
    return [(1, family_of(address)), (2, udp), (3, packed(address)), (4, struct.pack("!H", port))]


class FakeIpvs:
    """A netlink socket of a kernel with virtual servers."""

    def __init__(self, servers: list[Server], *, refuses: int = 0, loaded: bool = True) -> None:
        self.servers, self.refuses, self.loaded = servers, refuses, loaded
        self._waiting: list[bytes] = []

    def __enter__(self) -> FakeIpvs:
        return self

    def __exit__(self, *_: object) -> None:
        assert not self._waiting, "all answers are read"

    def send(self, data: bytes) -> None:
        assert not self._waiting, "the kernel refuses a dump before the end of the last (EBUSY)"
        length, kind, flags, sequence, _ = HEADER.unpack_from(data)
        assert length == len(data)
        command, version = data[16], data[17]
        nested = dict(attributes(data[20:]))
        assert version == 1
        if kind == 0x10:
            assert command == 3
            assert flags & DUMP == DUMP, "no name that would have the kernel load a module"
            families = {0x10: b"nlctrl\0", **({FAMILY: b"IPVS\0"} if self.loaded else {}), 0x22: b"ethtool\0"}
            found = [encode([(2, name), (1, struct.pack("=H", number))]) for number, name in families.items()]
        elif self.refuses:
            self._end(sequence, self.refuses)
            return
        else:
            assert kind == FAMILY
            found = list(self._answer(command, flags, dict(attributes(nested.get(1, b"")))))
        for payload in found:
            self._put(kind, sequence, bytes([1, 1, 0, 0]) + payload)
        self._end(sequence, 0, NLMSG_DONE if flags & DUMP else NLMSG_ERROR)

    def _answer(self, command: int, flags: int, key: dict[int, bytes]) -> Iterator[bytes]:
        if command == 4:
            by_mark = [(1, family_of("0.0.0.0")), (5, struct.pack("=I", 7)), (6, b"rr\0")]
            for each in [attributes_of(it) for it in self.servers] + [by_mark]:
                yield encode([(1, encode([*each, (6, b"rr\0"), (7, bytes(8)), (8, bytes(4))]))])
            return
        server = next(it for it in self.servers if dict(attributes_of(it)) == key)
        if command == 3:
            assert flags & ACK
            self.servers.remove(server)
            return
        assert command == 8
        for address, _, port in (text.rpartition(":") for text in server[2]):
            yield encode([(2, encode([(1, packed(address)), (2, struct.pack("!H", int(port))), (3, bytes(4))]))])

    def _put(self, kind: int, sequence: int, payload: bytes) -> None:
        self._waiting.append(HEADER.pack(HEADER.size + len(payload), kind, 2, sequence, 0) + payload)

    def _end(self, sequence: int, error: int, kind: int = NLMSG_ERROR) -> None:
        self._put(kind, sequence, struct.pack("=i", -error))

    def recv(self, _: int) -> bytes:
        return self._waiting.pop(0)


class Node:
    """A node with a dummy interface of kube-proxy and one of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: FakeIpvs) -> None:
        self.interfaces = ["lo", "eth0", "kube-ipvs0"]
        monkeypatch.setattr(ipvs, "open_netlink", lambda *_: kernel)
        monkeypatch.setattr(ipvs, "_FIRST_PID_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)
        monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(self.interfaces)))
        monkeypatch.setattr(ipvs, "local_addresses", self._addresses)
        monkeypatch.setattr(ipvs, "remove_link", lambda _, name: self.interfaces.remove(name))

    def _addresses(self) -> tuple[LocalAddress, ...]:
        of = {"10.96.0.10": "kube-ipvs0", "fd00::10": "kube-ipvs0", "192.0.2.1": "eth0"}
        return tuple(LocalAddress(Address(it), name, is_global=True, usable=True) for it, name in of.items())


def test_kube_proxys_virtual_servers_go_and_those_of_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [OF_KUBE_VIP, OF_KEEPALIVED, WITHOUT_DESTINATION, ELSEWHERE]
    kernel = FakeIpvs([CLUSTER_IP, CLUSTER_IP_6, OF_KUBERNETES, NODE_PORT, *others])
    node = Node(monkeypatch, kernel)
    text = "ipvs: interface kube-ipvs0 with 2 addresses, and 4 virtual servers"
    assert ipvs.remove(dry_run=True) == [text]
    assert len(kernel.servers) == 8
    assert "kube-ipvs0" in node.interfaces
    assert ipvs.remove() == [text]
    assert kernel.servers == others
    assert node.interfaces == ["lo", "eth0"]
    assert ipvs.remove() == []


async def test_the_warning_counts_them_and_removes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeIpvs([CLUSTER_IP, NODE_PORT, ELSEWHERE])
    Node(monkeypatch, kernel)
    assert (await kube_proxy_rules.look())[-1] == "ipvs: interface kube-ipvs0 with 2 addresses, and 1 virtual servers"
    assert len(kernel.servers) == 3


@pytest.mark.parametrize("kernel", [FakeIpvs([], loaded=False), FakeIpvs([CLUSTER_IP], refuses=errno.EPERM)])
def test_an_interface_counts_without_virtual_servers(monkeypatch: pytest.MonkeyPatch, kernel: FakeIpvs) -> None:
    Node(monkeypatch, kernel)
    assert str(ipvs.look()) == "ipvs: interface kube-ipvs0 with 2 addresses, and 0 virtual servers"


def test_if_the_kernel_refuses_the_interface_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, FakeIpvs([CLUSTER_IP], refuses=errno.ENOMEM))
    with pytest.raises(KernelError, match="Cannot allocate memory"):
        ipvs.remove()
    assert "kube-ipvs0" in node.interfaces


@pytest.mark.parametrize("name", ["kube-proxy", "k3s-agent", "kubelite"])
def test_while_kube_proxy_runs_everything_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    kernel = FakeIpvs([CLUSTER_IP])
    node = Node(monkeypatch, kernel)
    for pid, comm in (("self", "python"), ("7", name)):
        (tmp_path / pid / "ns").mkdir(parents=True)
        (tmp_path / pid / "comm").write_text(f"{comm}\n")
    (tmp_path / "self/ns/net").touch()
    (tmp_path / "self/ns/pid").touch()
    os.link(tmp_path / "self/ns/net", tmp_path / "7/ns/net")
    monkeypatch.setattr(ipvs, "_PROC", tmp_path)
    monkeypatch.setattr(ipvs, "_FIRST_PID_NAMESPACE", os.stat(tmp_path / "self/ns/pid").st_ino)
    with pytest.raises(KubeproxyError, match=rf"1 virtual servers\): process 7 \({name}\) .* Stop kube-proxy first"):
        ipvs.remove()
    assert (len(kernel.servers), len(node.interfaces)) == (1, 3)
    assert len(ipvs.remove(dry_run=True, force=True)) == 1
    (tmp_path / "7/ns/net").unlink()
    (tmp_path / "7/ns/net").touch()  # of another network namespace
    assert len(ipvs.remove()) == 1


def test_where_kube_proxy_may_run_unseen_everything_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, FakeIpvs([CLUSTER_IP]))
    monkeypatch.setattr(ipvs, "_FIRST_PID_NAMESPACE", 0)
    for dry_run in (True, False):
        with pytest.raises(KubeproxyError, match=r"cannot see the host's processes.* kind .*give --force"):
            ipvs.remove(dry_run=dry_run)
    assert "kube-ipvs0" in node.interfaces
    assert len(ipvs.remove(force=True)) == 1


async def test_a_cleanup_that_leaves_it_says_so_and_removes_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async def clean(_: object, what: str, removed: list[str], failures: list[str], *, dry_run: bool) -> None:
        removed.append(what)

    Node(monkeypatch, FakeIpvs([CLUSTER_IP]))
    monkeypatch.setattr(ipvs, "_FIRST_PID_NAMESPACE", 0)
    monkeypatch.setattr(cleanup, "_clean", clean)
    with pytest.raises(KernelError, match=r"kube-ipvs0 .* --force; would be removed: .*iptables: chains"):
        await cleanup.cleanup_all(dry_run=True)
