"""An API server for commands that write: discovery, any object, field validation, warnings, faults on demand.

It answers as kube-apiserver 1.20 (legacy discovery, no field validation) or as a new one (aggregated discovery, server
side field validation) does, as far as recorded. No controllers run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self
from uuid import uuid4

from aiohttp import web

from tests.support.apiserver.answers import Refusal

Object = dict[str, Any]
Fault = Callable[[web.Request, "WriteServer"], Awaitable[web.StreamResponse | None]]
"""Instead of an answer: a response, or None to go on as usual."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource that the server has."""

    group: str
    version: str
    name: str
    kind: str
    namespaced: bool = True

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


CORE = (
    Kind("", "v1", "configmaps", "ConfigMap"),
    Kind("", "v1", "namespaces", "Namespace", namespaced=False),
    Kind("", "v1", "pods", "Pod"),
    Kind("", "v1", "services", "Service"),
    Kind("", "v1", "serviceaccounts", "ServiceAccount"),
    Kind("apps", "v1", "deployments", "Deployment"),
    Kind("apps", "v1beta1", "deployments", "Deployment"),
    Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False),
)
_META = {"type": "object", "properties": {name: {"type": "string"} for name in ("name", "namespace", "generateName")}}
_META["properties"] |= {  # type: ignore[operator]
    name: {"type": "object", "additionalProperties": {"type": "string"}} for name in ("labels", "annotations")
}
CONFIG_MAP_SCHEMA = {
    "type": "object",
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": _META,
        "data": {"type": "object", "additionalProperties": {"type": "string"}},
        "immutable": {"type": "boolean"},
    },
    "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "ConfigMap"}],
}


@dataclass
class WriteServer:
    """Use it as an async context manager."""

    modern: bool = True
    """Answers as 1.36; else as 1.20."""
    kinds: list[Kind] = field(default_factory=lambda: list(CORE))
    objects: dict[str, Object] = field(default_factory=dict)
    """By path."""
    tokens: set[str] = field(default_factory=lambda: {"good"})
    faults: list[Fault] = field(default_factory=list)
    """Each is asked before an answer to a POST, in order; one that takes over is used up."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path with query of all that came."""
    writes: int = 0
    """POSTs that were carried out."""
    established_s: float = 0.0
    """How long a definition takes to be served."""
    at_once: int = 0
    most_at_once: int = 0
    delay_s: float = 0.0
    """Before a POST is answered."""
    _runner: web.AppRunner | None = None
    _port: int = 0
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    async def __aenter__(self) -> Self:
        await self.start()
        self.objects["/api/v1/namespaces/default"] = _namespace("default")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the port of the time before."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Refuse connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def names(self, resource: str) -> list[str]:
        """The names of the objects of a resource, in the order of their creation."""
        return [path.rpartition("/")[2] for path in self.objects if f"/{resource}/" in path]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        try:
            if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
                raise refusal(401, "Unauthorized", "Unauthorized")
            if request.method == "POST":
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                try:
                    return await self._post(request)
                finally:
                    self.at_once -= 1
            return self._get(request)
        except Refusal as error:
            return web.json_response(error.body, status=error.body["code"], headers=error.headers)

    # Writing

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        for fault in list(self.faults):
            response = await fault(request, self)
            if response is not None:
                self.faults.remove(fault)
                return response
        stored, warnings = self.create(request, body)
        response = web.json_response(stored, status=201)
        for text in warnings:
            response.headers.add("Warning", f"299 - {json.dumps(text)}")
        return response

    def create(self, request: web.Request, body: bytes) -> tuple[Object, list[str]]:
        """Carry a POST out."""
        kind, namespace = self._resource(request.path)
        if len(body) > 3 << 20:
            raise refusal(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728")
        sent: Object = json.loads(body)
        metadata = sent["metadata"]
        name = metadata.get("name") or f"{metadata['generateName']}{next(self._numbers):05}"
        details: dict[str, Any] = {"name": name, "group": kind.group, "kind": kind.name}
        if namespace:
            standing = self.objects.get(f"/api/v1/namespaces/{namespace}")
            if standing is None:
                raise refusal(404, "NotFound", f'namespaces "{namespace}" not found', name=namespace, kind="namespaces")
            if standing.get("status", {}).get("phase") == "Terminating":
                raise refusal(
                    403,
                    "Forbidden",
                    f'{kind.name} "{name}" is forbidden: unable to create new content in namespace {namespace} because'
                    " it is being terminated",
                    **details,
                )
        if not isinstance(name, str) or name != name.lower():
            field_text = f'Invalid value: "{name}": a lowercase RFC 1123 subdomain'
            causes = [{"reason": "FieldValueInvalid", "message": field_text, "field": "metadata.name"}]
            text = f'{kind.kind} "{name}" is invalid: metadata.name: {field_text}'
            raise refusal(422, "Invalid", text, **(details | {"kind": kind.kind, "causes": causes}))
        if sum(len(str(value)) for value in (sent.get("data") or {}).values()) > 1 << 20:
            text = f'ConfigMap "{name}" is invalid: []: Too long: must have at most 1048576 bytes'
            raise refusal(422, "Invalid", text, **(details | {"kind": kind.kind, "causes": []}))
        warnings = self._check_fields(request, kind, sent)
        path = f"{request.path}/{name}"
        if path in self.objects:
            raise refusal(409, "AlreadyExists", f'{kind.name} "{name}" already exists', **details)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        manager = {"manager": request.query.get("fieldManager"), "operation": "Update"}
        stored = sent | {
            "metadata": metadata
            | {"name": name, "uid": str(uuid4()), "creationTimestamp": now, "managedFields": [manager]}
        }
        if metadata.get("annotations", {}).get("warn"):
            warnings.append(metadata["annotations"]["warn"])
        if request.query.get("dryRun") != "All":
            self.objects[path] = stored
            self.writes += 1
            self._define(stored, path)
        return stored, warnings

    def _check_fields(self, request: web.Request, kind: Kind, sent: Object) -> list[str]:
        """What a new server does with fieldValidation; an old one drops what it does not know."""
        unknown = [key for key in sent if kind.kind == "ConfigMap" and key not in CONFIG_MAP_SCHEMA["properties"]]
        for key in unknown:
            del sent[key]
        said = [f'unknown field "{key}"' for key in unknown]
        level = request.query.get("fieldValidation")
        if not self.modern or not said or level == "Ignore":
            return []
        if level == "Strict":
            text = (
                f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: strict decoding error: '
            )
            raise refusal(400, "BadRequest", text + ", ".join(said))
        return said

    def _define(self, stored: Object, path: str) -> None:
        if stored["kind"] != "CustomResourceDefinition":
            return
        spec = stored["spec"]

        def serve() -> None:
            stored["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
            for version in spec["versions"]:
                self.kinds.append(Kind(spec["group"], version["name"], spec["names"]["plural"], spec["names"]["kind"]))

        asyncio.get_running_loop().call_later(self.established_s, serve)

    def _resource(self, path: str) -> tuple[Kind, str]:
        parts = path.strip("/").split("/")
        group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
        namespace = ""
        if len(rest) >= 3 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        for kind in self.kinds:
            if (kind.group, kind.version, kind.name) == (group, version, rest[0]):
                return kind, namespace
        raise refusal(404, "NotFound", "the server could not find the requested resource")

    # Reading

    def _get(self, request: web.Request) -> web.Response:
        path = request.path
        if path in self.objects:
            return web.json_response(self.objects[path])
        if path in ("/api", "/apis") and self.modern and "APIGroupDiscoveryList" in request.headers.get("Accept", ""):
            return self._aggregated(core=path == "/api")
        match path.strip("/").split("/"):
            case ["version"]:
                return web.json_response({"major": "1", "minor": "36" if self.modern else "20+"})
            case ["openapi", "v2"]:
                return web.json_response({"definitions": {"io.k8s.api.core.v1.ConfigMap": CONFIG_MAP_SCHEMA}})
            case ["api"]:
                return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
            case ["apis"]:
                return web.json_response({"kind": "APIGroupList", "groups": self._groups()})
            case ["api", "v1"]:
                return self._resources("", "v1")
            case ["apis", group, version]:
                return self._resources(group, version)
        kind, _ = self._resource(path)
        name = path.rpartition("/")[2]
        raise refusal(404, "NotFound", f'{kind.name} "{name}" not found', name=name, kind=kind.name)

    def _groups(self) -> list[Object]:
        found: dict[str, list[Object]] = {}
        for kind in self.kinds:
            version = {"groupVersion": kind.group_version, "version": kind.version}
            if kind.group and version not in found.setdefault(kind.group, []):
                found[kind.group].append(version)
        return [
            {"name": name, "versions": versions, "preferredVersion": versions[0]} for name, versions in found.items()
        ]

    def _resources(self, group: str, version: str) -> web.Response:
        resources = [
            {
                "name": kind.name,
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": ["create", "get", "list"],
            }
            for kind in self.kinds
            if (kind.group, kind.version) == (group, version)
        ]
        if not resources:
            raise refusal(404, "NotFound", "the server could not find the requested resource")
        return web.json_response({"kind": "APIResourceList", "resources": resources})

    def _aggregated(self, *, core: bool) -> web.Response:
        groups: dict[str, dict[str, list[Object]]] = {}
        for kind in self.kinds:
            if core is (kind.group == ""):
                groups.setdefault(kind.group, {}).setdefault(kind.version, []).append(
                    {
                        "resource": kind.name,
                        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
                        "scope": "Namespaced" if kind.namespaced else "Cluster",
                        "singularResource": kind.kind.lower(),
                        "verbs": ["create", "get", "list"],
                    }
                )
        items = [
            {
                "metadata": {"name": name},
                "versions": [
                    {"version": version, "resources": resources, "freshness": "Current"}
                    for version, resources in versions.items()
                ],
            }
            for name, versions in groups.items()
        ]
        content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        return web.Response(
            body=json.dumps({"kind": "APIGroupDiscoveryList", "items": items}).encode(),
            headers={"Content-Type": content_type},
        )


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "status": {"phase": "Active"}}


def refusal(code: int, reason: str, message: str, **details: Any) -> Refusal:
    """Return the refusal of a request, with the details that kube-apiserver gives."""
    return Refusal(code, message, reason=reason, details=details)


def status_fault(code: int, reason: str, message: str, *, retry_after: str = "", carry_out: bool = False) -> Fault:
    """The next POST is answered like this; `carry_out`: after it was carried out all the same."""

    async def fault(request: web.Request, server: WriteServer) -> web.StreamResponse:
        if carry_out:
            server.create(request, await request.read())
        said = refusal(code, reason, message)
        return web.json_response(said.body, status=code, headers={"Retry-After": retry_after} if retry_after else {})

    return fault


def cut_fault(*, carry_out: bool) -> Fault:
    """The connection ends instead of the next POST's answer, before or after it was carried out."""

    async def fault(request: web.Request, server: WriteServer) -> web.StreamResponse:
        if carry_out:
            server.create(request, await request.read())
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return fault


def garbage_fault(body: bytes, *, code: int = 201, content_type: str = "text/html") -> Fault:
    """The next POST is answered with bytes that no API server sends."""

    async def fault(request: web.Request, server: WriteServer) -> web.StreamResponse:
        return web.Response(body=body, status=code, headers={"Content-Type": content_type})

    return fault
