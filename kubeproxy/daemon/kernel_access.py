"""The kernel, as the control process uses it: the packet filter's adapter, connection tracking, and what this host and
its kernel support."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.data_path_policy import DataPaths
from kubeproxy.daemon.data_plane_choice import AnyDataPlane
from kubeproxy.daemon.host_state import HostFacts
from kubeproxy.daemon.process_start import Process
from kubeproxy.daemon.settings import tune
from kubeproxy.netfilter.conntrack.delete_flows import KernelConntrack
from kubeproxy.netfilter.conntrack.stale_flows import Conntrack, NoConntrack
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.select import select
from kubeproxy.proxier.tracker import Tracker

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KernelAccess:
    """The adapters in use, the facts about this host, and the present choice of data paths. The adapters stay the same
    while the process lives."""

    netfilter: Netfilter
    conntrack: Conntrack
    host_facts: HostFacts
    data_paths: DataPaths
    guards_sockets: bool
    """Whether netfilter can tell our listening sockets from those of other processes."""

    @classmethod
    async def create(
        cls, configuration: Configuration, process: Process, tracker: Tracker, data_plane: AnyDataPlane
    ) -> KernelAccess:
        """Choose the adapter, and probe what the kernel supports. Raise KernelError if no adapter works.

        `tracker` provides the Node object, which is one of the facts about this host.
        """
        host_facts = HostFacts(configuration, tracker)
        # Let the workers start while the kernel is probed.
        _, (netfilter, choice) = await asyncio.gather(
            data_plane.send([tune(configuration)]), select(configuration.netfilter_order)
        )
        log.info("packet filter", choice=choice)
        if (order := configuration.netfilter_order) and not choice.startswith(order[0]):
            log.warning("no nftables, so no kernel path", remedy="install nft, or set netfilter to iptables")
        process.closing.push_async_callback(netfilter.close)
        await host_facts.look_whether_addresses_can_be_preserved(netfilter)
        guards_sockets = await host_facts.can_guard_sockets(netfilter)
        await host_facts.look_whether_dials_are_marked(netfilter)
        data_paths = DataPaths(netfilter)
        await data_paths.use(configuration)
        # Without rules of ours no conntrack entry can contradict them.
        conntrack = KernelConntrack() if netfilter.name != "none" else NoConntrack()
        return cls(netfilter, conntrack, host_facts, data_paths, guards_sockets)
