"""Many failures at once, and a packet log that overflows, with real packets: clients wait, and none fails."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kubeproxy.model import Family
from kubeproxy.rescue.guardian import FEW
from kubeproxy.rescue.packets import checksum, packed
from tests.rescue.stage import HANG_S, PODS, Stage, stage, wait_for

pytestmark = pytest.mark.netns

PODS_LEFT = {f"pod{pod}" for pod in range(PODS)} - {"pod1"}


@pytest.mark.parametrize("family", list(Family), ids=str)
def test_more_than_a_few_fall_silent_at_once(family: Family) -> None:
    """Each of them is ejected after a dial; their clients' SYNs are sent again meanwhile."""
    with stage(family, pods=FEW + 3) as made:
        dead = range(1, FEW + 3)
        for pod in dead:
            made.filter(pod, "drop")
        # Each is asked while the control process stands still, so it finds all of them silent in one look.
        made.guardian.send_signal(signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(60) as pool:
                clients = [pool.submit(made.ask, made.network.client) for _ in range(60)]
                wait_for(lambda: {made.addresses[pod] for pod in dead} <= _asked(made), "each is asked")
                time.sleep(0.3)  # longer than an endpoint may take
                made.guardian.send_signal(signal.SIGCONT)
                assert {client.result().text for client in clients} == {"pod0"}
        finally:
            made.guardian.send_signal(signal.SIGCONT)
        wait_for(lambda: {each[1] for each in made.ejected} == {made.target(pod) for pod in dead}, "all are ejected")
        assert all(made.dialed_before[made.target(pod)] for pod in dead)
        wait_for(lambda: made.counts["resent"] > 0, "SYNs are sent again")
        for pod in dead:
            made.unfilter(pod)
        wait_for(lambda: made.ejected == [], "all are back")


def _asked(made: Stage) -> set[str]:
    """The addresses of the endpoints that have been asked in the last seconds."""
    listed = made.network.node.run(["nft", "list", "set", "inet", "kubeproxy", f"asked{made.family.value}"]).stdout
    return {address for address in made.addresses if f" {address} . " in listed}


def test_the_packet_log_overflows() -> None:
    """It is counted. Clients of a dead endpoint repeat their SYN after a second, and later ones need not."""
    packets = [_syn(number) for number in range(5000)]
    with stage(Family.IPV4) as made:
        made.stop(1)
        pid = made.signal_rescue(signal.SIGSTOP)
        try:
            wait_for(lambda: not made.alive(), "the rules are inert")
            # What an overflow would lose is dropped and reported only while the rules work.
            made.network.node.run(["nft", "add element inet kubeproxy alive { tcp timeout 20s }"])
            with made.network.client.entered():
                raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            with raw:
                for packet in packets:
                    raw.sendto(packet, (made.service[0], 0))
            assert set(made.ask_at_once(made.network.client, 24)) == PODS_LEFT
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: made.counts["overflows"] > 0, "it is counted")
        wait_for(lambda: made.alive() and bool(made.ejected), "the rescue works")
        answers, repeated = made.ask_often(made.network.client, 40)
        assert set(answers) == PODS_LEFT
        assert repeated <= 3
        assert made.rescue_pid() == pid, f"it works again, within {HANG_S} s"


def _syn(number: int) -> bytes:
    """A SYN with data, of a client of its own: few of them fill the log's buffer."""
    source, destination, data = f"10.77.{number >> 8}.{number & 255}", "10.96.0.10", bytes(1200)
    addresses = packed(source) + packed(destination)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 40 + len(data), 0, 0, 64, socket.IPPROTO_TCP, 0)
    fields = (1024, 80, number, 0, 0x50, 0x02, 65535)
    body = struct.pack("!HHIIBBHHH", *fields, 0, 0) + data
    total = checksum(addresses + struct.pack("!II", len(body), socket.IPPROTO_TCP) + body)
    return header + addresses + struct.pack("!HHIIBBHHH", *fields, total, 0) + data
