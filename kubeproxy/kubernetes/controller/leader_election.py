"""Runs leader election: acquires a Lease object, renews it, and cancels the work when the Lease is lost.

The package kubernetes_asyncio has leader election, too, which is not used for these reasons. It waits without jitter
and by the wall clock. Its requests have no time limit, so a leader whose request hangs continues to lead after its
Lease has expired, and its writes are not stopped, as the `guard` of `Client` does here. It catches only ApiException,
so a broken connection or an invalid time in the Lease ends it with a traceback. It does not release the Lease at the
end. And its generated client, for three requests, would add 35 MiB to the 37 MiB of a controller manager (PSS), with
credentials and time limits of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from random import Random
from typing import Any, Final

import msgspec
import structlog

from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.api_types import Wire
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.controller.election_state import JITTER, LeaderElection, LeaseRecord, Step
from kubeproxy.kubernetes.object_client import ObjectClient, already_exists, is_conflict, is_not_found

log = structlog.get_logger(__name__)

LEASE_RIGHTS: Final = "deploy/controllers/role.yaml and its binding, in the namespace of the Lease"


class LeaseMeta(Wire, frozen=True):
    """The metadata of a Lease, with only the field in use."""

    resource_version: str = ""


class LeaseSpec(Wire, frozen=True):
    """The spec of a Lease as the server sends it. Any field may be absent."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Wire, frozen=True):
    """A coordination.k8s.io/v1 Lease."""

    metadata: LeaseMeta = LeaseMeta()
    spec: LeaseSpec = LeaseSpec()

    @property
    def record(self) -> LeaseRecord:
        """Return the fields that the election uses."""
        spec = self.spec
        return LeaseRecord(
            holder=spec.holder_identity or "",
            duration_s=spec.lease_duration_seconds or 0,
            acquired=timestamps.parse(spec.acquire_time) or 0.0,
            renewed=timestamps.parse(spec.renew_time) or 0.0,
            transitions=spec.lease_transitions or 0,
        )


def boot_time() -> float:
    """Return the seconds since the machine was booted, including the time for which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeadershipLostError(Exception):
    """Raised instead of sending a write if this process may no longer be the leader."""


@dataclass(frozen=True, slots=True)
class LeaseName:
    """The name and namespace of the Lease."""

    namespace: str
    name: str


class Leadership:
    """A candidate for a Lease. `clock` must advance while the machine is suspended; `unix_clock` gives the times that
    are written to the Lease."""

    def __init__(
        self,
        requests: Client,
        name: LeaseName,
        election: LeaderElection,
        *,
        clock: Callable[[], float] = boot_time,
        unix_clock: Callable[[], float] = time.time,
        random: Random | None = None,
    ) -> None:
        decode = msgspec.json.Decoder(Lease).decode
        self._leases: ObjectClient[Lease] = ObjectClient(
            requests, group="/apis/coordination.k8s.io/v1", resource="leases", decode=decode
        )
        self.name = name
        """The name and namespace of the Lease."""
        self._election = election
        self._clock = clock
        self._unix_clock = unix_clock
        self._random = random or Random()
        self._lease: Lease | None = None
        self._failure = ""
        """The error of the last request for the Lease, or empty if it succeeded."""
        self._leader_seen = ""

    def is_leading(self) -> bool:
        """Return whether this process is the leader now."""
        return self._election.leading(self._clock())

    @property
    def holder(self) -> str:
        """Return the identity of the leader that was seen last, or an empty text if there is none."""
        record = self._election.record
        return "" if record is None else record.holder

    def demand(self) -> None:
        """Raise `LeadershipLostError` unless this process is the leader.

        Call this immediately before each write, because the process may have been suspended at any moment before.
        """
        if not self.is_leading():
            raise LeadershipLostError(f"the lease {self.name.namespace}/{self.name.name} is not held any more")

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease, then run `work` until the Lease is lost. Then cancel `work`, and return.

        If `work` ends by itself, return, too.
        """
        await self._acquire()
        try:
            await self._work_until_lost(work)
        except* LeadershipLostError as errors:  # A write may notice the loss before the renewal does.
            log.debug("writes held back", lease=self.name.name, writes=len(errors.exceptions))
        if not self.is_leading():
            log.error("leadership lost", lease=self.name.name, holder=self.holder)
            self._election.resign()

    async def _work_until_lost(self, work: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(_run(work), name="work of the leader")
            renewing = group.create_task(self._renew(), name="renewal of the lease")
            await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            renewing.cancel()

    async def release(self) -> None:
        """Release the Lease, so that another candidate need not wait until it expires. Ignore a failure, because the
        Lease expires by itself."""
        record = self._election.release(self._unix_clock())
        if record is None or self._lease is None or not self.is_leading():
            return
        with contextlib.suppress(ApiError):
            await self._update(self._lease, record)
            log.info("leadership released", lease=self.name.name)
        self._election.resign()

    async def _acquire(self) -> None:
        while True:
            if await self._try():
                break
            await asyncio.sleep(self._election.retry_s * (1 + JITTER * self._random.random()))
        log.info("leadership acquired", lease=self.name.name, identity=self._election.identity)

    async def _renew(self) -> None:
        """Renew the Lease. Return when it is lost, because another candidate has it or no renewal has succeeded in
        time."""
        while True:
            await asyncio.sleep(self._election.retry_s)
            if not self.is_leading():
                return  # The process was suspended past the deadline, and a late renewal does not count.
            try:
                async with asyncio.timeout(self._election.renew_s):
                    await self._try()
            except TimeoutError:
                log.warning("lease renewal got no answer", lease=self.name.name)
            if not self.is_leading():
                return

    async def _try(self) -> bool:
        """Read the Lease, and write it if this candidate may take or renew it. Return whether this candidate holds
        it."""
        asked_at = self._clock()
        try:
            lease = await self._read()
            step = self._election.next_step(None if lease is None else lease.record, asked_at)
            self._note_holder()
            if step is Step.WAIT:
                return False
            record = self._election.proposal(self._unix_clock())
            self._lease = await (self._create(record) if lease is None else self._update(lease, record))
        except ApiError as error:
            if not (is_conflict(error) or already_exists(error)):
                hint = {"hint": LEASE_RIGHTS} if error.status == HTTPStatus.FORBIDDEN else {}
                # Log each message only once, because the request is repeated every few seconds.
                if str(error) != self._failure:
                    log.warning("lease request failed", lease=self.name.name, error=str(error), **hint)
                self._failure = str(error)
            return False
        if self._failure:
            self._failure = ""
            log.info("lease request works again", lease=self.name.name)
        # Use the record that the server returned, because its times are rounded to microseconds.
        self._election.written(self._lease.record, asked_at=asked_at)
        return True

    async def _read(self) -> Lease | None:
        try:
            return await self._leases.get(self.name.namespace, self.name.name)
        except ApiError as error:
            if is_not_found(error):
                return None
            raise

    async def _create(self, record: LeaseRecord) -> Lease:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name.name, "namespace": self.name.namespace},
            "spec": _spec(record),
        }
        return await self._leases.create(self.name.namespace, body)

    async def _update(self, lease: Lease, record: LeaseRecord) -> Lease:
        body = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": _spec(record)}
        return await self._leases.patch(self.name.namespace, self.name.name, body)

    def _note_holder(self) -> None:
        if self.holder != self._leader_seen:
            self._leader_seen = self.holder
            if self.holder and self.holder != self._election.identity:
                log.info("another process leads", lease=self.name.name, holder=self.holder)


def _spec(record: LeaseRecord) -> dict[str, Any]:
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.duration_s,
        "acquireTime": timestamps.microseconds(record.acquired),
        "renewTime": timestamps.microseconds(record.renewed),
        "leaseTransitions": record.transitions,
    }


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()
