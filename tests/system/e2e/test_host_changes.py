"""Conditions around the daemon: few descriptors, no privileges, another address, manifests from elsewhere."""

from __future__ import annotations

import itertools
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer
from typing import Any

import pytest
import yaml

from tests.support.lab.daemon import KUBEPROXY
from tests.support.lab.node import CLIENT_V4, NODE_V4
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import ADAPTERS, PATHS
from tests.system.e2e.stage import QUICK, VIP, Stage, ask, endpoints, service, until
from tests.system.e2e.traffic import Traffic

pytestmark = pytest.mark.netns

POWERLESS = ("setpriv", "--inh-caps=-all", "--bounding-set=-net_admin,-net_raw")


def test_with_few_descriptors_clients_wait_for_their_turn(stage: Stage) -> None:
    stage.write_service([0, 1])
    daemon = stage.daemon(QUICK, "--workers=1", command=("prlimit", "--nofile=120:120", KUBEPROXY))
    stage.await_answers(0, 1)
    before = kernel_state.descriptors(daemon.process.pid)
    with ExitStack() as held, ThreadPoolExecutor(1) as pool:
        for _ in range(100):
            held.enter_context(stage.client.connect((VIP, 80))).sendall(b"echo\n")
        waiting = pool.submit(ask, stage.client, (VIP, 80), timeout_s=30)
        # Everything else works as before.
        assert daemon.get("/healthz").status == 200
        stage.write_service([2])
        until(lambda: daemon.log().count("manifests changed") > 0, "a change is read")
        assert not waiting.done()
        held.close()
        assert waiting.result().startswith("pod-")
    stage.await_answers(2)
    until(lambda: kernel_state.descriptors(daemon.process.pid) <= before, "everything is given back")
    assert daemon.terminate() == 0
    assert "Traceback" not in daemon.log()


@pytest.mark.parametrize("netfilter", ["auto", *ADAPTERS])
def test_without_the_capability_it_reports_an_error(stage: Stage, netfilter: str) -> None:
    stage.write_service([0])
    command = [KUBEPROXY, "run", f"--manifests={stage.manifests}", f"--netfilter={netfilter}"]
    done = stage.node.run([*POWERLESS, *command], check=False)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if " error " in line)
    assert "cannot start" in line
    assert "CAP_NET_ADMIN" in line
    assert "Traceback" not in done.stderr


def test_without_a_packet_filter_the_proxy_ports_are_open(stage: Stage) -> None:
    stage.write_service([0])
    before = kernel_state.ruleset(stage.node)
    # Below the ephemeral ports: a connection of an earlier test could have one of those.
    stage.daemon("--proxy-port-range=20000", netfilter="none", command=(*POWERLESS, KUBEPROXY))
    assert ask(stage.client, (NODE_V4, 20000)) == "pod-0"
    assert kernel_state.ruleset(stage.node) == before


@pytest.mark.parametrize("netfilter", PATHS)
def test_the_node_gets_another_address(stage: Stage, netfilter: str) -> None:
    stage.write_service([0, 1])
    daemon = stage.daemon(QUICK, "--iptables-sync-period=200ms", netfilter=netfilter)
    stage.await_answers(0, 1)
    stage.node.ip("addr add 10.2.0.7/32 dev to-client", f"route replace default via {CLIENT_V4} src 10.2.0.7")
    try:
        with Traffic(stage.client) as far, Traffic(stage.node) as near:
            until(lambda: "10.2.0.7:" in "\n".join(kernel_state.ours(stage.node)), "the rules lead there")
            far.more()
            near.more()
        assert (far.failures, near.failures) == ([], [])
        assert "this node's address has changed" in daemon.log()
    finally:
        stage.node.ip(f"route replace default via {CLIENT_V4}", "addr del 10.2.0.7/32 dev to-client")


WEB = f"http://{CLIENT_V4}:8000/web.yaml"


@contextmanager
def web_server(stage: Stage, directory: Path) -> Iterator[None]:
    """A web server on the client's host."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(directory))

        def log_message(self, format: str, *args: object) -> None:
            """Discard the log."""

    with TCPServer(("127.0.0.1", 0), Handler, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = stage.client.listen((CLIENT_V4, 8000))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_manifests_from_a_web_server(stage: Stage, tmp_path: Path) -> None:
    page = tmp_path / "web.yaml"
    page.write_text(yaml.safe_dump_all([service(), endpoints("web", [0])]))
    with web_server(stage, tmp_path):
        daemon = stage.daemon(QUICK, f"--manifests={WEB}", manifests=None)
        stage.await_answers(0)
        page.write_text(yaml.safe_dump_all([service(), endpoints("web", [1])]))
        daemon.process.send_signal(signal.SIGHUP)
        stage.await_answers(1)
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: f"file={WEB}" in daemon.log(), "the log names the URL")
    stage.await_answers(1)


def test_manifests_from_standard_input(stage: Stage) -> None:
    process = stage.node.popen(
        [KUBEPROXY, "run", "--manifests=-", "--netfilter=nftables"], stdin=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write(yaml.safe_dump_all([service(), endpoints("web", [0, 1])]))
    process.stdin.close()
    stage.await_answers(0, 1)
    process.terminate()
    assert process.wait(15) == 0


def test_a_file_that_is_replaced_without_end_is_read_all_the_same(stage: Stage) -> None:
    stage.write_service([0])
    stage.daemon(QUICK)
    stage.await_answers(0)
    written = itertools.count()
    with Traffic(stage.client) as traffic:

        def write() -> bool:
            turn = next(written)
            stage.write("web", service(metadata={"labels": {"turn": str(turn)}}), endpoints("web", [1 + turn % 3]))
            return {"pod-1", "pod-2", "pod-3"} <= traffic.answers.keys() or bool(traffic.failures)

        until(write, "each of them has been read")
    assert traffic.failures == []
