"""Creates one object on the server exactly once, even if the connection breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import GarbageError, StatusError, UnreachableError
from kubeproxy.kubernetes.resource_builder.manifest_object import Data, ResourceObject
from kubeproxy.model.errors import ClusterError

COMES_BACK_S: Final = 15.0
"""How long the command waits for a server that has answered before but does not answer now."""
_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 2.0
_CLOCK_S: Final = 2.0
"""The largest difference between creationTimestamp, which is in whole seconds, and the time from the Date header."""


class ServerLostError(ClusterError):
    """Raised if the server no longer answers, so that no further object can be created."""


class MaybeCreatedError(ServerLostError):
    """Raised if the connection ended after an object was sent, and the command cannot find out whether the object was
    created."""


class AlreadyExistsError(Exception):
    """Raised if the object already existed. This command did not create it."""

    def __init__(self, error: StatusError) -> None:
        super().__init__(str(error))
        self.error = error


class Sender:
    """Creates objects on one server."""

    def __init__(
        self,
        client: Client,
        query: Mapping[str, str],
        *,
        dry_run: bool,
        on_wait: Callable[[float, str], None],
        comes_back_s: float = COMES_BACK_S,
    ) -> None:
        """`query` is sent with every request. With `dry_run`, the server only checks the objects and stores none."""
        self._client = client
        self._query = query
        self._dry_run = dry_run
        self._on_wait = on_wait
        self._comes_back_s = comes_back_s

    async def create(self, found: ResourceObject) -> Data:
        """Create an object, and return it as the server has stored it.

        Raise StatusError, `AlreadyExistsError`, `ServerLostError`, UnreachableError or GarbageError.
        """
        path = found.resource.path(found.namespace)
        body = found.encoded()
        began = time.time()
        deadline = time.monotonic() + self._comes_back_s
        sent_before = False
        pause_s = _PAUSE_S
        while True:
            try:
                answer = await self._client.request("POST", path, self._query, body=body)
                return _created(answer.decoded(), found)
            except StatusError as error:
                if error.reason != "AlreadyExists":
                    raise
                if sent_before or error.repeated:
                    standing = await self._standing(found, deadline)
                    if standing is not None and self._is_ours(standing, began):
                        return standing
                raise AlreadyExistsError(error) from None
            except UnreachableError as error:
                if not self._client.has_answered and not error.was_sent and not sent_before:
                    raise  # Do not wait for a server that has never answered.
                last = error
            if last.was_sent and not self._dry_run:
                sent_before = True
                standing = await self._standing(found, deadline)
                if standing is not None and self._is_ours(standing, began):
                    return standing
                if not found.name:
                    raise MaybeCreatedError(
                        f"{last}; whether {found.label}{found.generate_name}* was created is not known, and it is not"
                        " sent again"
                    ) from None
            if time.monotonic() + pause_s > deadline:
                raise ServerLostError(f"{last}; waited {self._comes_back_s:.0f} s for the server") from None
            self._on_wait(pause_s, "the server does not answer")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _standing(self, found: ResourceObject, deadline: float) -> Data | None:
        """Return the object as the server has it now, or None if it does not exist. Raise `MaybeCreatedError` if the
        server does not answer."""
        if not found.name:
            return None
        path = found.resource.path(found.namespace, found.name)
        pause_s = _PAUSE_S
        while True:
            try:
                return _created((await self._client.get(path)).decoded(), found)
            except StatusError as error:
                if error.status == 404:
                    return None
                last: Exception = error
            except (UnreachableError, GarbageError) as error:
                last = error
            if time.monotonic() + pause_s > deadline:
                raise MaybeCreatedError(
                    f"{last}; whether {found.label} was created is not known, as the server did not answer within"
                    f" {self._comes_back_s:.0f} s"
                ) from None
            self._on_wait(pause_s, "the server does not answer")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _is_ours(self, standing: Data, began: float) -> bool:
        """Return whether this command has created the object `standing`. Its field manager must be this command's, and
        it must not be older than the first request."""
        metadata = standing.get("metadata") or {}
        try:
            created = datetime.fromisoformat(str(metadata.get("creationTimestamp"))).timestamp()
        except ValueError:
            return False
        skew_s = self._client.clock_skew_s
        managers = {
            str(entry.get("manager")) for entry in metadata.get("managedFields") or () if isinstance(entry, dict)
        }
        by_us = not managers or self._query.get("fieldManager") in managers
        return by_us and created >= began + skew_s - _CLOCK_S


def _created(answer: Any, found: ResourceObject) -> Data:
    if not isinstance(answer, dict) or not isinstance(answer.get("metadata"), dict) or "kind" not in answer:
        raise GarbageError(
            f"the server answered what is no {found.kind}; whether {found.label} was created is not known",
            cause="garbage",
        )
    return answer
