"""How many nodes a node takes the cluster to have."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from kubeproxy.daemon.cluster_size import ASSUMED, ClusterSize
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import UnreachableError


class Server:
    """Answers lists of Nodes."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = 0

    async def get_json(self, path: str, query: Any = None) -> bytes:
        self.asked += 1
        assert (path, query) == ("/api/v1/nodes", {"limit": "1"})
        if isinstance(self.answer, Exception):
            raise self.answer
        return json.dumps(self.answer).encode()


@pytest.mark.parametrize(
    ("answer", "nodes"),
    [
        ({"metadata": {"continue": "x", "remainingItemCount": 4999}, "items": [{}]}, 5000),
        ({"metadata": {}, "items": [{}]}, 1),
        ({"metadata": {}, "items": None}, 1),
        ({"metadata": {}, "items": [{}, {}, {}]}, 3),
        ({"metadata": {"continue": "x"}, "items": [{}]}, ASSUMED),
        ({"metadata": []}, ASSUMED),
        (UnreachableError("away", cause="connect"), ASSUMED),
    ],
    ids=["many", "one", "none", "no-limit", "not-told", "garbage", "away"],
)
async def test_nodes_are_counted_by_what_the_server_says_there_are_more(answer: Any, nodes: int) -> None:
    size = ClusterSize()
    await size.refresh(cast(Client, Server(answer)), 0.0)
    assert size.nodes == nodes


async def test_server_is_asked_every_ten_minutes_and_earlier_after_a_failure() -> None:
    size, server = ClusterSize(), Server({"items": [{}, {}]})
    for now in range(0, 3600, 10):
        await size.refresh(cast(Client, server), float(now))
    assert 4 <= server.asked <= 6
    server.answer = UnreachableError("away", cause="connect")
    await size.refresh(cast(Client, server), 9000.0)
    assert size.nodes == 2, "the last answer counts"
    server.answer, server.asked = {"items": [{}]}, 0
    await size.refresh(cast(Client, server), 9100.0)
    assert (server.asked, size.nodes) == (1, 1)
