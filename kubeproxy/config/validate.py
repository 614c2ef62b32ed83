"""What no single field can tell: faults between fields. The rules are kube-proxy's (pkg/proxy/apis/config/validation),
and a few of ours. All are pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubeproxy.config.about import Effect
from kubeproxy.config.convert import Findings
from kubeproxy.config.fields import fields, flatten
from kubeproxy.config.schema import Configuration

_LONGEST_KEEPALIVE_S: Final = 32767
"""MAX_TCP_KEEPIDLE in the kernel's include/net/tcp.h."""


def validate(configuration: Configuration, findings: Findings) -> None:
    """Note every fault that shows only when fields are seen together."""
    _check_periods(configuration, findings)
    _check_local_mode(configuration, findings)
    _check_servers(configuration, findings)
    _check_own(configuration, findings)


def unused(configuration: Configuration) -> str:
    """One line that names the fields which were set to something but have no meaning here; empty if there are none."""
    described, values = fields(), flatten(configuration)
    paths = [
        path for path, field in described.items() if field.effect is Effect.NONE and values[path] != field.default
    ]
    if configuration.mode in ("ipvs", "kernelspace"):
        paths.append(f"mode {configuration.mode}")
    return f"accepted, but without effect here: {', '.join(paths)}" if paths else ""


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


def check_sources(configuration: Configuration, environ: Mapping[str, str], findings: Findings) -> None:
    """Note the fault of a proxy that would have nothing to serve. It depends on the host, so it is not `validate`'s."""
    if not configuration.kubeproxy.manifests.paths and not uses_kubernetes(configuration, environ):
        findings.fault(
            "kubeproxy.manifests.paths",
            "no source of Services",
            "manifests (--manifests), or an API server: --kubeconfig, --master, or a pod's service account",
        )


def _check_periods(configuration: Configuration, findings: Findings) -> None:
    groups = {"iptables": configuration.iptables, "nftables": configuration.nftables}
    if configuration.mode == "ipvs":
        findings_of_ipvs = configuration.ipvs
        _check_pair("ipvs", findings_of_ipvs.min_sync_period.nanoseconds, findings_of_ipvs.sync_period.nanoseconds, findings)
    for name, group in groups.items():
        _check_pair(name, group.min_sync_period.nanoseconds, group.sync_period.nanoseconds, findings)
