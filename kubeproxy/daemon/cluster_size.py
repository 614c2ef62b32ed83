"""Estimates how many nodes the cluster has. All nodes do some work against the same API server, and each node uses this
number to limit its own rate."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

if TYPE_CHECKING:
    from kubeproxy.kubernetes.client.client import Client

log = structlog.get_logger(__name__)

ASSUMED: Final = 1000
"""The number of nodes that is assumed until the API server has been asked."""
FRESH_S, RETRY_S = 600.0, 60.0
"""For how many seconds an answer is used, and how many seconds pass before the next attempt after a failure. A random
time of up to half as much is added."""


class _Metadata(msgspec.Struct):
    remaining: int = msgspec.field(name="remainingItemCount", default=0)
    more: str = msgspec.field(name="continue", default="")


class _Nodes(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    items: list[msgspec.Raw] | None = None


class ClusterSize:
    """The number of nodes. Every ten to fifteen minutes it is read from a list with a limit of one Node, in which the
    API server says how many more there are."""

    def __init__(self) -> None:
        self.nodes = ASSUMED
        self._next_at = float("-inf")

    async def refresh(self, client: Client, now: float) -> None:
        """Read the number if it is due. `now` is in seconds of a monotonic clock. After a failure the old number
        stays."""
        from kubeproxy.kubernetes.client.errors import ApiError

        if now < self._next_at:
            return
        wait_s = FRESH_S
        try:
            found = msgspec.json.decode(await client.get_json("/api/v1/nodes", {"limit": "1"}), type=_Nodes)
        except (ApiError, msgspec.DecodeError) as error:
            log.debug("nodes not counted", assumed=self.nodes, error=str(error))
            wait_s = RETRY_S
        else:
            known = len(found.items or ()) + found.metadata.remaining
            # The API server may say that there are more nodes, but not how many. Then assume that there are many.
            self.nodes = max(1, known if found.metadata.remaining or not found.metadata.more else ASSUMED)
        self._next_at = now + wait_s * (1.0 + 0.5 * random.random())
