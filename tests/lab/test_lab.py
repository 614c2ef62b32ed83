"""The laboratory itself: the other tests believe it."""

from __future__ import annotations

import pytest

from tests.lab import make_network


@pytest.mark.netns
@pytest.mark.parametrize("address", ["10.3.0.2", "fd00:3:0::2"])
def test_a_client_reaches_a_pod_through_the_node(address: str) -> None:
    with make_network(pods=1) as network, network.pods[0].listen((address, 8080)) as listener:
        with network.client.connect((address, 8080)) as connection:
            accepted, _ = listener.accept()
            with accepted:
                accepted.sendall(b"pong")
                assert connection.recv(10) == b"pong"
        assert "10.2.0.2" in network.client.run(["ip", "addr"]).stdout
