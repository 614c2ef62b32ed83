"""The laboratory itself: the other tests believe it."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.lab import Host, make_network


@pytest.mark.netns
@pytest.mark.parametrize("address", ["10.3.0.2", "fd00:3:0::2"])
def test_a_client_reaches_a_pod_through_the_node(address: str) -> None:
    with make_network(pods=1) as network, network.pods[0].listen((address, 8080)) as listener:
        with network.client.connect((address, 8080)) as connection:
            accepted, _ = listener.accept()
            with accepted:
                accepted.sendall(b"pong")
                assert connection.recv(10) == b"pong"
        assert "10.2.0.2" in network.client.run(["ip", "addr"]).stdout


@pytest.mark.netns
def test_programs_and_settings_are_those_of_the_host() -> None:
    home = os.readlink("/proc/thread-self/ns/net")
    with Host("left") as left, Host("right") as right:
        places = {host.run(["readlink", "/proc/self/ns/net"]).stdout.strip() for host in (left, right)}
        started = left.popen(["readlink", "/proc/self/ns/net"], stdout=subprocess.PIPE, text=True)
        assert started.communicate(timeout=10)[0].strip() in places
        left.sysctl("net.ipv4.ip_forward", 1)
        assert left.run(["cat", "/proc/sys/net/ipv4/ip_forward"]).stdout == "1\n"
        assert right.run(["cat", "/proc/sys/net/ipv4/ip_forward"]).stdout == "0\n"
        with pytest.raises(AssertionError, match=r"left: ip -batch -: exit 1: .*nosuch"):
            left.ip("link set lo up", "link set nosuch up")
    assert len(places | {home}) == 3
    assert os.readlink("/proc/thread-self/ns/net") == home
