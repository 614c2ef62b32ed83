"""The routes of the health server and of the metrics server."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from kubeproxy.observability.health import Health, ProxyHealth
from kubeproxy.observability.http.middlewares import from_loopback
from kubeproxy.observability.metrics.control_plane import Metrics
from kubeproxy.observability.metrics.exposition import CONTENT_TYPE, Exposition

MODE: Final = "userspace"
"""The answer of ``/proxyMode``: kube-proxy's name for a userspace proxy."""

_SMALL: Final = 16 * 1024
"""Answers up to this size in bytes are not compressed."""


def health_routes(
    health: ProxyHealth,
    metrics: Metrics,
    *,
    clock: Callable[[], float] = time.monotonic,
    wall_ns: Callable[[], int] = time.time_ns,
) -> list[web.RouteDef]:
    """Return the routes ``/healthz`` and ``/livez``, as in the newest kube-proxy, and ``/readyz``.

    `clock` is the proxier's, in seconds, and `wall_ns` returns Unix nanoseconds. Only clients that connect from
    loopback see reasons, because the server has to be open to the network for load balancers.
    """

    async def healthz(request: web.Request) -> web.Response:
        state = health.at(clock())
        code = 200 if state.healthy else 503
        metrics.healthz_answered(code)
        metrics.slis.checked("healthz", state.healthy)
        return _json(
            code,
            health_body(
                state,
                wall_ns(),
                healthy=state.healthy,
                node_eligible=state.node_eligible,
                detailed=from_loopback(request),
            ),
        )

    async def livez(request: web.Request) -> web.Response:
        state = health.at(clock())
        code = 200 if state.live else 503
        metrics.livez_answered(code)
        metrics.slis.checked("livez", state.live)
        body = health_body(state, wall_ns(), healthy=state.live, node_eligible=None, detailed=from_loopback(request))
        return _json(code, body)

    async def readyz(request: web.Request) -> web.Response:
        state = health.at(clock())
        metrics.slis.checked("readyz", state.ready)
        body: dict[str, object] = {"currentTime": rfc3339_nano(wall_ns()), "ready": state.ready}
        if from_loopback(request) and state.reasons:
            body["reasons"] = _texts(state)
        return _json(200 if state.ready else 503, body)

    pages = [web.get("/healthz", healthz), web.get("/livez", livez), web.get("/readyz", readyz)]
    return [index_route(pages), *pages]


def index_route(pages: Sequence[web.RouteDef]) -> web.RouteDef:
    """Return the route of a server's root page, a plain list of its pages."""
    text = "".join(f"{page.path}\n" for page in pages)

    async def index(request: web.Request) -> web.Response:
        return web.Response(text=text)

    return web.get("/", index)


def metrics_routes(
    exposition: Exposition, metrics: Metrics, configuration: Callable[[], Mapping[str, object]]
) -> list[web.RouteDef]:
    """Return the routes of the metrics server. `configuration` returns the settings in effect, with Go's field
    names."""

    async def scrape(request: web.Request) -> web.Response:
        text = await exposition.render()
        headers = {"Content-Type": CONTENT_TYPE}
        if len(text) > _SMALL and "gzip" in request.headers.get("Accept-Encoding", "").lower():
            # zlib releases the interpreter lock, so the thread does not delay the loop. Level 1 already makes an answer
            # 20 times smaller.
            text = await asyncio.to_thread(gzip.compress, text, 1)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=text, headers=headers)

    async def slis(request: web.Request) -> web.Response:
        return web.Response(body=metrics.slis.render(), headers={"Content-Type": CONTENT_TYPE})

    async def healthz(request: web.Request) -> web.Response:
        metrics.slis.checked("healthz", True, name="ping")
        return web.Response(text="ok")

    async def proxy_mode(request: web.Request) -> web.Response:
        return web.Response(text=MODE)

    async def configz(request: web.Request) -> web.Response:
        return _json(200, {"kubeproxy.config.k8s.io": configuration()})

    return [
        web.get("/metrics", scrape),
        web.get("/metrics/slis", slis),
        web.get("/healthz", healthz),
        web.get("/healthz/ping", healthz),
        web.get("/proxyMode", proxy_mode),
        web.get("/configz", configz),
    ]


def health_body(
    state: Health, wall_ns: int, *, healthy: bool, node_eligible: bool | None, detailed: bool
) -> dict[str, object]:
    """Return the body of ``/healthz`` and ``/livez``, as in the newest kube-proxy. `detailed` adds ``reasons``, the
    problems of the daemon.

    While the proxy is healthy, ``lastUpdated`` is the current time, because load balancers expect a recent time. (Older
    releases showed the last sync, and synced even without changes.) ``status`` has the time of the last sync for each
    IP family.
    """

    def wall(moment: float | None) -> str:
        return _NEVER if moment is None else rfc3339_nano(wall_ns - round((state.now - moment) * 1e9))

    body: dict[str, object] = {
        "lastUpdated": rfc3339_nano(wall_ns) if healthy else wall(state.last_updated),
        "currentTime": rfc3339_nano(wall_ns),
    }
    if node_eligible is not None:
        body["nodeEligible"] = node_eligible
    body["healthy"] = healthy
    body["status"] = {
        str(family): {"lastUpdated": wall(state.last_updated), "healthy": state.on_time}
        for family in state.families
        if state.last_updated is not None
    }
    if detailed and state.reasons:
        body["reasons"] = _texts(state)
    return body


def _texts(state: Health) -> list[str]:
    return [f"{reason}: {text}" for reason, text in state.reasons.items()]


_NEVER: Final = "0001-01-01T00:00:00Z"
"""The zero time of Go."""


def rfc3339_nano(unix_ns: int) -> str:
    """Format a Unix time in nanoseconds as Go's time.RFC3339Nano does in UTC: without trailing zeros of the
    fraction."""
    seconds, nanoseconds = divmod(unix_ns, 1_000_000_000)
    fraction = f".{nanoseconds:09}".rstrip("0") if nanoseconds else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _json(status: int, body: Mapping[str, object]) -> web.Response:
    # The type has no charset, because JSON defines none and kube-proxy sends none.
    return web.Response(status=status, body=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
