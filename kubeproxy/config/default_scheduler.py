"""Finds the scheduler of Services that do not request one, from the setting `kubeproxy.scheduler` or, in mode ipvs,
from kube-proxy's `ipvs.scheduler`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeproxy.config.schema import Configuration
from kubeproxy.model import Scheduler

OF_IPVS: Final = {
    "": Scheduler.ROUND_ROBIN,
    "rr": Scheduler.ROUND_ROBIN,
    "wrr": Scheduler.ROUND_ROBIN,
    "lc": Scheduler.LEAST_CONNECTIONS,
    "wlc": Scheduler.LEAST_CONNECTIONS,
    "sed": Scheduler.LEAST_CONNECTIONS,
    "nq": Scheduler.LEAST_CONNECTIONS,
    "sh": Scheduler.SOURCE_HASH,
    "mh": Scheduler.MAGLEV,
}
"""The scheduler that replaces each IPVS scheduler. The missing IPVS schedulers choose an endpoint by the destination
address. They are meant for caches in front of many servers, and would send all clients of a Service to the same
endpoint."""


def scheduler_of(configuration: Configuration) -> Scheduler:
    """Return the scheduler of Services without the annotation kubeproxy/scheduler."""
    if configuration.kubeproxy.scheduler != "auto":
        return Scheduler(configuration.kubeproxy.scheduler)
    if configuration.mode != "ipvs":
        return Scheduler.ROUND_ROBIN
    return OF_IPVS.get(configuration.ipvs.scheduler, Scheduler.ROUND_ROBIN)


def warnings_of(configuration: Configuration) -> Iterator[str]:
    """Yield warnings about a configured scheduler that is replaced by another one."""
    name = configuration.ipvs.scheduler
    if configuration.mode == "ipvs" and configuration.kubeproxy.scheduler == "auto" and name not in OF_IPVS:
        yield (
            f"ipvs.scheduler: {name} chooses by the destination, which all clients of a Service have in common, so it"
            " would send them all to one endpoint; round-robin is used; for the same endpoint at every connection of a"
            " client, set kubeproxy.scheduler to source-hash"
        )
    least_connections = scheduler_of(configuration) is Scheduler.LEAST_CONNECTIONS
    if least_connections and configuration.kubeproxy.userspace_fallback == "never":
        yield (
            "kubeproxy.userspaceFallback: never leaves no workers, which count what is open for the scheduler"
            " least-connections; the kernel draws an endpoint for each connection instead"
        )
