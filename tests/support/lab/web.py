"""HTTP from one of the laboratory's hosts."""

from __future__ import annotations

import http.client
from dataclasses import dataclass

from tests.support.lab.host import Host


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said."""

    status: int
    body: str


def get(host: Host, address: tuple[str, int], path: str = "/", *, timeout_s: float = 15.0) -> Answer:
    """One GET on a connection of its own. OSError or http.client.HTTPException if there was no whole answer."""
    with host.connect(address, timeout=timeout_s) as sock:
        connection = http.client.HTTPConnection(*address)
        connection.sock = sock
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        return Answer(response.status, response.read().decode())
