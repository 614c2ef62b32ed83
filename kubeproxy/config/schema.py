"""The whole KubeProxyConfiguration v1alpha1, with our own settings in the group ``kubeproxy``.

Names, types and defaults are kube-proxy's: those of 1.20, the last release with the whole userspace mode, and later
fields. A field's text names its difference, if any. Python uses snake case, the file camel case.

A new setting is one line here: type, meaning, flag, default. Flag, ``--help``, ``docs/configuration.md`` and
``--write-config-to`` follow from it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from kubeproxy.config.field_info import live, restart, unused
from kubeproxy.config.value_types import (
    CIDR,
    IP,
    ClusterCIDR,
    DeniedEndpoints,
    Duration,
    HealthzAddress,
    LabelValue,
    MetricsAddress,
    Namespace,
    NanosecondsOrDuration,
    NodePortAddress,
    PortRange,
    Ports,
    PositiveDuration,
    Quantity,
    WorkerCount,
)

API_VERSION: Final = "kubeproxy.config.k8s.io/v1alpha1"
KIND: Final = "KubeProxyConfiguration"

ProxyMode = Literal["", "userspace", "iptables", "ipvs", "nftables", "kernelspace"]
LocalMode = Literal["", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]
IPVSScheduler = Literal["", "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "mh", "dh", "sed", "nq"]
SchedulerChoice = Literal["auto", "round-robin", "random", "least-connections", "source-hash", "maglev"]
LogFormat = Literal["text", "json"]
NetfilterChoice = Literal["auto", "nftables", "iptables", "none"]
KubernetesChoice = Literal["auto", "always", "never"]
PortConflict = Literal["take-unprivileged", "take", "keep"]
TakeoverChoice = Literal["auto", "force"]
DataPathChoice = Literal["userspace", "kernel", "auto"]
FallbackChoice = Literal["always", "never"]
Preserve = Literal["never", "external-local", "local"]

Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MarkBit = Annotated[int, Meta(ge=0, le=31)]
Rate = Annotated[float, Meta(ge=0, le=1_000_000)]


class Group(Struct, frozen=True, kw_only=True, rename="camel"):
    """A group of fields of the file."""


class ClientConnection(Group, frozen=True):
    """The connection to the API server."""

    kubeconfig: Annotated[str, restart("Kubeconfig file; empty: the pod's service account.", flag="kubeconfig")] = ""
    accept_content_types: Annotated[str, unused("Accepted content types; always JSON here.")] = ""
    content_type: Annotated[
        str,
        unused("Content type of requests; always JSON here.", flag="kube-api-content-type", zero_is_default=True),
    ] = "application/vnd.kubernetes.protobuf"
    qps: Annotated[Rate, restart("Average requests per second.", flag="kube-api-qps", zero_is_default=True)] = 5.0
    burst: Annotated[Natural, restart("Requests in a burst.", flag="kube-api-burst", zero_is_default=True)] = 10


class LogOutput(Group, frozen=True):
    """Buffering of one log format."""

    split_stream: Annotated[bool, unused("Information to stdout, errors to stderr; here all of it goes to stderr.")] = (
        False
    )
    info_buffer_size: Annotated[Quantity, unused("Buffer of the information stream; nothing is buffered here.")] = (
        Quantity("0")
    )


class LogOptions(Group, frozen=True):
    """Options of the log formats."""

    text: LogOutput = LogOutput()
    json: LogOutput = LogOutput()


class VModule(Group, frozen=True):
    """Verbosity of some source files."""

    file_pattern: str = ""
    verbosity: Natural = 0


class Logging(Group, frozen=True):
    """The log, which goes to stderr."""

    format: Annotated[
        LogFormat, live("Text, or one JSON object per line.", flag="logging-format", zero_is_default=True)
    ] = "text"
    flush_frequency: Annotated[
        NanosecondsOrDuration,
        unused(
            "Longest time between flushes; nothing is buffered here.", flag="log-flush-frequency", zero_is_default=True
        ),
    ] = NanosecondsOrDuration.of(seconds=5)
    verbosity: Annotated[
        Natural,
        live("0: messages for the operator; 2: also of libraries; 4: debugging; 8: everything.", flag="v"),
    ] = 0
    vmodule: Annotated[
        tuple[VModule, ...], unused("Verbosity by source file of kube-proxy: pattern=N,...", flag="vmodule")
    ] = ()
    options: LogOptions = LogOptions()


class IPTables(Group, frozen=True):
    """Syncs of the packet filter (any adapter), and kube-proxy's iptables mode."""

    masquerade_bit: Annotated[
        MarkBit, unused("Mark bit for SNAT; these rules mark no packet for it.", flag="iptables-masquerade-bit")
    ] = 14
    masquerade_all: Annotated[
        bool,
        live(
            "Whether endpoints see this node's address as that of every client of a cluster IP. On the userspace path"
            " they do anyway.",
            flag="masquerade-all",
        ),
    ] = False
    localhost_node_ports: Annotated[
        bool,
        restart(
            "Whether node ports on all addresses (nodePortAddresses) include 127.0.0.1 and ::1, in every mode.",
            flag="iptables-localhost-nodeports",
        ),
    ] = True
    snat_node_internal_ip: Annotated[bool, unused("SNAT to the node's InternalIP.")] = field(
        default=False, name="snatNodeInternalIP"
    )
    sync_period: Annotated[
        PositiveDuration,
        live(
            "Time between two comparisons of everything with the kernel, which repair differences.",
            flag="iptables-sync-period",
            zero_is_default=True,
        ),
    ] = PositiveDuration.of(seconds=30)
    min_sync_period: Annotated[
        Duration,
        live(
            "Time between two syncs. After a pause up to four syncs run at once and later changes are collected; each"
            " such time without a sync allows one more. For no wait write 1ns: 0 in the file means the default.",
            flag="iptables-min-sync-period",
            zero_is_default=True,
        ),
    ] = Duration.of(seconds=1)


class NFTables(Group, frozen=True):
    """Settings of mode nftables; in that mode its periods replace those in ``iptables``."""

    masquerade_bit: Annotated[MarkBit, unused("Mark bit for SNAT; these rules mark no packet for it.")] = 14
    masquerade_all: Annotated[bool, live("As iptables.masqueradeAll, for mode nftables.")] = False
    sync_period: Annotated[
        PositiveDuration, live("As iptables.syncPeriod, for mode nftables.", zero_is_default=True)
    ] = PositiveDuration.of(seconds=30)
    min_sync_period: Annotated[
        Duration, live("As iptables.minSyncPeriod, for mode nftables.", zero_is_default=True)
    ] = Duration.of(seconds=1)


class IPVS(Group, frozen=True):
    """kube-proxy's ipvs mode. Only its scheduler has a counterpart here."""

    sync_period: Annotated[PositiveDuration, unused("Sync period.", flag="ipvs-sync-period", zero_is_default=True)] = (
        PositiveDuration.of(seconds=30)
    )
    min_sync_period: Annotated[Duration, unused("Least time between syncs.", flag="ipvs-min-sync-period")] = Duration(0)
    scheduler: Annotated[
        IPVSScheduler,
        live("With mode ipvs, what kubeproxy.scheduler auto means (docs/schedulers.md).", flag="ipvs-scheduler"),
    ] = ""
    exclude_cidrs: Annotated[
        tuple[CIDR, ...], unused("CidrSet that cleanup leaves alone.", flag="ipvs-exclude-cidrs")
    ] = field(default=(), name="excludeCIDRs")
    strict_arp: Annotated[bool, unused("Strict ARP.", flag="ipvs-strict-arp")] = field(default=False, name="strictARP")
    tcp_timeout: Annotated[Duration, unused("Idle TCP timeout.", flag="ipvs-tcp-timeout")] = Duration(0)
    tcp_fin_timeout: Annotated[Duration, unused("TCP timeout after FIN.", flag="ipvs-tcpfin-timeout")] = Duration(0)
    udp_timeout: Annotated[Duration, unused("UDP timeout.", flag="ipvs-udp-timeout")] = Duration(0)


class Winkernel(Group, frozen=True):
    """kube-proxy on Windows, which has no counterpart here."""

    network_name: Annotated[str, unused("HNS network.", flag="network-name")] = ""
    source_vip: Annotated[str, unused("Source VIP.", flag="source-vip")] = ""
    enable_dsr: Annotated[bool, unused("Direct server return.", flag="enable-dsr")] = field(
        default=False, name="enableDSR"
    )
    root_hns_endpoint_name: Annotated[str, unused("Root HNS endpoint.", flag="root-hnsendpoint-name")] = ""
    forward_health_check_vip: Annotated[
        bool, unused("Forwarding of the health check's VIP.", flag="forward-healthcheck-vip")
    ] = False


class DetectLocal(Group, frozen=True):
    """How kube-proxy detects local traffic; a userspace proxy does not need it."""

    bridge_interface: Annotated[str, unused("Bridge of the local pods.", flag="pod-bridge-interface")] = ""
    interface_name_prefix: Annotated[
        str, unused("Prefix of local pods' interfaces.", flag="pod-interface-name-prefix")
    ] = ""


class Conntrack(Group, frozen=True):
    """Kernel settings made at start; a setting that the kernel refuses, as in a container, causes a warning."""

    max_per_core: Annotated[
        Natural,
        restart(
            "Tracked connections per core: the least size of the kernel's table. 0: no change.",
            flag="conntrack-max-per-core",
        ),
    ] = 32768
    min: Annotated[
        Natural, restart("Least size of that table, whatever the number of cores.", flag="conntrack-min")
    ] = 131072
    tcp_established_timeout: Annotated[
        Duration,
        restart("Timeout of established connections; 0: no change.", flag="conntrack-tcp-timeout-established"),
    ] = Duration.of(seconds=86400)
    tcp_close_wait_timeout: Annotated[
        Duration,
        restart("Timeout of half-closed connections; 0: no change.", flag="conntrack-tcp-timeout-close-wait"),
    ] = Duration.of(seconds=3600)
    tcp_be_liberal: Annotated[
        bool,
        restart("Accept packets outside of the TCP window; false: no change.", flag="conntrack-tcp-be-liberal"),
    ] = False
    udp_timeout: Annotated[
        Duration, restart("Timeout of unanswered UDP; 0: no change.", flag="conntrack-udp-timeout")
    ] = Duration(0)
    udp_stream_timeout: Annotated[
        Duration, restart("Timeout of answered UDP; 0: no change.", flag="conntrack-udp-timeout-stream")
    ] = Duration(0)


class Manifests(Group, frozen=True):
    """Services and endpoints from files, with or without an API server."""

    paths: Annotated[
        tuple[str, ...],
        restart(
            "Files, directories, patterns, http(s) URLs, or - for standard input. The flag may be repeated.",
            flag="manifests",
        ),
    ] = ()
    recursive: Annotated[bool, restart("Read subdirectories, too.", flag="recursive")] = False
    default_namespace: Annotated[Namespace, restart("Namespace of objects without one.", flag="default-namespace")] = (
        Namespace("default")
    )
    namespace: Annotated[
        Namespace, restart("The only namespace, if set: objects of another namespace are refused.", flag="namespace")
    ] = Namespace("")
    strict: Annotated[
        bool,
        restart(
            "Refuse objects with any unknown field, and keep their last good version; otherwise only those whose field"
            " looks like a mistyped restriction (source ranges, traffic policies, conditions of endpoints).",
            flag="strict-manifests",
        ),
    ] = False


class OwnSettings(Group, frozen=True):
    """Settings that kube-proxy does not have. Their flags override the file."""

    master: Annotated[str, restart("URL of the API server; overrides the kubeconfig's.", flag="master")] = ""
    kubernetes: Annotated[
        KubernetesChoice,
        restart(
            "Whether Services come from an API server; auto: if there is a kubeconfig, a master or a pod's service"
            " account.",
            flag="kubernetes",
        ),
    ] = "auto"
    manifests: Manifests = Manifests()
    netfilter: Annotated[
        NetfilterChoice,
        restart(
            "The packet filter; auto: nftables where it works, else iptables (opposite order with mode iptables);"
            " none: no redirection.",
            flag="netfilter",
        ),
    ] = "auto"
    data_path: Annotated[
        DataPathChoice,
        live(
            "The way of new connections: userspace: through this proxy; kernel: straight to endpoints, translated by"
            " nftables, where that is possible; auto: kernel while failed connections are rescued there.",
            flag="data-path",
        ),
    ] = "userspace"
    scheduler: Annotated[
        SchedulerChoice,
        live(
            "Which endpoint a new connection gets, unless the annotation kubeproxy/scheduler of its Service says"
            " otherwise: each in turn, one at random, the one with the fewest open connections, or by a hash of the"
            " client's address, or of address and port; auto: as ipvs.scheduler with mode ipvs, otherwise round-robin.",
            flag="scheduler",
        ),
    ] = "auto"
    userspace_fallback: Annotated[
        FallbackChoice,
        restart(
            "What becomes of clients that the kernel path cannot lead: always: a worker serves them, from this node's"
            " address; never: they are refused, there are no workers, and nothing gets past network policies (only with"
            " dataPath kernel).",
            flag="userspace-fallback",
        ),
    ] = "always"
    takeover: Annotated[
        TakeoverChoice,
        restart(
            "Whether to take the node over from a running kubeproxy; auto: only with all of its sources and at least"
            " half of its Services; force: always.",
            flag="takeover",
        ),
    ] = "auto"
    state_directory: Annotated[
        str,
        restart(
            "Directory of the last state of the sources, which a start serves until it has listed them; empty:"
            " $RUNTIME_DIRECTORY, else /run/kubeproxy; none: it is not kept.",
            flag="state-dir",
        ),
    ] = ""
    workers: Annotated[
        WorkerCount,
        restart(
            "Worker processes, which move bytes, beside the control process; auto: one per usable CPU, at most 4; 0:"
            " one process for everything.",
            flag="workers",
        ),
    ] = WorkerCount()
    orphan_grace: Annotated[
        Duration,
        live(
            "How long orphaned workers serve their last state after the control process has died without a successor.",
            flag="orphan-grace",
        ),
    ] = Duration.of(seconds=60)
    dial_timeouts: Annotated[
        tuple[PositiveDuration, ...],
        Meta(min_length=1),
        live("How long each dial may take before the proxy dials the next endpoint.", flag="dial-timeouts"),
    ] = tuple(PositiveDuration.of(seconds=step) for step in (0.25, 0.5, 1, 2))
    udp_sessions: Annotated[
        int,
        Meta(ge=1, le=1_000_000),
        live(
            "UDP sessions at once, one descriptor each; beyond it the idlest one of the largest Service is evicted.",
            flag="udp-sessions",
        ),
    ] = 16384
    preserve_client_address: Annotated[
        Preserve,
        restart(
            "Which endpoints see the client's own address: those on this node under externalTrafficPolicy Local, all on"
            " this node, or none.",
            flag="preserve-client-address",
        ),
    ] = "external-local"
    node_addresses: Annotated[
        tuple[IP, ...],
        restart(
            "This node's addresses, the primary one of each family first, for hosts without a Node object.",
            flag="node-addresses",
        ),
    ] = ()
    node_zone: Annotated[
        LabelValue, restart("This node's zone, for hosts without a Node object.", flag="node-zone")
    ] = LabelValue("")
    denied_endpoint_cidrs: Annotated[
        tuple[DeniedEndpoints, ...],
        live(
            "Address blocks of endpoints that are never dialed. By default: metadata services of clouds (link-local"
            " addresses are never dialed anyway). The word node: this node's own addresses, except in an EndpointSlice"
            " that names this node as nodeName. The default and the word count for endpoints from an API server; other"
            " blocks than the default count for those of manifests, too.",
            flag="denied-endpoint-cidrs",
        ),
    ] = field(
        default=tuple(
            map(
                DeniedEndpoints,
                (
                    "node",
                    "168.63.129.16/32",  # Azure
                    "100.100.100.200/32",  # Alibaba Cloud
                    "192.0.0.192/32",  # Oracle Cloud, classic
                    "fd00:ec2::/32",  # AWS
                    "fd20:ce::254/128",  # Google Cloud
                    "fd00:c1::a9fe:a9fe/128",  # Oracle Cloud
                    "fd00:42::42/128",  # Scaleway
                    "fd00:a9fe:a9fe::1/128",  # Akamai
                ),
            )
        ),
        name="deniedEndpointCIDRs",
    )
    external_address_cidrs: Annotated[
        tuple[CIDR, ...],
        live(
            "Where external and load balancer addresses of Services may lie; others are not served. Empty: anywhere, as"
            " with kube-proxy (CVE-2020-8554).",
            flag="external-address-cidrs",
        ),
    ] = field(default=(), name="externalAddressCIDRs")
    external_ports_on_node: Annotated[
        tuple[Ports, ...],
        live(
            "Ports that spec.externalIPs may have at this node's own addresses, unless another process listens there."
            " Empty: none.",
            flag="external-ports-on-node",
        ),
    ] = (Ports(80, 80), Ports(443, 443), Ports(30000, 32767))
    reserved_ports: Annotated[
        tuple[Ports, ...],
        live(
            "Ports of this node that no Service has: not as node port or health check node port, not at an external or"
            " load balancer address that is this node's. Those of healthzBindAddress and metricsBindAddress always are."
            " By default: SSH, etcd, and Kubernetes' own.",
            flag="reserved-ports",
        ),
    ] = (Ports(22, 22), Ports(2379, 2381), Ports(6443, 6443), Ports(10248, 10260))
    node_port_conflict: Annotated[
        PortConflict,
        live(
            "How to handle a node port of another process: take-unprivileged redirects it unless that process belongs"
            " to root or to this daemon's user; take always redirects it, as kube-proxy does; keep never.",
            flag="node-port-conflict",
        ),
    ] = "take-unprivileged"
    keepalive_period: Annotated[
        PositiveDuration, live("TCP keepalive, towards clients and endpoints.", flag="keepalive-period")
    ] = PositiveDuration.of(seconds=15)
    half_closed_timeout: Annotated[
        PositiveDuration,
        live(
            "How long a half-closed connection may stay open without a byte from the other side; at most 5m if the"
            " endpoint has sent none.",
            flag="half-closed-timeout",
        ),
    ] = PositiveDuration.of(seconds=3600)
    public_status: Annotated[
        bool,
        restart(
            "Serve the status, trace, configuration and debug pages to other hosts, too, if metricsBindAddress is not a"
            " loopback address. They show every Service of the cluster; otherwise other hosts get only the metrics.",
            flag="public-status",
        ),
    ] = False
    access_log: Annotated[
        str,
        live(
            "Target of one line per connection: a file, or - for the log itself; empty: none.",
            flag="access-log",
        ),
    ] = ""
    drain_reports: Annotated[
        bool,
        live(
            "Take part in rollouts: send endpoints that a rollout names no new connections, and report to it by a"
            " Lease in kubeproxy-reports, which this daemon then needs the permission to create and patch.",
            flag="drain-reports",
        ),
    ] = False
    shutdown_grace: Annotated[
        Duration, live("How long open connections drain after SIGTERM.", flag="shutdown-grace")
    ] = Duration.of(seconds=10)
    cleanup_on_exit: Annotated[
        bool, live("Remove all packet filter rules at the end; Services are then unreachable.", flag="cleanup-on-exit")
    ] = False


class Configuration(Group, frozen=True):
    """Everything that can be configured; the root of the file."""

    api_version: Literal["kubeproxy.config.k8s.io/v1alpha1"] = API_VERSION
    kind: Literal["KubeProxyConfiguration"] = KIND
    feature_gates: Annotated[
        dict[str, bool], unused("Switches of kube-proxy's own code: name=true|false,...", flag="feature-gates")
    ] = field(default_factory=dict)
    client_connection: ClientConnection = ClientConnection()
    logging: Logging = Logging()
    hostname_override: Annotated[
        str,
        restart(
            "Name of this node in its Node object and in its endpoints; empty: the host's name.",
            flag="hostname-override",
        ),
    ] = ""
    bind_address: Annotated[
        IP,
        restart("Listening address of the proxy ports.", flag="bind-address", zero_is_default=True),
    ] = IP("0.0.0.0")
    healthz_bind_address: Annotated[
        HealthzAddress,
        restart(
            "Address of the health server; [::]:10256 if bindAddress is IPv6. Port 0: no server.",
            flag="healthz-bind-address",
            zero_is_default=True,
        ),
    ] = HealthzAddress.parse("0.0.0.0:10256")
    metrics_bind_address: Annotated[
        MetricsAddress,
        restart(
            "Address of the metrics server; [::1]:10249 if bindAddress is IPv6. Port 0: no server. Other hosts get only"
            " the metrics (kubeproxy.publicStatus); this host gets every page by loopback, which always listens.",
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
            "Serve stacks of tasks and threads at /debug/tasks and /debug/stacks of the metrics server; kube-proxy has"
            " Go profiles at /debug/pprof.",
            flag="profiling",
        ),
    ] = False
    show_hidden_metrics_for_version: Annotated[
        str, unused("kube-proxy's hidden metrics.", flag="show-hidden-metrics-for-version")
    ] = ""
    mode: Annotated[
        ProxyMode,
        restart(
            "iptables and nftables select the packet filter that is tried first if kubeproxy.netfilter is auto; the"
            " data path is kubeproxy.dataPath in every mode.",
            flag="proxy-mode",
        ),
    ] = ""
    iptables: IPTables = IPTables()
    ipvs: IPVS = IPVS()
    nftables: NFTables = NFTables()
    winkernel: Winkernel = Winkernel()
    detect_local_mode: Annotated[
        LocalMode, unused("How kube-proxy detects local traffic.", flag="detect-local-mode")
    ] = ""
    detect_local: DetectLocal = DetectLocal()
    cluster_cidr: Annotated[
        ClusterCIDR,
        restart(
            "The pods' addresses. With externalTrafficPolicy Local, the node itself and its pods can reach any"
            " endpoint; other clients, and pods of other nodes, only those on the node.",
            flag="cluster-cidr",
        ),
    ] = field(default=ClusterCIDR(""), name="clusterCIDR")
    node_port_addresses: Annotated[
        tuple[NodePortAddress, ...],
        restart(
            "Node addresses for node ports: those in address blocks, and the words primary (the Node's first of each"
            " family), localhost (127.0.0.1 and ::1), all. Empty: all, in every mode.",
            flag="nodeport-addresses",
        ),
    ] = ()
    oom_score_adj: Annotated[
        int,
        Meta(ge=-1000, le=1000),
        restart("Score of this process for the kernel's out-of-memory killer.", flag="oom-score-adj"),
    ] = -999
    conntrack: Conntrack = Conntrack()
    config_sync_period: Annotated[
        PositiveDuration,
        unused(
            "Time between two resyncs of kube-proxy's caches; there is no such cache here.",
            flag="config-sync-period",
            zero_is_default=True,
        ),
    ] = PositiveDuration.of(seconds=900)
    port_range: Annotated[
        PortRange, live("Range of the proxy ports; empty: the kernel chooses.", flag="proxy-port-range")
    ] = PortRange()
    udp_idle_timeout: Annotated[
        PositiveDuration,
        live(
            "Lifetime of a UDP session without datagrams. kube-proxy's default, 250ms, loses every slower answer.",
            flag="udp-timeout",
            zero_is_default=True,
        ),
    ] = PositiveDuration.of(seconds=60)
    windows_run_as_service: Annotated[bool, unused("Windows service.", flag="windows-service")] = False
    kubeproxy: OwnSettings = OwnSettings()

    @property
    def sync_period_s(self) -> float:
        """Return the seconds between two comparisons of everything with the kernel."""
        return (self.nftables if self.mode == "nftables" else self.iptables).sync_period.seconds

    @property
    def min_sync_period_s(self) -> float:
        """Return the least number of seconds between two syncs."""
        return (self.nftables if self.mode == "nftables" else self.iptables).min_sync_period.seconds

    @property
    def masquerade_all(self) -> bool:
        """Return whether endpoints see this node's address as that of every client of a cluster IP."""
        return (self.nftables if self.mode == "nftables" else self.iptables).masquerade_all

    @property
    def netfilter_order(self) -> tuple[str, ...]:
        """Return the packet filter adapters to try in this order until one works. There may be none."""
        match self.kubeproxy.netfilter:
            case "none":
                return ()
            case "auto":
                return ("iptables", "nftables") if self.mode == "iptables" else ("nftables", "iptables")
            case chosen:
                return (chosen,)
