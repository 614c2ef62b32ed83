"""Kubernetes Events: what operators should see where they look first, at the object itself.

Core v1 Events as kube-proxy sends them. They are told in the background, a little late and at worst not at all: nothing
ever waits for one, and nothing fails with one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random
from time import time
from typing import Any
from urllib.parse import quote

import msgspec
import structlog

from kubeproxy.kubernetes.client.backoff import Backoff
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError, Forbidden, Overloaded, Unauthorized, Unreachable
from kubeproxy.kubernetes.events.correlator import CAPACITY, CorrelatedEvent, EventCorrelator, EventType, Occurrence
from kubeproxy.kubernetes.objects import SOURCE

log = structlog.get_logger(__name__)

COMPONENT = "kube-proxy"
"""Who reports, for whoever looks for a proxy's events by that name."""
TRIES = 12
"""How often an event is offered to a server that does not take it now (client-go, tools/record)."""
RETRY_S = (1.0, 30.0)
"""Shortest and longest time between two tries."""
REMEMBERED = 1024
"""Sent events that can still be counted up."""
MAX_MESSAGE = 1024
"""The API's limit for notes, in characters."""
_MAX_NAME = 253
_LATER = (Unreachable, Overloaded, Unauthorized, Forbidden)
"""What may pass. A server that just started forbids everything until its RBAC rules are loaded."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """An event that the server has."""

    name: str
    tally: CorrelatedEvent


class EventRecorder:
    """Takes events from anybody at any time; `run` sends them. `clock` gives Unix seconds."""

    def __init__(
        self,
        *,
        client: Client,
        node_name: str,
        component: str = COMPONENT,
        capacity: int = CAPACITY,
        clock: Callable[[], float] = time,
        retry_s: tuple[float, float] = RETRY_S,
        random: Random | None = None,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._component = component
        self._clock = clock
        self._backoff = Backoff(base_s=retry_s[0], cap_s=retry_s[1], random=random or Random())
        self._correlator = EventCorrelator(capacity=capacity)
        self._filled = asyncio.Event()
        self._sent: OrderedDict[Occurrence, _Sent] = OrderedDict()
        self._last_stamp = 0
        self._refused: set[str] = set()
        """Causes of refusal that have been told."""
        self.sent = 0
        """Events that the server has taken."""
        self.dropped = 0
        """Events that were one too many, or that the server would not take."""

    def record(
        self,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        api_version: str = "v1",
        type: EventType,
        reason: str,
        message: str,
    ) -> None:
        """Something happened to an object. Returns at once, and never fails.

        A Node's uid is its name, as ``kubectl describe node`` looks for it. Too many events are dropped: beyond 25 for
        one object only one in five minutes.
        """
        happened = Occurrence(
            kind=kind,
            namespace=namespace,
            name=name,
            uid=uid or (name if kind == "Node" else ""),
            type=type,
            reason=reason,
            message=message[:MAX_MESSAGE],
            api_version=api_version,
        )
        if self._correlator.put(happened, self._clock()):
            self._filled.set()
        else:
            self.dropped += 1
            log.debug("an event is one too many", source=SOURCE, kind=kind, name=name, reason=reason)

    async def run(self) -> None:
        """Send what was recorded and is recorded, until cancelled."""
        while True:
            while (next_one := self._correlator.take()) is not None:
                await self._deliver(*next_one)
            self._filled.clear()
            await self._filled.wait()

    async def _deliver(self, happened: Occurrence, tally: CorrelatedEvent) -> None:
        for _ in range(TRIES):
            try:
                await self._send(happened, tally)
            except ApiError as error:
                refused = error
            else:
                self.sent += 1
                self._backoff.reset()
                self._refused.clear()
                return
            known = isinstance(refused, Forbidden) and refused.cause in self._refused
            if known or not isinstance(refused, _LATER):
                break
            await asyncio.sleep(max(self._backoff.next(), refused.retry_after_s or 0.0))
        self.dropped += 1
        if refused.cause not in self._refused:
            self._refused.add(refused.cause)
            log.warning(
                "events are not taken by the API server; of this reason no more is said",
                source=SOURCE,
                event_reason=happened.reason,
                seen=str(refused),
                **({"hint": "bind system:node-proxier, which may create events"} if refused.status == 403 else {}),
            )

    async def _send(self, happened: Occurrence, tally: CorrelatedEvent) -> None:
        """Count up the event that the server has, or create one where it has none (any more)."""
        path = f"/api/v1/namespaces/{quote(happened.namespace or 'default')}/events"
        if (sent := self._sent.get(happened)) is not None:
            counted = sent.tally.again(tally)
            patch: dict[str, Any] = {"count": counted.count, "lastTimestamp": _rfc3339(counted.last)}
            if counted.message:
                patch["message"] = counted.message[:MAX_MESSAGE]
            try:
                await self._client.send_json(
                    "PATCH",
                    f"{path}/{quote(sent.name)}",
                    msgspec.json.encode(patch),
                    content_type="application/merge-patch+json",
                )
            except ApiError as error:
                if error.status != 404:
                    raise
                del self._sent[happened]
            else:
                self._remember(happened, _Sent(sent.name, counted))
                return
        event = self._event(happened, tally)
        try:
            await self._client.send_json("POST", path, msgspec.json.encode(event))
        except Unreachable:
            # It may have arrived: the next try counts up what is there, or creates it.
            self._remember(happened, _Sent(event["metadata"]["name"], replace(tally, count=0)))
            raise
        self._remember(happened, _Sent(event["metadata"]["name"], tally))

    def _remember(self, happened: Occurrence, sent: _Sent) -> None:
        self._sent[happened] = sent
        self._sent.move_to_end(happened)
        if len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)

    def _event(self, happened: Occurrence, tally: CorrelatedEvent) -> dict[str, Any]:
        """A v1 Event. Those of objects without a namespace are kept in ``default``."""
        involved = {"kind": happened.kind, "namespace": happened.namespace, "name": happened.name, "uid": happened.uid}
        return {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"name": self._name(happened), "namespace": happened.namespace or "default"},
            "involvedObject": {key: value for key, value in involved.items() if value}
            | {"apiVersion": happened.api_version},
            "reason": happened.reason,
            "message": tally.message[:MAX_MESSAGE] or happened.message,
            "type": happened.type,
            "source": {"component": self._component, "host": self._node_name},
            "firstTimestamp": _rfc3339(tally.first),
            "lastTimestamp": _rfc3339(tally.last),
            "count": tally.count,
            "reportingComponent": self._component,
            "reportingInstance": self._node_name,
        }

    def _name(self, happened: Occurrence) -> str:
        """The object's name and a time that no other event of ours has."""
        self._last_stamp = max(self._last_stamp + 1, round(self._clock() * 1e9))
        stamp = f"{self._last_stamp:x}"
        return f"{happened.name[: _MAX_NAME - 1 - len(stamp)].rstrip('.-')}.{stamp}"


def _rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
