"""Hot restart: which instance owns the node, and how a new instance takes over without a lost connection.

Each control process listens on an abstract Unix socket with a name of its own (`control_socket`). Such names belong to
a network namespace, as the rules do. So two pods of a DaemonSet with hostNetwork can find each other without a shared
directory, and a name disappears with its process.

A new instance lists the names and greets all these processes. The owner, to which the rules redirect or soon will,
accepts. A process in the middle of a takeover, on either side, is busy. Of several new instances that find no owner,
the oldest becomes the owner. The new instance prepares everything beside the owner: its own listeners, on proxy ports
of its own. Before the one transaction that redirects clients to itself, it sends `Hold` (the owner stops changing the
rules), and afterwards `Take` (the owner stops accepting, releases the HTTP ports and its name, and drains). If the new
instance dies before `Take`, the connection ends and the owner continues. `rule_transfer` makes these steps, `server` is
the owner's side, and `protocol` has the messages.

If the two instances have different protocol versions, the new one asks the owner to stop, and waits until the owner's
name is gone. The owner's workers keep serving as after a crash. They move their connections if both instances support a
common version of `takeover_messages.MOVES`.

If two instances cannot communicate at all, the older one yields when it finds that the kernel redirects to other ports
and a younger control process exists (`TakeoverServer.rival_lives`, `yield_to_rival`).

Workers of a dead control process also connect to the owner. They keep serving until the owner's rules are in force and
it retires them.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from itertools import chain, compress
from typing import Final

import structlog

from kubeproxy.daemon.takeover.control_socket import PREFIX, ControlSocket, FullError
from kubeproxy.daemon.takeover.owner import Owner
from kubeproxy.daemon.takeover.predecessor import ANSWER_S, BusyError, Predecessor, UnprovenError, greet
from kubeproxy.daemon.takeover.protocol import hello
from kubeproxy.daemon.takeover.search import Search
from kubeproxy.daemon.takeover.server import TakeoverServer
from kubeproxy.daemon.takeover.serves_enough import Offer, TakeoverRefusedError, fewer_services, other_sources
from kubeproxy.dataplane.balancing.affinity import merged
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)

GATHER_S: Final = 1.0
"""How long orphaned workers may take to find our name. They search four times in that time."""


DISPLACED: Final = 32
"""How many silent processes are asked to yield at the same time. Most of them are probably not kubeproxy."""


class Takeover:
    """The new instance's side of a takeover. `server` is its side as an owner."""

    def __init__(
        self,
        owner: Owner,
        *,
        version: str,
        others: Callable[[], bool] = lambda: False,
        forced: bool = False,
        stands_in: bool = False,
        prefix: str = PREFIX,
    ) -> None:
        """`others` returns whether a process of another run lives. With `forced` this process takes over from any owner
        of the node, whatever the owner serves. With `stands_in` it takes over from none."""
        self._owner = owner
        self._others = others
        self._control = ControlSocket(prefix)
        self._forced = forced
        self._stands_in = stands_in
        self._hello = hello(version)
        self._search = Search(self._control, self._hello, self._obstacle)
        self._tasks = TaskSet(self._crashed)
        self.server = TakeoverServer(self._control, owner, version=version)
        self._listens_since = -math.inf
        self.predecessor: Predecessor | None = None
        """The owner from which this instance takes over, or None if there is none."""

    async def begin(self, *, given_up: Callable[[], bool] = lambda: False) -> Predecessor | None:
        """Bind our name, and find the owner of the node.

        Return None if there is no owner, if no owner answers, or if `given_up` returns true. Raise TakeoverRefusedError
        if the owner serves other sources, or this instance only stands in.
        """
        self.server.listen()
        self._listens_since = asyncio.get_running_loop().time()
        self.predecessor = await self._search.find(given_up)
        self.server.found(self.predecessor)  # Nothing was awaited since the search ended.
        return self.predecessor

    def _obstacle(self, owner: Offer) -> str | None:
        if self._stands_in:
            return "is there again"
        return None if self._forced else other_sources(owner, self._owner.offer())

    def require_enough_services(self) -> None:
        """Raise TakeoverRefusedError if this instance would serve much less than its predecessor. Call this when all
        sources are complete."""
        owner = self.predecessor
        if owner is None or owner.gone or self._forced:
            return
        if (reason := fewer_services(owner.offer, self._owner.offer())) is not None:
            raise TakeoverRefusedError(str(owner), reason)

    async def recall(self) -> list[RestoreBindings]:
        """Return the session affinity bindings that the predecessor and orphaned workers send in time."""
        if self._others():
            # Without a predecessor, the other processes are orphaned workers. They keep serving while we wait for them
            # to connect.
            await asyncio.sleep(self._listens_since + GATHER_S - asyncio.get_running_loop().time())
        orphans = self.server.orphans.recall()
        if self.predecessor is None:
            return merged(chain.from_iterable(await orphans))
        ours, theirs = await asyncio.gather(self.predecessor.recall(), orphans)
        return merged(chain.from_iterable([ours, *theirs]))

    def in_force(self) -> None:
        """Retire orphaned workers, and displace an owner that did not answer, because our rules are in force."""
        silent = self._search.passed_over.copy()
        if self.predecessor is not None and self.predecessor.silent:
            silent.add(self.predecessor.name)
        self._tasks.start(self._displace(silent), name="takeover: displace")
        self.server.orphans.in_force()

    async def close(self) -> None:
        """Close all connections and the socket."""
        await self.server.close()
        await self._tasks.close()

    async def _displace(self, silent: set[str]) -> None:
        """Ask processes that did not answer before to yield, once they answer again. A few are asked at a time, in any
        order."""
        while self._control.open and (silent := silent.intersection(self._control.others())):
            some = random.sample(sorted(silent), min(len(silent), DISPLACED))
            yielded = await asyncio.gather(*map(self._has_yielded, some))
            silent.difference_update(compress(some, yielded))
            await asyncio.sleep(ANSWER_S)

    async def _has_yielded(self, name: str) -> bool:
        """Ask one process to yield, and repair the rules afterwards. Return whether the process answered.

        A process of another protocol version yields by itself when it sees our rules. If it were asked to stop, it
        would remove the rules.
        """
        try:
            owner = await greet(name, self._hello)
        except (BusyError, FullError, UnprovenError, OSError, ValueError):
            return False
        if owner.same_protocol:
            await owner.hold()
            await owner.take(self.server.take)
            log.info("silent kubeproxy has yielded", pid=owner.pid)
        owner.close()
        await self._owner.hold(False)
        return True

    def _crashed(self, task: str, error: BaseException) -> None:
        log.error("background task failed", task=task, exc_info=error)
