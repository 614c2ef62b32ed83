"""Probes an ejected endpoint with a connection of the proxy's own.

No client waits for the probe. It starts when the ejection is over and a client comes; that client gets another
endpoint. If the endpoint answers, it gets clients again at once, and the connection is closed without sending a byte.
If the endpoint refuses, or does not answer within the sum of all dial timeouts, it is ejected for twice the time. A
probe lasts longer than the first step of a dial. So it also succeeds over a slow path, and an endpoint that starts
meanwhile gets a retransmitted SYN.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kubeproxy.dataplane.sockets.connect import (
    HUNG_UP,
    UNREACHABLE,
    begin_connecting,
    failure,
    is_own_echo,
    pending_failure,
)

if TYPE_CHECKING:
    from kubeproxy.dataplane.balancing.balancer import Balancer
    from kubeproxy.dataplane.context import Context
    from kubeproxy.model import Target


class EndpointProbe:
    """The probe of an endpoint whose ejection is over (`Balancer.due`). It owns its socket, and returns the descriptor
    to the budget at the end."""

    __slots__ = ("_balancer", "_context", "_fd", "_target")

    def __init__(self, context: Context, balancer: Balancer, target: Target) -> None:
        self._context = context
        self._balancer = balancer
        self._target = target
        self._fd = -1

    def begin(self, *, client: str | None, hops: int) -> None:
        """Dial the endpoint with a hop limit of `hops`, in the same way as for a client. `client` is the source
        address, because a network policy may admit only that address, or None for an address of this node. If this host
        cannot dial now, the endpoint stays ejected until the next probe."""
        context = self._context
        if not context.budget.take(1):
            return
        try:
            self._fd = begin_connecting(self._target, client=client, hops=hops)
            context.reactor.add(self._fd, self._on_event)
        except (OSError, MemoryError) as error:
            if self._fd >= 0:
                os.close(self._fd)
            context.budget.give(1)
            if isinstance(error, OSError) and error.errno in UNREACHABLE:
                self._failed(failure(error.errno))
            return
        context.probes.add(self)
        context.step_timeouts.step(self, sum(context.tune.dial_steps_s))

    def _on_event(self, what: int) -> None:
        try:
            if what & HUNG_UP:
                self._failed(pending_failure(self._fd))
            elif is_own_echo(self._fd, self._target):
                self._failed("refused")
            else:
                self._balancer.answered(self._target)
        except MemoryError:
            pass  # The probe has no result, so another one will follow.
        self.abort()

    def on_step_over(self) -> None:
        """End the probe as failed. The sum of all dial timeouts is over."""
        if self in self._context.probes:
            self._failed("timeout")
            self.abort()

    def _failed(self, reason: str) -> None:
        self._balancer.failed(self._target, self._context.reactor.now, reason)

    def abort(self) -> None:
        """End the probe now, without a result."""
        context = self._context
        context.probes.discard(self)
        context.reactor.close(self._fd)
        context.budget.give(1)
