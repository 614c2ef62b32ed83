"""Translates the configuration into values of other packages, which do not import the configuration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kubeproxy.config.address_types import DeniedEndpoints
from kubeproxy.config.default_scheduler import scheduler_of
from kubeproxy.config.own_settings import OwnSettings
from kubeproxy.config.schema import Configuration
from kubeproxy.config.value_types import Ports
from kubeproxy.dataplane.messages import Tune
from kubeproxy.netfilter.conntrack.sysctls import ConntrackLimits
from kubeproxy.proxier.cidr_set import CidrSet
from kubeproxy.proxier.port_allocator import PortRange
from kubeproxy.proxier.restrictions import NodePortConflict, PortSpan, Restrictions
from kubeproxy.proxier.settings import ProxierSettings
from kubeproxy.proxier.sync_schedule import Periods
from kubeproxy.sources.manifests.objects import Terms
from kubeproxy.sources.manifests.source import NAME as MANIFESTS


def tune(configuration: Configuration) -> Tune:
    """Return the settings of the data plane."""
    own = configuration.kubeproxy
    return Tune(
        dial_steps_s=tuple(step.seconds for step in own.dial_timeouts),
        keepalive_s=max(1, round(own.keepalive_period.seconds)),
        udp_idle_s=configuration.udp_idle_timeout.seconds,
        half_closed_idle_s=own.half_closed_timeout.seconds,
        orphan_grace_s=own.orphan_grace.seconds,
        shutdown_grace_s=own.shutdown_grace.seconds,
        access_log=bool(own.access_log),
        udp_sessions_max=own.udp_sessions,
    )


def conntrack_limits(configuration: Configuration) -> ConntrackLimits:
    """Return the settings of the kernel's connection tracking."""
    wanted = configuration.conntrack
    return ConntrackLimits(
        max_per_core=wanted.max_per_core,
        min=wanted.min,
        tcp_established_s=wanted.tcp_established_timeout.seconds,
        tcp_close_wait_s=wanted.tcp_close_wait_timeout.seconds,
        udp_s=wanted.udp_timeout.seconds,
        udp_stream_s=wanted.udp_stream_timeout.seconds,
        tcp_be_liberal=wanted.tcp_be_liberal,
    )


def proxier_settings(configuration: Configuration, before: ProxierSettings) -> ProxierSettings:
    """Return the settings of the proxier. Settings that do not come from the configuration are copied from `before`."""
    ports = configuration.port_range
    return replace(
        before,
        periods=Periods(min_sync_s=configuration.min_sync_period_s, sync_s=configuration.sync_period_s),
        port_range=PortRange(ports.first, ports.last) if ports else None,
        restrictions=restrictions(configuration),
        drains=configuration.kubeproxy.drain_reports,
        scheduler=scheduler_of(configuration),
        drain_hook_port=configuration.kubeproxy.drain_hook_port,
    )


def restrictions(configuration: Configuration) -> Restrictions:
    """Return the restrictions on what Services may have."""
    own = configuration.kubeproxy
    denied = own.denied_endpoint_cidrs
    blocks = CidrSet(frozenset(map(str, denied)) - {DeniedEndpoints.NODE})
    configured = denied != OwnSettings().denied_endpoint_cidrs
    return Restrictions(
        denied_endpoints=blocks if configured else CidrSet(),
        denied_foreign_endpoints=blocks,
        deny_node=DeniedEndpoints.NODE in denied,
        trusted=frozenset({MANIFESTS}),
        external=CidrSet(frozenset(map(str, own.external_address_cidrs))) if own.external_address_cidrs else None,
        external_ports=_spans(own.external_ports_on_node),
        own_ports={
            server.port: setting
            for setting, server in (
                ("healthzBindAddress", configuration.healthz_bind_address),
                ("metricsBindAddress", configuration.metrics_bind_address),
            )
            if server.served
        },
        reserved_ports=_spans(own.reserved_ports),
        node_port_conflict=NodePortConflict(own.node_port_conflict),
    )


def manifest_terms(configuration: Configuration) -> Terms:
    """Return the conditions that the objects of manifests have to meet."""
    wanted = configuration.kubeproxy.manifests
    return Terms(
        # Convert the names to plain str: they are sent to the workers, and msgspec cannot encode a subclass of str.
        default_namespace=str(wanted.default_namespace),
        enforced_namespace=str(wanted.namespace) or None,
        strict=wanted.strict,
    )


def _spans(ports: Iterable[Ports]) -> tuple[PortSpan, ...]:
    return tuple(PortSpan(port.first, port.last) for port in ports)
