"""What endpoints that fail on purpose cost the node, and the clients of another tenant, on the kernel path.

    python -m tests.tools.bench.hostile_tenants [--endpoints N] [--seconds N] [--per-s N]

as root; in network namespaces, with the real daemon. A client sends SYNs, each from another address, to a Service of
a thousand endpoints. First these are silent; then they refuse and accept in turns of a second. Printed are CPU time of
the control process and of the rescue process, lines of the log, and transactions of nf_tables; and of another tenant's
Service how long its clients wait, before and while one of its endpoints falls silent, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.lab import Host
from tests.system.e2e.stage import KERNEL, QUICK, TARGET, VIP, Stage, ask, endpoints, make_stage, service, until
from tests.system.e2e.test_kernel_path import slots
from tests.system.e2e.test_rescue import alive, rescue_pids
from tests.tools.bench.floods import CLIENT, FIRST_NETWORK, cpu_s

HOSTILE_VIP = "10.96.0.99"
HOSTILE_POD, OTHERS, VICTIM = 1, (0, 2, 3), 2
TURN_S = 1.0
_ACCEPT = "import socket\ns = socket.create_server(('', {}), backlog=4096)\nwhile True:\n    s.accept()[0].close()"


def prepare(stage: Stage, count: int) -> list[str]:
    """Give one pod all addresses of the hostile tenant; these."""
    pod, network = stage.network.pods[HOSTILE_POD], stage.network
    stage.kill_backend(HOSTILE_POD)
    network.node.ip(f"route add 10.50.0.0/16 via {network.pod_v4(HOSTILE_POD)}")
    pod.run(["ip", "route", "add", "local", "10.50.0.0/16", "dev", "lo"])
    pod.popen([sys.executable, "-c", _ACCEPT.format(TARGET)])
    pod.run(["nft", "add table inet t; add chain inet t c { type filter hook input priority 0; }"])
    for number in range(2):
        network.client.ip(f"route add blackhole 10.{FIRST_NETWORK + number}.0.0/16")
        network.node.ip(f"route add 10.{FIRST_NETWORK + number}.0.0/16 via {CLIENT}")
    return [f"10.50.{number // 250}.{number % 250 + 1}" for number in range(count)]


def verdict(pod: Host, text: str) -> None:
    """What becomes of SYNs to the hostile tenant's endpoints; empty: they are accepted."""
    rule = f"; add rule inet t c ip daddr 10.50.0.0/16 tcp flags & (syn | ack) == syn {text}" if text else ""
    pod.run(["nft", f"flush chain inet t c{rule}"])


@contextmanager
def flapping(pod: Host) -> Iterator[None]:
    """Endpoints that refuse and accept in turns."""
    stop = threading.Event()

    def run() -> None:
        number = 0
        while not stop.is_set():
            verdict(pod, "" if number % 2 else "reject with tcp reset")
            number += 1
            stop.wait(TURN_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def silent(pod: Host) -> Iterator[None]:
    """Endpoints that do not answer."""
    verdict(pod, "drop")
    yield


def waits(stage: Stage, until_s: float) -> list[float]:
    """How long clients of the other tenant wait, in milliseconds, sorted."""
    found = []
    while (began := time.monotonic()) < until_s:
        ask(stage.node, (VIP, 80), timeout_s=30)
        found.append(1000 * (time.monotonic() - began))
        time.sleep(0.02)
    return sorted(found)


def measure(stage: Stage, name: str, seconds: float, per_s: float, network: int, pids: tuple[int, int]) -> None:
    """One flood; in its second half an endpoint of the other tenant is silent."""
    log = stage.running[0].log
    lines, before = len(log().splitlines()), [cpu_s(pid) for pid in pids]
    monitor = stage.node.popen(["nft", "monitor"], stdout=subprocess.PIPE, text=True)
    flood = ["-m", "tests.tools.bench.floods", "flood", HOSTILE_VIP, "80", f"{seconds}", f"{per_s}", f"{network}"]
    flooder = stage.network.client.popen([sys.executable, *flood], stdout=subprocess.PIPE, text=True)
    began = time.monotonic()
    first = waits(stage, began + seconds / 2)
    victim = stage.network.pods[VICTIM]
    rule = f"add rule inet f c tcp dport {TARGET} drop"
    victim.run(["nft", f"add table inet f; add chain inet f c {{ type filter hook input priority 0; }}; {rule}"])
    second = waits(stage, began + seconds)
    shares = [(cpu_s(pid) - spent) / seconds for pid, spent in zip(pids, before, strict=True)]
    monitor.kill()
    transactions = monitor.communicate()[0].count("# new generation")
    victim.run(["nft", "delete table inet f"])
    sent = int(flooder.communicate()[0])
    print(
        f"{name}: {sent:,} SYNs in {seconds:g} s; control process {shares[0]:.0%} of a core, rescue process "
        f"{shares[1]:.0%}; {60 * (len(log().splitlines()) - lines) / seconds:.0f} lines a minute, "
        f"{transactions / seconds:.1f} transactions a second; others wait ms p50 {first[len(first) // 2]:.1f} max "
        f"{first[-1]:.0f}; while an endpoint of theirs falls silent p50 {second[len(second) // 2]:.1f} max "
        f"{second[-1]:.0f}",
        flush=True,
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoints", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=16.0)
    parser.add_argument("--per-s", type=float, default=3000.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as manifests, make_stage(Path(manifests)) as stage:
        addresses = prepare(stage, given.endpoints)
        objects = service("other", HOSTILE_VIP), endpoints("other", addresses)
        for each in objects:
            each["metadata"]["namespace"] = "hostile"
        stage.write_service(OTHERS)
        stage.write("other", *objects)
        daemon = stage.daemon(QUICK, "--workers=1", netfilter=KERNEL)
        until(lambda: len(slots(stage.node).get((HOSTILE_VIP, 80), ())) == given.endpoints, "all endpoints have slots")
        until(lambda: alive(stage.node), "the rescue works")
        (rescue_pid,) = rescue_pids(daemon)
        pids = daemon.process.pid, rescue_pid
        pod = stage.network.pods[HOSTILE_POD]
        for number, (name, fault) in enumerate({"silent": silent, "refuse and accept in turns": flapping}.items()):
            with fault(pod):
                measure(
                    stage,
                    f"{given.endpoints:,} endpoints that {'are ' if number == 0 else ''}{name}",
                    given.seconds,
                    given.per_s,
                    FIRST_NETWORK + number,
                    pids,
                )


if __name__ == "__main__":
    main()
