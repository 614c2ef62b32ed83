"""The control endpoint of a server that runs as a program. JSON in, JSON out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from tests.support.apiserver.faults import Break, Fault

if TYPE_CHECKING:
    from tests.support.apiserver.server import ApiServer

PREFIX = "/_control"


class Put(msgspec.Struct, forbid_unknown_fields=True):
    """Objects to create or change."""

    resource: str
    objects: list[dict[str, Any]]


class Delete(msgspec.Struct, forbid_unknown_fields=True):
    """An object to delete."""

    resource: str
    namespace: str
    name: str


class BreakWatches(msgspec.Struct, forbid_unknown_fields=True):
    """Watches to break."""

    how: Break
    resource: str = ""


def add_control(app: web.Application, server: ApiServer) -> None:
    """Add ``POST /_control/{put,delete,fault,clear-faults,break,expire,forbid,allow}``, ``GET /_control/state``."""

    def state() -> dict[str, Any]:
        return {
            "resourceVersion": server.cluster.version,
            "watches": [watch.resource for watch in server.watches],
            "requests": dict(server.counts),
        }

    async def tell(request: web.Request) -> web.Response:
        body = await request.read()
        done: dict[str, Any] = {}
        try:
            match request.match_info["command"]:
                case "put":
                    put = msgspec.json.decode(body, type=Put)
                    for item in put.objects:
                        server.cluster.put(put.resource, item)
                case "delete":
                    delete = msgspec.json.decode(body, type=Delete)
                    server.cluster.delete(delete.resource, delete.namespace, delete.name)
                case "fault":
                    server.inject(msgspec.json.decode(body, type=Fault))
                case "clear-faults":
                    server.clear_faults()
                case "break":
                    wish = msgspec.json.decode(body, type=BreakWatches)
                    done["broken"] = server.break_watches(wish.how, wish.resource)
                case "expire":
                    server.cluster.expire()
                case "forbid":
                    server.forbidden = True
                case "allow":
                    server.forbidden = False
                case unknown:
                    return web.json_response({"error": f"unknown command {unknown!r}"}, status=404)
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)
        return web.json_response(done | state())

    async def look(_: web.Request) -> web.Response:
        return web.json_response(state())

    app.router.add_post(PREFIX + "/{command}", tell)
    app.router.add_get(PREFIX + "/state", look)
