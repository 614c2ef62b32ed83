"""Whether an endpoint that was put aside answers again, found out beside the clients: no client waits for it.

It is dialed when its time aside is over and a client comes, who is served by another meanwhile. If it answers it is
back in the rotation at once, and the connection is closed without a word; if it refuses, or is silent for as long as
the whole ladder of dials, it is put aside for twice the time. So it has longer than a dial's first step: an endpoint on
a slow way is found to be alive, and one that comes back while it is tried hears the kernel's next SYN.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kubeproxy.dataplane.sockets.connect import HUNG_UP, UNREACHABLE, begin_connecting, is_own_echo

if TYPE_CHECKING:
    from kubeproxy.dataplane.balancing.balancer import Balancer
    from kubeproxy.dataplane.context import Context
    from kubeproxy.model import Target


class EndpointProbe:
    """One endpoint that is `due`. Owns its socket, and the claim on that descriptor."""

    __slots__ = ("_balancer", "_context", "_fd", "_target")

    def __init__(self, context: Context, balancer: Balancer, target: Target) -> None:
        self._context = context
        self._balancer = balancer
        self._target = target
        self._fd = -1

    def begin(self, *, client: str | None, hops: int) -> None:
        """Dial it, from the address of `client` if one is given: a network policy may let that one in alone. At most
        so many `hops` away, as for the client. If this host cannot now, the endpoint stays aside until its next
        trial."""
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
                self._failed("refused" if error.errno == errno.ECONNREFUSED else "unreachable")
            return
        context.probes.add(self)
        context.step_timeouts.step(self, sum(context.tune.dial_steps_s))

    def _on_event(self, what: int) -> None:
        try:
            if what & HUNG_UP or is_own_echo(self._fd, self._target):
                self._failed("refused")
            else:
                self._balancer.answered(self._target)
        except MemoryError:
            pass  # not found out: there will be another trial
        self.abort()

    def on_step_over(self) -> None:
        """The time that a ladder of dials has is over."""
        if self in self._context.probes:
            self._failed("timeout")
            self.abort()

    def _failed(self, reason: str) -> None:
        self._balancer.failed(self._target, self._context.reactor.now, reason)

    def abort(self) -> None:
        """End it now, whatever would have come of it."""
        context = self._context
        context.probes.discard(self)
        context.reactor.close(self._fd)
        context.budget.give(1)
