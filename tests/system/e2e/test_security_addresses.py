"""Security review, findings 5, 6, 7 and 9: addresses and ports that tenants must not get, with the real daemon."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Daemon, Network
from tests.support.lab.daemon import METRICS
from tests.system.e2e import address_echo, kernel_state
from tests.system.e2e.api import ApiHost
from tests.system.e2e.conftest import ADAPTERS, PATHS
from tests.system.e2e.full_services import FAMILIES, MIRROR, NODE, NODE_NAME, V4, V6, hear, heard, start_mirrors
from tests.system.e2e.stage import KERNEL, QUICK, Object, Stage, until

pytestmark = pytest.mark.netns

METADATA = {V4: "168.63.129.16", V6: "fd00:ec2::254"}
"""Metadata addresses of Azure and AWS; here addresses of the client's host."""
ALIEN = {V4: "192.0.2.1", V6: "2001:db8:2::1"}
PUBLIC = ("0.0.0.0", 10256)


@pytest.fixture(scope="module")
def mirrors(theatre: Stage) -> Stage:
    """Pods with mirrors, and a metadata service on the client's host with routes to it."""
    start_mirrors(theatre)
    theatre.client.ip(*(f"addr add {address} dev lo" for address in METADATA.values()))
    theatre.client.popen([sys.executable, "-S", "-E", address_echo.__file__, "metadata", str(MIRROR)])
    for family, address in METADATA.items():
        until(lambda: heard(theatre.node, (address, MIRROR), "TCP"), f"{address} answers over IPv{family}")  # noqa: B023
    return theatre


@pytest.fixture
def api(mirrors: Stage, stage: Stage) -> Iterator[ApiHost]:
    """An API server on the client's host."""
    with ApiHost(stage.client) as api:
        yield api
        stage.clear()


def serve(stage: Stage, api: ApiHost, netfilter: str, *options: str, **more: Any) -> Daemon:
    """A daemon that reads from this API server."""
    options = (QUICK, f"--master={api.url}", f"--hostname-override={NODE_NAME}", *reaching(netfilter), *options)
    return stage.daemon(*options, **{"manifests": None, "netfilter": netfilter, **more})


def reaching(netfilter: str) -> tuple[str, ...]:
    """Options with which the client's host reaches itself as an endpoint, the metadata service."""
    return ("--masquerade-all",) if netfilter == KERNEL else ()


def objects(
    name: str,
    number: int,
    *endpoints: Object | int,
    namespace: str = "tenant",
    port: int = 80,
    target: int = MIRROR,
    node_port: int = 0,
    cluster_ips: Sequence[str] = (),
    **spec: Any,
) -> list[Object]:
    """A Service of both families and its slices.

    Endpoints are pods by number, or entries of a slice with an address of each family.
    """
    ips = list(cluster_ips) or [f"10.96.7.{number}", f"fd00:96::7:{number}"]
    described = [it if isinstance(it, dict) else {"at": _pod(it)} for it in endpoints]
    typed: Object = {"type": "NodePort"} if node_port else {}
    ports = [{"name": "http", "port": port, "protocol": "TCP", **({"nodePort": node_port} if node_port else {})}]
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {**typed, "clusterIP": ips[0], "clusterIPs": ips, "ports": ports, **spec},
        },
        *(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": namespace,
                    "name": f"{name}-{family}",
                    "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": f"IPv{family}",
                "ports": [{"name": "http", "port": target, "protocol": "TCP"}],
                "endpoints": [{**it, "addresses": [it["at"][family]]} for it in described],
            }
            for family in FAMILIES
        ),
    ]


def _pod(index: int) -> dict[int, str]:
    return {V4: Network.pod_v4(index), V6: Network.pod_v6(index)}


def says(stage: Stage, address: str, port: int = 80) -> str | None:
    """The name that answers the client and the node itself. None if there is no answer."""
    found = [heard(host, (address, port), "TCP", timeout_s=2.0) for host in stage.asking]
    names = {None if it is None else it.pod for it in found}
    return names.pop() if len(names) == 1 else f"several: {found}"


def await_said(stage: Stage, pod: str | None, *addresses: str, port: int = 80) -> None:
    """Wait until this pod answers at each address."""
    for address in addresses:
        until(lambda: says(stage, address, port) == pod, f"{address}:{port} answered by {pod}")  # noqa: B023


def await_problem(daemon: Daemon, service: str, *words: str) -> None:
    """Wait for a warning about a Service that contains all these words."""

    def found() -> bool:
        lines = [it for it in daemon.log().splitlines() if "service has a problem" in it and f"service={service}" in it]
        return any(all(word in line for word in words) for line in lines)

    try:
        until(found, f"a problem of {service} with {words}")
    except AssertionError:
        raise AssertionError(f"no problem of {service} with {words}:\n{daemon.log()}") from None


def await_event(api: ApiHost, service: str, *words: str) -> None:
    """Wait for an Event on a Service that contains all these words."""
    namespace, _, name = service.partition("/")
    involved = {"namespace": namespace, "name": name}

    def found() -> bool:
        cluster = api.server.cluster
        events = [it.object for it in api.do(lambda: list(cluster.at("events", cluster.version).values()))]
        on = [it["message"] for it in events if it["involvedObject"] == {**it["involvedObject"], **involved}]
        return any(all(word in message for word in words) for message in on)

    until(found, f"an Event on {service} with {words}")


@pytest.mark.parametrize("netfilter", PATHS)
def test_finding_6_no_external_address_wins_over_a_cluster_ip(stage: Stage, api: ApiHost, netfilter: str) -> None:
    stolen = ["10.96.7.20", "fd00:96::7:20"]
    api.put(*objects("extsteal", 1, 1, namespace="atenant", externalIPs=stolen))
    daemon = serve(stage, api, netfilter)
    await_said(stage, "pod-1", *stolen)
    api.put(*objects("np", 0, 0, namespace="default", cluster_ips=stolen))
    await_said(stage, "pod-0", *stolen)
    await_problem(daemon, "atenant/extsteal", "10.96.7.20:80 belongs to default/np", "allocated")
    await_problem(daemon, "atenant/extsteal", "[fd00:96::7:20]:80 belongs to default/np")
    await_event(api, "atenant/extsteal", "belongs to default/np")
    assert "service=default/np" not in daemon.log()
    assert daemon.terminate() == 0
    again = serve(stage, api, netfilter)
    await_problem(again, "atenant/extsteal", "10.96.7.20:80 belongs to default/np")
    await_said(stage, "pod-0", *stolen)
    assert "service=default/np" not in again.log()
    api.delete(objects("np", 0, 0, namespace="default")[0])
    await_said(stage, "pod-1", *stolen)


@pytest.mark.parametrize("netfilter", PATHS)
def test_finding_5_ports_of_this_nodes_daemons(stage: Stage, api: ApiHost, netfilter: str) -> None:
    """Tenants never get the ports of SSH and kubelet.

    A daemon at a port that a tenant may have keeps the port across its restart.
    """
    own = list(NODE.values())
    with _daemon_of_the_node(stage, 443):
        daemon = serve(stage, api, netfilter, healthz=PUBLIC)
        for number, port in enumerate((22, 443, 10250, 10256, 80), 1):
            api.put(*objects(f"ext-{port}", number, 1, port=port, externalIPs=own))
        await_said(stage, "pod-1", *own, port=80)
        await_problem(daemon, "tenant/ext-443", "of user 0 was seen to have that port")
        for address in own:
            assert says(stage, address, 443) == "daemon"
    for port, why in ((22, "reservedPorts"), (10250, "reservedPorts"), (10256, "healthzBindAddress")):
        await_problem(daemon, f"tenant/ext-{port}", NODE[V4], why)
        await_problem(daemon, f"tenant/ext-{port}", NODE[V6], why)
    await_event(api, "tenant/ext-10250", "reservedPorts")
    # The daemon restarts. Meanwhile the tenant writes its Service again, and retries run.
    api.delete(objects("ext-443", 2, 1)[0])
    api.put(*objects("again-443", 7, 1, port=443, externalIPs=own))
    await_problem(daemon, "tenant/again-443", "was seen to have that port")
    api.put(*objects("other", 8, 0))
    await_said(stage, "pod-0", "10.96.7.8")
    assert says(stage, NODE[V4], 443) is says(stage, NODE[V6], 443) is None
    with _daemon_of_the_node(stage, 443), _daemon_of_the_node(stage, 22), _daemon_of_the_node(stage, 10250):
        assert says(stage, NODE[V4], 22) == says(stage, NODE[V6], 10250) == "daemon"
    # The proxy's own port is also its own after a restart.
    assert daemon.terminate() == 0
    again = serve(stage, api, netfilter, healthz=PUBLIC)
    await_said(stage, "pod-1", *own, port=80)
    assert again.get("/livez", address=(NODE[V4], 10256)).status == 200
    assert not any(port == 10256 and address in own for address, port in kernel_state.redirects(stage.node))


def _daemon_of_the_node(stage: Stage, port: int, name: str = "daemon", *, user: int = 0) -> ExitStack:
    """A process of the node that answers at a port of both families."""
    done = ExitStack()
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    # Not our interpreter: another user may have no right to read it.
    command = [*become, "/usr/bin/python3", "-S", "-E", "-c", _LISTEN, str(port), name]
    process = stage.node.popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    done.callback(process.stdout.close)
    done.callback(process.wait)
    done.callback(process.kill)
    with done:
        assert process.stdout.readline() == b"listening\n"
        return done.pop_all()


_LISTEN = """
import socket, sys
sock = socket.socket(socket.AF_INET6)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.bind(("::", int(sys.argv[1])))
sock.listen()
print("listening", flush=True)
while True:
    client, peer = sock.accept()
    client.sendall(f"{sys.argv[2]} {peer[0]} {peer[1]}".encode())
    client.close()
"""


@pytest.mark.parametrize("netfilter", PATHS)
def test_finding_5_our_own_ports_are_no_node_ports(stage: Stage, api: ApiHost, netfilter: str) -> None:
    daemon = serve(stage, api, netfilter, "--healthz-bind-address=0.0.0.0:31256", healthz=("0.0.0.0", 31256))
    local: Object = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    api.put(
        *objects("np", 1, 1, node_port=31256),
        *objects("kubelet", 2, 1, node_port=10250),
        *objects("hc", 3, 1, node_port=31001, healthCheckNodePort=31256, **local),
        *objects("lb", 4, 1, node_port=31002, healthCheckNodePort=31003, **local),
        *objects("thief", 5, 1, port=31003, externalIPs=list(NODE.values())),
    )
    await_problem(daemon, "tenant/np", "node port 31256", "healthzBindAddress")
    await_problem(daemon, "tenant/kubelet", "node port 10250", "reservedPorts")
    await_problem(daemon, "tenant/hc", "health check node port 31256", "healthzBindAddress")
    await_problem(daemon, "tenant/thief", "the health check node port of tenant/lb")
    assert daemon.get("/livez", address=(NODE[V4], 31256)).status == 200

    def health() -> bool:
        try:
            return "localEndpoints" in daemon.get("/", address=(NODE[V4], 31003)).body
        except OSError:
            return False

    until(health, "the load balancer's question is answered")


@pytest.mark.parametrize("netfilter", ADAPTERS)
def test_finding_7_endpoints_that_are_not_dialed(stage: Stage, api: ApiHost, netfilter: str, config: Path) -> None:
    here: Object = {"at": NODE}
    with _daemon_of_the_node(stage, 10250):
        _configure(config, "")
        daemon = serve(stage, api, netfilter, f"--config={config}")
        api.put(
            *objects("kubelet", 1, here, target=10250),
            *objects("pod-here", 2, {**here, "nodeName": NODE_NAME}, target=10250),
            *objects("metadata", 3, {"at": METADATA}),
            *objects("mixed", 4, {"at": METADATA}, 1),
            *objects("loopback", 5, {"at": {V4: "127.0.0.1", V6: "::1"}, "nodeName": NODE_NAME}, target=10250),
        )
        for number, said in ((2, "daemon"), (4, "pod-1"), (1, None), (3, None), (5, None)):
            await_said(stage, said, f"10.96.7.{number}", f"fd00:96::7:{number}")
        await_problem(daemon, "tenant/kubelet", NODE[V4], "nodeName")
        await_problem(daemon, "tenant/kubelet", NODE[V6], "nodeName")
        await_problem(daemon, "tenant/metadata", "168.63.129.16", "fd00:ec2::254", "deniedEndpointCIDRs")
        await_problem(daemon, "tenant/loopback", "127.0.0.1", "manifests only")
        await_event(api, "tenant/metadata", "deniedEndpointCIDRs")
        until(lambda: "not dialed: 168.63.129.16" in daemon.get("/statusz.json", address=METRICS).body, "it is shown")
        assert "service=tenant/pod-here" not in daemon.log()
        # The operator configures the denied ranges, and a reload changes them.
        _configure(config, f"kubeproxy: {{deniedEndpointCIDRs: [{Network.pod_v4(1)}/32, {Network.pod_v6(1)}/128]}}")
        daemon.process.send_signal(signal.SIGHUP)
        await_said(stage, "metadata", "10.96.7.3", "fd00:96::7:3", "10.96.7.4", "fd00:96::7:4")
        await_said(stage, "daemon", "10.96.7.1", "fd00:96::7:1")
        await_problem(daemon, "tenant/mixed", Network.pod_v4(1), Network.pod_v6(1))


def _configure(path: Path, text: str) -> None:
    path.write_text(f"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{text}\n")


@pytest.mark.parametrize("netfilter", PATHS)
def test_finding_7_manifests_are_the_operators_own(mirrors: Stage, stage: Stage, netfilter: str) -> None:
    with _daemon_of_the_node(stage, 10250):
        stage.write(
            "own",
            *objects("here", 1, {"at": NODE}, target=10250),
            *objects("loopback", 2, {"at": {V4: "127.0.0.1", V6: "::1"}}, target=10250),
            *objects("metadata", 3, {"at": METADATA}),
        )
        daemon = stage.daemon(QUICK, *reaching(netfilter), netfilter=netfilter)
        for number, said in ((1, "daemon"), (2, "daemon"), (3, "metadata")):
            await_said(stage, said, f"10.96.7.{number}", f"fd00:96::7:{number}")
        assert daemon.terminate() == 0
        denied = ",".join(f"{address}/{32 if family == V4 else 128}" for family, address in METADATA.items())
        again = stage.daemon(QUICK, f"--denied-endpoint-cidrs={denied}", netfilter=netfilter)
        await_problem(again, "tenant/metadata", *METADATA.values())
        await_said(stage, None, "10.96.7.3", "fd00:96::7:3")
        await_said(stage, "daemon", "10.96.7.1", "fd00:96::7:2")


@pytest.mark.parametrize("netfilter", PATHS)
def test_external_addresses_lie_where_the_operator_says(
    stage: Stage, api: ApiHost, netfilter: str, config: Path
) -> None:
    """CVE-2020-8554: the default is any address, as in kube-proxy."""
    _configure(config, "")
    daemon = serve(stage, api, netfilter, f"--config={config}")
    balanced = {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}
    service, *slices = objects("ext", 1, 1, externalIPs=list(ALIEN.values()), type="LoadBalancer")
    api.put({**service, "status": balanced}, *slices)
    await_said(stage, "pod-1", *ALIEN.values(), "203.0.113.1")
    _configure(config, "kubeproxy: {externalAddressCIDRs: [203.0.113.0/24, 2001:db8:9::/48]}")
    daemon.process.send_signal(signal.SIGHUP)
    await_problem(daemon, "tenant/ext", *ALIEN.values(), "externalAddressCIDRs")
    until(lambda: (ALIEN[V4], 80) not in kernel_state.redirects(stage.node), "its redirect is gone")
    await_said(stage, "pod-1", "203.0.113.1", "10.96.7.1", "fd00:96::7:1")
    await_event(api, "tenant/ext", "externalAddressCIDRs")


@pytest.mark.parametrize("netfilter", PATHS)
def test_finding_9_an_unprivileged_user_gets_no_clients_of_a_node_port(
    stage: Stage, api: ApiHost, netfilter: str
) -> None:
    with _daemon_of_the_node(stage, 30080, "squatter", user=65534) as squatter:
        assert hear(stage.client, (NODE[V4], 30080), "TCP").pod == "squatter"
        daemon = serve(stage, api, netfilter)
        api.put(*objects("web", 1, 1, node_port=30080))
        await_said(stage, "pod-1", *NODE.values(), port=30080)
        for family in FAMILIES:
            await_problem(daemon, "tenant/web", f"node port 30080 (TCP, IPv{family}) is served", "of user 65534")
        await_event(api, "tenant/web", "of user 65534")
        assert daemon.terminate() == 0
        # Also after a restart the user gets no clients; a user with that right keeps the port.
        again = serve(stage, api, netfilter)
        await_said(stage, "pod-1", *NODE.values(), port=30080)
        assert again.terminate() == 0
        kept = serve(stage, api, netfilter, "--node-port-conflict=keep")
        await_problem(kept, "tenant/web", "is not served", "of user 65534")
        until(lambda: heard(stage.client, (NODE[V4], 30080), "TCP") is not None, "the port answers")
        assert hear(stage.client, (NODE[V4], 30080), "TCP").pod == "squatter"
        squatter.close()
        await_said(stage, "pod-1", *NODE.values(), port=30080)
