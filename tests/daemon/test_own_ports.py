"""How many listeners are not shared, by the limits of a host."""

from __future__ import annotations

import resource

import pytest

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon import own_ports
from kubeproxy.daemon.own_ports import most


@pytest.mark.parametrize(
    ("descriptors", "workers", "ports", "number"),
    [
        (1 << 20, 4, 14_116, 14_116),  # Linux's default ports, and the usual limit of a container
        (20_000, 2, 14_116, 2_500),
        (20_000, 0, 14_116, 5_000),
        (1_024, 4, 14_116, 64),
    ],
)
def test_descriptors_and_ports_bound_it(descriptors: int, workers: int, ports: int, number: int) -> None:
    assert most(descriptors, workers, ports) == number


def test_it_is_read_from_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1_024, 1 << 20))
    configuration = Configuration()
    first, last = map(int, own_ports.PORT_RANGE.read_text().split())
    assert own_ports.own_ports(configuration) == (last - first + 1) // 2
