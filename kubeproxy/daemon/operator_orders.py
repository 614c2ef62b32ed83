"""Carries out the orders of an operator on this node: to take an endpoint out of service, to put it back, to wait until
a pod has no connections, or to ask the sources again."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from heapq import nsmallest
from ipaddress import ip_address
from typing import Final

import structlog

from kubeproxy.daemon.pod_drains import End, PodDrains
from kubeproxy.daemon.rescue_control import Rescue
from kubeproxy.daemon.sources import Sources
from kubeproxy.daemon.takeover.protocol import Action, Order
from kubeproxy.model import Address, Target, family_of, parse_address
from kubeproxy.proxier.proxier import Proxier

log = structlog.get_logger(__name__)

LONGEST_S: Final = 24 * 3600.0
"""The longest duration of an order in seconds. An endpoint that was taken out by hand is easily forgotten, so the order
has to be repeated after this time."""
MOST: Final = 256
"""The largest number of endpoints that may be taken out at the same time. For more, the objects of the cluster should
be changed."""
SHOWN: Final = 3
NEAREST: Final = 3
"""How many existing endpoints an error names when an operator has named an unknown one."""


@dataclass(frozen=True, slots=True)
class _Aside:
    until: float
    """When the order ends, by the loop's clock."""
    text: str
    """When the order ends, and who gave it, as text."""


class OperatorOrders:
    """The orders in force. They are kept only in memory, so a takeover or a restart ends them."""

    def __init__(self, proxier: Proxier, rescue: Rescue, sources: Sources, drains: PodDrains) -> None:
        self._proxier = proxier
        self._rescue = rescue
        self._sources = sources
        self._drains = drains
        self._aside: dict[Target, _Aside] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Put endpoints back into service when their time is over, until cancelled."""
        while True:
            now = asyncio.get_running_loop().time()
            for target in [target for target, it in self._aside.items() if it.until <= now]:
                log.info("endpoint back: its time is over", endpoint=str(target))
                del self._aside[target]
                self._apply()
            self._changed.clear()
            soonest = min((it.until for it in self._aside.values()), default=None)
            try:
                async with asyncio.timeout_at(soonest):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def obey(self, order: Order) -> str | None:
        """Carry out an order. Return None, or the reason if it cannot be carried out."""
        log.warning("order of an operator", action=order.action, endpoint=order.endpoint, caller=order.caller)
        if order.action is Action.RETRY:
            await self._sources.retry()
            return None
        if order.action is Action.DRAIN:
            return await self._drain(order)
        try:
            target = _target(order.endpoint)
        except ValueError:
            return f"found endpoint {order.endpoint!r}; allowed: IP:PORT"
        if order.action is Action.EJECT:
            return self._eject(target, order)
        if order.action is Action.PROBED:
            await self._rescue.restore(target)
            return None
        known = self._aside.pop(target, None) is not None
        if known:
            self._apply()
        restored = await self._rescue.restore(target)
        return None if known or restored else f"{target} is not out, neither by hand nor because it failed"

    async def _drain(self, order: Order) -> str | None:
        """Wait until a pod has no connections. Return None, or what is left when the time is over."""
        try:
            address = Address(parse_address(order.endpoint))
        except ValueError:
            return f"found {order.endpoint!r}; allowed: a pod's IP address"
        outcome = await self._drains.wait(address, min(max(order.for_s, 0.0), LONGEST_S), by_hand=True)
        return None if outcome.end is End.IDLE else outcome.text

    def _eject(self, target: Target, order: Order) -> str | None:
        if (reason := why_unknown(target, set(self._proxier.view.known_targets()))) is not None:
            return reason
        if len(self._aside) >= MOST and target not in self._aside:
            return f"{MOST} endpoints are out already"
        for_s = min(max(order.for_s, 1.0), LONGEST_S)
        ends = datetime.fromtimestamp(datetime.now(UTC).timestamp() + for_s, UTC)
        text = f"{target} until {ends:%Y-%m-%dT%H:%M:%SZ} by {order.caller}"
        self._aside[target] = _Aside(asyncio.get_running_loop().time() + for_s, text)
        self._apply()
        return None

    def _apply(self) -> None:
        self._proxier.use(replace(self._proxier.settings, aside=frozenset(self._aside)))
        self._changed.set()

    def complaint(self) -> str | None:
        """Return a text that names the endpoints taken out by hand, or None if there are none."""
        if not self._aside:
            return None
        texts = [it.text for it in self._aside.values()]
        more = f", and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        return f"taken out by hand: {', '.join(texts[:SHOWN])}{more}"


def _target(text: str) -> Target:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(text)
    return Target(Address(parse_address(host.removeprefix("[").removesuffix("]"))), int(port))


def why_unknown(target: Target, known: Set[Target]) -> str | None:
    """Return an error text if no Service has this endpoint, or None if one does. The text names the known endpoints
    with the nearest addresses, because a mistyped address is probably near the right one."""
    if target in known:
        return None

    def distance(it: Target) -> tuple[int, int]:
        return abs(int(ip_address(it.address)) - int(ip_address(target.address))), abs(it.port - target.port)

    family = family_of(target.address)
    near = nsmallest(NEAREST, (it for it in known if family_of(it.address) is family), key=distance)
    if not near:
        return f"no Service has the endpoint {target}, or any other of {family}"
    return (
        f"no Service has the endpoint {target}; did you mean {' or '.join(map(str, near))}?"
        " `kubeproxy status SERVICE` lists the endpoints of a Service"
    )
