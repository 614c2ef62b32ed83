"""Checks the rules between fields of a configuration.

The rules are kube-proxy's (pkg/proxy/apis/config/validation), and further rules for the project's own settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from kubeproxy.config.default_scheduler import warnings_of
from kubeproxy.config.describe import describe
from kubeproxy.config.field_info import Effect
from kubeproxy.config.fields import fields, flatten
from kubeproxy.config.kube_proxy_settings import IPVS, IPTables, NFTables
from kubeproxy.config.schema import Configuration
from kubeproxy.config.typed_values import Diagnostics
from kubeproxy.config.value_types import Duration
from kubeproxy.model.errors import ConfigError

_MAX_KEEPALIVE_S: Final = 32767
"""MAX_TCP_KEEPIDLE in the kernel's include/net/tcp.h."""

_SHORT_UDP_S: Final = 1.0
"""A UDP timeout of fewer seconds causes a warning, because a resolver that queries other servers may take this long."""

_PLACEHOLDER: Final = ".example.com"
"""A part of a name that no host has (RFC 2606). In deploy/example and deploy/components/api-server it marks a value
that has to be edited."""

_URL: Final = re.compile(r"(?:https?://)?(?:\[[0-9a-fA-F:.]+]|[^\s/:\[\]]+)(?::\d{1,5})?(?:/\S*)?", re.ASCII)
"""Matches a URL as in kubeconfig files, where the scheme is optional."""


def validate(configuration: Configuration, diagnostics: Diagnostics) -> None:
    """Check the rules between fields. Add all faults, and warnings about allowed values that are probably mistakes."""
    _check_periods(configuration, diagnostics)
    _check_local_mode(configuration, diagnostics)
    _check_servers(configuration, diagnostics)
    _check_own(configuration, diagnostics)
    _check_udp_timeout(configuration, diagnostics)
    _check_ports(configuration, diagnostics)
    diagnostics.warnings.extend(warnings_of(configuration))


def unused(configuration: Configuration, flags: Iterable[str] = ()) -> str:
    """Return a line that lists the fields and flags that were set but have no effect, or an empty text if there are
    none."""
    described, values = fields(), flatten(configuration)
    paths = [path for path, field in described.items() if field.effect is Effect.NONE and values[path] != field.default]
    if configuration.mode in ("ipvs", "kernelspace"):
        paths.append("mode")
    named = [*paths, *flags]
    return f"accepted, but without effect: {', '.join(named)}" if named else ""


def uses_kubernetes(configuration: Configuration, environ: Mapping[str, str]) -> bool:
    """Return whether Services come from an API server. Like client-go, recognize a pod by two variables in
    `environ`."""
    match configuration.kubeproxy.kubernetes:
        case "auto":
            return bool(
                configuration.client_connection.kubeconfig
                or configuration.kubeproxy.master
                or (environ.get("KUBERNETES_SERVICE_HOST") and environ.get("KUBERNETES_SERVICE_PORT"))
            )
        case choice:
            return choice == "always"


def require_source(configuration: Configuration, environ: Mapping[str, str]) -> None:
    """Raise ConfigError if there is no source of Services. That depends on the host and its environment, so `validate`
    does not check it."""
    if not configuration.kubeproxy.manifests.paths and not uses_kubernetes(configuration, environ):
        raise ConfigError(
            "kubeproxy.manifests.paths: found no source of Services; allowed: manifests (--manifests), or an API server"
            " (--kubeconfig, --master, or a pod's service account)"
        )
    own = not (configuration.client_connection.kubeconfig or configuration.kubeproxy.master)
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    if own and host.endswith(_PLACEHOLDER) and uses_kubernetes(configuration, environ):
        raise ConfigError(
            f"KUBERNETES_SERVICE_HOST: found {host}, a placeholder; allowed: the API server's own address"
        )


def _check_periods(configuration: Configuration, diagnostics: Diagnostics) -> None:
    groups: dict[str, IPTables | NFTables | IPVS] = {
        "iptables": configuration.iptables,
        "nftables": configuration.nftables,
    }
    if configuration.mode == "ipvs":
        groups["ipvs"] = configuration.ipvs
    for name, group in groups.items():
        if group.min_sync_period.nanoseconds > group.sync_period.nanoseconds:
            diagnostics.fault(
                f"{name}.minSyncPeriod",
                str(group.min_sync_period),
                f"at most {name}.syncPeriod, which is {group.sync_period}",
            )


def _check_local_mode(configuration: Configuration, diagnostics: Diagnostics) -> None:
    needed = {
        "BridgeInterface": ("detectLocal.bridgeInterface", configuration.detect_local.bridge_interface),
        "InterfaceNamePrefix": ("detectLocal.interfaceNamePrefix", configuration.detect_local.interface_name_prefix),
    }
    path, value = needed.get(configuration.detect_local_mode, ("", "unneeded"))
    if not value:
        diagnostics.fault(path, "nothing", f"a name, as detectLocalMode is {configuration.detect_local_mode}")
    elif path and not configuration.cluster_cidr.blocks:
        diagnostics.warnings.append(
            f"detectLocalMode: {configuration.detect_local_mode} does not tell kubeproxy which clients are pods of this"
            " node; set clusterCIDR, or NodeCIDR where the cluster assigns podCIDRs to nodes. Without, pods count as"
            " clients from outside under externalTrafficPolicy Local"
        )


def _check_servers(configuration: Configuration, diagnostics: Diagnostics) -> None:
    healthz, metrics = configuration.healthz_bind_address, configuration.metrics_bind_address
    alike = healthz.address == metrics.address or {healthz.address, metrics.address} & {"0.0.0.0", "::"}
    if healthz.served and healthz.port == metrics.port and alike:
        diagnostics.fault(
            "metricsBindAddress", str(metrics), f"another port than healthzBindAddress, which is {healthz}"
        )


def _check_own(configuration: Configuration, diagnostics: Diagnostics) -> None:
    own = configuration.kubeproxy
    if not 1 <= own.keepalive_period.seconds <= _MAX_KEEPALIVE_S:
        maximum = Duration.of(seconds=_MAX_KEEPALIVE_S)
        diagnostics.fault("kubeproxy.keepalivePeriod", str(own.keepalive_period), f"a duration from 1s to {maximum}")
    paths = own.manifests.paths
    for place, path in enumerate(paths):
        if not path:
            diagnostics.fault(
                f"kubeproxy.manifests.paths[{place}]", "nothing", "a file, a directory, a pattern, a URL or -"
            )
        elif path in paths[:place]:
            diagnostics.fault(f"kubeproxy.manifests.paths[{place}]", f"{describe(path)} again", "every path once")
    for place, address in enumerate(own.node_addresses):
        path = f"kubeproxy.nodeAddresses[{place}]"
        parsed = ip_address(address)
        if parsed.is_unspecified or parsed.is_multicast or parsed.is_loopback or parsed.is_link_local:
            diagnostics.fault(path, describe(address), "an address at which other hosts reach this node")
        elif address in own.node_addresses[:place]:
            diagnostics.fault(path, f"{describe(address)} again", "every address once")
    if own.userspace_fallback == "never":
        if own.data_path != "kernel":
            # With dataPath auto, workers are needed while failed connections are not rescued.
            diagnostics.fault("kubeproxy.dataPath", own.data_path, "kernel, as kubeproxy.userspaceFallback is never")
        if own.netfilter in ("iptables", "none"):
            diagnostics.fault(
                "kubeproxy.netfilter", own.netfilter, "nftables or auto, as kubeproxy.userspaceFallback is never"
            )
    if own.master and not _URL.fullmatch(own.master):
        diagnostics.fault("kubeproxy.master", describe(own.master), "a URL, such as https://192.0.2.1:6443")


def _check_udp_timeout(configuration: Configuration, diagnostics: Diagnostics) -> None:
    """Warn of a short UDP timeout. kube-proxy up to 1.25 wrote its default of 250ms into files, although only its
    userspace mode used it."""
    timeout = configuration.udp_idle_timeout
    if timeout.seconds < _SHORT_UDP_S:
        diagnostics.warnings.append(
            f"udpIdleTimeout: {timeout} loses every UDP answer that takes longer; kube-proxy's other modes ignored it;"
            f" remove it for the default of {Configuration().udp_idle_timeout}"
        )


def _check_ports(configuration: Configuration, diagnostics: Diagnostics) -> None:
    """Warn of ports that are both permitted and reserved."""
    own = configuration.kubeproxy
    for ports in own.external_ports_on_node:
        clash = [
            str(reserved)
            for reserved in own.reserved_ports
            if reserved.first <= ports.last and ports.first <= reserved.last
        ]
        if clash:
            diagnostics.warnings.append(
                f"kubeproxy.externalPortsOnNode: {ports} contains ports that stay reserved by kubeproxy.reservedPorts:"
                f" {', '.join(clash)}"
            )
