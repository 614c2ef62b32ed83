"""Records Kubernetes Events about objects, which ``kubectl describe`` shows.

They are core v1 Events, like kube-proxy's. A background task sends them. They may arrive late or be dropped, and no
other code waits for them or fails because of them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from http import HTTPStatus
from random import Random
from time import time
from typing import Any
from urllib.parse import quote

import msgspec
import structlog

from kubeproxy.kubernetes.api_types import SOURCE
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import (
    ApiError,
    ForbiddenError,
    OverloadedError,
    UnauthorizedError,
    UnreachableError,
)
from kubeproxy.kubernetes.events.correlator import CAPACITY, CorrelatedEvent, EventCorrelator, EventType, Occurrence
from kubeproxy.runtime.backoff import DecorrelatedJitter

log = structlog.get_logger(__name__)

COMPONENT = "kube-proxy"
"""The default reporting component. It is kube-proxy's name, because operators search for it."""
TRIES = 12
"""The number of attempts to send an event (client-go, tools/record)."""
RETRY_S = (1.0, 30.0)
"""The shortest and the longest time between two attempts, in seconds."""
REMEMBERED = 1024
"""The number of sent events that are remembered, so that their counts can be increased."""
MAX_MESSAGE = 1024
"""The API's limit for a message, in characters."""
_MAX_NAME = 253
_MAX_WAIT_S = 60.0
"""The longest pause in seconds that a server, or a proxy in front of it, can cause by Retry-After."""
_LATER = (UnreachableError, OverloadedError, UnauthorizedError, ForbiddenError)
"""Errors after which a later attempt may succeed. A server that has just started forbids everything until its RBAC
rules are loaded."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """An event that the server has."""

    name: str
    counted: CorrelatedEvent


class EventRecorder:
    """Queues events, which `run` sends. `clock` returns Unix seconds."""

    def __init__(
        self,
        *,
        client: Client,
        node_name: str,
        component: str = COMPONENT,
        capacity: int = CAPACITY,
        rights: str = "",
        clock: Callable[[], float] = time,
        retry_s: tuple[float, float] = RETRY_S,
        random: Random | None = None,
    ) -> None:
        """`rights` names, for the log, the manifest that grants the right to create Events."""
        self._client = client
        self._rights = rights
        self._node_name = node_name
        self._component = component
        self._clock = clock
        self._backoff = DecorrelatedJitter(base_s=retry_s[0], cap_s=retry_s[1], random=random or Random())
        self._correlator = EventCorrelator(capacity=capacity)
        self._filled = asyncio.Event()
        self._sent: OrderedDict[Occurrence, _Sent] = OrderedDict()
        self._last_stamp = 0
        self._refused: set[str] = set()
        """The causes of errors that have been logged."""
        self.sent = 0
        """The number of events that the server has accepted."""
        self.dropped = 0
        """The number of events that were dropped because of a limit, or that the server has refused."""

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
        shared: bool = False,
    ) -> None:
        """Queue an event about an object. This returns at once, and never fails.

        `shared` means that other nodes may record the same event; the cluster then has only the first node's. For a
        Node, `uid` has to be the node's name, because ``kubectl describe node`` searches by it. After 25 events of one
        object, only one in five minutes is sent.
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
            shared=shared,
        )
        if self._correlator.put(happened, self._clock()):
            self._filled.set()
        else:
            self.dropped += 1
            log.debug("event dropped by limit", source=SOURCE, kind=kind, name=name, reason=reason)

    async def run(self) -> None:
        """Send queued and future events until cancelled."""
        while True:
            while (next_one := self._correlator.take()) is not None:
                await self._deliver(*next_one)
            self._filled.clear()
            await self._filled.wait()

    async def _deliver(self, happened: Occurrence, counted: CorrelatedEvent) -> None:
        for _ in range(TRIES):
            try:
                await self._send(happened, counted)
            except ApiError as error:
                refused = error
            else:
                self.sent += 1
                self._backoff.reset()
                self._refused.clear()
                return
            known = isinstance(refused, ForbiddenError) and refused.cause in self._refused
            if known or not isinstance(refused, _LATER):
                break
            await asyncio.sleep(max(self._backoff.next(), min(refused.retry_after_s or 0.0, _MAX_WAIT_S)))
        self.dropped += 1
        if refused.cause not in self._refused:
            self._refused.add(refused.cause)
            log.warning(
                "API server refuses events",
                source=SOURCE,
                event_reason=happened.reason,
                seen=str(refused),
                **({"hint": self._rights} if refused.status == 403 and self._rights else {}),
            )

    async def _send(self, happened: Occurrence, counted: CorrelatedEvent) -> None:
        """Increase the count of the event on the server, or create the event."""
        path = f"/api/v1/namespaces/{quote(happened.namespace or 'default')}/events"
        if (sent := self._sent.get(happened)) is not None:
            total = sent.counted.again(counted)
            patch: dict[str, Any] = {"count": total.count, "lastTimestamp": _rfc3339(total.last)}
            if total.message:
                patch["message"] = total.message[:MAX_MESSAGE]
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
                self._remember(happened, _Sent(sent.name, total))
                return
        event = self._event(happened, counted)
        try:
            await self._client.send_json("POST", path, msgspec.json.encode(event))
        except UnreachableError:
            # The server may have created the event. The next attempt then increases its count, and otherwise creates
            # it.
            self._remember(happened, _Sent(event["metadata"]["name"], replace(counted, count=0)))
            raise
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT or not happened.shared:
                raise  # A shared event that already exists was created by another node.
        self._remember(happened, _Sent(event["metadata"]["name"], counted))

    def _remember(self, happened: Occurrence, sent: _Sent) -> None:
        self._sent[happened] = sent
        self._sent.move_to_end(happened)
        if len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)

    def _event(self, happened: Occurrence, counted: CorrelatedEvent) -> dict[str, Any]:
        """Return the JSON of a v1 Event. Events of cluster-scoped objects are in the namespace ``default``."""
        involved = {"kind": happened.kind, "namespace": happened.namespace, "name": happened.name, "uid": happened.uid}
        return {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"name": self._name(happened), "namespace": happened.namespace or "default"},
            "involvedObject": {key: value for key, value in involved.items() if value}
            | {"apiVersion": happened.api_version},
            "reason": happened.reason,
            "message": counted.message[:MAX_MESSAGE] or happened.message,
            "type": happened.type,
            "source": {"component": self._component, "host": self._node_name},
            "firstTimestamp": _rfc3339(counted.first),
            "lastTimestamp": _rfc3339(counted.last),
            "count": counted.count,
            "reportingComponent": self._component,
            "reportingInstance": self._node_name,
        }

    def _name(self, happened: Occurrence) -> str:
        """Return a name for the event: the object's name, and a time that no other event of this process has.

        The name of a shared event has a digest of the event instead of the time, so that it is the same on all nodes.
        """
        if happened.shared:
            words = f"{happened.kind} {happened.uid} {happened.reason} {happened.message}"
            stamp = sha256(words.encode()).hexdigest()[:16]
        else:
            self._last_stamp = max(self._last_stamp + 1, round(self._clock() * 1e9))
            stamp = f"{self._last_stamp:x}"
        return f"{happened.name[: _MAX_NAME - 1 - len(stamp)].rstrip('.-')}.{stamp}"


def _rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
