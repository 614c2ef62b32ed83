"""The groups of settings that kube-proxy also has."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from kubeproxy.config.address_types import (
    CIDR,
)
from kubeproxy.config.field_info import Group, live, restart, unused
from kubeproxy.config.value_types import (
    Duration,
    NanosecondsOrDuration,
    PositiveDuration,
    Quantity,
)

LocalMode = Literal["", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]
IPVSScheduler = Literal["", "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "mh", "dh", "sed", "nq"]
LogFormat = Literal["text", "json"]

Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MarkBit = Annotated[int, Meta(ge=0, le=31)]
Rate = Annotated[float, Meta(ge=0, le=1_000_000)]


class ClientConnection(Group, frozen=True):
    """The connection to the API server."""

    kubeconfig: Annotated[
        str, restart("The kubeconfig file. If it is empty, the pod's service account is used.", flag="kubeconfig")
    ] = ""
    accept_content_types: Annotated[str, unused("The accepted content types. Here it is always JSON.")] = ""
    content_type: Annotated[
        str,
        unused(
            "The content type of requests. Here it is always JSON.", flag="kube-api-content-type", zero_is_default=True
        ),
    ] = "application/vnd.kubernetes.protobuf"
    qps: Annotated[
        Rate, restart("The average number of requests per second.", flag="kube-api-qps", zero_is_default=True)
    ] = 5.0
    burst: Annotated[
        Natural, restart("The number of requests in a burst.", flag="kube-api-burst", zero_is_default=True)
    ] = 10


class LogOutput(Group, frozen=True):
    """Buffering of one log format."""

    split_stream: Annotated[
        bool, unused("Write information to stdout and errors to stderr. Here everything goes to stderr.")
    ] = False
    info_buffer_size: Annotated[Quantity, unused("The buffer of the information stream. Here nothing is buffered.")] = (
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
            "The longest time between two flushes. Here nothing is buffered.",
            flag="log-flush-frequency",
            zero_is_default=True,
        ),
    ] = NanosecondsOrDuration.of(seconds=5)
    verbosity: Annotated[
        Natural,
        live(
            "How much is logged. 0: messages for the operator; 2: also those of libraries; 4: also debugging; 8:"
            " everything.",
            flag="v",
        ),
    ] = 0
    vmodule: Annotated[
        tuple[VModule, ...], unused("The verbosity by source file of kube-proxy, as pattern=N,...", flag="vmodule")
    ] = ()
    options: LogOptions = LogOptions()


class IPTables(Group, frozen=True):
    """Syncs of the packet filter (any adapter), and kube-proxy's iptables mode."""

    masquerade_bit: Annotated[
        MarkBit, unused("The mark bit for SNAT. Here the rules mark no packet for it.", flag="iptables-masquerade-bit")
    ] = 14
    masquerade_all: Annotated[
        bool,
        live(
            "Let endpoints see this node's address as the address of every client of a cluster IP. On the"
            " userspace path they always do.",
            flag="masquerade-all",
        ),
    ] = False
    localhost_node_ports: Annotated[
        bool,
        restart(
            "Let node ports on all addresses (nodePortAddresses) include 127.0.0.1 and ::1, in every mode.",
            flag="iptables-localhost-nodeports",
        ),
    ] = True
    snat_node_internal_ip: Annotated[bool, unused("Use the node's InternalIP for SNAT.")] = field(
        default=False, name="snatNodeInternalIP"
    )
    sync_period: Annotated[
        PositiveDuration,
        live(
            "The time between two comparisons of everything with the kernel. A comparison repairs differences.",
            flag="iptables-sync-period",
            zero_is_default=True,
        ),
    ] = PositiveDuration.of(seconds=30)
    min_sync_period: Annotated[
        Duration,
        live(
            "The time between two syncs. After a pause up to four syncs run at once, and later changes are"
            " collected; each such time without a sync allows one more. Write 1ns for no wait, because 0 in the"
            " file means the default.",
            flag="iptables-min-sync-period",
            zero_is_default=True,
        ),
    ] = Duration.of(seconds=1)


class NFTables(Group, frozen=True):
    """Settings of mode nftables; in that mode its periods replace those in ``iptables``."""

    masquerade_bit: Annotated[MarkBit, unused("The mark bit for SNAT. Here the rules mark no packet for it.")] = 14
    masquerade_all: Annotated[bool, live("Like iptables.masqueradeAll, for mode nftables.")] = False
    sync_period: Annotated[
        PositiveDuration, live("Like iptables.syncPeriod, for mode nftables.", zero_is_default=True)
    ] = PositiveDuration.of(seconds=30)
    min_sync_period: Annotated[
        Duration, live("Like iptables.minSyncPeriod, for mode nftables.", zero_is_default=True)
    ] = Duration.of(seconds=1)


class IPVS(Group, frozen=True):
    """kube-proxy's ipvs mode. Only its scheduler has a counterpart here."""

    sync_period: Annotated[
        PositiveDuration, unused("The time between two syncs.", flag="ipvs-sync-period", zero_is_default=True)
    ] = PositiveDuration.of(seconds=30)
    min_sync_period: Annotated[Duration, unused("The least time between two syncs.", flag="ipvs-min-sync-period")] = (
        Duration(0)
    )
    scheduler: Annotated[
        IPVSScheduler,
        live("What kubeproxy.scheduler auto means in mode ipvs (docs/schedulers.md).", flag="ipvs-scheduler"),
    ] = ""
    exclude_cidrs: Annotated[
        tuple[CIDR, ...], unused("The address blocks that cleanup leaves alone.", flag="ipvs-exclude-cidrs")
    ] = field(default=(), name="excludeCIDRs")
    strict_arp: Annotated[bool, unused("Use strict ARP.", flag="ipvs-strict-arp")] = field(
        default=False, name="strictARP"
    )
    tcp_timeout: Annotated[Duration, unused("The timeout of idle TCP connections.", flag="ipvs-tcp-timeout")] = (
        Duration(0)
    )
    tcp_fin_timeout: Annotated[
        Duration, unused("The timeout of TCP connections after a FIN.", flag="ipvs-tcpfin-timeout")
    ] = Duration(0)
    udp_timeout: Annotated[Duration, unused("The timeout of UDP.", flag="ipvs-udp-timeout")] = Duration(0)


class Winkernel(Group, frozen=True):
    """kube-proxy on Windows, which has no counterpart here."""

    network_name: Annotated[str, unused("The HNS network.", flag="network-name")] = ""
    source_vip: Annotated[str, unused("The source VIP.", flag="source-vip")] = ""
    enable_dsr: Annotated[bool, unused("Use direct server return.", flag="enable-dsr")] = field(
        default=False, name="enableDSR"
    )
    root_hns_endpoint_name: Annotated[str, unused("The root HNS endpoint.", flag="root-hnsendpoint-name")] = ""
    forward_health_check_vip: Annotated[
        bool, unused("Forward the VIP of the health check.", flag="forward-healthcheck-vip")
    ] = False


class DetectLocal(Group, frozen=True):
    """How kube-proxy detects local traffic; a userspace proxy does not need it."""

    bridge_interface: Annotated[str, unused("The bridge of the local pods.", flag="pod-bridge-interface")] = ""
    interface_name_prefix: Annotated[
        str, unused("The prefix of local pods' interfaces.", flag="pod-interface-name-prefix")
    ] = ""


class Conntrack(Group, frozen=True):
    """Kernel settings made at start; a setting that the kernel refuses, as in a container, causes a warning."""

    max_per_core: Annotated[
        Natural,
        restart(
            "How many connections per core the kernel's table has room for, at least. 0 changes nothing.",
            flag="conntrack-max-per-core",
        ),
    ] = 32768
    min: Annotated[
        Natural, restart("The least size of that table, whatever the number of cores.", flag="conntrack-min")
    ] = 131072
    tcp_established_timeout: Annotated[
        Duration,
        restart("The timeout of established connections. 0 changes nothing.", flag="conntrack-tcp-timeout-established"),
    ] = Duration.of(seconds=86400)
    tcp_close_wait_timeout: Annotated[
        Duration,
        restart("The timeout of half-closed connections. 0 changes nothing.", flag="conntrack-tcp-timeout-close-wait"),
    ] = Duration.of(seconds=3600)
    tcp_be_liberal: Annotated[
        bool,
        restart("Accept packets outside of the TCP window. false changes nothing.", flag="conntrack-tcp-be-liberal"),
    ] = False
    udp_timeout: Annotated[
        Duration, restart("The timeout of unanswered UDP flows. 0 changes nothing.", flag="conntrack-udp-timeout")
    ] = Duration(0)
    udp_stream_timeout: Annotated[
        Duration, restart("The timeout of answered UDP flows. 0 changes nothing.", flag="conntrack-udp-timeout-stream")
    ] = Duration(0)
