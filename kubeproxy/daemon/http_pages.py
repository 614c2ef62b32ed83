"""Makes the health server and the metrics server, with their pages, from the configuration.

The pages name every Service of the cluster, so they answer on loopback only, wherever the metrics listen.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kubeproxy.config.schema import Configuration
from kubeproxy.config.value_types import MetricsAddress
from kubeproxy.daemon.kernel_traffic import KernelTraffic
from kubeproxy.daemon.status_collector import StatusCollector
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.observability.debug_routes import debug_routes
from kubeproxy.observability.health import ProxyHealth, Reason
from kubeproxy.observability.http.access import Access
from kubeproxy.observability.http.server import HttpServer
from kubeproxy.observability.metrics.exposition import Exposition
from kubeproxy.observability.metrics.metrics import Metrics
from kubeproxy.observability.picture import Picture
from kubeproxy.observability.routes import health_routes, index_route, metrics_routes


def http_servers(
    configuration: Configuration,
    *,
    node_name: str,
    health: ProxyHealth,
    metrics: Metrics,
    data_plane: DataPlane,
    picture: Callable[[], Picture],
    kernel_traffic: KernelTraffic,
    status_collector: StatusCollector,
    configz: Callable[[], Mapping[str, object]],
    on_health_failure: Callable[[str], None],
    holder_of: Callable[[str, int], str],
) -> Sequence[HttpServer]:
    """The configured servers, not started yet. `on_health_failure` gets, once, the reason why the health server has
    no address. `holder_of` names the process that has an address, for messages."""
    exposition = Exposition(
        metrics, data_plane=data_plane, picture=picture, with_kernel_traffic=kernel_traffic.added_to
    )
    pages = [
        *metrics_routes(exposition, metrics, configz),
        *status_collector.routes(),
        *debug_routes(enabled=configuration.enable_profiling),
    ]
    pages.insert(0, index_route([page for page in pages if "/page." not in page.path and "/debug" not in page.path]))
    access = Access(
        names=frozenset({node_name, socket.gethostname().lower()}), public=configuration.kubeproxy.public_status
    )
    metrics_address = configuration.metrics_bind_address
    servers = []

    def health_failed(problem: str) -> None:
        on_health_failure(problem)
        health.degraded(Reason.SERVER, problem, part="health")

    if configuration.healthz_bind_address.served:
        servers.append(
            HttpServer(
                name="health",
                host=configuration.healthz_bind_address.address,
                port=configuration.healthz_bind_address.port,
                routes=health_routes(health, metrics),
                setting="healthzBindAddress",
                hard_fail=configuration.bind_address_hard_fail,
                on_failure=health_failed,
                on_listening=partial(health.degraded, Reason.SERVER, None, part="health"),
                on_refused=partial(metrics.http_refused, "health"),
                holder_of=holder_of,
            )
        )
    for address in metrics_addresses(metrics_address):
        servers.append(
            HttpServer(
                name="metrics",
                host=address,
                port=metrics_address.port,
                routes=pages,
                setting="metricsBindAddress",
                # The loopback address is an addition for the pages; a start does not fail for it.
                hard_fail=configuration.bind_address_hard_fail and address == metrics_address.address,
                on_failure=partial(health.degraded, Reason.SERVER, part=address),
                on_listening=partial(health.degraded, Reason.SERVER, None, part=address),
                on_refused=partial(metrics.http_refused, "metrics"),
                holder_of=holder_of,
                access=access,
            )
        )
    return servers


def metrics_addresses(configured: MetricsAddress) -> Sequence[str]:
    """The addresses of the metrics server: the configured one, and always a loopback address."""
    if not configured.served:
        return ()
    if configured.is_everywhere:
        return (configured.address,)
    return tuple(dict.fromkeys((configured.address, configured.loopback)))
