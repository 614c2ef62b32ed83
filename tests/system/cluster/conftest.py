"""One cluster for all tests of the session that want it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple

import pytest

from tests.system.cluster import images
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.images import VERSIONS
from tests.system.cluster.programs import found, why_not
from tests.system.cluster.service_proxies import Ours
from tests.system.cluster.startup import running


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that have the project's image in all `VERSIONS`, and no Service proxy."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("cluster")
    with running(directory, found()) as made:
        for version in astuple(VERSIONS):
            made.load_image(images.make_ours(version, directory, directory / "storage"))
        yield made


@pytest.fixture
def ours(cluster: Cluster) -> Iterator[Ours]:
    """The project's DaemonSet, removed after the test."""
    proxy = Ours(cluster)
    yield proxy
    proxy.uninstall()
