"""loadBalancerSourceRanges: clients in the ranges pass, others get no answer, other addresses are unaffected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.lab import Daemon
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import PATHS, for_a_module
from tests.system.e2e.full_services import (
    CELLS,
    CLIENT,
    NODE,
    NODE_NAME,
    V4,
    V6,
    Cell,
    Said,
    Whole,
    heard,
    of_cells,
    pod,
    quiet,
    start_mirrors,
)
from tests.system.e2e.stage import QUICK, Stage, until

pytestmark = pytest.mark.netns

WHOLE = Whole(1)
NAMED = f"--hostname-override={NODE_NAME}"
STRANGER = {V4: "10.2.0.66", V6: "fd00:2::66"}
"""The client's other address."""
BALANCED = [cell for cell in CELLS if cell.kind == "load balancer IP"]
OTHERS = [cell for cell in CELLS if cell not in BALANCED]


def ranges(addresses: dict[int, str]) -> list[str]:
    """Ranges with only these addresses."""
    return [f"{addresses[V4]}/32", f"{addresses[V6]}/128"]


@pytest.fixture(scope="module")
def mirrors(theatre: Stage) -> Stage:
    """Pods that answer with the client's address, and a client with two addresses."""
    start_mirrors(theatre)
    theatre.client.ip(f"addr add {STRANGER[V4]}/24 dev eth0", f"addr add {STRANGER[V6]}/64 dev eth0 nodad")
    return theatre


@pytest.fixture(scope="module", params=PATHS)
def daemon(request: pytest.FixtureRequest, mirrors: Stage) -> Iterator[Daemon]:
    """A daemon for all tests with an adapter."""
    kernel_state.forget_connections(mirrors.node)
    daemon = mirrors.daemon(QUICK, NAMED, netfilter=request.param)
    yield from for_a_module(mirrors, daemon)


def by(cell: Cell, stage: Stage, source: dict[int, str]) -> Said | None:
    """The answer to a client at a certain address; the node has only one."""
    own = source[cell.family] if cell.origin == "client" else ""
    return heard(cell.host(stage), WHOLE.address(cell.kind, cell.family), cell.protocol, source=own, timeout_s=1.0)


def await_sources(stage: Stage, ways: dict[str, bool], source: dict[int, str]) -> None:
    """Wait until exactly these ways are open to a client at that address."""

    def so() -> bool:
        return {way: bool(said) for way, said in of_cells(lambda it: by(it, stage, source)).items()} == ways

    until(so, f"{source} is served by {ways}")


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_only_clients_in_the_ranges_pass(mirrors: Stage, daemon: Daemon, policy: str) -> None:
    every = dict.fromkeys(map(str, CELLS), True)
    but_balanced = every | {str(cell): False for cell in BALANCED if cell.origin == "client"}
    no_endpoint = every | {str(cell): False for cell in BALANCED}

    def admit(*cidrs: str) -> None:
        mirrors.write(
            WHOLE.name, *WHOLE.objects(pod(0), externalTrafficPolicy=policy, loadBalancerSourceRanges=list(cidrs))
        )

    admit(*ranges(CLIENT), *ranges(NODE))
    await_sources(mirrors, every, CLIENT)
    await_sources(mirrors, but_balanced, STRANGER)
    admit(*ranges(STRANGER), *ranges(NODE))
    await_sources(mirrors, every, STRANGER)
    await_sources(mirrors, but_balanced, CLIENT)
    for cell in BALANCED:
        if cell.origin == "client":
            place = WHOLE.address(cell.kind, cell.family)
            assert quiet(mirrors.client, place, cell.protocol, source=CLIENT[cell.family]), "dropped, not refused"
    # The node itself is a client like any other.
    admit("10.9.0.0/16", "fd00:9::/64")
    await_sources(mirrors, no_endpoint, CLIENT)
    admit()
    await_sources(mirrors, every, CLIENT)


def test_ranges_of_one_family_admit_no_client_of_the_other(mirrors: Stage, daemon: Daemon) -> None:
    mirrors.write(WHOLE.name, *WHOLE.objects(pod(0), loadBalancerSourceRanges=["10.0.0.0/8"]))
    ways = {str(cell): cell not in BALANCED or cell.family == V4 for cell in CELLS}
    await_sources(mirrors, ways, CLIENT)
    until(lambda: "loadBalancerSourceRanges" in daemon.log(), f"the log names the field: {daemon.log()}")


@pytest.mark.parametrize("wrong", ["10.2.0.0/40", "anything", ""])
def test_a_range_that_is_no_cidr_is_reported_and_admits_no_client(mirrors: Stage, daemon: Daemon, wrong: str) -> None:
    def renew(*cidrs: str) -> None:
        if (mirrors.manifests / f"{WHOLE.name}.yaml").exists():
            mirrors.remove(WHOLE.name)  # otherwise the daemon serves its last good version
            until(lambda: not kernel_state.redirects(mirrors.node), "gone")
        mirrors.write(WHOLE.name, *WHOLE.objects(pod(0), loadBalancerSourceRanges=list(cidrs)))

    said = f"'{wrong}' is no CIDR"
    before = daemon.log().count(said)
    renew(wrong, *ranges(CLIENT))
    until(lambda: daemon.log().count(said) > before, "the log reports it")
    await_sources(mirrors, {str(cell): cell not in BALANCED or cell.origin == "client" for cell in CELLS}, CLIENT)
    renew(wrong)
    await_sources(mirrors, {str(cell): cell not in BALANCED for cell in CELLS}, CLIENT)
