"""The laboratory itself, because the other tests rely on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.support.lab import Daemon, Host, get, make_network, service_manifest, write_manifest
from tests.support.lab.daemon import METRICS


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


@pytest.mark.netns
def test_programs_die_with_a_process_that_is_killed() -> None:
    script = """if True:
        import os, signal
        from tests.support.lab import Host
        print(Host("left").popen(["sleep", "60"]).pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    sleeper = Path("/proc", done.stdout.strip(), "stat")
    deadline = time.monotonic() + 10
    while sleeper.exists() and sleeper.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.01)


@pytest.mark.parametrize("endpoints", [[], ["10.3.0.2", "10.3.1.2"]])
def test_the_manifest_has_the_ports_and_endpoints_of_its_arguments(endpoints: list[str]) -> None:
    text = service_manifest("web", cluster_ip="10.96.0.1", ports={"http": (80, 8080)}, endpoints=endpoints)
    service, endpoint_slice = yaml.safe_load_all(text)
    assert service["spec"] == {
        "clusterIP": "10.96.0.1",
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
    }
    assert endpoint_slice["metadata"]["labels"] == {"kubernetes.io/service-name": "web"}
    assert endpoint_slice["ports"] == [{"name": "http", "port": 8080}]
    assert [endpoint["addresses"] for endpoint in endpoint_slice["endpoints"]] == [[ip] for ip in endpoints]


@pytest.mark.netns
def test_the_daemon_serves_a_manifest_until_sigterm(tmp_path: Path) -> None:
    with make_network(pods=1) as network:
        server = [sys.executable, "-m", "http.server", "--bind", "10.3.0.2", "8080", "--directory", str(tmp_path)]
        network.pods[0].popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        text = service_manifest("web", cluster_ip="10.96.0.1", ports={"http": (80, 8080)}, endpoints=["10.3.0.2"])
        write_manifest(tmp_path / "web.yaml", text)
        with Daemon(network.node, manifests=tmp_path) as daemon:
            assert "connections_active" in daemon.get("/metrics", address=METRICS).body
            deadline = time.monotonic() + 20
            while True:
                try:
                    answer = get(network.client, ("10.96.0.1", 80), "/web.yaml")
                    break
                except OSError:
                    assert time.monotonic() < deadline, daemon.log()
                    time.sleep(0.02)
            assert answer.body == text
            assert daemon.terminate() == 0
            assert daemon.cleanup().returncode == 0


@pytest.mark.netns
def test_the_error_of_a_failed_start_contains_the_log(tmp_path: Path) -> None:
    with Host("node") as node, pytest.raises(AssertionError, match=r"(?s)status 64.*--nonsense"):
        Daemon(node, manifests=tmp_path, options=["--nonsense"])
