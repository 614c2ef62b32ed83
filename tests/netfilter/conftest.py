"""A network and, on its node, each adapter in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netfilter.stage import Adapter
from tests.support.lab import Network, PodLinks, make_network


@pytest.fixture
def links() -> PodLinks:
    """The way to the pod; a test may name others as parameters."""
    return PodLinks.ROUTED


@pytest.fixture
def network(links: PodLinks) -> Iterator[Network]:
    """A node with a client in front of it and a pod behind it."""
    with make_network(pods=1, links=links) as made:
        yield made


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    """A lock of the test's own: hosts of the laboratory share the file system with the whole machine."""
    return tmp_path / "xtables.lock"


@pytest.fixture
def environment(lock_file: Path) -> dict[str, str]:
    """The environment for adapters and for iptables by hand."""
    return {**os.environ, "XTABLES_LOCKFILE": str(lock_file)}


@pytest.fixture(params=["nftables", "iptables"])
def adapter(request: pytest.FixtureRequest, network: Network, environment: dict[str, str]) -> Adapter:
    """An adapter on the node."""
    return Adapter(network.node, request.param, env=environment)
