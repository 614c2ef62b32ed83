"""The workload controllers in one process: clients, informers, leader election, and the controllers themselves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import time
from typing import Final, Protocol

import structlog

from kubeproxy.controllers.deployments.controller import DeploymentController
from kubeproxy.controllers.event_reporter import EventReporter
from kubeproxy.controllers.informers import (
    deployment_informer,
    pod_informer,
    replica_set_informer,
    report_informer,
    service_informer,
)
from kubeproxy.controllers.manager.rival import Rival
from kubeproxy.controllers.objects import Deployment, Lease, Pod, ReplicaSet, Service
from kubeproxy.controllers.replicaset_kind import REPLICA_SET, REPLICATION_CONTROLLER, ReplicaSetKind
from kubeproxy.controllers.replicasets.controller import ReplicaSetController
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.controller.controller import Controller
from kubeproxy.kubernetes.controller.election_state import LEASE_S, RENEW_S, RETRY_S, LeaderElection
from kubeproxy.kubernetes.controller.leader_election import Leadership, LeaseName
from kubeproxy.kubernetes.events.recorder import EventRecorder
from kubeproxy.kubernetes.informer.connectivity import Connectivity
from kubeproxy.kubernetes.informer.informer import RESYNC_S, Informer
from kubeproxy.kubernetes.informer.reflector_state import ReflectorState
from kubeproxy.model.version import __version__

log = structlog.get_logger(__name__)

DEPLOYMENT: Final = "deployment"
REPLICASET: Final = "replicaset"
REPLICATIONCONTROLLER: Final = "replicationcontroller"
CONTROLLERS: Final = (DEPLOYMENT, REPLICASET, REPLICATIONCONTROLLER)
"""By the names of kube-controller-manager 1.20; newer ones add ``-controller``."""
LEASE: Final = LeaseName("kube-system", "kubeproxy-controller-manager")
"""A Lease of our own: kube-controller-manager's must not keep this process from working, nor the other way round."""
EVENT_CAPACITY: Final = 1000
"""Events that wait at once (client-go's)."""

RIGHTS: Final = "bind the roles of deploy/controllers"
"""What to do where the API server refuses a request."""

Connect = Callable[[str], Awaitable[Client]]
"""Opens a client for one purpose: each has request limits of its own, as in kube-controller-manager."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """What runs, and how."""

    identity: str
    controllers: frozenset[str] = frozenset(CONTROLLERS)
    workers: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(CONTROLLERS, 5))
    resync_s: float = RESYNC_S
    leader_elect: bool = True
    lease: LeaseName = LEASE
    lease_s: float = LEASE_S
    renew_s: float = RENEW_S
    retry_s: float = RETRY_S
    require_exclusive: bool = False
    """Whether this process ends when another manager keeps the same objects."""


class _Kept(Protocol):
    """One of the controllers."""

    controller: Controller


class ControllerManager:
    """Runs the controllers while this process leads. `close` it afterwards."""

    def __init__(self, settings: ManagerSettings, connect: Connect, *, clock: Callable[[], float] = time) -> None:
        self._settings = settings
        self._connect = connect
        self._clock = clock
        self._clients: dict[str, Client] = {}
        self._recorders: list[EventRecorder] = []
        self._states: list[Callable[[], ReflectorState]] = []
        self.leadership: Leadership | None = None
        """None without leader election, and before `run`."""
        self.controllers: list[Controller] = []
        self.deployments: Informer[Deployment] = deployment_informer()
        self.replica_sets: Informer[ReplicaSet] = replica_set_informer()
        self.replication_controllers: Informer[ReplicaSet] = replica_set_informer(REPLICATION_CONTROLLER)
        self.pods: Informer[Pod] = pod_informer()
        self.services: Informer[Service] = service_informer()
        self.leases: Informer[Lease] = report_informer()
        self._drains_wanted = asyncio.Event()
        """Set when a Deployment has opted in to rollouts that know the node proxies."""
        self.rival: Rival | None = None
        """Looks for another manager; None before this process leads."""
        self.working = False
        """Whether the caches are complete and the controllers work."""

    @property
    def clients(self) -> Mapping[str, Client]:
        """The clients that are open, by purpose."""
        return self._clients

    @property
    def recorders(self) -> list[EventRecorder]:
        """The recorders of Events."""
        return self._recorders

    def watches(self) -> list[ReflectorState]:
        """Return how the lists and watches are faring."""
        return [state() for state in self._states]

    async def run(self) -> None:
        """Until cancelled, or until leadership is lost. `ConfigError` when credentials or settings are no good."""
        if not self._settings.leader_elect:
            await self._work()
            return
        settings = self._settings
        election = LeaderElection(
            settings.identity, lease_s=settings.lease_s, renew_s=settings.renew_s, retry_s=settings.retry_s
        )
        self.leadership = Leadership(await self._client("leader-election"), settings.lease, election)
        await self.leadership.lead(self._work)

    async def close(self) -> None:
        """Give the Lease up, and close the clients."""
        if self.leadership is not None:
            await self.leadership.release()
        for client in self._clients.values():
            await client.close()

    async def _client(self, purpose: str) -> Client:
        client = await self._connect(purpose)
        if not self._clients:
            log.info("controller manager starts", version=__version__, pid=os.getpid(), server=client.server)
        self._clients[purpose] = client
        if self.leadership is not None:
            client.guard = self.leadership.demand
        return client

    async def _work(self) -> None:
        """Fill the caches, then work."""
        watching = await self._client("informers")
        kept = await self._make_controllers()
        self.controllers = [each.controller for each in kept]
        outages = Connectivity(server=watching.server, clock=self._clock, rights=RIGHTS)
        try:
            async with asyncio.TaskGroup() as group:
                for informer in self._informers():
                    keeping = informer.run(
                        watching,
                        outages=outages,
                        resync_s=self._settings.resync_s,
                        watch_state=self._states.append,
                    )
                    group.create_task(keeping, name=f"informer of {informer.name}")
                group.create_task(self._watch_proxies(watching), name="node proxies")
                for recorder in self._recorders:
                    group.create_task(recorder.run(), name="events")
                for informer in self._informers():
                    await informer.synced.wait()
                self.working = True
                log.info("controllers started", controllers=[each.name for each in self.controllers])
                self.rival = Rival(
                    watching,
                    pods=self.pods.store,
                    replica_sets=[("/apis/apps/v1", self.replica_sets.store)],
                    exclusive=self._settings.require_exclusive,
                    clock=self._clock,
                )
                group.create_task(self.rival.run(), name="rival")
                for controller in self.controllers:
                    group.create_task(controller.run(), name=f"controller {controller.name}")
        finally:
            self.working = False

    async def _watch_proxies(self, client: Client) -> None:
        """Watch Services and drain reports, once a Deployment needs them. They may be forbidden, as long as no other
        controller depends on them; so they have a log of their own."""
        await self._drains_wanted.wait()
        outages = Connectivity(server=client.server, clock=self._clock, rights=RIGHTS)
        async with asyncio.TaskGroup() as group:
            for informer in (self.services, self.leases):
                keeping = informer.run(
                    client, outages=outages, resync_s=self._settings.resync_s, watch_state=self._states.append
                )
                group.create_task(keeping, name=f"informer of {informer.name}")

    async def _make_controllers(self) -> list[_Kept]:
        made: list[_Kept] = []
        enabled = self._settings.controllers
        if REPLICASET in enabled:
            made.append(await self._replica_set_controller(REPLICA_SET, self.replica_sets, REPLICASET))
        if REPLICATIONCONTROLLER in enabled:
            made.append(
                await self._replica_set_controller(
                    REPLICATION_CONTROLLER, self.replication_controllers, REPLICATIONCONTROLLER
                )
            )
        if DEPLOYMENT in enabled:
            client = await self._client(DEPLOYMENT)
            deployments = DeploymentController(
                requests=client,
                deployments=self.deployments,
                replica_sets=self.replica_sets,
                pods=self.pods,
                services=self.services,
                leases=self.leases,
                sink=self._sink(client, "deployment-controller"),
                workers=self._settings.workers[DEPLOYMENT],
                clock=self._clock,
            )
            self._drains_wanted = deployments.drains.wanted
            made.append(deployments)
        return made

    async def _replica_set_controller(
        self, kind: ReplicaSetKind, informer: Informer[ReplicaSet], name: str
    ) -> ReplicaSetController:
        client = await self._client(name)
        return ReplicaSetController(
            kind,
            requests=client,
            replica_sets=informer,
            pods=self.pods,
            sink=self._sink(client, kind.component),
            workers=self._settings.workers[name],
            clock=self._clock,
        )

    def _sink(self, client: Client, component: str) -> EventReporter:
        recorder = EventRecorder(
            client=client, node_name="", component=component, capacity=EVENT_CAPACITY, rights=RIGHTS
        )
        self._recorders.append(recorder)
        return EventReporter(recorder)

    def _informers(self) -> list[Informer[Deployment] | Informer[ReplicaSet] | Informer[Pod]]:
        """Return those that the enabled controllers read."""
        enabled = self._settings.controllers
        needed: list[Informer[Deployment] | Informer[ReplicaSet] | Informer[Pod]] = [self.pods]
        if DEPLOYMENT in enabled:
            needed.append(self.deployments)
        if enabled & {DEPLOYMENT, REPLICASET}:
            needed.append(self.replica_sets)
        if REPLICATIONCONTROLLER in enabled:
            needed.append(self.replication_controllers)
        return needed
