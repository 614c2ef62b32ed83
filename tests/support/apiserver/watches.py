"""One open watch of the test server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping

from aiohttp import web

from tests.support.apiserver.answers import hang_up, status
from tests.support.apiserver.cluster import KINDS, Cluster, event_json
from tests.support.apiserver.faults import Break
from tests.support.apiserver.selector import Selector
from tests.support.apiserver.version import Version

FLOOD_RATE = 10_000
"""Events a second."""
FLOOD_S = 5
BEFORE_END_S = 2.0
"""Time between the last bookmark and the end by timeoutSeconds."""

_HOLLOW: dict[str, dict[str, object]] = {
    "services": {"spec": {}, "status": {"loadBalancer": {}}},
    "endpointslices": {"addressType": "", "endpoints": None, "ports": None},
    "endpoints": {"subsets": None},
    "events": {"involvedObject": {}, "source": {}, "firstTimestamp": None, "lastTimestamp": None, "eventTime": None},
    "nodes": {
        "spec": {},
        "status": {
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
            "nodeInfo": {
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
                "kernelVersion": "",
                "osImage": "",
                "containerRuntimeVersion": "",
                "kubeletVersion": "",
                "kubeProxyVersion": "",
                "operatingSystem": "",
                "architecture": "",
            },
        },
    },
}


class Watch:
    """Sends the events after a version until its time is over, or until a test breaks it."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        version: Version,
        resource: str,
        after: str,
        selected: Selector,
        bookmarks: bool,
        timeout_s: float,
        bookmark_s: float,
    ) -> None:
        self.resource = resource
        self._cluster = cluster
        self._version = version
        self._after = after
        self._selected = selected
        self._bookmarks = bookmarks
        self._timeout_s = timeout_s
        self._bookmark_s = bookmark_s
        self._wake = asyncio.Event()
        self._breaks: list[Break] = []

    def disturb(self, how: Break) -> None:
        """Break the watch as `how` says."""
        self._breaks.append(how)
        self._wake.set()

    async def serve(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        """Send events until the end. A client that disconnects cancels it."""
        unsubscribe = self._cluster.subscribe(self._wake.set)
        try:
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):
                await self._run(request, response)
        finally:
            unsubscribe()
        return response

    async def _run(self, request: web.Request, response: web.StreamResponse) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout_s
        if self._after in ("", "0"):
            if self._version.streams_lists and self._bookmarks:
                await response.write(
                    _error(500, "a watch stream was requested by the client but the required storage feature "
                           "RequestWatchProgress is disabled")
                )  # fmt: skip
                return
            position = self._cluster.version
            state = self._cluster.at(self.resource, position)
            for _, stored in sorted(state.items()):
                if self._selected(stored.object):
                    await response.write(_line("ADDED", event_json(KINDS[self.resource], stored)))
        else:
            position = int(self._after)
            if position < self._cluster.cached_from:
                text = f"too old resource version: {position} ({self._cluster.cached_from})"
                await self._refuse(response, _error(410, text), end)
                return
        began = sent = position
        bookmarks = self._bookmark_times(loop.time(), end)
        next_bookmark = next(bookmarks)
        while True:
            while self._breaks:
                if await self._break(self._breaks.pop(0), request, response, end):
                    return
            upto = self._cluster.version
            for at, kind, body in self._cluster.events(self.resource, position, self._selected):
                await response.write(_line(kind, body))
                sent = at
            # A future version means silence, not an error.
            position = max(position, upto, sent)
            now = loop.time()
            if now >= end:
                return
            if now >= next_bookmark:
                next_bookmark = next(bookmarks)
                newest = max(sent, self._cluster.last_change(self.resource))
                if self._bookmarks and newest > began and newest <= position:
                    await response.write(self._bookmark(newest))
            self._wake.clear()
            if self._breaks or self._cluster.version > position:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(end, next_bookmark)):
                    await self._wake.wait()

    async def _flood(self, response: web.StreamResponse) -> None:
        (stored, *_) = self._cluster.at(self.resource, self._cluster.version).values()
        one = {**stored.object, "metadata": {**stored.object["metadata"], "resourceVersion": "@"}}
        other = {**one, "endpoints": stored.object.get("endpoints", [])[:1]}
        lines = [_line("MODIFIED", self._with_kind(item)).replace(b"%", b"%%") for item in (other, one)]
        texts = [line.replace(b'"@"', b'"%d"') for line in lines]
        loop = asyncio.get_running_loop()
        begun, at_once = loop.time(), FLOOD_RATE // 100
        for turn in range(FLOOD_S * 100):
            first = self._cluster.version + 1
            self._cluster.version += at_once
            await response.write(b"".join(texts[number % 2] % (first + number) for number in range(at_once)))
            await asyncio.sleep(max(0.0, begun + turn / 100 - loop.time()))

    def _with_kind(self, item: Mapping[str, object]) -> bytes:
        kind = KINDS[self.resource]
        return json.dumps({"kind": kind.kind, "apiVersion": kind.group_version, **item}).encode()

    def _bookmark_times(self, now: float, end: float) -> Iterator[float]:
        at = now + self._bookmark_s
        while at < end - BEFORE_END_S:
            yield at
            at += self._bookmark_s
        if end - BEFORE_END_S > now:
            yield end - BEFORE_END_S
        while True:
            yield float("inf")

    def _bookmark(self, version: int) -> bytes:
        kind = KINDS[self.resource]
        metadata: dict[str, str | None] = {"resourceVersion": str(version)}
        if self._version.name == "v1.20":
            metadata["creationTimestamp"] = None
        hollow = {"kind": kind.kind, "apiVersion": kind.group_version, "metadata": metadata, **_HOLLOW[self.resource]}
        return _line("BOOKMARK", json.dumps(hollow, separators=(",", ":")).encode())

    async def _refuse(self, response: web.StreamResponse, line: bytes, end: float) -> None:
        await response.write(line)
        if self._version.silent_after_410:
            await asyncio.sleep(end - asyncio.get_running_loop().time())

    async def _break(self, how: Break, request: web.Request, response: web.StreamResponse, end: float) -> bool:
        """Whether the watch is over."""
        match how:
            case Break.END:
                return True
            case Break.CUT | Break.RESET:
                hang_up(request, reset=how is Break.RESET)
                return True
            case Break.HALF_LINE | Break.HALF_LINE_END:
                await response.write(b'{"type":"MODIFIED","object":{"kind":"Service","apiVers')
                if how is Break.HALF_LINE:
                    await asyncio.sleep(0.02)  # so that the half is sent before the connection closes
                    hang_up(request)
                return True
            case Break.GARBAGE:
                await response.write(b"upstream connect error or disconnect/reset before headers\n")
            case Break.EMPTY_LINES:
                await response.write(b"\n\r\n\n")
            case Break.UNKNOWN_TYPE:
                await response.write(_line("RENAMED", b'{"metadata":{"name":"x","resourceVersion":"1"}}'))
            case Break.OLD_EVENT:
                first = next(iter(self._cluster.at(self.resource, self._cluster.version).values()))
                old = {**first.object, "metadata": {**first.object["metadata"], "resourceVersion": "1"}, "spec": {}}
                await response.write(_line("MODIFIED", self._with_kind(old)))
            case Break.FLOOD:
                await self._flood(response)
            case Break.WRONG_KIND:
                pod = b'{"kind":"Pod","metadata":{"name":"x","namespace":"y","resourceVersion":"999999"}}'
                await response.write(_line("ADDED", pod))
            case Break.DEEP:
                await response.write(_line("ADDED", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
            case Break.ERROR_410:
                text = f"too old resource version: 1 ({self._cluster.version})"
                await self._refuse(response, _error(410, text), end)
                return True
            case Break.ERROR_500:
                await response.write(_error(500, "etcdserver: no leader"))
                return True
            case Break.STALL:
                await asyncio.Event().wait()
            case Break.ENDLESS_LINE:
                while True:
                    await response.write(b'{"type":"ADDED",' + b" " * 65536)
        return False


def _line(kind: str, body: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), body)


def _error(code: int, message: str) -> bytes:
    return _line("ERROR", json.dumps(status(code, message), separators=(",", ":")).encode())
