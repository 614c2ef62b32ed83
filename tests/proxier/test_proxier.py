"""The proxier among fakes: the outcome for clients after changes of the sources, and when."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from kubeproxy.dataplane.messages import Listen, Message, Retire, SetEndpoints
from kubeproxy.model import Address, Family, FrontendName, Protocol
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.packet_simulation import Fate
from kubeproxy.netfilter.ruleset import RuleChange, RuleSet
from kubeproxy.proxier import START_GRACE_S, Periods, PortRange
from kubeproxy.proxier.sync_schedule import QUICK_ROUNDS
from tests.proxier.builders import endpoint_slice, frontend_name, name, service, targets
from tests.proxier.fake_node import SOURCE, MakeNode, Node
from tests.support.doubles.conntrack import FakeConntrack

WEB = frontend_name("web")
VIP = "10.96.0.1:80"
ONE, TWO = targets("10.0.0.1:8080"), targets("10.0.0.1:8080 10.0.0.2:8080")


async def serving(node: Node, endpoints: str = "10.0.0.1") -> Node:
    """Wait until the node serves ``web`` and no work is left, the least period over."""
    node.start()
    node.tracker.replace_services(SOURCE, [service("web")])
    node.tracker.replace_slices(SOURCE, [endpoint_slice("web", endpoints)] if endpoints else [])
    await node.rest()
    await node.pass_time(1.0)
    node.data_plane.sent.clear()
    node.diary.entries.clear()
    return node


class TestServices:
    """The counterparts of kube-proxy's userspace proxier tests, by behaviour."""

    async def test_a_service_is_served_by_its_endpoints(self, make_node: MakeNode) -> None:
        node = await serving(make_node(), "10.0.0.1 10.0.0.2")
        assert node.answers(VIP) == TWO

    async def test_one_port_number_with_two_protocols(self, make_node: MakeNode) -> None:
        """The counterpart of TestMultiPortProxy."""
        node = make_node(protocols=(Protocol.TCP, Protocol.UDP))
        node.start()
        node.tracker.replace_services(SOURCE, [service("dns", ports="p:53 q:53/UDP")])
        node.tracker.replace_slices(SOURCE, [endpoint_slice("dns", "10.0.0.1", "p:5353 q:5354/UDP")])
        await node.rest()
        assert node.answers("10.96.0.1:53") == targets("10.0.0.1:5353")
        assert node.answers("10.96.0.1:53/UDP") == targets("10.0.0.1:5354")

    async def test_only_the_ports_of_a_service_are_listened_for(self, make_node: MakeNode) -> None:
        """The counterpart of TestMultiPortOnServiceAdd."""
        node = make_node()
        node.start()
        node.list_nothing()
        node.tracker.put_service(SOURCE, service("echo", ports="p:80 q:81"))
        await node.rest()
        assert set(node.data_plane.listening) == {frontend_name("echo", "p"), frontend_name("echo", "q")}
        assert node.answers("10.96.0.1:82") is Fate.PASSED

    async def test_a_deleted_service_is_closed(self, make_node: MakeNode) -> None:
        """The counterpart of TestTCPProxyStop and TestTCPProxyUpdateDelete."""
        node = await serving(make_node())
        node.tracker.remove_service(SOURCE, WEB.service_port.service)
        await node.rest()
        assert node.answers(VIP) is Fate.PASSED
        assert not node.data_plane.listening
        assert not node.reserver.held

    async def test_deleted_and_created_again_it_is_served_again(self, make_node: MakeNode) -> None:
        """The counterpart of TestTCPProxyUpdateDeleteUpdate."""
        node = await serving(make_node())
        node.tracker.remove_service(SOURCE, WEB.service_port.service)
        await node.pass_time(1.0)
        node.tracker.put_service(SOURCE, service("web"))
        await node.pass_time(1.0)
        assert node.answers(VIP) == ONE

    async def test_created_again_before_its_rules_are_gone_it_keeps_its_listener(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        port = node.proxy_port(WEB)
        await no_more_quick_rounds(node)
        node.tracker.put_slice(SOURCE, endpoint_slice("web", ()))
        await node.rest()
        node.tracker.remove_service(SOURCE, WEB.service_port.service)
        await node.rest()
        node.tracker.put_service(SOURCE, service("web"))
        await node.pass_time(5.0)
        assert node.proxy_port(WEB) == port
        assert Retire(WEB) not in node.data_plane.sent

    @pytest.mark.parametrize(
        ("changed", "where"),
        [
            pytest.param(service("web", ports="http:81"), "10.96.0.1:81", id="port number"),
            pytest.param(service("web", "10.96.0.9"), "10.96.0.9:80", id="cluster IP"),
            pytest.param(service("web", affinity_timeout_s=60), VIP, id="affinity"),
        ],
    )
    async def test_what_does_not_concern_the_listener_leaves_it_alone(
        self, make_node: MakeNode, changed: object, where: str
    ) -> None:
        """The counterpart of TestTCPProxyUpdatePort and TestProxyUpdatePublicIPs: served as before, but at the same
        proxy port."""
        node = await serving(make_node())
        port = node.proxy_port(WEB)
        node.tracker.put_service(SOURCE, changed)  # type: ignore[arg-type]
        await node.rest()
        assert node.answers(where) == ONE
        assert where == VIP or node.answers(VIP) is Fate.PASSED
        assert node.proxy_port(WEB) == port
        assert not [message for message in node.data_plane.sent if isinstance(message, Listen | Retire)]

    async def test_a_service_may_lose_and_regain_its_address(self, make_node: MakeNode) -> None:
        """The counterpart of TestProxyUpdatePortal: sources withdraw a Service without a cluster IP."""
        node = await serving(make_node())
        node.tracker.remove_service(SOURCE, WEB.service_port.service)
        await node.pass_time(1.0)
        assert node.answers(VIP) is Fate.PASSED
        node.tracker.put_service(SOURCE, service("web"))
        await node.pass_time(1.0)
        assert node.answers(VIP) == ONE

    async def test_a_renamed_port_moves_in_one_transaction(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        before = len(node.netfilter.history)
        node.tracker.put_service(SOURCE, service("web", ports="web:80"))
        node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1", "web:8080"))
        await node.rest()
        assert node.answers(VIP) == ONE
        assert len(node.netfilter.history) == before + 1
        assert WEB not in node.data_plane.listening

    async def test_a_port_that_changes_its_protocol_is_opened_anew(self, make_node: MakeNode) -> None:
        node = await serving(make_node(protocols=(Protocol.TCP, Protocol.UDP)))
        node.tracker.put_service(SOURCE, service("web", ports="http:80/UDP"))
        node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1", "http:8080/UDP"))
        await node.rest()
        await node.pass_time(1.0)
        assert node.answers(VIP) is Fate.PASSED
        assert node.answers(f"{VIP}/UDP") == ONE
        assert len(node.reserver.held) == 1

    async def test_the_older_service_keeps_an_address_that_two_claim(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.tracker.put_service(SOURCE, service("rival"))
        await node.rest()
        assert node.answers(VIP) == ONE
        (problem,) = node.diary.problems[name("rival")]
        assert "TCP 10.96.0.1:80 belongs to default/web:http" in problem
        node.tracker.remove_service(SOURCE, WEB.service_port.service)
        await node.pass_time(1.0)
        assert node.answers(VIP) is Fate.REFUSED
        assert not node.diary.problems

    async def test_what_cannot_be_served_is_named_and_the_rest_is_served(self, make_node: MakeNode) -> None:
        node = make_node()
        node.start()
        node.tracker.replace_services(SOURCE, [service("mixed", ports="a:80 b:81/SCTP")])
        node.tracker.replace_slices(SOURCE, [endpoint_slice("mixed", "10.0.0.1", "a:8080")])
        await node.rest()
        assert node.answers(VIP) == ONE
        assert node.diary.problems == {name("mixed"): ("port b: SCTP is not served",)}

    async def test_a_service_is_never_shown_without_its_problem(
        self, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = await serving(make_node())
        change, shown = node.netfilter.change, []

        async def watched(made: RuleChange) -> bool:
            shown.append(node.proxier.view.snapshot())
            return await change(made)

        monkeypatch.setattr(node.netfilter, "change", watched)
        node.tracker.replace_services(
            SOURCE, [service("web"), service("mixed", ips="10.96.0.2", ports="a:80 b:81/SCTP")]
        )
        await node.rest()
        assert shown
        for snapshot in shown:
            assert name("mixed") in snapshot.owners
            assert snapshot.problems == {name("mixed"): ("port b: SCTP is not served",)}

    async def test_a_service_of_two_sources_is_served_from_the_first(self, make_node: MakeNode) -> None:
        node = make_node(sources=("manifests", SOURCE))
        node.start()
        node.list_nothing()
        node.tracker.replace_services("manifests", [service("web")])
        node.tracker.replace_slices("manifests", [endpoint_slice("web", "10.0.0.1")])
        node.tracker.put_service(SOURCE, service("web", "10.96.0.9"))
        await node.rest()
        assert node.answers(VIP) == ONE
        assert node.diary.problems == {name("web"): ("also defined by kubernetes; the one of manifests stays",)}
        assert node.proxier.view.snapshot().owners == {name("web"): "manifests"}


class TestEndpoints:
    async def test_their_changes_are_in_effect_at_once_and_need_no_netfilter(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        before = list(node.netfilter.history)
        for endpoints, expected in [("10.0.0.1 10.0.0.2", TWO), ("10.0.0.2", TWO[1:]), ("10.0.0.1", ONE)]:
            node.tracker.put_slice(SOURCE, endpoint_slice("web", endpoints))
            await node.rest()
            assert node.answers(VIP) == expected
        assert node.netfilter.history == before
        assert node.data_plane.sent == [SetEndpoints(WEB, e) for e in (TWO, TWO[1:], ONE)]

    async def test_without_endpoints_the_kernel_refuses_before_the_data_plane_is_updated(
        self, make_node: MakeNode
    ) -> None:
        node = await serving(make_node())
        node.netfilter.fail()
        node.tracker.put_slice(SOURCE, endpoint_slice("web", ()))
        await node.rest()
        assert node.answers(VIP) == ONE
        assert not node.data_plane.sent
        await node.pass_time(0.5)
        assert node.answers(VIP) is Fate.REFUSED
        assert node.data_plane.sent == [SetEndpoints(WEB, ())]

    async def test_endpoints_that_return_are_served(self, make_node: MakeNode) -> None:
        node = await serving(make_node(), "")
        assert node.answers(VIP) is Fate.REFUSED
        node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1"))
        await node.rest()
        assert node.answers(VIP) == ONE

    async def test_equal_objects_cause_no_work(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.tracker.replace_services(SOURCE, [service("web")])
        node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1", trigger_time="2026-01-01T00:00:00Z"))
        await node.rest()
        assert not node.data_plane.sent

    async def test_the_trigger_time_of_a_change_is_reported_once_it_is_in_effect(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.netfilter.fail()
        node.tracker.put_slice(SOURCE, endpoint_slice("web", (), trigger_time="2026-01-01T00:00:00Z"))
        await node.rest()
        assert not node.diary.trigger_times
        await node.pass_time(1.0)
        await node.pass_time(60.0)
        assert node.diary.trigger_times == ["2026-01-01T00:00:00Z"]


class TestOrder:
    async def test_listeners_exist_as_long_as_rules_redirect_to_them(
        self, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = make_node()
        standing: list[set[FrontendName]] = []
        apply, change = node.netfilter.apply, node.netfilter.change

        async def first(wanted: RuleSet, *, verify: bool) -> bool:
            standing.append(set(node.data_plane.listening))
            return await apply(wanted, verify=verify)

        async def later(made: RuleChange) -> bool:
            standing.append(set(node.data_plane.listening))
            return await change(made)

        monkeypatch.setattr(node.netfilter, "apply", first)
        monkeypatch.setattr(node.netfilter, "change", later)
        await serving(node)
        node.tracker.remove_service(SOURCE, WEB.service_port.service)
        await node.rest()
        assert standing == [{WEB}, {WEB}]
        assert not node.data_plane.listening


class TestStart:
    async def test_nothing_happens_until_a_source_is_complete(self, make_node: MakeNode) -> None:
        node = make_node()
        node.start()
        node.tracker.replace_services(SOURCE, [service("web")])
        await node.pass_time(100.0)
        assert not node.diary.entries
        assert not node.proxier.view.snapshot().ready
        node.tracker.replace_slices(SOURCE, ())
        await node.rest()
        assert node.diary.entries == ["queued", "programmed full changed", "settled"]

    async def test_the_wait_for_an_incomplete_source_is_bounded(self, make_node: MakeNode) -> None:
        node = make_node(sources=("manifests", SOURCE))
        node.start()
        node.tracker.replace_services("manifests", [service("web")])
        node.tracker.replace_slices("manifests", [endpoint_slice("web", "10.0.0.1")])
        await node.rest()
        await node.pass_time(START_GRACE_S - 0.1)
        assert not node.netfilter.history
        await node.pass_time(0.1)
        assert node.answers(VIP) == ONE

    async def test_rules_of_an_earlier_run_are_replaced_in_the_first_transaction(self, make_node: MakeNode) -> None:
        node = make_node()
        node.netfilter.kernel = RuleSet(landing={Family.IPV4: Address("192.0.2.9")})
        await serving(node)
        (first,) = node.netfilter.history
        assert first == node.netfilter.kernel
        assert not first.landing

    async def test_rules_of_an_earlier_run_stay_while_the_data_plane_fails(self, make_node: MakeNode) -> None:
        node = make_node()
        node.netfilter.kernel = earlier = RuleSet(landing={Family.IPV4: Address("192.0.2.9")})
        node.data_plane.broken = "no worker answers"
        node.start()
        node.tracker.replace_services(SOURCE, [service("web")])
        node.tracker.replace_slices(SOURCE, [endpoint_slice("web", "10.0.0.1")])
        await node.rest()
        assert node.netfilter.kernel == earlier
        assert node.proxier.view.snapshot().failing == "data plane: no worker answers"
        await node.pass_time(0.5)
        assert node.answers(VIP) == ONE
        assert node.proxier.view.snapshot().failing is None


async def no_more_quick_rounds(node: Node) -> None:
    """Change so much that the next transaction has to wait."""
    for number in range(QUICK_ROUNDS):
        node.tracker.put_service(SOURCE, service(f"quick-{number}", f"10.96.1.{number}"))
        await node.rest()
        assert node.answers(f"10.96.1.{number}:80") is Fate.REFUSED


class TestPace:
    async def test_a_service_and_its_endpoints_are_in_effect_at_once(self, make_node: MakeNode) -> None:
        """The Service and its endpoints are two writes, one after the other."""
        node = await serving(make_node())
        node.tracker.put_service(SOURCE, service("a", "10.96.0.2"))
        await node.rest()
        assert node.answers("10.96.0.2:80") is Fate.REFUSED
        node.tracker.put_slice(SOURCE, endpoint_slice("a", "10.0.0.1"))
        await node.rest()
        assert node.answers("10.96.0.2:80") == ONE

    async def test_the_first_changes_are_at_once_and_the_next_waits(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        await no_more_quick_rounds(node)
        node.tracker.put_service(SOURCE, service("b", "10.96.0.3"))
        await node.pass_time(0.5)
        node.tracker.put_service(SOURCE, service("c", "10.96.0.4"))
        await node.pass_time(0.4)
        assert node.answers("10.96.0.3:80") is Fate.PASSED
        before = len(node.netfilter.history)
        await node.pass_time(0.1)
        assert node.answers("10.96.0.3:80") is node.answers("10.96.0.4:80") is Fate.REFUSED
        assert len(node.netfilter.history) == before + 1

    async def test_many_endpoint_changes_do_not_delay_netfilter(
        self, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = await serving(make_node())
        send = node.data_plane.send
        storm = iter(range(1000))

        async def stormy(messages: Sequence[Message]) -> Mapping[FrontendName, str]:
            if node.answers("10.96.0.2:80") is Fate.PASSED:
                endpoints = "10.0.0.1" if next(storm) % 2 else "10.0.0.2"
                node.tracker.put_slice(SOURCE, endpoint_slice("web", endpoints))
            return await send(messages)

        monkeypatch.setattr(node.data_plane, "send", stormy)
        node.tracker.put_service(SOURCE, service("other", "10.96.0.2"))
        await node.rest()
        assert node.answers("10.96.0.2:80") is Fate.REFUSED

    async def test_removed_rules_are_restored_by_the_next_full_sync(self, make_node: MakeNode) -> None:
        node = await serving(make_node(periods=Periods(sync_s=30.0)))
        node.netfilter.lose()
        await node.pass_time(28.9)
        assert node.answers(VIP) is Fate.PASSED
        await node.pass_time(0.1)
        assert node.answers(VIP) == ONE

    async def test_periods_change_while_it_runs(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.netfilter.lose()
        node.use(periods=Periods(min_sync_s=0.0, sync_s=2.0))
        await node.rest()
        await node.pass_time(1.0)
        assert node.answers(VIP) == ONE


class TestFailures:
    async def test_netfilter_is_retried_with_backoff_and_traffic_goes_on(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.netfilter.fail("table is locked", times=3)
        node.tracker.remove_service(SOURCE, WEB.service_port.service)
        await node.rest()
        assert node.answers(VIP) == ONE
        snapshot = node.proxier.view.snapshot()
        assert (snapshot.failing, snapshot.failures) == ("netfilter: table is locked", 1)
        assert snapshot.pending_since == node.clock.time
        assert snapshot.service_changes_pending == 1
        for delay_s in (0.5, 1.0):
            await node.pass_time(delay_s - 0.01)
            assert node.answers(VIP) == ONE
            await node.pass_time(0.01)
        assert node.proxier.view.snapshot().failures == 3
        await node.pass_time(2.0)
        assert node.answers(VIP) is Fate.PASSED
        assert not node.reserver.held
        assert (node.proxier.view.snapshot().failing, node.proxier.view.snapshot().pending_since) == (None, None)
        assert node.proxier.view.snapshot().service_changes_pending == 0
        assert node.diary.entries == ["queued", *["failed: table is locked"] * 3, "programmed full changed", "settled"]

    async def test_a_listener_that_fails_harms_no_other(self, make_node: MakeNode) -> None:
        node = make_node(port_range=PortRange(30000, 30001))
        node.data_plane.refuse[WEB] = "bind: not today"
        await serving(node)
        node.tracker.put_service(SOURCE, service("a", "10.96.0.2"))
        node.tracker.put_service(SOURCE, service("b", "10.96.0.3"))
        await node.pass_time(1.0)
        assert node.answers("10.96.0.2:80") is node.answers("10.96.0.3:80") is Fate.REFUSED
        assert node.answers(VIP) is Fate.PASSED
        assert list(node.diary.problems) == [name("web")]

    async def test_a_refused_listener_is_retried(self, make_node: MakeNode) -> None:
        node = make_node()
        node.data_plane.refuse[WEB] = "bind: not today"
        await serving(node)
        assert node.diary.problems == {name("web"): ("default/web:http IPv4: bind: not today",)}
        node.data_plane.refuse.clear()
        await node.pass_time(2.0)
        assert node.answers(VIP) == ONE
        assert not node.diary.problems

    async def test_a_listener_that_the_data_plane_lost_is_listened_for_again(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        port = node.proxy_port(WEB)
        node.data_plane.listening.clear()
        node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1 10.0.0.2"))
        await node.rest()
        await node.pass_time(0.5)
        assert node.answers(VIP) == TWO
        assert node.proxy_port(WEB) == port

    async def test_a_listener_keeps_its_port_whatever_the_data_plane_refuses(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        held = list(node.reserver.held)
        node.netfilter.fail(times=10)
        node.tracker.remove_service(SOURCE, WEB.service_port.service)
        await node.rest()
        node.data_plane.refuse[WEB] = "not today"
        node.tracker.put_service(SOURCE, service("web", affinity_timeout_s=60))
        await node.rest()
        assert node.answers(VIP) == ONE
        assert list(node.reserver.held) == held

    async def test_ports_run_out_and_are_released(self, make_node: MakeNode) -> None:
        node = await serving(make_node(port_range=PortRange(30000, 30000)))
        node.tracker.put_service(SOURCE, service("waits", "10.96.0.2"))
        await node.pass_time(10.0)
        assert node.answers("10.96.0.2:80") is Fate.PASSED
        (problem,) = node.diary.problems[name("waits")]
        assert "--proxy-port-range 30000-30000" in problem
        assert node.proxier.view.snapshot().pending_since is None
        node.tracker.remove_service(SOURCE, WEB.service_port.service)
        await node.pass_time(1.0)
        await node.pass_time(1.0)
        assert node.answers("10.96.0.2:80") is Fate.REFUSED
        assert not node.diary.problems

    async def test_a_port_released_in_one_protocol_is_used_again_while_the_other_has_it(
        self, make_node: MakeNode
    ) -> None:
        node = make_node(port_range=PortRange(30000, 30000), protocols=(Protocol.TCP, Protocol.UDP))
        await serving(node)
        node.tracker.put_service(SOURCE, service("web", ports="http:80/UDP"))
        await node.pass_time(1.0)
        node.tracker.put_service(SOURCE, service("other", "10.96.0.2"))
        await node.pass_time(1.0)
        assert node.proxy_port(WEB) == node.proxy_port(frontend_name("other")) == 30000
        assert not node.diary.problems

    async def test_a_port_that_another_process_frees_is_found(self, make_node: MakeNode) -> None:
        node = make_node(port_range=PortRange(30000, 30000))
        node.reserver.taken.add((Protocol.TCP, 30000))
        await serving(node)
        assert node.answers(VIP) is Fate.PASSED
        node.reserver.taken.clear()
        await node.pass_time(30.0)
        assert node.answers(VIP) == ONE

    async def test_retries_of_a_lasting_failure_slow_down(self, make_node: MakeNode) -> None:
        node = make_node(periods=Periods(sync_s=1000.0))
        node.reserver.error = OSError(errno.EMFILE, "Too many open files")
        await serving(node)
        waits = []
        for _ in range(8):
            waits.append(node.clock.next_at - node.clock.time)
            await node.pass_time(waits[-1])
        assert waits[-1] == 30.0
        assert waits == sorted(waits)
        node.reserver.error = None
        await node.pass_time(31.0)
        assert node.answers(VIP) == ONE

    async def test_a_wider_range_is_tried_at_once(self, make_node: MakeNode) -> None:
        node = await serving(make_node(port_range=PortRange(30000, 30000)))
        node.tracker.put_service(SOURCE, service("waits", "10.96.0.2"))
        await node.pass_time(5.0)
        node.use(port_range=PortRange(30000, 30001))
        await node.rest()
        assert node.answers("10.96.0.2:80") is Fate.REFUSED
        assert node.proxy_port(WEB) == 30000


class TestAddresses:
    async def test_another_landing_address_costs_one_transaction(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.use(landing={Family.IPV4: Address("192.0.2.1")}, bind={})
        await node.rest()
        assert node.netfilter.kernel.landing == {Family.IPV4: Address("192.0.2.1")}
        assert not node.data_plane.sent

    async def test_another_bind_address_opens_listeners_anew(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.use(landing={}, bind={Family.IPV4: Address("192.0.2.1")})
        await node.rest()
        await node.pass_time(1.0)
        assert node.answers(VIP) == ONE
        assert node.data_plane.listening[WEB].address == "192.0.2.1"
        assert node.netfilter.kernel.bind == {Family.IPV4: Address("192.0.2.1")}
        assert len(node.reserver.held) == 1


class TestHold:
    """While a new instance takes over the rules."""

    async def test_the_rules_are_left_alone_until_it_is_over(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        await node.proxier.hold(True)
        before = node.netfilter.kernel
        node.tracker.put_service(SOURCE, service("late", "10.96.0.2"))
        await node.pass_time(100.0)
        assert node.netfilter.kernel == before
        node.netfilter.lose()
        await node.proxier.hold(False)
        await node.rest()
        assert node.answers(VIP) == ONE
        assert node.answers("10.96.0.2:80") is Fate.REFUSED

    async def test_endpoints_are_followed_all_the_same(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        await node.proxier.hold(True)
        node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1 10.0.0.2"))
        await node.pass_time(1.0)
        assert node.answers(VIP) == TWO


class TestForeignChanges:
    async def test_removed_rules_are_restored_at_once(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.netfilter.lose(noticed=True)
        assert node.answers(VIP) is Fate.PASSED
        await node.rest()
        assert node.answers(VIP) == ONE
        assert node.diary.entries == ["programmed full changed", "settled"]

    async def test_foreign_changes_during_failures_are_undone_as_soon(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.netfilter.fail(times=8)
        node.tracker.put_service(SOURCE, service("late", "10.96.0.2"))
        await node.rest()
        while node.netfilter.failures:
            await node.pass_time(node.clock.next_at - node.clock.time)
        assert node.clock.next_at == node.clock.time + 30.0
        node.netfilter.lose(noticed=True)
        await node.rest()
        assert node.answers(VIP) == ONE
        assert node.answers("10.96.0.2:80") is Fate.REFUSED

    async def test_repeated_foreign_changes_are_undone_ever_more_slowly(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        for delay_s in (0.0, 1.0, 2.0):
            node.netfilter.lose(noticed=True)
            await node.rest()
            if delay_s:
                assert node.answers(VIP) is Fate.PASSED
                await node.pass_time(delay_s)
            assert node.answers(VIP) == ONE

    async def test_a_new_instance_is_no_foreign_change(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        await node.proxier.hold(True)
        node.netfilter.lose(noticed=True)
        await node.pass_time(100.0)
        assert node.answers(VIP) is Fate.PASSED
        await node.proxier.hold(False)
        await node.rest()
        assert node.answers(VIP) == ONE


class Rival:
    """A younger proxy, as the takeover sees it."""

    def __init__(self, yielded: list[bool], *, lives: bool = True) -> None:
        self.yielded = yielded
        self.lives = lives

    def rival_lives(self) -> bool:
        return self.lives

    def yield_to_rival(self) -> None:
        self.yielded.append(True)


class TestRival:
    """Another proxy, without a connection to this one, takes over the rules."""

    @staticmethod
    def turn(node: Node) -> None:
        """Replace our rules by its rules."""
        kernel = node.netfilter.kernel
        ports = {key: port + 1 for key, port in kernel.redirects.items()}
        node.netfilter.lose()
        node.netfilter.kernel = replace(kernel, redirects=ports)

    async def test_the_younger_keeps_the_rules(self, make_node: MakeNode) -> None:
        yielded: list[bool] = []
        node = await serving(make_node(rivals=Rival(yielded)))
        self.turn(node)
        theirs = node.netfilter.kernel
        await node.pass_time(100.0)
        assert yielded == [True]
        assert node.netfilter.kernel == theirs
        assert not [entry for entry in node.diary.entries if entry.startswith("programmed")]

    @pytest.mark.parametrize("dead", [True, False])
    async def test_rules_that_are_missing_or_of_a_dead_proxy_are_restored(
        self, make_node: MakeNode, dead: bool
    ) -> None:
        yielded: list[bool] = []
        node = await serving(make_node(rivals=Rival(yielded, lives=not dead)))
        if dead:
            self.turn(node)
        else:
            node.netfilter.lose(noticed=True)
        await node.pass_time(100.0)
        assert node.answers(VIP) == ONE
        assert not yielded

    async def test_an_unknown_rival_does_not_count(self, make_node: MakeNode) -> None:
        class Unknown(Rival):
            def rival_lives(self) -> bool:
                raise OSError("no sock_diag")

        node = await serving(make_node(rivals=Unknown([])))
        self.turn(node)
        await node.pass_time(100.0)
        assert node.answers(VIP) == ONE

    async def test_it_reports_to_a_new_instance_whether_rules_redirect_here(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        assert await node.proxier.leads_here()
        self.turn(node)
        assert not await node.proxier.leads_here()


class TestStop:
    async def test_nothing_is_removed_without_a_request(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        before = node.netfilter.kernel
        await node.proxier.stop(cleanup=False)
        assert node.netfilter.kernel == before
        assert node.reserver.held, "what still drains may need its port"
        node.proxier.close()
        assert not node.reserver.held

    async def test_everything_is_removed_on_request(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        await node.proxier.stop(cleanup=True)
        assert node.netfilter.kernel == RuleSet()

    async def test_stop_pauses_clients_on_request(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        await node.proxier.stop(cleanup=False, pause=True)
        assert node.answers(VIP) is Fate.DROPPED
        assert node.reserver.held, "what still drains may need its port"

    async def test_udp_flows_go_with_the_rules(self, make_node: MakeNode) -> None:
        conntrack = FakeConntrack()
        node = await serving(make_node(conntrack=conntrack))
        in_force = node.proxier.kernel.in_force
        await node.proxier.stop(cleanup=True)
        assert conntrack.calls[-1] == (in_force, RuleSet())
        conntrack.fail()
        await node.proxier.stop(cleanup=True)

    @pytest.mark.parametrize("cleanup", [True, False])
    async def test_a_failure_is_reported(self, make_node: MakeNode, cleanup: bool) -> None:
        node = await serving(make_node())
        node.netfilter.fail()
        with pytest.raises(KernelError):
            await node.proxier.stop(cleanup=cleanup, pause=not cleanup)

    async def test_nothing_happens_after_stop(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        await node.proxier.stop(cleanup=True)
        node.tracker.put_service(SOURCE, service("late", "10.96.0.2"))
        await node.proxier.run()
        assert node.netfilter.kernel == RuleSet()
        assert len(node.reserver.held) == 1


async def test_repeated_snapshots_cost_nothing_without_a_change(make_node: MakeNode) -> None:
    node = await serving(make_node())
    shown = node.proxier.view.snapshot().frontends
    assert node.proxier.view.snapshot().frontends is shown
    assert [status.frontend.endpoints for status in shown] == [ONE]
    node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1 10.0.0.2"))
    await node.rest()
    assert [status.frontend.endpoints for status in node.proxier.view.snapshot().frontends] == [TWO]
    await node.proxier.stop(cleanup=False)
    node.proxier.close()
    assert [status.proxy_port for status in node.proxier.view.snapshot().frontends] == [None]
