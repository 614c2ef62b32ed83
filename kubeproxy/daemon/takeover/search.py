"""The search for the owner of the node among the control processes of this network namespace.

Any process of our user may bind the name of a control socket. So processes that do not prove CAP_NET_ADMIN must not
delay a start much: all are asked at once, they have ANSWER_S seconds in total, and processes that appear later are not
waited for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import chain, islice, zip_longest
from typing import Final

import structlog

from kubeproxy.daemon.takeover.control_socket import ControlSocket, FullError
from kubeproxy.daemon.takeover.predecessor import ANSWER_S, BusyError, Predecessor, UnprovenError, greet
from kubeproxy.daemon.takeover.protocol import Hello
from kubeproxy.daemon.takeover.serves_enough import Offer, TakeoverRefusedError
from kubeproxy.runtime.abstract_sockets import listener

log = structlog.get_logger(__name__)

RETRY_S: Final = 0.1
"""How often busy processes are asked again."""
BUSY_S: Final = 60.0
"""How long the new instance waits for busy processes in total. One of them, or another process, serves during this
time."""
FULL_S: Final = 30.0
"""How long to try, in total, to reach processes with a full queue. (Any user may fill the owner's queue.)"""
AT_ONCE: Final = 1024
"""How many processes are asked at the same time. Each takes two descriptors."""
THREADS: Final = 32
"""For how many processes with a full queue the search waits at the same time. Each takes a thread."""
WARNINGS: Final = 10
"""The largest number of warnings about other processes."""
STOP_MARGIN_S: Final = 30.0
"""How long a process that was asked to stop may take beyond its grace period, for its last clients and the rules."""


class _State(Enum):
    """Why a process is asked again."""

    BUSY = "busy"
    LOOKING = "looking for an owner, too"
    FULL = "accepting no connection"
    ENDED = "ending connections"


_LAST_S: Final = {_State.BUSY: BUSY_S, _State.LOOKING: BUSY_S, _State.FULL: FULL_S, _State.ENDED: ANSWER_S}


class Search:
    """The search for the owner by one new instance."""

    def __init__(
        self, control: ControlSocket, hello: Hello, obstacle: Callable[[Offer], str | None] = lambda owner: None
    ) -> None:
        """`obstacle` returns why this instance must not take over from an owner with this offer, or None if it may."""
        self._control = control
        self._hello = hello
        self._obstacle = obstacle
        self.passed_over: set[str] = set()
        """The names of processes that may own the node, but did not answer or were busy for too long."""
        self._unproven: set[str] = set()
        """The names of processes that have not proved CAP_NET_ADMIN."""
        self._proven: set[str] = set()
        """The names of processes that have proved CAP_NET_ADMIN and are asked again."""
        self._asked_until = 0.0
        """Until when unproven processes are asked, by the loop's clock."""
        self._states: dict[str, tuple[_State, float]] = {}
        """Why each process is asked again, and since when."""
        self._stopping: dict[str, float] = {}
        """The names of processes that are stopping at our request, and until when each may take."""
        self._warnings = 0

    async def find(self, given_up: Callable[[], bool]) -> Predecessor | None:
        """Return the owner, or None if the node is ours (or if `given_up` returns true). Raise TakeoverRefusedError if
        `obstacle` forbids taking over.

        An owner of another protocol version is asked to stop, and the search waits for its end. If the result is None,
        the caller has to answer as the owner, and must not await anything before that.
        """
        logged = False
        self._asked_until = _now() + ANSWER_S
        while not given_up():
            names = self._to_ask()
            answers = await asyncio.gather(*map(self._ask, names), return_exceptions=True)
            found = [answer for answer in answers if isinstance(answer, Predecessor)]
            busy = False
            for name, answer in zip(names, answers, strict=True):
                if isinstance(answer, BaseException):
                    busy |= self._note(name, answer)
            self._require_no_obstacle(found)
            others = [one for one in found if not one.same_protocol]
            await asyncio.gather(*map(self._stop, others))
            found = [one for one in found if one.same_protocol]
            for surplus in found[1:]:
                self.passed_over.add(surplus.name)
                surplus.close()
            if found:
                return found[0]
            # Nothing is awaited from here until we answer as the owner. So an older process that has appeared meanwhile
            # is noticed here, and a later one gets our answer.
            waits = bool(others) or self._waits_for_stopping()
            if not busy and not waits and not any(name < self._control.name for name in self._names()):
                return None
            if busy and not logged:
                log.info("another process takes over; waiting")
                logged = True
            await asyncio.sleep(RETRY_S)
        return None

    def _names(self) -> list[str]:
        """Return the names of processes that may own the node and are still waited for, the newest first."""
        done = self.passed_over | self._unproven | self._stopping.keys()
        names = [name for name in self._control.others() if name not in done]
        early = _now() < self._asked_until
        return [name for name in names if early or name in self._proven or self._is_full(name)]

    def _is_full(self, name: str) -> bool:
        return name in self._states and self._states[name][0] is _State.FULL

    def _to_ask(self) -> list[str]:
        """Return the names to ask in this round. If there are too many they take turns, so that a process with many
        names does not keep others out."""
        names = self._names()
        full = list(filter(self._is_full, names))
        waiting = set(full) - set(random.sample(full, min(len(full), THREADS)))
        names = [name for name in names if name not in waiting]
        if len(names) <= AT_ONCE:
            return names
        by_process: dict[int, list[str]] = {}
        for name in names:
            by_process.setdefault(listener(name), []).append(name)
        turns = chain.from_iterable(zip_longest(*by_process.values()))
        return list(islice(filter(None, turns), AT_ONCE))

    async def _ask(self, name: str) -> Predecessor:
        """Call `predecessor.greet`. Processes that have not proved themselves have until `_asked_until`, all
        together."""
        full = self._is_full(name)
        within_s = ANSWER_S if full or name in self._proven else max(0.0, self._asked_until - _now())
        return await greet(name, self._hello, within_s=within_s, waits_for_room=full)

    def _note(self, name: str, error: BaseException) -> bool:
        """Record a failed greeting. Return whether to try again."""
        match error:
            case BusyError(looking=True):
                self._proven.add(name)
                if name < self._control.name:  # Only an older process is waited for. A younger one waits for us.
                    self._lasts(name, _State.LOOKING)
                return False
            case BusyError():
                self._proven.add(name)
                return self._lasts(name, _State.BUSY)
            case FullError() | MemoryError():  # MemoryError: no thread could be started for the connect.
                return self._lasts(name, _State.FULL)
            case ConnectionError():
                # The process has just ended, perhaps because another instance took over from it. So the answers of the
                # others may be outdated.
                return self._lasts(name, _State.BUSY if name in self._proven else _State.ENDED)
            case UnprovenError():
                self._unproven.add(name)
                if self._may_warn():
                    log.warning("not a kubeproxy: no CAP_NET_ADMIN", name=name)
                return False
            case OSError() | ValueError():
                self._pass_over(name, str(error) or repr(error))
                return False
            case _:
                raise error

    def _lasts(self, name: str, state: _State) -> bool:
        """Return whether to keep asking a process that is in `state`. A process that has been in it for too long is
        skipped."""
        if name not in self._states or self._states[name][0] is not state:
            self._states[name] = state, _now()
        if _now() < self._states[name][1] + _LAST_S[state]:
            return True
        self._pass_over(name, f"{state.value} for {_LAST_S[state]:g} s")
        return False

    def _pass_over(self, name: str, reason: str) -> None:
        self.passed_over.add(name)
        if self._may_warn():
            log.warning(
                "another kubeproxy does not answer",
                name=name,
                reason=reason,
                remedy="end it; it yields by itself when it sees our rules",
            )

    def _may_warn(self) -> bool:
        """Return whether one more process may have a log line. The number of lines is limited, because any process of
        our user can bind names."""
        self._warnings += 1
        if self._warnings == WARNINGS:
            log.warning("many processes have names of kubeproxy", remedy="ss -xlp | grep kubeproxy/control")
        return self._warnings < WARNINGS

    def _require_no_obstacle(self, found: Sequence[Predecessor]) -> None:
        for owner in found:
            if (reason := self._obstacle(owner.offer)) is not None:
                for one in found:
                    one.close()
                raise TakeoverRefusedError(str(owner), reason)

    async def _stop(self, owner: Predecessor) -> None:
        """Ask an owner of another protocol version to stop. If it does not, it is skipped."""
        seen = {"pid": owner.pid, "version": owner.version, "its": owner.protocol, "ours": self._hello.protocol}
        try:
            grace_s = await owner.stop()
        except (OSError, ValueError) as error:
            self.passed_over.add(owner.name)
            log.warning("predecessor: other protocol, cannot stop it", **seen, reason=str(error) or repr(error))
            return
        finally:
            owner.close()
        self._stopping[owner.name] = _now() + grace_s + STOP_MARGIN_S
        log.warning("predecessor: other takeover protocol, stops first", **seen, within_s=grace_s)

    def _waits_for_stopping(self) -> bool:
        """Return whether a process that was asked to stop still exists. If it takes too long it is skipped."""
        now, left = _now(), set(self._control.others())
        for name, until in list(self._stopping.items()):
            if name not in left or now >= until:
                del self._stopping[name]
            if name in left and now >= until:
                self.passed_over.add(name)
                log.warning("predecessor does not stop in time", name=name, remedy="end it")
        return bool(self._stopping)


def _now() -> float:
    return asyncio.get_running_loop().time()
