"""The pages of the metrics server, as its root lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lab import make_network
from tests.support.lab.daemon import METRICS, Daemon

pytestmark = pytest.mark.netns


def test_every_listed_page_answers(tmp_path: Path) -> None:
    with make_network() as network, Daemon(network.node, manifests=tmp_path) as daemon:
        listed = daemon.get("/", address=METRICS).body.splitlines()
        assert {"/metrics", "/statusz", "/healthz", "/configz"} <= set(listed)
        for page in listed:
            status = daemon.get(page, address=METRICS).status
            assert status in (200, 400), page  # a trace needs a destination
