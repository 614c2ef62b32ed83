"""The project's own settings, which kube-proxy does not have. They are the group ``kubeproxy`` of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, field

from kubeproxy.config.address_types import (
    CIDR,
    IP,
    DeniedEndpoints,
)
from kubeproxy.config.field_info import Group, live, restart
from kubeproxy.config.value_types import (
    Duration,
    LabelValue,
    Namespace,
    Ports,
    PositiveDuration,
    WorkerCount,
)
from kubeproxy.model import Scheduler

if TYPE_CHECKING:
    SchedulerChoice = str  # the names are a value, which the type checker does not know
else:
    SchedulerChoice = Literal[("auto", *map(str, Scheduler))]
NetfilterChoice = Literal["auto", "nftables", "iptables", "none"]
KubernetesChoice = Literal["auto", "always", "never"]
PortConflict = Literal["take-unprivileged", "take", "keep"]
TakeoverChoice = Literal["auto", "force"]
DataPathChoice = Literal["userspace", "kernel", "auto"]
FallbackChoice = Literal["always", "never"]
Preserve = Literal["never", "external-local", "local"]


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
    default_namespace: Annotated[
        Namespace, restart("The namespace of objects that do not state one.", flag="default-namespace")
    ] = Namespace("default")
    namespace: Annotated[
        Namespace,
        restart("The only namespace, if it is set. Objects of other namespaces are refused.", flag="namespace"),
    ] = Namespace("")
    strict: Annotated[
        bool,
        restart(
            "Refuse objects with any unknown field, and keep their last good version. Otherwise only objects are"
            " refused whose unknown field looks like a mistyped restriction (source ranges, traffic policies,"
            " conditions of endpoints).",
            flag="strict-manifests",
        ),
    ] = False


class OwnSettings(Group, frozen=True):
    """Settings that kube-proxy does not have. Their flags override the file."""

    master: Annotated[str, restart("The URL of the API server. It overrides the kubeconfig's.", flag="master")] = ""
    kubernetes: Annotated[
        KubernetesChoice,
        restart(
            "Whether Services come from an API server. auto: if there is a kubeconfig, a master or a pod's"
            " service account.",
            flag="kubernetes",
        ),
    ] = "auto"
    manifests: Manifests = Manifests()
    netfilter: Annotated[
        NetfilterChoice,
        restart(
            "The packet filter. auto: nftables if it works, else iptables (in mode iptables, iptables is tried"
            " first); none: no redirection.",
            flag="netfilter",
        ),
    ] = "auto"
    data_path: Annotated[
        DataPathChoice,
        live(
            "The data path of new connections. userspace: through this proxy; kernel: straight to endpoints,"
            " translated by nftables, if that is possible; auto: kernel while failed connections are rescued there.",
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
            "What happens to clients that the kernel path cannot serve. always: a worker serves them, with this"
            " node's address as the source; never: they are refused, there are no workers, and nothing bypasses"
            " network policies (only with dataPath kernel).",
            flag="userspace-fallback",
        ),
    ] = "always"
    slot_memory_mib: Annotated[
        int,
        Meta(ge=1, le=65536),
        live(
            "MiB of the kernel's memory for the endpoints of all Services on the kernel path, at 128 bytes for each"
            " endpoint of each address. A namespace may have half of what the others leave. Services without room are"
            " treated as userspaceFallback says.",
            flag="slot-memory-mib",
        ),
    ] = 128
    takeover: Annotated[
        TakeoverChoice,
        restart(
            "Whether to take the node over from a running kubeproxy. auto: only with all of its sources and at"
            " least half of its Services; force: always.",
            flag="takeover",
        ),
    ] = "auto"
    state_directory: Annotated[
        str,
        restart(
            "The directory of the last state of the sources. A start serves this state until it has listed the"
            " sources. If empty, it is $RUNTIME_DIRECTORY, else /run/kubeproxy; with none the state is not kept.",
            flag="state-dir",
        ),
    ] = ""
    workers: Annotated[
        WorkerCount,
        restart(
            "The number of worker processes, which move the bytes. auto: one per usable CPU, at most 4; 0: the"
            " control process does everything.",
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
            "How many UDP sessions may exist at once, with one descriptor each. A further session evicts the one"
            " of the largest Service that has been idle longest.",
            flag="udp-sessions",
        ),
    ] = 16384
    preserve_client_address: Annotated[
        Preserve,
        restart(
            "Which endpoints see the client's own address: those on this node under externalTrafficPolicy Local,"
            " all on this node, or none.",
            flag="preserve-client-address",
        ),
    ] = "external-local"
    node_addresses: Annotated[
        tuple[IP, ...],
        restart(
            "This node's addresses, for hosts without a Node object. The primary address of each family comes first.",
            flag="node-addresses",
        ),
    ] = ()
    node_zone: Annotated[
        LabelValue, restart("This node's zone, for hosts without a Node object.", flag="node-zone")
    ] = LabelValue("")
    denied_endpoint_cidrs: Annotated[
        tuple[DeniedEndpoints, ...],
        live(
            "Address blocks of endpoints that are never dialed. The default has the metadata services of clouds;"
            " link-local addresses are never dialed anyway. The word node stands for this node's own addresses,"
            " except in an EndpointSlice that names this node as nodeName. The default blocks and the word apply"
            " to endpoints from an API server. Other blocks apply to endpoints from manifests, too.",
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
            "The address blocks of external and load balancer addresses of Services. Other addresses are not served. If"
            " empty, any address is allowed, as with kube-proxy (CVE-2020-8554).",
            flag="external-address-cidrs",
        ),
    ] = field(default=(), name="externalAddressCIDRs")
    external_ports_on_node: Annotated[
        tuple[Ports, ...],
        live(
            "Ports that spec.externalIPs may have at this node's own addresses, unless another process listens"
            " there. If empty, there are none.",
            flag="external-ports-on-node",
        ),
    ] = (Ports(80, 80), Ports(443, 443), Ports(30000, 32767))
    reserved_ports: Annotated[
        tuple[Ports, ...],
        live(
            "Ports of this node that no Service may have: not as node port or health check node port, and not at"
            " an external or load balancer address of this node. The ports of healthzBindAddress and"
            " metricsBindAddress always are among them. The default has those of SSH, etcd, and Kubernetes.",
            flag="reserved-ports",
        ),
    ] = (Ports(22, 22), Ports(2379, 2381), Ports(6443, 6443), Ports(10248, 10260))
    node_port_conflict: Annotated[
        PortConflict,
        live(
            "What happens to a node port of another process. take-unprivileged: it is redirected unless that"
            " process belongs to root or to this daemon's user; take: it is redirected, as with kube-proxy; keep:"
            " it is not.",
            flag="node-port-conflict",
        ),
    ] = "take-unprivileged"
    keepalive_period: Annotated[
        PositiveDuration, live("The period of TCP keepalive, towards clients and endpoints.", flag="keepalive-period")
    ] = PositiveDuration.of(seconds=15)
    half_closed_timeout: Annotated[
        PositiveDuration,
        live(
            "How long a half-closed connection may stay open without a byte from the other side. It is at most 5m"
            " if the endpoint has sent none.",
            flag="half-closed-timeout",
        ),
    ] = PositiveDuration.of(seconds=3600)
    public_status: Annotated[
        bool,
        restart(
            "Serve the status, trace, configuration and debug pages to other hosts, too, if metricsBindAddress is"
            " not a loopback address. They show every Service of the cluster. Otherwise other hosts get only the"
            " metrics.",
            flag="public-status",
        ),
    ] = False
    access_log: Annotated[
        str,
        live(
            "Where to write one line per connection: a file, or - for the log itself. If empty, nothing is written.",
            flag="access-log",
        ),
    ] = ""
    drain_reports: Annotated[
        bool,
        live(
            "Take part in rollouts: send no new connections to endpoints that a rollout names, and report to it"
            " by a Lease in kubeproxy-reports, which this daemon then needs the permission to create and patch.",
            flag="drain-reports",
        ),
    ] = False
    drain_hook_port: Annotated[
        int,
        Meta(ge=0, le=65535),
        live(
            "Port of this node's pods at which kubelet finds the preStop hook /drain?timeout=25s, which waits for the"
            " end of the pod's connections. Anything else that is sent there goes on to the pod. 0: none, and nothing"
            " listens.",
            flag="drain-hook-port",
        ),
    ] = 10258
    shutdown_grace: Annotated[
        Duration, live("How long open connections drain after SIGTERM.", flag="shutdown-grace")
    ] = Duration.of(seconds=10)
    cleanup_on_exit: Annotated[
        bool, live("Remove all packet filter rules at the end. Services are then unreachable.", flag="cleanup-on-exit")
    ] = False
