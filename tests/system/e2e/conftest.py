"""A stage for each module, cleared before each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import Daemon, PodLinks
from tests.system.e2e import kernel_state
from tests.system.e2e.full_services import Whole
from tests.system.e2e.stage import KERNEL, QUICK, Stage, await_rescue, make_stage

ADAPTERS = ("nftables", "iptables")
PATHS = (*ADAPTERS, KERNEL)
"""The adapters with the userspace path, and the kernel path."""


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


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The path of a configuration file."""
    return tmp_path / "config.yaml"


def lasting(mirrors: Stage, whole: Whole, netfilter: str) -> Iterator[Daemon]:
    """A daemon and a permanent Service for all tests of a module, with one adapter.

    A fixture yields from it.
    """
    kernel_state.forget_connections(mirrors.node)
    mirrors.write(whole.name, *whole.objects(0, 1))
    daemon = mirrors.daemon(QUICK, netfilter=netfilter)
    if netfilter == KERNEL:
        await_rescue(daemon)
    yield daemon
    try:
        assert daemon.process.poll() is None, daemon.log()
        assert " error " not in daemon.log(), daemon.log()
        assert "Traceback" not in daemon.log(), daemon.log()
    finally:
        mirrors.clear()
        kernel_state.reset_rules(mirrors.node)
