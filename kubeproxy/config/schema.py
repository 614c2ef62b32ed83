"""The schema of the configuration file: kube-proxy's KubeProxyConfiguration v1alpha1, and the project's own settings in
the group ``kubeproxy``.

Names, types and defaults are those of kube-proxy 1.20, the last release with the whole userspace mode, and of fields
that were added later. If a field differs from kube-proxy's, its text says so. Names are in snake case here, and in
camel case in the file.

A new setting is one declaration, in the file of its group, of type, meaning, flag and default. The flag, ``--help``,
``docs/configuration.md`` and ``--write-config-to`` are derived from it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from kubeproxy.config.address_types import (
    IP,
    ClusterCIDR,
    HealthzAddress,
    MetricsAddress,
    NodePortAddress,
)
from kubeproxy.config.field_info import Group, live, restart, unused
from kubeproxy.config.kube_proxy_settings import (
    IPVS,
    ClientConnection,
    Conntrack,
    DetectLocal,
    IPTables,
    LocalMode,
    Logging,
    NFTables,
    Winkernel,
)
from kubeproxy.config.own_settings import OwnSettings
from kubeproxy.config.value_types import (
    PortRange,
    PositiveDuration,
)

API_VERSION: Final = "kubeproxy.config.k8s.io/v1alpha1"
KIND: Final = "KubeProxyConfiguration"

ProxyMode = Literal["", "userspace", "iptables", "ipvs", "nftables", "kernelspace"]


class Configuration(Group, frozen=True):
    """All settings. This is the root of the configuration file."""

    api_version: Literal["kubeproxy.config.k8s.io/v1alpha1"] = API_VERSION
    kind: Literal["KubeProxyConfiguration"] = KIND
    feature_gates: Annotated[
        dict[str, bool], unused("Switches of kube-proxy's own code, as name=true|false,...", flag="feature-gates")
    ] = field(default_factory=dict)
    client_connection: ClientConnection = ClientConnection()
    logging: Logging = Logging()
    hostname_override: Annotated[
        str,
        restart(
            "The name of this node in its Node object and in its endpoints. If empty, it is the host's name.",
            flag="hostname-override",
        ),
    ] = ""
    bind_address: Annotated[
        IP,
        restart("The listening address of the proxy ports.", flag="bind-address", zero_is_default=True),
    ] = IP("0.0.0.0")
    healthz_bind_address: Annotated[
        HealthzAddress,
        restart(
            "The address of the health server. It is [::]:10256 if bindAddress is IPv6. With port 0 there is no"
            " server.",
            flag="healthz-bind-address",
            zero_is_default=True,
        ),
    ] = HealthzAddress.parse("0.0.0.0:10256")
    metrics_bind_address: Annotated[
        MetricsAddress,
        restart(
            "The address of the metrics server. It is [::1]:10249 if bindAddress is IPv6. With port 0 there is no"
            " server. Other hosts get only the metrics (kubeproxy.publicStatus). This host gets every page by"
            " loopback, which always listens.",
            flag="metrics-bind-address",
            zero_is_default=True,
        ),
    ] = MetricsAddress.parse("127.0.0.1:10249")
    bind_address_hard_fail: Annotated[
        bool, restart("Exit if one of these two servers cannot listen.", flag="bind-address-hard-fail")
    ] = False
    enable_profiling: Annotated[
        bool,
        restart(
            "Serve stacks of tasks and threads at /debug/tasks and /debug/stacks of the metrics server."
            " kube-proxy has Go profiles at /debug/pprof instead.",
            flag="profiling",
        ),
    ] = False
    show_hidden_metrics_for_version: Annotated[
        str, unused("Show kube-proxy's hidden metrics.", flag="show-hidden-metrics-for-version")
    ] = ""
    mode: Annotated[
        ProxyMode,
        restart(
            "iptables and nftables select the packet filter that is tried first if kubeproxy.netfilter is auto."
            " The data path is kubeproxy.dataPath in every mode.",
            flag="proxy-mode",
        ),
    ] = ""
    iptables: IPTables = IPTables()
    ipvs: IPVS = IPVS()
    nftables: NFTables = NFTables()
    winkernel: Winkernel = Winkernel()
    detect_local_mode: Annotated[
        LocalMode,
        restart(
            "How the pods of this node are known: NodeCIDR takes their addresses from the Node's podCIDRs in the place"
            " of clusterCIDR. The modes with an interface count as ClusterCIDR.",
            flag="detect-local-mode",
        ),
    ] = ""
    detect_local: DetectLocal = DetectLocal()
    cluster_cidr: Annotated[
        ClusterCIDR,
        restart(
            "The pods' addresses. With externalTrafficPolicy Local, the node itself and its pods can reach any"
            " endpoint. Other clients, and pods of other nodes, can reach only those on the node.",
            flag="cluster-cidr",
        ),
    ] = field(default=ClusterCIDR(""), name="clusterCIDR")
    node_port_addresses: Annotated[
        tuple[NodePortAddress, ...],
        restart(
            "The node addresses that serve node ports: address blocks, or the words primary (the Node's first"
            " address of each family), localhost (127.0.0.1 and ::1) and all. If empty, all addresses serve them,"
            " in every mode.",
            flag="nodeport-addresses",
        ),
    ] = ()
    oom_score_adj: Annotated[
        int,
        Meta(ge=-1000, le=1000),
        restart("The score of this process for the kernel's out-of-memory killer.", flag="oom-score-adj"),
    ] = -999
    conntrack: Conntrack = Conntrack()
    config_sync_period: Annotated[
        PositiveDuration,
        unused(
            "The time between two resyncs of kube-proxy's caches. Here there is no such cache.",
            flag="config-sync-period",
            zero_is_default=True,
        ),
    ] = PositiveDuration.of(seconds=900)
    port_range: Annotated[
        PortRange, live("The range of the proxy ports. If empty, the kernel chooses them.", flag="proxy-port-range")
    ] = PortRange()
    udp_idle_timeout: Annotated[
        PositiveDuration,
        live(
            "How long a UDP session lives without datagrams. kube-proxy's default, 250ms, loses every slower answer.",
            flag="udp-timeout",
            zero_is_default=True,
        ),
    ] = PositiveDuration.of(seconds=60)
    windows_run_as_service: Annotated[bool, unused("Run as a Windows service.", flag="windows-service")] = False
    kubeproxy: OwnSettings = OwnSettings()

    @property
    def sync_period_s(self) -> float:
        """Return the seconds between two full comparisons of the rules with the kernel, according to the proxy mode."""
        return (self.nftables if self.mode == "nftables" else self.iptables).sync_period.seconds

    @property
    def min_sync_period_s(self) -> float:
        """Return the shortest time between two syncs in seconds, according to the proxy mode."""
        return (self.nftables if self.mode == "nftables" else self.iptables).min_sync_period.seconds

    @property
    def masquerade_all(self) -> bool:
        """Return whether endpoints see this node's address as the source of all connections to cluster IPs, according
        to the proxy mode."""
        return (self.nftables if self.mode == "nftables" else self.iptables).masquerade_all

    @property
    def netfilter_order(self) -> tuple[str, ...]:
        """Return the names of the packet filter adapters, in the order in which to try them until one works. It may be
        empty."""
        match self.kubeproxy.netfilter:
            case "none":
                return ()
            case "auto":
                return ("iptables", "nftables") if self.mode == "iptables" else ("nftables", "iptables")
            case chosen:
                return (chosen,)
