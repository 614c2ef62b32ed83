"""The HTTP pages of the controller manager: health, metrics, and the state of every rollout."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from prometheus_client import generate_latest

from kubeproxy.controllers.api_types import Deployment, Pod
from kubeproxy.controllers.deployments import revisions
from kubeproxy.controllers.deployments.rollout_status import State, state_of, waiting_for
from kubeproxy.controllers.manager.manager import ControllerManager
from kubeproxy.controllers.manager.metrics import registry
from kubeproxy.kubernetes.informer.store import CONTROLLER
from kubeproxy.model.printable import printable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHOWN = 500
"""The largest number of rollouts on the status page. Unfinished rollouts come first."""


def routes(manager: ControllerManager, *, clock: Callable[[], float] = time.time) -> list[web.RouteDef]:
    """Return the routes of all pages.

    ``/healthz`` and ``/livez`` answer 200 while the event loop runs. ``/readyz`` answers 200 if the caches are
    complete, or another process leads. ``/metrics`` has the metrics. ``/statusz`` has the status as text or, with
    ``?format=json``, as JSON.
    """
    collected = registry(manager)

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_: web.Request) -> web.Response:
        trouble = unready(manager)
        return web.Response(text="ok" if trouble is None else trouble, status=200 if trouble is None else 503)

    async def metrics(_: web.Request) -> web.Response:
        # Collect in this thread, because the metrics read objects that only the event loop's thread may use.
        return web.Response(body=generate_latest(collected), headers={"Content-Type": CONTENT_TYPE})

    async def status(request: web.Request) -> web.Response:
        document = status_document(manager, clock())
        if request.query.get("format") == "json":
            return web.json_response(document)
        return web.Response(text=status_text(document))

    return [
        web.get("/healthz", alive),
        web.get("/livez", alive),
        web.get("/readyz", ready),
        web.get("/metrics", metrics),
        web.get("/statusz", status),
    ]


def unready(manager: ControllerManager) -> str | None:
    """Return why this process is not ready. Return None if its controllers run, or another process leads."""
    if manager.working:
        return None
    leadership = manager.leadership
    if leadership is not None and not leadership.is_leading():
        return None if leadership.holder else "no leader is known yet"
    return "the caches are not complete yet"


def status_document(manager: ControllerManager, now: float) -> dict[str, Any]:
    """Return the whole status as JSON values."""
    leadership = manager.leadership
    rollouts = [_rollout(manager, deployment, now) for deployment in manager.informers.deployments.store]
    rollouts.sort(key=lambda rollout: (rollout["state"] == State.COMPLETE, rollout["namespace"], rollout["name"]))
    return {
        "leading": leadership is None or leadership.is_leading(),
        "leader": "" if leadership is None else leadership.holder,
        "working": manager.working,
        "rival": "" if manager.rival is None else manager.rival.text,
        "gatesWaiting": 0 if manager.readiness is None else manager.readiness.waiting,
        "queues": [
            {
                "name": controller.name,
                "waiting": len(controller.queue),
                "processing": controller.queue.processing,
                "errors": controller.errors,
                "givenUp": controller.dropped,
            }
            for controller in manager.controllers
        ],
        "watches": [
            {"resource": watch.resource, "behindSeconds": round(watch.behind_s, 1), "lastError": watch.last_error}
            for watch in manager.watches()
        ],
        "rolloutsTotal": len(rollouts),
        "rollouts": rollouts[:SHOWN],
    }


def status_text(document: dict[str, Any]) -> str:
    """Return the status as text for a terminal."""
    role = "leads" if document["leading"] else f"waits, {document['leader'] or 'no process'} leads"
    lines = [f"controller manager: {role}{'' if document['working'] else ', does not work'}"]
    lines += [f"WARNING: {document['rival']}"] if document["rival"] else []
    lines.append("")
    for queue in document["queues"]:
        lines.append(
            f"queue {queue['name']}: {queue['waiting']} wait, {queue['processing']} are processed,"
            f" {queue['errors']} syncs failed, {queue['givenUp']} were given up"
        )
    for watch in document["watches"]:
        if watch["behindSeconds"]:
            lines.append(f"watch of {watch['resource']}: behind for {watch['behindSeconds']} s: {watch['lastError']}")
    lines += ["", f"{document['gatesWaiting']} pods wait at their readiness gate"]
    lines += ["", f"{document['rolloutsTotal']} Deployments"]
    for each in document["rollouts"]:
        line = (
            f"{each['namespace']}/{each['name']}: {each['state']}, revision {each['revision']},"
            f" {each['updated']} of {each['wanted']} updated, {each['available']} available"
        )
        if each["waitsFor"]:
            since = f" (since {each['since']})" if each["since"] else ""
            line += f"; waits: {each['waitsFor']}{since}"
        lines.append(line)
    return "".join(f"{printable(line)}\n" for line in lines)


def _rollout(manager: ControllerManager, deployment: Deployment, now: float) -> dict[str, Any]:
    owned = manager.informers.replica_sets.store.indexed(CONTROLLER, deployment.metadata.uid)
    state = state_of(deployment)
    waiting = None
    if state is not State.COMPLETE:
        new = revisions.find_new(deployment, owned)
        new_pods: list[Pod] = []
        old_pods: list[Pod] = []
        for replica_set in owned:
            pods = new_pods if new is not None and replica_set.metadata.uid == new.metadata.uid else old_pods
            pods += manager.informers.pods.store.indexed(CONTROLLER, replica_set.metadata.uid)
        waiting = waiting_for(deployment, new, new_pods, old_pods, now)
    since = None if waiting is None else waiting.since
    return {
        "namespace": deployment.metadata.namespace,
        "name": deployment.metadata.name,
        "state": state,
        "revision": revisions.revision_of(deployment),
        "wanted": deployment.spec.replicas,
        "updated": deployment.status.updated_replicas,
        "available": deployment.status.available_replicas,
        "waitsFor": "" if waiting is None else waiting.text,
        "since": "" if since is None else datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
