"""What this process shows over HTTP: its health at one address, figures and pages at another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.status_collector import StatusCollector
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.observability.debug_routes import debug_routes
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.http.server import HttpServer
from kubeproxy.observability.metrics.exposition import Exposition
from kubeproxy.observability.metrics.metrics import Metrics
from kubeproxy.observability.routes import health_routes, metrics_routes
from kubeproxy.observability.views import Picture


def http_servers(
    configuration: Configuration,
    *,
    health: ProxyHealth,
    metrics: Metrics,
    data_plane: DataPlane,
    picture: Callable[[], Picture],
    status_collector: StatusCollector,
    configz: Callable[[], Mapping[str, object]],
    on_health_failure: Callable[[str], None],
) -> Sequence[HttpServer]:
    """Those that the configuration wants, not started yet. `on_health_failure` is told, once, why the health server has
    not got its address."""
    exposition = Exposition(metrics, data_plane=data_plane, picture=picture)
    pages = [
        *metrics_routes(exposition, metrics, configz),
        *status_collector.routes(),
        *debug_routes(enabled=configuration.enable_profiling),
    ]
    plans = (
        ("health", configuration.healthz_bind_address, health_routes(health, metrics)),
        ("metrics", configuration.metrics_bind_address, pages),
    )
    return [
        HttpServer(
            name=name,
            host=address.address,
            port=address.port,
            routes=routes,
            setting=f"{'healthz' if name == 'health' else name}BindAddress",
            hard_fail=configuration.bind_address_hard_fail,
            on_failure=on_health_failure if name == "health" else None,
        )
        for name, address, routes in plans
        if address.served
    ]
