"""What no single field can tell: faults between fields. The rules are kube-proxy's (pkg/proxy/apis/config/validation),
and a few of ours. All are pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from kubeproxy.config.convert import Findings
from kubeproxy.config.describe import describe
from kubeproxy.config.field_info import Effect
from kubeproxy.config.fields import fields, flatten
from kubeproxy.config.schema import IPVS, Configuration, IPTables, NFTables
from kubeproxy.config.value_types import Duration
from kubeproxy.model.errors import ConfigError

_LONGEST_KEEPALIVE_S: Final = 32767
"""MAX_TCP_KEEPIDLE in the kernel's include/net/tcp.h."""

_SHORT_UDP_S: Final = 1.0
"""A resolver that has to ask others may well take so long."""

_URL: Final = re.compile(r"(?:https?://)?(?:\[[0-9a-fA-F:.]+]|[^\s/:\[\]]+)(?::\d{1,5})?(?:/\S*)?", re.ASCII)
"""As kubeconfig files have it: the scheme may be left out."""


def validate(configuration: Configuration, findings: Findings) -> None:
    """Note every fault that shows only when fields are seen together, and what is allowed but hardly meant."""
    _check_periods(configuration, findings)
    _check_local_mode(configuration, findings)
    _check_servers(configuration, findings)
    _check_own(configuration, findings)
    _doubt_udp_timeout(configuration, findings)
    _doubt_ports(configuration, findings)


def unused(configuration: Configuration, flags: Iterable[str] = ()) -> str:
    """One line that names what was set to something but has no meaning here: fields, and flags that have no field.
    Empty if there is nothing."""
    described, values = fields(), flatten(configuration)
    paths = [path for path, field in described.items() if field.effect is Effect.NONE and values[path] != field.default]
    if configuration.mode in ("ipvs", "kernelspace"):
        paths.append("mode")
    named = [*paths, *flags]
    return f"accepted, but without effect here: {', '.join(named)}" if named else ""


def uses_kubernetes(configuration: Configuration, environ: Mapping[str, str]) -> bool:
    """Whether Services come from an API server. `environ` tells whether this is a pod, as client-go decides it."""
    match configuration.kubeproxy.kubernetes:
        case "auto":
            return bool(
                configuration.client_connection.kubeconfig
                or configuration.kubeproxy.master
                or (environ.get("KUBERNETES_SERVICE_HOST") and environ.get("KUBERNETES_SERVICE_PORT"))
            )
        case choice:
            return choice == "always"


def demand_source(configuration: Configuration, environ: Mapping[str, str]) -> None:
    """ConfigError for a proxy that would have nothing to serve. It depends on the host, so it is not `validate`'s."""
    if not configuration.kubeproxy.manifests.paths and not uses_kubernetes(configuration, environ):
        raise ConfigError(
            "kubeproxy.manifests.paths: found no source of Services; allowed: manifests (--manifests), or an API server"
            " (--kubeconfig, --master, or a pod's service account)"
        )


def _check_periods(configuration: Configuration, findings: Findings) -> None:
    groups: dict[str, IPTables | NFTables | IPVS] = {
        "iptables": configuration.iptables,
        "nftables": configuration.nftables,
    }
    if configuration.mode == "ipvs":
        groups["ipvs"] = configuration.ipvs
    for name, group in groups.items():
        if group.min_sync_period.nanoseconds > group.sync_period.nanoseconds:
            findings.fault(
                f"{name}.minSyncPeriod",
                str(group.min_sync_period),
                f"at most {name}.syncPeriod, which is {group.sync_period}",
            )


def _check_local_mode(configuration: Configuration, findings: Findings) -> None:
    needed = {
        "BridgeInterface": ("detectLocal.bridgeInterface", configuration.detect_local.bridge_interface),
        "InterfaceNamePrefix": ("detectLocal.interfaceNamePrefix", configuration.detect_local.interface_name_prefix),
    }
    path, value = needed.get(configuration.detect_local_mode, ("", "unneeded"))
    if not value:
        findings.fault(path, "nothing", f"a name, as detectLocalMode is {configuration.detect_local_mode}")


def _check_servers(configuration: Configuration, findings: Findings) -> None:
    healthz, metrics = configuration.healthz_bind_address, configuration.metrics_bind_address
    alike = healthz.address == metrics.address or {healthz.address, metrics.address} & {"0.0.0.0", "::"}
    if healthz.served and healthz.port == metrics.port and alike:
        findings.fault("metricsBindAddress", str(metrics), f"another port than healthzBindAddress, which is {healthz}")


def _check_own(configuration: Configuration, findings: Findings) -> None:
    own = configuration.kubeproxy
    if not 1 <= own.keepalive_period.seconds <= _LONGEST_KEEPALIVE_S:
        longest = Duration.of(seconds=_LONGEST_KEEPALIVE_S)
        findings.fault("kubeproxy.keepalivePeriod", str(own.keepalive_period), f"a duration from 1s to {longest}")
    paths = own.manifests.paths
    for place, path in enumerate(paths):
        if not path:
            findings.fault(f"kubeproxy.manifests.paths[{place}]", "nothing", "a file, a directory, a URL or -")
        elif path in paths[:place]:
            findings.fault(f"kubeproxy.manifests.paths[{place}]", f"{describe(path)} again", "every path once")
    for place, address in enumerate(own.node_addresses):
        path = f"kubeproxy.nodeAddresses[{place}]"
        parsed = ip_address(address)
        if parsed.is_unspecified or parsed.is_multicast or parsed.is_loopback or parsed.is_link_local:
            findings.fault(path, describe(address), "an address at which other hosts reach this node")
        elif address in own.node_addresses[:place]:
            findings.fault(path, f"{describe(address)} again", "every address once")
    if own.master and not _URL.fullmatch(own.master):
        findings.fault("kubeproxy.master", describe(own.master), "a URL, such as https://192.0.2.1:6443")


def _doubt_udp_timeout(configuration: Configuration, findings: Findings) -> None:
    """250ms stands in many a file of kube-proxy: up to 1.25 it wrote its defaults there, and only its userspace mode
    heeded this one."""
    timeout = configuration.udp_idle_timeout
    if timeout.seconds < _SHORT_UDP_S:
        findings.warnings.append(
            f"udpIdleTimeout: {timeout} counts here, and a UDP answer that takes longer is lost; files made for"
            f" kube-proxy's other modes have it without meaning it: left out, it is {Configuration().udp_idle_timeout}"
        )


def _doubt_ports(configuration: Configuration, findings: Findings) -> None:
    """Ports that are permitted and reserved at once."""
    own = configuration.kubeproxy
    for ports in own.external_ports_on_node:
        clash = [str(it) for it in own.reserved_ports if it.first <= ports.last and ports.first <= it.last]
        if clash:
            findings.warnings.append(
                f"kubeproxy.externalPortsOnNode: {ports} contains ports that stay reserved by kubeproxy.reservedPorts:"
                f" {', '.join(clash)}"
            )
