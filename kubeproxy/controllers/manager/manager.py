"""Runs the controllers in one process, with their clients, informers and leader election."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import time
from typing import Final

import structlog

from kubeproxy.controllers.api_types import Deployment, Pod, ReplicaSet
from kubeproxy.controllers.deployments.controller import DeploymentController
from kubeproxy.controllers.event_reporter import EventReporter
from kubeproxy.controllers.informers import Informers
from kubeproxy.controllers.manager.rival import Rival
from kubeproxy.controllers.readiness.controller import ReadinessController
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
WORKLOADS: Final = frozenset({DEPLOYMENT, REPLICASET, REPLICATIONCONTROLLER})
"""The controllers that replace kube-controller-manager's. The names are from Kubernetes 1.20; newer versions append
``-controller``."""
READINESS: Final = "readiness"
"""The controller of readiness gates, which kube-controller-manager does not have."""
CONTROLLERS: Final = (DEPLOYMENT, REPLICASET, REPLICATIONCONTROLLER, READINESS)
LEASE: Final = LeaseName("kube-system", "kubeproxy-controller-manager")
"""The Lease of this process. It is not kube-controller-manager's, so that both processes can lead at the same time."""
READINESS_LEASE: Final = LeaseName("kube-system", "kubeproxy-readiness")
"""The Lease of a process that runs only the controller of readiness gates. It can lead while another process runs the
other controllers."""
EVENT_CAPACITY: Final = 1000
"""The largest number of queued Events, as in client-go."""

RIGHTS: Final = "bind the roles of deploy/controllers, or of deploy/components/readiness"
"""The advice in the log if the API server denies a request."""

Connect = Callable[[str], Awaitable[Client]]
"""A function that opens a client for a purpose, which is a name. Like in kube-controller-manager, each client has
request limits of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """The settings of a controller manager: which controllers run, with how many workers, and its leader election."""

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
    """Whether this process exits if another controller manager controls the same objects."""


class ControllerManager:
    """Runs the controllers while this process leads. Call `close` afterwards."""

    def __init__(self, settings: ManagerSettings, connect: Connect, *, clock: Callable[[], float] = time) -> None:
        self._settings = settings
        self._connect = connect
        self._clock = clock
        self._clients: dict[str, Client] = {}
        self._recorders: list[EventRecorder] = []
        self._states: list[Callable[[], ReflectorState]] = []
        self.leadership: Leadership | None = None
        """The leader election. It is None before `run`, and if leader election is off."""
        self.controllers: list[Controller] = []
        self.informers = Informers()
        self.rival: Rival | None = None
        """The detection of another controller manager. It is None before this process leads, and if only the controller
        of readiness gates is enabled."""
        self.readiness: ReadinessController | None = None
        """The controller of readiness gates. It is None before this process leads, and if it is not enabled."""
        self.working = False
        """Whether the caches are complete and the controllers run."""

    @property
    def clients(self) -> Mapping[str, Client]:
        """Return the open clients by purpose."""
        return self._clients

    @property
    def recorders(self) -> list[EventRecorder]:
        """Return the recorders of Events."""
        return self._recorders

    def watches(self) -> list[ReflectorState]:
        """Return the state of each reflector, which lists and watches one kind."""
        return [state() for state in self._states]

    async def run(self) -> None:
        """Run until cancelled, or until leadership is lost. Raise ConfigError for invalid credentials or settings."""
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
        """Release the Lease, and close the clients."""
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
        """Start the informers, wait until their caches are complete, and run the controllers."""
        watching = await self._client("informers")
        self.controllers = await self._make_controllers()
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
                log.info("controllers started", controllers=[controller.name for controller in self.controllers])
                if self._settings.controllers & WORKLOADS:
                    self.rival = Rival(
                        watching,
                        pods=self.informers.pods.store,
                        replica_sets=[("/apis/apps/v1", self.informers.replica_sets.store)],
                        exclusive=self._settings.require_exclusive,
                        clock=self._clock,
                    )
                    group.create_task(self.rival.run(), name="rival")
                for controller in self.controllers:
                    group.create_task(controller.run(), name=f"controller {controller.name}")
        finally:
            self.working = False

    async def _watch_proxies(self, client: Client) -> None:
        """Watch Services and drain reports once a Deployment or a readiness gate needs them.

        Their outages are logged separately, because this user may lack the right to read Services and Leases, and the
        other work goes on without them.
        """
        await self.informers.proxies_wanted.wait()
        outages = Connectivity(server=client.server, clock=self._clock, rights=RIGHTS)
        async with asyncio.TaskGroup() as group:
            for informer in (self.informers.services, self.informers.leases):
                keeping = informer.run(
                    client, outages=outages, resync_s=self._settings.resync_s, watch_state=self._states.append
                )
                group.create_task(keeping, name=f"informer of {informer.name}")

    async def _make_controllers(self) -> list[Controller]:
        made: list[Controller] = []
        enabled = self._settings.controllers
        if REPLICASET in enabled:
            made.append(await self._replica_set_controller(REPLICA_SET, self.informers.replica_sets, REPLICASET))
        if REPLICATIONCONTROLLER in enabled:
            made.append(
                await self._replica_set_controller(
                    REPLICATION_CONTROLLER, self.informers.replication_controllers, REPLICATIONCONTROLLER
                )
            )
        if DEPLOYMENT in enabled:
            client = await self._client(DEPLOYMENT)
            deployments = DeploymentController(
                requests=client,
                informers=self.informers,
                sink=self._sink(client, "deployment-controller"),
                workers=self._settings.workers[DEPLOYMENT],
                clock=self._clock,
            )
            made.append(deployments.controller)
        if READINESS in enabled:
            client = await self._client(READINESS)
            self.readiness = ReadinessController(
                requests=client,
                informers=self.informers,
                sink=self._sink(client, "readiness-controller"),
                workers=self._settings.workers[READINESS],
                clock=self._clock,
            )
            made.append(self.readiness.controller)
        return made

    async def _replica_set_controller(
        self, kind: ReplicaSetKind, informer: Informer[ReplicaSet], name: str
    ) -> Controller:
        client = await self._client(name)
        return ReplicaSetController(
            kind,
            requests=client,
            replica_sets=informer,
            pods=self.informers.pods,
            sink=self._sink(client, kind.component),
            workers=self._settings.workers[name],
            clock=self._clock,
        ).controller

    def _sink(self, client: Client, component: str) -> EventReporter:
        recorder = EventRecorder(
            client=client, node_name="", component=component, capacity=EVENT_CAPACITY, rights=RIGHTS
        )
        self._recorders.append(recorder)
        return EventReporter(recorder)

    def _informers(self) -> list[Informer[Deployment] | Informer[ReplicaSet] | Informer[Pod]]:
        """Return the informers that the enabled controllers read."""
        enabled = self._settings.controllers
        needed: list[Informer[Deployment] | Informer[ReplicaSet] | Informer[Pod]] = [self.informers.pods]
        if DEPLOYMENT in enabled:
            needed.append(self.informers.deployments)
        if enabled & {DEPLOYMENT, REPLICASET}:
            needed.append(self.informers.replica_sets)
        if REPLICATIONCONTROLLER in enabled:
            needed.append(self.informers.replication_controllers)
        return needed
