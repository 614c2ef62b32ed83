"""The command lines of the control plane."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.system.cluster.certificates import Authority
from tests.system.cluster.layout import API_PORT, DOMAIN, SERVICES, SWITCH

ETCD: Final = "http://127.0.0.1:2379"
WORKLOADS: Final = ("deployment-controller", "replicaset-controller", "replicationcontroller-controller")
"""The controllers that `kubeproxy controller-manager` has, too."""


def etcd(data: Path) -> Sequence[str]:
    """One member, without the cost of real durability."""
    return (
        "--data-dir",
        str(data),
        *("--listen-client-urls", ETCD, "--advertise-client-urls", ETCD),
        *("--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync"),
    )


def api_server(pki: Authority) -> Sequence[str]:
    """With the admission, authorization and aggregation that e2e tests assume."""
    return (
        f"--etcd-servers={ETCD}",
        f"--secure-port={API_PORT}",
        f"--advertise-address={SWITCH}",
        f"--tls-cert-file={pki.file('apiserver.crt')}",
        f"--tls-private-key-file={pki.file('apiserver.key')}",
        f"--client-ca-file={pki.file('ca.crt')}",
        f"--service-account-key-file={pki.file('sa.pub')}",
        f"--service-account-signing-key-file={pki.file('sa.key')}",
        f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={SERVICES}",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki.file('kubelet-client.crt')}",
        f"--kubelet-client-key={pki.file('kubelet-client.key')}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki.file('ca.crt')}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki.file('front-proxy.crt')}",
        f"--proxy-client-key-file={pki.file('front-proxy.key')}",
    )


def scheduler(pki: Authority) -> Sequence[str]:
    """Alone, so without an election."""
    return (*_as_user(pki, "scheduler"), "--leader-elect=false")


def controller_manager(pki: Authority, without: Sequence[str]) -> Sequence[str]:
    """All controllers but `without`."""
    return (
        *_as_user(pki, "controller-manager"),
        "--leader-elect=false",
        "--use-service-account-credentials",
        # A busy machine is no lost node.
        "--node-monitor-grace-period=120s",
        f"--service-account-private-key-file={pki.file('sa.key')}",
        f"--root-ca-file={pki.file('ca.crt')}",
        f"--cluster-signing-cert-file={pki.file('ca.crt')}",
        f"--cluster-signing-key-file={pki.file('ca.key')}",
        f"--controllers={','.join(['*', *(f'-{name}' for name in without)])}",
    )


def _as_user(pki: Authority, name: str) -> Sequence[str]:
    config = pki.kubeconfig(name)
    return (f"--kubeconfig={config}", f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}")
