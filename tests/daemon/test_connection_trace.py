"""Traces on a node among fakes; and a comparison with the kernel."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeproxy.daemon.connection_trace import Tracer
from kubeproxy.daemon.trace_client import client_of
from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.model import (
    Address,
    Balancing,
    Endpoint,
    Family,
    Protocol,
    Scheduler,
    ServicePort,
    Target,
    TrafficPolicy,
    seed_of,
)
from kubeproxy.model.rescue import Ejection, RescueState
from kubeproxy.netfilter.nftables.affinity_lookup import Bond
from kubeproxy.netfilter.packet_simulation import Fate
from kubeproxy.netfilter.ruleset import DirectLink, Spread
from kubeproxy.observability.status import wording as words
from kubeproxy.observability.status.document import EndpointStatus, FrontendStatus, NamedCounters, Standing
from kubeproxy.observability.status.trace_report import Outcome, TraceReport, TraceRequest, WorkerPreview, lines
from kubeproxy.proxier import NodeFacts
from kubeproxy.proxier.data_path_choice import DataPathPolicy, Wanted
from tests.observability.status.observation import rescue_state
from tests.proxier.builders import endpoint_slice, service
from tests.proxier.fake_node import SOURCE, Node

HERE = Address("10.2.0.1")
FACTS = NodeFacts(
    name="node-1",
    node_addresses=frozenset({HERE, Address("127.0.0.1")}),
    own_addresses=frozenset({HERE, Address("127.0.0.1"), Address("198.51.100.9")}),
    internal_sources=frozenset({"10.3.0.0/16"}),
)
ALL_PODS = (
    Endpoint(Address("10.3.0.2"), node="node-1"),
    Endpoint(Address("10.3.1.2"), node="node-2"),
    Endpoint(Address("10.3.2.2"), ready=False, node="node-2"),
)


async def shop() -> Node:
    """Five Services: plain, Local, with source ranges, empty, and with session affinity."""
    node = Node(facts=FACTS)
    node.use(landing={4: HERE}, bind={})
    web = replace(service("web", "10.96.0.1"), ports=(ServicePort("http", Protocol.TCP, 80, 30080),))
    local = replace(
        service("local", "10.96.0.2"),
        external_ips=(Address("198.51.100.2"),),
        external_policy=TrafficPolicy.LOCAL,
        internal_policy=TrafficPolicy.LOCAL,
    )
    few = replace(
        service("few", "10.96.0.3"),
        load_balancer_ips=(Address("203.0.113.3"),),
        load_balancer_source_ranges=("192.0.2.0/24",),
    )
    tracker = node.tracker
    empty, loyal = service("empty", "10.96.0.4"), service("loyal", "10.96.0.5", affinity_timeout_s=600)
    tracker.replace_services(SOURCE, (web, local, few, empty, loyal))
    tracker.replace_slices(SOURCE, [endpoint_slice(name, ALL_PODS) for name in ("web", "local", "few", "loyal")])
    await node.settle()
    return node


async def ask(
    node: Node,
    to: str,
    source: str = "",
    protocol: str = "tcp",
    *,
    rescue: RescueState | None = None,
    bond: Bond | None = None,
) -> TraceReport:
    async def find_bond(client: Address, spread: Spread) -> Bond | None:
        return bond

    tracer = Tracer(
        proxier=node.proxier,
        data_plane=node.data_plane,
        facts=lambda: FACTS,
        rescue=lambda: rescue,
        find_bond=find_bond,
    )
    report = await tracer(TraceRequest.of(to=to, source=source, protocol=protocol))
    assert "None" not in "\n".join(lines(report))
    return report


@pytest.mark.parametrize(
    ("to", "source", "outcome", "expected"),
    [
        ("10.96.0.1:80", "10.2.0.2", Outcome.PROXIED, "a cluster IP of default/web:http"),
        ("10.96.0.1:80", "", Outcome.PROXIED, "this node itself: its packet meets the hook output"),
        ("10.96.0.1:80", "10.3.7.7", Outcome.PROXIED, "clusterCIDR"),
        ("10.96.0.1:81", "10.2.0.2", Outcome.PASSED, "10.96.0.1 is a service address, but serves only 80/TCP"),
        ("10.2.0.1:30080", "10.2.0.2", Outcome.PROXIED, "node port 30080 of default/web:http"),
        ("198.51.100.9:30080", "10.2.0.2", Outcome.PASSED, "no address of this node that takes node ports"),
        ("198.51.100.2:80", "10.2.0.2", Outcome.PROXIED, "externalTrafficPolicy is Local: only endpoints on this node"),
        ("198.51.100.2:80", "", Outcome.PROXIED, "may use any endpoint"),
        ("10.96.0.2:80", "10.2.0.2", Outcome.PROXIED, "internalTrafficPolicy is Local"),
        ("203.0.113.3:80", "192.0.2.7", Outcome.PROXIED, "192.0.2.7 is admitted by the source ranges 192.0.2.0/24"),
        ("203.0.113.3:80", "10.2.0.2", Outcome.DROPPED, "10.2.0.2 is in none of the source ranges"),
        ("203.0.113.3:80", "10.2.0.2", Outcome.DROPPED, "loadBalancerSourceRanges of default/few:http do not admit"),
        ("10.96.0.4:80", "10.2.0.2", Outcome.REFUSED, "default/empty:http has no endpoints"),
        ("10.96.0.5:80", "10.2.0.2", Outcome.PROXIED, "stays with its endpoint for 600 s"),
        ("8.8.8.8:53", "10.2.0.2", Outcome.PASSED, "no Service has this address"),
    ],
)
async def test_outcome_and_words(to: str, source: str, outcome: Outcome, expected: str) -> None:
    node = await shop()
    report = await ask(node, to, source)
    assert report.outcome is outcome
    assert expected in "\n".join(lines(report))
    await node.close()


async def on_the_kernel_path() -> Node:
    """The shop with the kernel path, and an ejected endpoint."""
    node = await shop()
    node.use(facts=replace(FACTS, forwarding=frozenset({Family.IPV4})))
    node.use(data_path=DataPathPolicy(wanted=Wanted.KERNEL))
    await node.settle()
    await node.proxier.eject({(Protocol.TCP, EJECTED): False})
    return node


EJECTED = Target(Address("10.3.1.2"), 8080)


async def test_the_kernel_path_names_its_rules_and_what_it_leaves_out() -> None:
    node = await on_the_kernel_path()
    rescue = rescue_state({(Protocol.TCP, EJECTED): Ejection("silent", "rescue", 0.0, 1e9, 0.1)})
    report = await ask(node, "10.96.0.1:80", "10.2.0.2", rescue=rescue)
    assert report.outcome is Outcome.FORWARDED
    said = [re.sub(r"(in time), for \w+", r"\1", line) for line in lines(report)]
    assert said[3:] == [
        "  1. the client is another host: its packet meets the hook prerouting",
        "  2. 10.96.0.1:80/TCP is a cluster IP of default/web:http",
        "  3. the kernel forwards it to one of 1 endpoints, at random with equal shares",
        "     map spreads4, chain tcp_spread4_1, slots 0 to 0 of map tcp_slots4",
        "     10.3.0.2:8080",
        "  4. 1 endpoint gets no new clients at present",
        "     10.3.1.2:8080: did not answer in time, noticed on the kernel path; next probe in"
        f" {words.duration(round(1e9 - asyncio.get_running_loop().time(), 1))}",
        "  5. the endpoint sees an address of this node, so that its answer comes back here"
        " (the client is outside clusterCIDR)",
    ]
    await node.close()


async def test_the_kernel_path_names_the_link_of_a_client() -> None:
    node = await on_the_kernel_path()
    shared = frozenset({DirectLink(2, "eth0", "10.3.0.0/24"), DirectLink(3, "eth1", "10.7.0.0/24")})
    node.use(facts=replace(FACTS, forwarding=frozenset({Family.IPV4}), direct_links=shared))
    await node.settle()
    for source, named in (("10.3.0.9", True), ("10.3.9.9", False)):
        report = await ask(node, "10.96.0.1:80", source)
        assert ("one that is reached by eth0, as the client is" in "\n".join(lines(report))) is named
    await node.close()


@pytest.mark.parametrize(
    ("bond", "expected"),
    [
        (Bond(Target(Address("10.3.0.2"), 8080), "9m59s"), "it is bound to 10.3.0.2:8080, for 9m59s more"),
        (None, "it is bound to none yet"),
    ],
)
async def test_the_kernel_path_has_the_affinity_of_a_client(bond: Bond | None, expected: str) -> None:
    node = await on_the_kernel_path()
    report = await ask(node, "10.96.0.5:80", "10.2.0.2", bond=bond)
    assert expected in "\n".join(lines(report))
    await node.close()


async def test_the_userspace_path_has_its_reason_where_the_kernel_path_is_wanted() -> None:
    node = await on_the_kernel_path()
    node.use(data_path=DataPathPolicy(wanted=Wanted.KERNEL, refusal="iptables: no maps"))
    await node.settle()
    report = await ask(node, "10.96.0.1:80", "10.2.0.2")
    assert (report.outcome, "it takes the userspace path: iptables: no maps" in report.steps) == (Outcome.PROXIED, True)
    await node.close()


async def test_a_proxy_port_refuses_direct_connections() -> None:
    node = await shop()
    port = next(iter(node.data_plane.listening.values())).port
    report = await ask(node, f"{HERE}:{port}", "10.2.0.2")
    assert report.outcome is Outcome.DROPPED
    assert report.reason == "a proxy port takes only what was redirected to it"
    await node.close()


async def test_endpoints_come_in_their_order_with_those_left_out() -> None:
    node = await shop()
    report = await ask(node, "10.96.0.1:80", "10.2.0.2")
    assert report.frontend is not None
    assert [preview.order for preview in report.previews] == [("10.3.0.2:8080", "10.3.1.2:8080")]
    states = {it.address: (it.standing, it.used) for it in report.frontend.endpoints}
    assert states["10.3.2.2:8080"] == (Standing.UNREADY, False)
    assert states["10.3.0.2:8080"] == (Standing.READY, True)
    here = await ask(node, "10.96.0.2:80", "10.2.0.2")
    assert here.frontend is not None
    assert {it.address: it.standing for it in here.frontend.endpoints}["10.3.1.2:8080"] is Standing.ELSEWHERE
    await node.close()


@pytest.mark.parametrize(
    ("scheduler", "source", "words"),
    [
        (Scheduler.SOURCE_HASH, "10.2.0.2", "10.2.0.2 has place "),
        (Scheduler.MAGLEV, "10.2.0.2:40123", "10.2.0.2:40123 has place "),
        (Scheduler.MAGLEV, "10.2.0.2", "which one, is decided by --from IP:PORT, which is not given"),
        (Scheduler.SOURCE_HASH, "", "which one, is decided by --from IP, which is not given"),
        (Scheduler.LEAST_CONNECTIONS, "10.2.0.2", "fewest open connections"),
        (Scheduler.RANDOM, "10.2.0.2:1", "drawn at random"),
    ],
)
async def test_a_trace_names_the_endpoint_of_a_client_under_a_hash_and_why(
    scheduler: Scheduler, source: str, words: str
) -> None:
    node = await shop()
    node.proxier.use(replace(node.proxier.settings, scheduler=scheduler))
    await node.settle()
    report = await ask(node, "10.96.0.1:80", source)
    assert report.frontend is not None
    assert report.frontend.scheduler == scheduler
    (step,) = [step for step in report.steps if words in step]
    if "has place" in step:
        balancer = Balancer(rng=random.Random(1))
        used = [it.address for it in report.frontend.endpoints if it.used]
        targets = [Target(Address(address.rpartition(":")[0]), 8080) for address in used]
        balancer.update(targets, None, Balancing(scheduler, seed=seed_of("default", "web")))
        host, _, port = source.partition(":")
        assert step.endswith(f"which is that of {balancer.pick(host, 0.0, port=int(port or 0))}"), "as a worker picks"
    await node.close()


async def test_a_trace_before_the_first_rules_mentions_it() -> None:
    node = Node()
    report = await ask(node, "10.96.0.1:80", "10.2.0.2")
    assert report.outcome is Outcome.PASSED
    assert report.steps[0].startswith("no rules are in force yet")
    await node.close()


OUTCOMES = {
    Fate.PASSED: Outcome.PASSED,
    Fate.PROXIED: Outcome.PROXIED,
    Fate.REFUSED: Outcome.REFUSED,
    Fate.DROPPED: Outcome.DROPPED,
}
ADDRESSES = (*(f"10.96.0.{n}" for n in range(1, 5)), "198.51.100.2", "203.0.113.3", HERE, "127.0.0.1", "8.8.8.8")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    address=st.sampled_from(ADDRESSES),
    port=st.sampled_from(["80", "81", "30080", "proxy port"]),
    source=st.sampled_from(["", "10.2.0.2", "10.3.5.5", "192.0.2.7", HERE]),
    protocol=st.sampled_from(["tcp", "udp"]),
)
async def test_the_trace_agrees_with_the_kernel(address: str, port: str, source: str, protocol: str) -> None:
    node = await shop()
    number = next(iter(node.data_plane.listening.values())).port if port == "proxy port" else port
    asked = TraceRequest.of(to=f"{address}:{number}", source=source, protocol=protocol)
    report = await ask(node, f"{address}:{number}", source, protocol)
    client = client_of(asked, node.netfilter.kernel, FACTS)
    assert client.is_this_node == (source in ("", HERE))
    met = node.netfilter.trace(
        asked.to,
        source=client.address,
        from_this_host=source in ("", HERE),
        for_this_host=address in FACTS.own_addresses,
    )
    assert report.outcome is OUTCOMES[met.fate]
    if met.proxy_port is not None:
        assert report.frontend is not None
        assert report.frontend.proxy_port == met.proxy_port
    await node.close()


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({"to": "10.96.0.1"}, "allowed: IP:PORT"),
        ({"to": "fd00::1"}, "in brackets"),
        ({"to": "10.96.0.1:0"}, "allowed: IP:PORT"),
        ({"to": "10.96.0.1:65536"}, "allowed: IP:PORT"),
        ({"to": "web:80"}, "an IP address"),
        ({"to": "10.96.0.1:80", "source": "me"}, "an IP address"),
        ({"to": "10.96.0.1:80", "source": "fd00::1"}, "one IP family"),
        ({"to": "10.96.0.1:80", "protocol": "sctp"}, "tcp or udp"),
    ],
)
def test_unreadable_questions_are_refused(question: dict[str, str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        TraceRequest.of(**question)


def test_ipv6_in_brackets() -> None:
    assert TraceRequest.of(to="[FD00::0:1]:80", protocol="udp").to == ("fd00::1", "UDP", 80)


def test_workers_with_the_same_choice_share_a_line() -> None:
    frontend = FrontendStatus(
        port="http",
        protocol="TCP",
        family=4,
        scope="cluster",
        proxy_port=40001,
        addresses=("10.96.0.1:80",),
        own_addresses=(),
        source_ranges=(),
        affinity_s=600,
        scheduler="round-robin",
        when_empty="refuse",
        counters=NamedCounters(),
        endpoints=(
            EndpointStatus(
                address="a:1", standing=Standing.EJECTED, used=True, reason="timeout", failures=2, retry_in_s=3.0
            ),
            EndpointStatus(address="b:1", standing=Standing.READY, used=True, preserved=True),
            EndpointStatus(address="c:1", standing=Standing.UNREADY, used=False),
        ),
    )
    report = TraceReport(
        to="10.96.0.1:80",
        protocol="TCP",
        source="10.2.0.2",
        client="another host",
        hook="prerouting",
        outcome=Outcome.PROXIED,
        reason="web has 2 endpoints",
        steps=("first", "second"),
        service="default/web",
        frontend=frontend,
        previews=(
            WorkerPreview(0, ("b:1", "a:1"), "b:1"),
            WorkerPreview(1, ("b:1", "a:1"), None),
            WorkerPreview(2, ("b:1", "a:1"), None),
        ),
    )
    assert (
        list(lines(report))
        == """\
TCP from 10.2.0.2 (another host) to 10.96.0.1:80: proxied
  web has 2 endpoints

  1. first
  2. second

  worker 0 would dial
    1. b:1: the client is bound to it; dialed from the client's address
    2. a:1: did not answer in time (2 times in a row); next probe in 3.0s
  workers 1, 2 would dial
    1. b:1: dialed from the client's address
    2. a:1: did not answer in time (2 times in a row); next probe in 3.0s
  not used
    c:1: not ready""".splitlines()
    )


async def test_a_node_port_in_use_is_named() -> None:
    node = Node(facts=FACTS)
    node.reserver.taken.add((Protocol.TCP, 30080))
    web = replace(service("web", "10.96.0.1"), ports=(ServicePort("http", Protocol.TCP, 80, 30080),))
    node.tracker.replace_services(SOURCE, (web,))
    node.tracker.replace_slices(SOURCE, [endpoint_slice("web", ALL_PODS)])
    await node.settle()
    report = await ask(node, f"{HERE}:30080", "10.2.0.2")
    assert report.outcome is Outcome.PASSED
    assert report.reason.startswith("it belongs to default/web, but node port 30080")
    assert (await ask(node, f"{HERE}:30081", "10.2.0.2")).reason.startswith("no Service has this address")
    await node.close()
