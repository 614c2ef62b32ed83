"""Traces a hypothetical connection, first through the rules in force and then through the data plane.

`kubeproxy.netfilter.packet_simulation` decides what happens, and tests compare its decisions with real kernels.
`trace_explanation` puts the decision into words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from kubeproxy.daemon import trace_explanation as explanation
from kubeproxy.daemon.kernel_path_trace import forwarding
from kubeproxy.daemon.trace_client import Client, client_of
from kubeproxy.dataplane.interface import BalancePreview, Counters, DataPlane
from kubeproxy.model import (
    Address,
    Destination,
    Service,
    Target,
)
from kubeproxy.model.errors import KernelError
from kubeproxy.model.rescue import RescueState
from kubeproxy.model.snapshot import FrontendState as Standing
from kubeproxy.model.snapshot import Snapshot
from kubeproxy.netfilter.nftables.affinity_lookup import Bond, bond_of
from kubeproxy.netfilter.packet_simulation import Fate, Trace, Why, trace
from kubeproxy.netfilter.ruleset import RuleSet, Spread
from kubeproxy.observability.status import build
from kubeproxy.observability.status import text as status_text
from kubeproxy.observability.status.document import FrontendStatus
from kubeproxy.observability.status.trace_report import Outcome, TraceReport, TraceRequest, WorkerPreview
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.proxier import Proxier

log = structlog.get_logger(__name__)

_OUTCOMES = {
    Fate.PASSED: Outcome.PASSED,
    Fate.PROXIED: Outcome.PROXIED,
    Fate.FORWARDED: Outcome.FORWARDED,
    Fate.REFUSED: Outcome.REFUSED,
    Fate.DROPPED: Outcome.DROPPED,
}


def decide(asked: TraceRequest, client: Client, rules: RuleSet, facts: NodeFacts) -> Trace:
    """Return what the kernel does with the first packet."""
    return trace(
        rules,
        asked.to,
        source=client.address,
        from_this_host=client.is_this_node,
        for_this_host=facts.is_own(asked.to.address),
        by_uplink=not client.is_pod,
    )


class Tracer:
    """Traces connections in a running daemon, and changes nothing."""

    def __init__(
        self,
        *,
        proxier: Proxier,
        data_plane: DataPlane,
        facts: Callable[[], NodeFacts],
        rescue: Callable[[], RescueState | None] = lambda: None,
        find_bond: Callable[[Address, Spread], Awaitable[Bond | None]] = bond_of,
    ) -> None:
        """`find_bond` asks the kernel for the endpoint to which session affinity binds a client of the kernel
        path."""
        self._proxier = proxier
        self._rescue = rescue
        self._find_bond = find_bond
        self._data_plane = data_plane
        self._facts = facts

    async def __call__(self, asked: TraceRequest) -> TraceReport:
        """Trace the connection as it would be handled now."""
        snapshot, facts = self._proxier.view.snapshot(), self._facts()
        in_force = self._proxier.kernel.in_force
        rules = in_force or RuleSet()
        client = client_of(asked, rules, facts)
        met = decide(asked, client, rules, facts)
        standing = _standing(snapshot, asked.to, met)
        frontend = None if standing is None else standing.frontend
        service = None if frontend is None else self._proxier.view.service(frontend.name.service_port.service)
        outlooks: Sequence[BalancePreview] = ()
        listener: FrontendStatus | None = None
        if standing is not None and frontend is not None:
            if met.fate is Fate.PROXIED:
                outlooks = await self._data_plane.previews(
                    frontend.name, client.address or asked.to.address, asked.source_port
                )
            listener = await self._listener(standing)
        steps = list(explanation.steps(asked, client, rules, met, frontend, service, snapshot, in_force is not None))
        if met.fate is Fate.PROXIED and frontend is not None:
            if standing is not None and standing.data_path_reason not in ("", status_text.NOT_ASKED):
                steps.append(f"it takes the userspace path: {standing.data_path_reason}")
            steps += explanation.dialing(frontend, outlooks, asked)
        elif met.spread is not None:
            shown = {} if listener is None else {endpoint.address: endpoint for endpoint in listener.endpoints}
            steps += forwarding(
                met.spread,
                met,
                rules,
                shown,
                await self._bond(client, met.spread),
                client=client.address,
                client_port=asked.source_port,
            )
        return TraceReport(
            to=str(Target(asked.to.address, asked.to.port)),
            protocol=asked.to.protocol,
            source=client.address or "an address of its own",
            client=client.words,
            hook=client.hook,
            outcome=_OUTCOMES[met.fate],
            reason=explanation.reason(asked, met, frontend, rules, snapshot, self._troubled(snapshot)),
            steps=tuple(steps),
            service=None if frontend is None else str(frontend.name.service_port),
            frontend=listener,
            previews=tuple(
                WorkerPreview(one.worker, tuple(map(str, one.order)), None if one.bound is None else str(one.bound))
                for one in outlooks
            ),
        )

    async def _bond(self, client: Client, spread: Spread) -> Bond | None:
        if client.address is None:
            return None
        try:
            return await self._find_bond(client.address, spread)
        except KernelError as error:
            log.info("cannot look up affinity", reason=str(error))
            return None

    def _troubled(self, snapshot: Snapshot) -> list[Service]:
        """Return the Services that have problems."""
        services = (self._proxier.view.service(name) for name in snapshot.problems)
        return [service for service in services if service is not None]

    async def _listener(self, standing: Standing) -> FrontendStatus:
        name = standing.frontend.name
        counters, ejected = await self._data_plane.counters(), await self._data_plane.ejected()
        open_by_endpoint = await self._data_plane.open_by_endpoint()
        candidates = self._proxier.view.candidates(name)
        draining = {target.address for target, endpoint in candidates.items() if endpoint.draining}
        return build.frontend(
            standing,
            counters=counters.get(name) or Counters(),
            ejected=ejected.get(name, ()),
            candidates=self._proxier.view.candidates,
            open_by_endpoint=open_by_endpoint.get(name, {}),
            open_to=await self._data_plane.open_to(draining) if draining else {},
            rescue=self._rescue(),
            kernel_flows=None,
            now=asyncio.get_running_loop().time(),
        )


def _standing(snapshot: Snapshot, to: Destination, met: Trace) -> Standing | None:
    """Return the frontend for the packet's destination, even if the packet is dropped because of its source address."""
    for frontend in snapshot.frontends:
        if met.matched is not None:
            destination, origin = met.matched
            if frontend.frontend.destinations.get(destination) is not origin:
                continue
        if met.spread is not None and met.matched is not None:
            if str(frontend.frontend.name.service_port) == met.spread.service_port:
                return frontend
            continue
        if met.proxy_port is not None:
            if frontend.proxy_port == met.proxy_port and frontend.frontend.protocol is to.protocol:
                return frontend
        elif met.why is Why.SOURCE_RANGE and to in frontend.frontend.destinations:
            return frontend
    return None
