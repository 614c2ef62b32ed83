"""ReplicationControllers in memory and in virtual time, and the command against them."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from kubeproxy.commands.rolling_update.command import Run
from kubeproxy.commands.rolling_update.controller import MARKS, Controller
from kubeproxy.commands.rolling_update.drained_deletion import DrainedDeletion
from kubeproxy.commands.rolling_update.options import UpdateOptions
from kubeproxy.commands.rolling_update.progress_output import ProgressOutput
from kubeproxy.commands.rolling_update.requests import ControllerRequests
from kubeproxy.commands.rolling_update.update import RollingUpdate
from kubeproxy.controllers.deployments.rollout_status import Waiting
from kubeproxy.kubernetes.api_types import Status, StatusDetails
from kubeproxy.kubernetes.client.client import Answer, Client
from kubeproxy.kubernetes.client.errors import ApiError, StatusError, UnreachableError
from kubeproxy.kubernetes.client.policy import NoRetries, Retries, WaitForServer
from kubeproxy.kubernetes.client.status import status_error
from kubeproxy.kubernetes.printing.printer import Printer
from tests.controllers.api import Api, Json, Write, _error, _parse, copied
from tests.controllers.cluster import Cluster, Controllers, pod_template, running
from tests.controllers.virtual_time import run, unix_time

RESOURCE = "replicationcontrollers"


class Killed(BaseException):
    """The process of the command ends here, without another instruction."""


class ControllerApi(Api):
    """With PUT, orphaning deletes and a garbage collector for ReplicationControllers."""

    def __init__(self) -> None:
        super().__init__(unix_time)
        self.collector_s = 0.5
        """How late the garbage collector is; infinite: there is none."""

    def put(self, namespace: str, name: str, sent: Json, *, by: str) -> Json:
        """Replace a controller, in the state that the sent resourceVersion names."""
        old = self._demand(RESOURCE, namespace, name)
        if sent["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            raise _error(409, "Conflict", "the object has been modified; apply your changes to the latest version")
        labels = sent["spec"]["template"]["metadata"]["labels"]
        if not sent["spec"]["selector"].items() <= labels.items():
            raise _error(422, "Invalid", "`selector` does not match template `labels`")
        kept = {key: old["metadata"][key] for key in ("uid", "creationTimestamp", "generation", "namespace")}
        new = copied(sent) | {"status": old["status"]}
        new["metadata"] |= kept
        if new["spec"] != old["spec"]:
            new["metadata"]["generation"] += 1
        if new != old:
            self._store(RESOURCE, old, new, by)
        return new

    def end(self, namespace: str, name: str, options: Json) -> Json:
        """Delete a controller: it is gone at once, or when the garbage collector has released its pods."""
        old = self._demand(RESOURCE, namespace, name)
        wanted = options.get("preconditions") or {}
        for key in ("uid", "resourceVersion"):
            if wanted.get(key, old["metadata"][key]) != old["metadata"][key]:
                raise _error(409, "Conflict", f"Precondition failed: {key}")
        if options.get("propagationPolicy") == "Orphan":
            if "deletionTimestamp" not in old["metadata"]:
                new = copied(old)
                new["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"]}
                self._store(RESOURCE, old, new, "command")
                self._later(self._release, new)
        else:
            self.remove(RESOURCE, namespace, name, by="command")
            self._later(self._collect, old)
        return old

    def _later(self, action: Callable[[Json], None], item: Json) -> None:
        if self.collector_s < 1e6:
            asyncio.get_running_loop().call_later(self.collector_s, action, item)

    def _owned(self, item: Json) -> list[Json]:
        uid = item["metadata"]["uid"]
        pods = self.all("pods", item["metadata"]["namespace"])
        return [pod for pod in pods if any(o["uid"] == uid for o in pod["metadata"].get("ownerReferences", []))]

    def _release(self, item: Json) -> None:
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        for pod in self._owned(item):
            self.patch("pods", namespace, pod["metadata"]["name"], {"metadata": {"ownerReferences": None}})
        self.remove(RESOURCE, namespace, name)

    def _collect(self, item: Json) -> None:
        for pod in self._owned(item):
            self.delete("pods", item["metadata"]["namespace"], pod["metadata"]["name"])


@dataclass(slots=True)
class Rest:
    """The server as the command speaks to it. `kill_after`: the write after which the process ends."""

    api: ControllerApi
    kill_after: int | None = None
    writes: list[str] = field(default_factory=list)
    fault: Callable[[str, str], Exception | None] = lambda method, path: None
    """Instead of carrying a request out."""
    lose: Callable[[str, str], Exception | None] = lambda method, path: None
    """Instead of the answer to a request that was carried out."""

    def stop(self) -> None:
        """The process of the command ends."""
        raise Killed

    retries: Retries = field(default_factory=NoRetries)

    def now(self) -> float:
        return unix_time()

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        return await self.retries.attempt(method, lambda: self._request(method, path, query, body, content_type))

    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None, body: bytes | None, content_type: str
    ) -> Answer:
        await asyncio.sleep(0.001)
        if (error := self.fault(method, path)) is not None:
            raise error
        try:
            answer = await self._carried_out(method, path, query or {}, body, content_type)
        except ApiError as refused:
            raise _as_status(refused) from None
        if method != "GET" and "dryRun" not in (query or {}):
            self.writes.append(f"{method} {path.rpartition('namespaces/default/')[2]}")
            if len(self.writes) == self.kill_after:
                raise Killed
        if (error := self.lose(method, path)) is not None:
            raise error
        return Answer(200, {}, bytes(answer))

    async def _carried_out(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None, content_type: str
    ) -> bytes:
        resource, namespace, name, _ = _parse(path)
        sent = json.loads(body) if body else {}
        if method == "GET":
            return bytes(await self.api.get_json(path, query))
        if resource == RESOURCE and method == "PUT":
            return msgspec.json.encode(self.api.put(namespace, name, sent, by="command"))
        if resource == RESOURCE and method == "DELETE":
            return msgspec.json.encode(self.api.end(namespace, name, sent))
        if query.get("dryRun") == "All":
            if (RESOURCE, namespace, sent["metadata"]["name"]) in self.api.objects:
                raise _error(409, "AlreadyExists", "already exists")
            return body or b""
        return bytes(await self.api.send_json(method, path, body or b"", content_type=content_type))


def _as_status(error: ApiError) -> Exception:
    if isinstance(error, UnreachableError) or error.status is None:
        return error
    kind = "namespaces" if "namespace" in error.server_text else None
    status = Status(reason=error.reason, message=error.server_text or str(error), details=StatusDetails(kind=kind))
    return refused(status, error.status)


def refused(status: Status, code: int) -> StatusError:
    """The refusal as a command gets it."""
    return status_error(
        status, code=code, seen="the server answered", message=status.message or f"the server answered {code}"
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run came to."""

    status: int
    out: str
    err: str
    writes: list[str]

    @property
    def lines(self) -> list[str]:
        """Of standard output."""
        return self.out.splitlines()


class Stage:
    """A cluster with ReplicationControllers."""

    def __init__(self, controllers: Controllers, cluster: Cluster, api: ControllerApi) -> None:
        self.controllers = controllers
        self.cluster = cluster
        self.api = api
        self.files: dict[str, Json] = {}

    async def begin(self, name: str = "web", *, replicas: int = 3, **labels: str) -> Json:
        """Create a controller, and wait until its pods are ready."""
        created = self.api.create(RESOURCE, "default", controller(name, replicas=replicas, **labels))
        await self.settle(name)
        return created

    async def settle(self, name: str) -> None:
        """Until a controller has its pods, all of them ready."""
        await self.cluster.until(
            lambda: (
                (it := self.rc(name))["status"].get("readyReplicas", 0) == it["spec"]["replicas"]
                and it["status"].get("replicas", 0) == it["spec"]["replicas"]
                and it["status"].get("observedGeneration", 0) >= it["metadata"]["generation"]
            ),
            within_s=600,
        )

    def rc(self, name: str) -> Json:
        """A controller as it is."""
        return self.api.get(RESOURCE, name)

    def names(self) -> list[str]:
        """The controllers that exist."""
        return sorted(item["metadata"]["name"] for item in self.api.all(RESOURCE))

    def pods(self) -> list[Json]:
        """Pods that are not being deleted."""
        return [pod for pod in self.api.all("pods") if "deletionTimestamp" not in pod["metadata"]]

    def images(self) -> list[str]:
        """The images of these pods."""
        return sorted(pod["spec"]["containers"][0]["image"] for pod in self.pods())

    async def run(
        self,
        *names: str,
        rest: Rest | None = None,
        proxies: Any = None,
        minor: int = 36,
        terminal: bool = False,
        **options: Any,
    ) -> Ran:
        """Run the command; `Killed` leaves it as it does a process."""
        rest = rest or Rest(self.api)
        given: dict[str, Any] = {"update_period_s": 1.0, "poll_interval_s": 1.0, "timeout_s": 60.0, **options}
        settings = UpdateOptions(names=names, **given)
        out, err = io.StringIO(), _Terminal() if terminal else io.StringIO()
        progress = ProgressOutput(settings.output.partition("=")[0], out=out, err=err, clock=unix_time)
        rest.retries = WaitForServer(settings.timeout_s, on_wait=lambda reason: progress.waits(Waiting(reason, None)))
        requests = ControllerRequests(cast(Client, rest), "default")

        async def read_file() -> Controller:
            return Controller(copied(self.files[settings.filename]))

        async def minor_of_server() -> int:
            return minor

        drained_deletion = None
        if proxies is not None:
            drained_deletion = DrainedDeletion(
                proxies, requests, progress, drain_timeout_s=settings.drain_timeout_s, minor=minor_of_server
            )
        update = RollingUpdate(settings, requests, progress, read_file, drained_deletion)
        status = await Run(settings, progress, Printer(settings.output), update, "test").run()
        return Ran(status, out.getvalue(), err.getvalue(), rest.writes)

    def unmarked(self) -> None:
        """No controller, and no pod, has anything left that belongs to an update."""
        for item in self.api.all(RESOURCE):
            assert not item["metadata"].get("annotations", {}).keys() & set(MARKS), item["metadata"]
            assert not item["spec"]["selector"].keys() & set(MARKS)
            assert not item["spec"]["template"]["metadata"]["labels"].keys() & set(MARKS)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def controller(name: str = "web", *, replicas: int = 3, image: str = "web:1", **labels: str) -> Json:
    """A controller with one container; `labels`: its selector."""
    selector = labels or {"app": "web"}
    return {
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": {"name": name, "annotations": {"team": "a"}},
        "spec": {
            "replicas": replicas,
            "selector": dict(selector),
            "template": pod_template(image, dict(selector)),
            "unknownField": {"kept": 1},
        },
    }


class Promises:
    """Checked at every write: enough ready pods, not too many pods, no pod of a foreign controller deleted."""

    def __init__(self, api: ControllerApi, *, least: int, most: int) -> None:
        self._api = api
        self.least = least
        self.most = most
        self.active = True
        self.broken: list[str] = []
        api.observers.append(self._observe)

    def _observe(self, write: Write) -> None:
        if not self.active or write.resource not in ("pods", RESOURCE):
            return
        pods = [pod for pod in self._api.all("pods") if "deletionTimestamp" not in pod["metadata"]]
        ready = sum(
            any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))
            for pod in pods
        )
        if ready < self.least:
            self.broken.append(f"{ready} ready pods, least {self.least}")
        if len(pods) > self.most:
            self.broken.append(f"{len(pods)} pods, most {self.most}")
        wanted = sum(item["spec"]["replicas"] for item in self._api.all(RESOURCE))
        if wanted > self.most:
            self.broken.append(f"{wanted} wanted pods, most {self.most}")


@asynccontextmanager
async def _staged() -> Any:
    cluster = Cluster()
    api = ControllerApi()
    cluster.api = api
    cluster.kubelet = type(cluster.kubelet)(api)
    async with running(api, cluster.recorded) as controllers:
        yield Stage(controllers, cluster, api)


def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    """A scenario in virtual time."""

    async def whole() -> None:
        async with _staged() as stage:
            await scenario(stage)

    run(whole())
