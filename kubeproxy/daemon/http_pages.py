"""Creates the health server and the metrics server, with their pages, from the configuration.

The status pages name every Service of the cluster, so they answer only on loopback, wherever the metrics server
listens.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kubeproxy.config.address_types import MetricsAddress
from kubeproxy.config.dump import go_data
from kubeproxy.daemon.shown_parts import ShownParts
from kubeproxy.daemon.status_collector import StatusCollector
from kubeproxy.model import Address, Protocol
from kubeproxy.netfilter.port_holders import Holders, kube_proxy_process
from kubeproxy.observability.debug_routes import debug_routes
from kubeproxy.observability.health import Reason
from kubeproxy.observability.http.access import Access
from kubeproxy.observability.http.server import HttpServer, Listening, Protection
from kubeproxy.observability.metrics.exposition import Exposition
from kubeproxy.observability.routes import health_routes, index_route, metrics_routes

HolderOf = Callable[[str, int], str]
"""A function that returns the name of the process that listens at an address and port of this host, for messages."""


def http_servers(parts: ShownParts, status_collector: StatusCollector) -> Sequence[HttpServer]:
    """Return the configured servers, not yet started."""
    holder_of = partial(_holder_of, parts.process.find_holders)
    return [*_health_server(parts, holder_of), *_metrics_servers(parts, status_collector, holder_of)]


def _health_server(parts: ShownParts, holder_of: HolderOf) -> Iterator[HttpServer]:
    reporting, configuration = parts.reporting, parts.configuration.value
    address = configuration.healthz_bind_address

    def failed(problem: str) -> None:
        reporting.events.health_failed(parts.kernel.host_facts.node_name, problem)
        reporting.health.degraded(Reason.SERVER, problem, part="health")

    if address.served:
        listening = Listening(
            name="health",
            host=address.address,
            port=address.port,
            setting="healthzBindAddress",
            hard_fail=configuration.bind_address_hard_fail,
            on_failure=failed,
            on_listening=partial(reporting.health.degraded, Reason.SERVER, None, part="health"),
            holder_of=holder_of,
        )
        protection = Protection(on_refused=partial(reporting.metrics.http_refused, "health"))
        yield HttpServer(listening, health_routes(reporting.health, reporting.metrics), protection)


def _metrics_servers(parts: ShownParts, status_collector: StatusCollector, holder_of: HolderOf) -> Iterator[HttpServer]:
    current, configuration = parts.configuration, parts.configuration.value
    health, metrics = parts.reporting.health, parts.reporting.metrics
    exposition = Exposition(
        metrics,
        data_plane=parts.data_plane,
        picture=parts.picture,
        with_kernel_traffic=parts.kernel_path.traffic.added_to,
    )
    pages = [
        *metrics_routes(exposition, metrics, lambda: go_data(current.value)),
        *status_collector.routes(),
        *debug_routes(enabled=configuration.enable_profiling),
    ]
    pages.insert(0, index_route([page for page in pages if "/page." not in page.path and "/debug" not in page.path]))
    access = Access(
        names=frozenset({parts.kernel.host_facts.node_name, socket.gethostname().lower()}),
        public=configuration.kubeproxy.public_status,
    )
    protection = Protection(access=access, on_refused=partial(metrics.http_refused, "metrics"))
    configured = configuration.metrics_bind_address
    for address in metrics_addresses(configured):
        listening = Listening(
            name="metrics",
            host=address,
            port=configured.port,
            setting="metricsBindAddress",
            # The loopback address is an addition for the status pages, so a start does not fail if it is in use.
            hard_fail=configuration.bind_address_hard_fail and address == configured.address,
            on_failure=partial(health.degraded, Reason.SERVER, part=address),
            on_listening=partial(health.degraded, Reason.SERVER, None, part=address),
            holder_of=holder_of,
        )
        yield HttpServer(listening, pages, protection)


def _holder_of(find_holders: Holders, host: str, port: int) -> str:
    """Return the process that has a port, in words, or an empty text if it is unknown."""
    try:
        holders = find_holders(Protocol.TCP, Address(host), port)
    except OSError:
        return ""
    text = ", ".join(map(str, holders))
    other = kube_proxy_process()
    if other is not None and not any(holder.command for holder in holders):
        text += f"; kube-proxy runs here (process {other})"
    return f"{text}: stop it first (docs/migration.md)" if "kube-proxy" in text else text


def metrics_addresses(configured: MetricsAddress) -> Sequence[str]:
    """Return the addresses of the metrics server: the configured one, and always a loopback address."""
    if not configured.served:
        return ()
    if configured.is_everywhere:
        return (configured.address,)
    return tuple(dict.fromkeys((configured.address, configured.loopback)))
