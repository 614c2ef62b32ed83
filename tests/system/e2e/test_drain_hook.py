"""A pod's preStop hook against the real daemon: a request to the pod's own address waits for its connections."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.lab import Daemon, Host, Network
from tests.support.lab.daemon import HEALTHZ, KUBEPROXY, METRICS
from tests.system.e2e import kernel_state
from tests.system.e2e.stage import KERNEL, QUICK, VIP, Stage, ask_often, await_rescue, endpoints, service, until

pytestmark = pytest.mark.netns

WEB = (VIP, 80)
POD = Network.pod_v4(0)
HOOK = 10258
LONG = b"drip 1000000 0.1\n"
"""The first line of a connection that the pod does not end."""

each_path = pytest.mark.parametrize("netfilter", ["nftables", "iptables", KERNEL])


class Kubelet(threading.Thread):
    """A request to a pod's hook, from the node, as kubelet makes it: it follows redirects to the same host."""

    def __init__(self, node: Host, path: str = "/drain?timeout=60s", pod: str = POD) -> None:
        super().__init__()
        self._node, self._path, self._pod = node, path, pod
        self.statuses: list[int] = []
        self.body = ""
        self.start()

    def run(self) -> None:
        path: str | None = self._path
        while path is not None:
            answer = self._get(path)
            head, _, self.body = answer.partition("\r\n\r\n")
            self.statuses.append(int(head.split()[1]))
            found = [line.removeprefix("Location: ") for line in head.split("\r\n") if line.startswith("Location: ")]
            path = found[0] if found else None

    def _get(self, path: str) -> str:
        with self._node.connect((self._pod, HOOK), timeout=60) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {self._pod}:{HOOK}\r\n\r\n".encode())
            found = b""
            while data := sock.recv(4096):
                found += data
        return found.decode()


def serve(stage: Stage, netfilter: str, *options: str) -> Daemon:
    write(stage)
    daemon = stage.daemon(QUICK, "--workers=1", "--hostname-override=node-a", *options, netfilter=netfilter)
    if netfilter == KERNEL:
        await_rescue(daemon)
    stage.await_answers(0, 1)
    return daemon


def write(stage: Stage, *, terminating: bool = False) -> None:
    """Two pods of this node; the first one terminates, or does not yet."""
    slice_ = endpoints("web", [0, 1])
    for number, endpoint in enumerate(slice_["endpoints"]):
        endpoint |= {
            "nodeName": "node-a",
            "targetRef": {"kind": "Pod", "name": f"web-{number}", "uid": f"uid-{number}"},
        }
    if terminating:
        slice_["endpoints"][0]["conditions"] = {"ready": False, "serving": True, "terminating": True}
    stage.write("web", service(), slice_)


def connection_to_first(stage: Stage) -> socket.socket:
    """A client's connection that the first pod has answered."""
    while True:
        sock = stage.client.connect(WEB)
        sock.sendall(LONG)
        if sock.recv(100).startswith(b"pod-0"):
            return sock
        sock.close()


@each_path
def test_a_hook_is_answered_when_the_connections_have_ended(stage: Stage, netfilter: str) -> None:
    serve(stage, netfilter)
    with closing(connection_to_first(stage)) as held:
        kubelet = Kubelet(stage.node)
        until(lambda: set(ask_often(stage.client, WEB, 20)) == {"pod-1"}, "no new connection gets there")
        write(stage, terminating=True)
        until(lambda: set(ask_often(stage.client, WEB, 20)) == {"pod-1"}, "no new connection gets there")
        for _ in range(3):
            assert held.recv(100).startswith(b"pod-0"), "an open connection goes on"
        assert kubelet.is_alive()
    kubelet.join(30)
    assert kubelet.statuses == [200]
    assert kubelet.body.startswith("no connection is left after ")


@each_path
def test_a_connection_that_does_not_end(stage: Stage, netfilter: str) -> None:
    serve(stage, netfilter)
    write(stage, terminating=True)
    with closing(connection_to_pod(stage)):  # without the Service
        kubelet = Kubelet(stage.node, "/drain?timeout=3s")
        kubelet.join(30)
    assert kubelet.statuses == [200]
    assert kubelet.body.endswith("; open connections: 1\n")


def connection_to_pod(stage: Stage) -> socket.socket:
    sock = stage.client.connect((POD, 8080))
    sock.sendall(LONG)
    assert sock.recv(100).startswith(b"pod-0")
    return sock


def test_a_pod_that_stays_gets_new_connections_again(stage: Stage) -> None:
    serve(stage, "nftables")
    kubelet = Kubelet(stage.node, "/drain?timeout=1s")
    until(lambda: set(ask_often(stage.client, WEB, 20)) == {"pod-1"}, "no new connection gets there")
    kubelet.join(30)
    until(lambda: set(ask_often(stage.client, WEB, 20)) == {"pod-0", "pod-1"}, "it has not ended")


@each_path
def test_the_next_kubeproxy_goes_on(stage: Stage, netfilter: str) -> None:
    first = serve(stage, netfilter)
    with closing(connection_to_first(stage)):
        kubelet = Kubelet(stage.node)
        until(lambda: set(ask_often(stage.client, WEB, 20)) == {"pod-1"}, "no new connection gets there")
        write(stage, terminating=True)
        stage.daemon(QUICK, "--workers=1", "--hostname-override=node-a", netfilter=netfilter)
        until(lambda: kubelet.statuses == [307], "it asks the new one")
        assert kubelet.is_alive()
    kubelet.join(60)
    assert kubelet.statuses == [307, 200]
    assert first.wait() == 0


@each_path
def test_a_restart_in_the_middle(stage: Stage, netfilter: str) -> None:
    first = serve(stage, netfilter, "--shutdown-grace=1s")
    with closing(connection_to_pod(stage)):
        kubelet = Kubelet(stage.node)
        until(lambda: set(ask_often(stage.client, WEB, 20)) == {"pod-1"}, "no new connection gets there")
        write(stage, terminating=True)
        assert first.terminate() == 0
        assert kubelet.statuses == [307]
        stage.daemon(QUICK, "--workers=1", "--hostname-override=node-a", netfilter=netfilter)
        assert kubelet.is_alive()
    kubelet.join(60)
    assert kubelet.statuses == [307, 200]


@pytest.mark.parametrize("end", [signal.SIGUSR2, signal.SIGKILL])
@pytest.mark.parametrize("netfilter", ["nftables", "iptables"])
def test_hooks_that_begin_while_no_process_answers(stage: Stage, netfilter: str, end: signal.Signals) -> None:
    """Their SYNs have conntrack entries that lead to the port of the process before."""
    first = serve(stage, netfilter)
    write(stage, terminating=True)
    first.process.send_signal(end)
    if end is signal.SIGKILL:
        first.process.wait(30)
    kubelets = [Kubelet(stage.node, "/drain?timeout=1s") for _ in range(5)]
    if end is signal.SIGKILL:
        stage.daemon(QUICK, "--workers=1", "--hostname-override=node-a", netfilter=netfilter)
    for kubelet in kubelets:
        kubelet.join(60)
        assert kubelet.statuses[-1:] == [200]


def test_by_hand(stage: Stage) -> None:
    serve(stage, "nftables")
    write(stage, terminating=True)
    with closing(connection_to_pod(stage)):
        done = stage.node.run([KUBEPROXY, "drain-wait", POD, "--timeout", "1s"], check=False)
        assert done.returncode == 1
        assert done.stderr.endswith("; open connections: 1\n")
    done = stage.node.run([KUBEPROXY, "drain-wait", POD, "--timeout", "40s"], check=False)
    assert (done.returncode, done.stdout) == (0, f"no connection to {POD} is left\n")


def test_without_the_setting_the_pod_itself_is_asked(stage: Stage, tmp_path: Path) -> None:
    """And nothing listens, until a reload says otherwise."""
    config = tmp_path / "config.yaml"
    head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
    config.write_text(f"{head}kubeproxy: {{drainHookPort: 0}}\n")
    daemon = serve(stage, "nftables", f"--config={config}")
    with pytest.raises(ConnectionRefusedError):
        stage.node.connect((POD, HOOK))
    services = set(kernel_state.redirects(stage.node).values())

    def others() -> set[int]:
        return {it.port for it in kernel_state.listening(stage.node)} - services - {HEALTHZ[1], METRICS[1]}

    assert others() == set()
    config.write_text(head)
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: len(others()) == 1, "it listens")
    write(stage, terminating=True)
    kubelet = Kubelet(stage.node)
    kubelet.join(30)
    assert kubelet.statuses == [200]


def test_the_port_may_be_another(stage: Stage) -> None:
    serve(stage, "nftables", "--drain-hook-port=10300")
    write(stage, terminating=True)
    with stage.node.connect((POD, 10300), timeout=30) as sock:
        sock.sendall(b"GET /drain HTTP/1.1\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
