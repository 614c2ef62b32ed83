"""The test API server: HTTP on top of a `Cluster`."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from aiohttp import web

from tests.support.apiserver.answers import PlainRefusal, Refusal, json_answer, not_found, status
from tests.support.apiserver.cluster import KINDS, Cluster, ContinueToken, Kind
from tests.support.apiserver.control import add_control
from tests.support.apiserver.events import forbidden, verb_of, write
from tests.support.apiserver.faults import Break, Fault
from tests.support.apiserver.selector import BadSelector, Selector, everything, field_selector, label_selector
from tests.support.apiserver.version import V1_36, Version
from tests.support.apiserver.watches import Watch, hang_up

_GROUPLESS = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


class Request(NamedTuple):
    """A received request, for tests."""

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
        events", and others by path."""
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
        kind = next((kind for kind in KINDS.values() if kind.path == request.path), None)
        writing = verb_of(request.method, request.path)
        asks = "watch" if watch else "probe" if query.get("limit") == "1" else "list"
        reading = f"{asks} {kind.resource}" if kind else request.path
        self.counts[f"{writing} events" if writing else reading] += 1
        if self.keep_requests:
            self.requests.append(Request(request.path, query, dict(request.headers)))
        cut = False
        if fault := self._next_fault(request, watch):
            if fault.kind == "slow":
                await asyncio.sleep(fault.delay_s)
            elif fault.kind == "cut":
                cut = True
            else:
                return await self._misbehave(request, fault)
        try:
            self._admit(request, kind, watch)
            if writing:
                code, text = write(
                    self.cluster, request.method, request.path, request.content_type, await request.read()
                )
                response: web.StreamResponse = json_answer(request, self.version, text, code=code)
            elif request.method != "GET":
                raise Refusal(405, "the server does not allow this method on the requested resource", details={})
            elif kind is None:
                response = self._discovery(request)
            elif watch:
                return await self._watch(request, kind, query)
            else:
                response = await self._list(request, kind, query)
        except Refusal as refusal:
            response = json_answer(request, self.version, refusal.body, code=refusal.code, headers=refusal.headers)
        except PlainRefusal as refusal:
            response = web.Response(
                status=refusal.code,
                text=refusal.text,
                headers={"Cache-Control": "no-cache, private", "X-Content-Type-Options": "nosniff", **refusal.headers},
            )
        if cut and isinstance(response, web.Response) and isinstance(response.body, bytes):
            half = web.StreamResponse(status=response.status, headers={"Content-Type": response.content_type})
            half.content_length = len(response.body)
            await half.prepare(request)
            await half.write(response.body[: len(response.body) // 2])
            hang_up(request)
            return half
        return response

    def _next_fault(self, request: web.Request, watch: bool) -> Fault | None:
        for index, fault in enumerate(self._faults):
            if fault.hits(request.path, request.query_string, watch):
                if fault.times > 0:
                    self._faults[index] = msgspec.structs.replace(fault, times=fault.times - 1)
                return fault
        return None

    async def _misbehave(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        match fault.kind:
            case "drop" | "reset":
                hang_up(request, reset=fault.kind == "reset")
            case "hang":
                await asyncio.Event().wait()
            case "pages":
                token = f"{len(request.query.get('continue', ''))}-{self.counts.total()}"
                items = [{"metadata": {"name": f"s-{token}-{number}", "namespace": "demo"}} for number in range(500)]
                page = {"kind": "ServiceList", "metadata": {"resourceVersion": "1", "continue": token}, "items": items}
                return web.json_response(page)
            case "endless":
                response = web.StreamResponse(headers={"Content-Type": "application/json"})
                await response.prepare(request)
                await response.write(
                    b'{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{}'
                )
                while True:
                    await response.write(b',{"metadata":{}}' * 4096)
        headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
        text = fault.body.encode() or msgspec.json.encode(status(fault.status, "injected")) + b"\n"
        return web.Response(status=fault.status, body=text, headers={**headers, "Content-Type": fault.content_type})

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
            group = kind.group_version.rpartition("/")[0]
            name = f"{kind.resource}.{group}" if group else kind.resource
            raise Refusal(
                403,
                f'{name} is forbidden: User "{user}" cannot {"watch" if watch else "list"} resource "{kind.resource}" '
                f'in API group "{group}" at the cluster scope',
                details={"group": group, "kind": kind.resource} if group else {"kind": kind.resource},
            )

    def _discovery(self, request: web.Request) -> web.Response:
        match request.path.strip("/").split("/"):
            case ["api"]:
                return json_answer(request, self.version, _GROUPLESS)
            case ["apis"]:
                groups = [_group(name, versions) for name, versions in self.version.groups]
                return json_answer(
                    request, self.version, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
                )
            case ["apis", group] if any(name == group for name, _ in self.version.groups):
                versions = dict(self.version.groups)[group]
                return json_answer(
                    request, self.version, {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)}
                )
            case ["apis", group, version] if self.version.serves(f"{group}/{version}"):
                name = f"{group}/{version}"
                resources = [_resource(kind) for kind in KINDS.values() if kind.group_version == name]
                return json_answer(
                    request,
                    self.version,
                    {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources},
                )
            case ["readyz" | "livez" | "healthz"]:
                return web.Response(text="ok")
            case ["api", "v1", *_]:
                raise not_found()
            case ["apis", group, *_] if any(name == group for name, _ in self.version.groups):
                raise not_found()
            case _:
                raise PlainRefusal(404, "404 page not found\n")

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


def _group(name: str, versions: tuple[str, ...]) -> dict[str, Any]:
    served = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": served, "preferredVersion": served[0]}


def _resource(kind: Kind) -> dict[str, Any]:
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    return {
        "name": kind.resource,
        "singularName": kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": verbs,
    }
