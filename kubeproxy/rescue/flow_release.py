"""Deletes the flows to failed endpoints, and has their packets sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from kubeproxy.model import Destination, Protocol, Target
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.netfilter.conntrack.endpoint_flows import delete_flows_to
from kubeproxy.rescue.protocol import FreedFlow

log = structlog.get_logger(__name__)

AT_ONCE: Final = 2
"""So many endpoints at once have their flows deleted, each in a thread: changes of endpoints need threads, too, and do
not queue behind thousands of them."""


class FlowRelease:
    """The endpoints that have their flows deleted now."""

    def __init__(
        self,
        *,
        is_ours: Callable[[Destination], bool],
        on_freed: Callable[[Protocol, Target, Sequence[FreedFlow]], None],
    ) -> None:
        """`is_ours`: whether our rules lead a destination to endpoints. `on_freed` has the packets sent again."""
        self._is_ours = is_ours
        self._on_freed = on_freed
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._working: set[tuple[Protocol, Target]] = set()
        self._again: set[tuple[Protocol, Target]] = set()

    async def free(self, protocol: Protocol, target: Target) -> None:
        """Delete the flows to an endpoint; one call at a time for each. A failure is logged."""
        key = (protocol, target)
        if key in self._working:
            self._again.add(key)
            return
        self._working.add(key)
        try:
            while True:
                self._again.discard(key)
                async with self._slots:
                    deleted = await delete_flows_to(target, protocol, is_ours=self._is_ours)
                if deleted:
                    flows = [
                        FreedFlow(flow.source, flow.source_port, flow.address, flow.port, peer, peer_port)
                        for flow, peer, peer_port in deleted
                    ]
                    self._on_freed(protocol, target, flows)
                if key not in self._again:
                    return
        except KubeproxyError as error:
            log.warning("cannot free failed flows", endpoint=str(target), reason=str(error))
        finally:
            self._working.discard(key)
