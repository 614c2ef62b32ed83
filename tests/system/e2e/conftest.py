"""A stage for each module, cleared before each test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import pytest

from tests.support.cases import leave_out
from tests.support.lab import Daemon, PodLinks
from tests.system.e2e import kernel_state
from tests.system.e2e.api import ApiHost
from tests.system.e2e.full_services import Whole, start_mirrors
from tests.system.e2e.stage import KERNEL, QUICK, Stage, await_rescue, endpoints, make_stage, service, until

HERE = Path(__file__).parent
ADAPTERS = ("nftables", "iptables")
PATHS = (*ADAPTERS, KERNEL)
"""The adapters with the userspace path, and the kernel path."""
ADAPTERS_MATTER = ("test_lifecycle.py", "test_matrix.py", "test_policies.py")
"""Files that run with both adapters always."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run a part of the cases of each test (`cases.leave_out`).

    A test that has both adapters runs with one of them, which its name decides: what differs between them is tested in
    tests/netfilter and in `ADAPTERS_MATTER`. All cases would take 15 minutes more.
    """
    leave_out(
        config,
        items,
        of=lambda case: case.path.parent == HERE and case.path.name not in ADAPTERS_MATTER,
        paths=PATHS,
        chosen=_with_one_adapter,
    )


def _with_one_adapter(cases: Sequence[pytest.Function]) -> Sequence[pytest.Function]:
    """Return the cases of a test without those of the other adapter."""
    adapters = [{value for value in case.callspec.params.values() if value in ADAPTERS} for case in cases]
    if {len(used) for used in adapters} - {0, 1} or len(set().union(*adapters)) < 2:
        return cases
    chosen = ADAPTERS[crc32(cases[0].originalname.encode()) % 2]
    return [case for case, used in zip(cases, adapters, strict=True) if used <= {chosen}]


@pytest.fixture(scope="module")
def links() -> PodLinks:
    """The way to the pods, and between them. A module whose subject it may concern has it as a parameter."""
    return PodLinks.ROUTED


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory, links: PodLinks) -> Iterator[Stage]:
    """Hosts and backends; rules and daemons of an earlier test may still be there."""
    with make_stage(tmp_path_factory.mktemp("manifests"), links=links) as stage:
        yield stage


@pytest.fixture
def stage(theatre: Stage) -> Iterator[Stage]:
    """The theatre without daemons, rules, connections and manifests."""
    kernel_state.forget_connections(theatre.node)
    yield theatre
    try:
        theatre.clear()
    finally:
        kernel_state.reset_rules(theatre.node)


@pytest.fixture(scope="module")
def mirrored(theatre: Stage) -> Stage:
    """The theatre with pods that answer by both families and protocols, with their names and the client's address."""
    start_mirrors(theatre)
    return theatre


@pytest.fixture
def mirrors(mirrored: Stage, stage: Stage) -> Stage:
    """A stage with such pods."""
    return stage


@pytest.fixture
def served(theatre: Stage, daemon: Daemon) -> Iterator[Stage]:
    """The stage without any Service, beside a module's `daemon`."""
    kernel_state.forget_connections(theatre.node)
    yield theatre
    for manifest in theatre.manifests.iterdir():
        manifest.unlink()
    until(lambda: not kernel_state.redirects(theatre.node), "no service left")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The path of a configuration file."""
    return tmp_path / "config.yaml"


@pytest.fixture
def api(stage: Stage) -> Iterator[ApiHost]:
    """An API server on the client's host, with a Service of two endpoints."""
    with ApiHost(stage.client, service(), endpoints("web", [0, 1])) as api:
        yield api
        stage.clear()


def for_a_module(stage: Stage, daemon: Daemon) -> Iterator[Daemon]:
    """Keep a daemon for all tests of a module, and assert that it has had no error; a fixture yields from it."""
    yield daemon
    try:
        assert daemon.process.poll() is None, daemon.log()
        assert " error " not in daemon.log(), daemon.log()
        assert "Traceback" not in daemon.log(), daemon.log()
    finally:
        stage.clear()
        kernel_state.reset_rules(stage.node)


def lasting(stage: Stage, whole: Whole, netfilter: str) -> Iterator[Daemon]:
    """Keep a daemon and a permanent Service for all tests of a module, with one adapter; a fixture yields from it."""
    kernel_state.forget_connections(stage.node)
    stage.write(whole.name, *whole.objects(0, 1))
    daemon = stage.daemon(QUICK, netfilter=netfilter)
    if netfilter == KERNEL:
        await_rescue(daemon)
    yield from for_a_module(stage, daemon)
