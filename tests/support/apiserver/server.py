"""The test API server: HTTP on top of a `Cluster`."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from aiohttp import web

from tests.support.apiserver.answers import PlainRefusal, Refusal, json_answer, not_found
from tests.support.apiserver.cluster import Cluster, ContinueToken, Kind
from tests.support.apiserver.control import add_control
from tests.support.apiserver.creation import create, find, place_of
from tests.support.apiserver.discovery import discovery
from tests.support.apiserver.events import forbidden, verb_of, write
from tests.support.apiserver.faults import Break, Fault, answer_half, misbehave
from tests.support.apiserver.selector import BadSelector, Selector, everything, field_selector, label_selector
from tests.support.apiserver.version import V1_36, Version
from tests.support.apiserver.watches import Watch


class Request(NamedTuple):
    """A received request, for tests."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


class ApiServer:
    """The test API server: an async context manager, or `start` and `stop` it.

    A stopped server's port refuses connections; a later `start` listens on the same port.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        *,
        version: Version = V1_36,
        tokens: set[str] | None = None,
        tls: ssl.SSLContext | None = None,
        bookmark_s: float = 60.0,
        future_wait_s: float = 3.0,
    ) -> None:
        """`tokens`: the valid bearer tokens; None: no authentication."""
        self.cluster = cluster or Cluster()
        self.version = version
        self.tokens = tokens
        self.forbidden = False
        """Answer 403 to everything, as before the RBAC rules are loaded."""
        self.requests: list[Request] = []
        self.counts: Counter[str] = Counter()
        """Requests by "list RESOURCE", "watch RESOURCE", "probe RESOURCE" (a list of one), "create events", "patch
        events", "create" (those that were carried out), and others by path."""
        self.at_once = self.most_at_once = 0
        """POSTs that are being answered now, and the most of them at any time."""
        self.before_post: Callable[[web.Request], Awaitable[None]] | None = None
        """Is called before the answer to each POST, even before its rights are looked at."""
        self.watches: list[Watch] = []
        self.keep_requests = True
        self.host = "127.0.0.1"
        self.port = 0
        self._tls = tls
        self._bookmark_s = bookmark_s
        self._future_wait_s = future_wait_s
        self._faults: list[Fault] = []
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"

    async def start(
        self, host: str | None = None, port: int | None = None, *, sock: socket.socket | None = None
    ) -> None:
        """Listen, by default on 127.0.0.1 and on the previous port, or use a listening socket."""
        self.host = host or self.host
        app = web.Application(client_max_size=1 << 30)
        add_control(app, self)
        for method in ("GET", "POST", "PATCH"):
            app.router.add_route(method, "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        if sock is not None:
            await web.SockSite(self._runner, sock, ssl_context=self._tls).start()
            self.host, self.port = sock.getsockname()[:2]
            return
        port = self.port if port is None else port
        await web.TCPSite(self._runner, self.host, port, ssl_context=self._tls).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Cut all connections and refuse new ones, like a killed server."""
        for watch in list(self.watches):
            watch.disturb(Break.CUT)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def inject(self, fault: Fault) -> None:
        """Apply a fault to the next matching requests. Earlier faults apply first."""
        self._faults.append(fault)

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def break_watches(self, how: Break, resource: str = "") -> int:
        """Break the open watches (of one resource); returns their number."""
        concerned = [watch for watch in self.watches if resource in ("", watch.resource)]
        for watch in concerned:
            watch.disturb(how)
        return len(concerned)

    # Requests

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        watch = query.get("watch") in ("true", "1")
        kind = next((kind for kind in self.cluster.kinds if kind.path == request.path), None)
        writing = verb_of(request.method, request.path)
        asks = "watch" if watch else "probe" if query.get("limit") == "1" else "list"
        reading = f"{asks} {kind.resource}" if kind else request.path
        self.counts[f"{writing} events" if writing else reading] += 1
        if self.keep_requests:
            self.requests.append(Request(request.method, request.path, query, dict(request.headers)))
        if request.method != "POST":
            return await self._respond(request, kind, watch, query)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.before_post is not None:
                await self.before_post(request)
            return await self._respond(request, kind, watch, query)
        finally:
            self.at_once -= 1

    async def _respond(
        self, request: web.Request, kind: Kind | None, watch: bool, query: Mapping[str, str]
    ) -> web.StreamResponse:
        """Answer, or do what the next fault says."""
        fault = self._next_fault(request, watch)
        if fault is not None and fault.kind == "slow":
            await asyncio.sleep(fault.delay_s)
        elif fault is not None and fault.kind != "cut":
            if fault.carried_out:
                await self._answer(request, kind, watch, query)
            return await misbehave(request, fault, turn=self.counts.total())
        try:
            response = await self._answer(request, kind, watch, query)
        except Refusal as refusal:
            response = json_answer(request, self.version, refusal.body, code=refusal.code, headers=refusal.headers)
        except PlainRefusal as refusal:
            response = web.Response(
                status=refusal.code,
                text=refusal.text,
                headers={"Cache-Control": "no-cache, private", "X-Content-Type-Options": "nosniff", **refusal.headers},
            )
        if fault is not None and fault.kind == "cut" and isinstance(response, web.Response):
            return await answer_half(request, response)
        return response

    async def _answer(
        self, request: web.Request, kind: Kind | None, watch: bool, query: Mapping[str, str]
    ) -> web.StreamResponse:
        """The true answer. `Refusal` and `PlainRefusal` are answers, too."""
        self._admit(request, kind, watch)
        if verb_of(request.method, request.path):
            code, text = write(self.cluster, request.method, request.path, request.content_type, await request.read())
            return json_answer(request, self.version, text, code=code)
        if request.method == "POST":
            text, warnings = create(self.cluster, self.version, request.path, query, await request.read())
            self.counts["create"] += 1
            response = json_answer(request, self.version, text, code=201)
            for warning in warnings:
                response.headers.add("Warning", f"299 - {json.dumps(warning)}")
            return response
        if request.method != "GET":
            raise Refusal(405, "the server does not allow this method on the requested resource", details={})
        if kind is not None:
            return await (self._watch if watch else self._list)(request, kind, query)
        place = place_of(self.cluster, request.path)
        if place is not None and place.name:
            return json_answer(request, self.version, find(self.cluster, place))
        return discovery(request, self.cluster, self.version)

    def _next_fault(self, request: web.Request, watch: bool) -> Fault | None:
        for index, fault in enumerate(self._faults):
            if fault.hits(request.method, request.path, request.query_string, watch):
                if fault.times > 0:
                    self._faults[index] = msgspec.structs.replace(fault, times=fault.times - 1)
                return fault
        return None

    def _admit(self, request: web.Request, kind: Kind | None, watch: bool) -> None:
        user = "system:kube-proxy"
        if self.tokens is not None:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if not token:
                user = "system:anonymous"
            elif scheme != "Bearer" or token not in self.tokens:
                raise Refusal(401, "Unauthorized")
        if self.forbidden or user == "system:anonymous":
            if verb_of(request.method, request.path):
                raise forbidden(user, request.method, request.path)
            if kind is None:
                raise Refusal(403, f'forbidden: User "{user}" cannot get path "{request.path}"', details={})
            group = kind.group
            name = f"{kind.resource}.{group}" if group else kind.resource
            raise Refusal(
                403,
                f'{name} is forbidden: User "{user}" cannot {"watch" if watch else "list"} resource "{kind.resource}" '
                f'in API group "{group}" at the cluster scope',
                details={"group": group, "kind": kind.resource} if group else {"kind": kind.resource},
            )

    # Lists

    async def _list(self, request: web.Request, kind: Kind, query: Mapping[str, str]) -> web.Response:
        self._check_served(kind)
        selected = self._selector(kind, query)
        version, after, limit = await self._where(kind, query)
        state = sorted(self.cluster.at(kind.resource, version).items())
        found = [(key, stored) for key, stored in state if key > after and selected(stored.object)]
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if limit and len(found) > limit:
            metadata["continue"] = str(ContinueToken(version, found[limit - 1][0]))
            if selected is everything:
                metadata["remainingItemCount"] = len(found) - limit
            found = found[:limit]
        text = b'{"kind":"%sList","apiVersion":"%s","metadata":%s,"items":[%s]}\n' % (
            kind.kind.encode(),
            kind.group_version.encode(),
            msgspec.json.encode(metadata),
            b",".join(stored.json for _, stored in found),
        )
        return json_answer(request, self.version, text, headers=self._warning(kind))

    async def _where(self, kind: Kind, query: Mapping[str, str]) -> tuple[int, str, int]:
        """A list's version, the key after which it continues, and its limit (0: none)."""
        limit = _number(query.get("limit", "0"), "limit")
        if text := query.get("continue"):
            if query.get("resourceVersion", "") not in ("", "0"):
                raise Refusal(400, "specifying resource version is not allowed when using continue")
            try:
                token = ContinueToken.parse(text)
            except (ValueError, KeyError, TypeError) as error:
                raise Refusal(400, f"invalid continue token: continue key is not valid: {error}") from error
            if token.version < 0:
                return self.cluster.version, token.after, limit
            if token.version < self._oldest_list():
                raise Refusal(
                    410,
                    "The provided continue parameter is too old to display a consistent list result. You can start a "
                    "new list without the continue parameter, or use the continue token in this response to retrieve "
                    "the remainder of the results. Continuing with the provided token results in an inconsistent list "
                    "- objects that were created, modified, or deleted between the time the first chunk was returned "
                    "and now may show up in the list.",
                    metadata={"continue": str(ContinueToken(-1, token.after))},
                )
            return token.version, token.after, limit
        asked, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
        if not asked:
            return self.cluster.version, "", limit
        version = self._version_number(asked)
        if version == 0:
            return max(self.cluster.last_change(kind.resource), self.cluster.cached_from), "", 0
        if version > self.cluster.version:
            await asyncio.sleep(self._future_wait_s)
            raise Refusal(
                504,
                f"Timeout: Too large resource version: {version}, current: {self.cluster.version}",
                details={
                    "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                    "retryAfterSeconds": 1,
                },
            )
        if match == "Exact" or (limit and not match):
            if version < self.cluster.compacted:
                raise Refusal(410, "The resourceVersion for the provided list is too old.")
            return version, "", limit
        return self.cluster.version, "", limit

    def _oldest_list(self) -> int:
        compacted, restarted = self.cluster.compacted, self.cluster.cached_from
        return compacted if self.version.compaction_expires_tokens else min(compacted, restarted)

    # Watches

    async def _watch(self, request: web.Request, kind: Kind, query: Mapping[str, str]) -> web.StreamResponse:
        self._check_served(kind)
        after = query.get("resourceVersion", "")
        if after and not after.isdigit():
            raise Refusal(
                500,
                f'resourceVersion: Invalid value: "{after}": strconv.ParseUint: parsing "{after}": invalid syntax',
                reason="",
            )
        watch = Watch(
            cluster=self.cluster,
            version=self.version,
            resource=kind.resource,
            after=after,
            selected=self._selector(kind, query),
            bookmarks=query.get("allowWatchBookmarks") == "true",
            timeout_s=float(_number(query.get("timeoutSeconds", "1800"), "timeoutSeconds")),
            bookmark_s=self._bookmark_s,
        )
        response = web.StreamResponse(
            headers={
                **json_answer(request, self.version, b"", headers=self._warning(kind)).headers,
                "Content-Type": "application/json",
            }
        )
        response.headers.popall("Content-Length", None)
        response.enable_chunked_encoding()
        self.watches.append(watch)
        try:
            return await watch.serve(request, response)
        finally:
            self.watches.remove(watch)

    # Parts of both

    def _check_served(self, kind: Kind) -> None:
        if "/" in kind.group_version and not self.version.serves(kind.group_version):
            raise not_found()

    def _warning(self, kind: Kind) -> dict[str, str]:
        warning = self.version.endpoints_warning if kind.resource == "endpoints" else ""
        return {"Warning": warning} if warning else {}

    def _selector(self, kind: Kind, query: Mapping[str, str]) -> Selector:
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        if not labels and not fields:
            return everything
        known = frozenset({"metadata.name", "metadata.namespace"})
        if kind.resource == "services":
            known |= self.version.service_fields
        try:
            by_label, by_field = label_selector(labels), field_selector(fields, known)
        except BadSelector as error:
            raise Refusal(400, str(error)) from error
        return lambda item: by_label(item) and by_field(item)

    def _version_number(self, text: str) -> int:
        if text.isdigit():
            return int(text)
        complaint = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        if self.version.bad_version_status == 500:
            raise Refusal(500, complaint, reason="")
        raise Refusal(self.version.bad_version_status, f"invalid resource version: {complaint}")


def _number(text: str, name: str) -> int:
    if not text.isdigit():
        raise Refusal(400, f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)
