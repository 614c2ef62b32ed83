"""Hot restart: which instance owns the node, and how a new instance takes over without a lost connection.

Each control process listens on an abstract Unix socket with a name of its own (`control_socket`). Such names belong to
a network namespace, as the rules do: two pods of a DaemonSet with hostNetwork meet there without a shared directory,
and a name ends with its process.

A new instance lists the names and says hello to all of them. The owner, the process that the rules lead to or will lead
to, answers. A process that takes over or is taken over from is busy. Of several new instances that find no owner, the
oldest becomes the owner. The new instance prepares everything beside the owner: its own listeners, on proxy ports of
its own. Then, around the one transaction that turns the rules to itself, it sends `Hold` (the owner leaves the rules
alone) and `Take` (the owner stops accepting, releases the HTTP ports and its name, and drains). If the new instance
dies before, the connection ends and the owner goes on. `rule_transfer` makes these steps, `server` is the owner's side,
and `protocol` has the messages.

Two instances of different protocol versions cannot do that. The new instance asks the owner to stop and waits until the
owner's name is gone. The owner's workers serve on as after a crash, and move their connections if the two versions have
a version of `takeover_messages.MOVES` in common.

Two instances that cannot communicate at all find out by the rules: the older one yields when the kernel's redirects
lead to other ports and a younger control process lives (`TakeoverServer.rival_lives`, `yield_to_rival`).

Workers of a dead control process connect to the owner, too. They keep serving until the owner retires them, when its
rules are in force.
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
"""How long orphaned workers may take to find our name. They look four times in that time."""


DISPLACED: Final = 32
"""How many silent processes are asked to yield at a time. Most of them may not be a kubeproxy."""


class Takeover:
    """The new instance's side. `server` is the side of the owner that it becomes."""

    def __init__(
        self,
        owner: Owner,
        *,
        version: str,
        others: Callable[[], bool] = lambda: False,
        forced: bool = False,
        prefix: str = PREFIX,
    ) -> None:
        """`others` returns whether a process of another run lives. With `forced` this process takes over from any owner
        of the node, whatever that owner serves."""
        self._owner = owner
        self._others = others
        self._control = ControlSocket(prefix)
        self._forced = forced
        self._hello = hello(version)
        self._search = Search(self._control, self._hello, self._obstacle)
        self._tasks = TaskSet(self._crashed)
        self.server = TakeoverServer(self._control, owner, version=version)
        self._listens_since = -math.inf
        self.predecessor: Predecessor | None = None
        """The owner that this instance follows, or None if there is none."""

    async def begin(self, *, given_up: Callable[[], bool] = lambda: False) -> Predecessor | None:
        """Bind our name, and find the owner of the node.

        Return None if there is none, if none answers, or if `given_up` is set. Raise TakeoverRefusedError if the owner
        serves from other sources.
        """
        self.server.listen()
        self._listens_since = asyncio.get_running_loop().time()
        self.predecessor = await self._search.find(given_up)
        self.server.found(self.predecessor)  # Nothing was awaited since the search ended.
        return self.predecessor

    def _obstacle(self, owner: Offer) -> str | None:
        return None if self._forced else other_sources(owner, self._owner.offer())

    def require_enough_services(self) -> None:
        """Raise TakeoverRefusedError if we would serve much less than our predecessor. Call it when all sources are
        known."""
        owner = self.predecessor
        if owner is None or owner.gone or self._forced:
            return
        if (reason := fewer_services(owner.offer, self._owner.offer())) is not None:
            raise TakeoverRefusedError(str(owner), reason)

    async def recall(self) -> list[RestoreBindings]:
        """Return the session affinity bindings of the predecessor and of orphaned workers, as far as they answer in
        time."""
        if self._others():
            # Without a predecessor the other processes are orphaned workers, which serve while we wait for their
            # connections.
            await asyncio.sleep(self._listens_since + GATHER_S - asyncio.get_running_loop().time())
        orphans = self.server.recall_orphans()
        if self.predecessor is None:
            return merged(chain.from_iterable(await orphans))
        ours, theirs = await asyncio.gather(self.predecessor.recall(), orphans)
        return merged(chain.from_iterable([ours, *theirs]))

    def in_force(self) -> None:
        """Retire orphaned workers, and displace an owner that did not answer, because our rules lead clients to us."""
        silent = self._search.passed_over.copy()
        if self.predecessor is not None and self.predecessor.silent:
            silent.add(self.predecessor.name)
        self._tasks.start(self._displace(silent), name="takeover: displace")
        self.server.in_force()

    async def close(self) -> None:
        """End everything."""
        await self.server.close()
        await self._tasks.close()

    async def _displace(self, silent: set[str]) -> None:
        """Have processes that were passed over yield when they answer again, a few at a time and in any order."""
        while self._control.open and (silent := silent.intersection(self._control.others())):
            some = random.sample(sorted(silent), min(len(silent), DISPLACED))
            yielded = await asyncio.gather(*map(self._has_yielded, some))
            silent.difference_update(compress(some, yielded))
            await asyncio.sleep(ANSWER_S)

    async def _has_yielded(self, name: str) -> bool:
        """Have one process yield, and repair the rules afterwards. Return whether the process answered.

        A process of another protocol version yields by itself when it sees our rules. If it were asked to stop, it
        would take the rules away once more.
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
