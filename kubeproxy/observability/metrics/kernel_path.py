"""The metrics of the kernel path, read at each scrape: those of the rescue, of slots, and of how connections are
counted."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from kubeproxy.model.rescue import RescueState
from kubeproxy.model.snapshot import SlotUse
from kubeproxy.observability.picture import KernelFlowsState


def rescue_families(state: RescueState) -> Iterator[Metric]:
    """Yield the metrics of the rescue. Call this only if the kernel path is configured."""
    counts = state.counts
    yield GaugeMetricFamily(
        "kubeproxy_rescue_working",
        "1 while failed connections of the kernel path are rescued; 0: clients meet failed endpoints",
        state.working,
    )
    reports = CounterMetricFamily(
        "kubeproxy_rescue_reports_total",
        "Packets that have reported a failed connection: a refusal, or an ICMP error (unreachable)",
        labels=("reason",),
    )
    reports.add_metric(("refused",), counts.refused)
    reports.add_metric(("unreachable",), counts.unreachable)
    yield reports
    yield CounterMetricFamily("kubeproxy_rescue_copied_total", "Copies of first packets of clients", counts.copied)
    yield GaugeMetricFamily("kubeproxy_rescue_copies_held", "Copies kept now, each for some seconds", counts.held)
    yield CounterMetricFamily("kubeproxy_rescue_resent_total", "Packets of clients sent again", counts.resent)
    not_resent = CounterMetricFamily(
        "kubeproxy_rescue_not_resent_total",
        "Packets not sent again, so that the client itself has to repeat them: sent as often as allowed (given_up),"
        " without a whole copy (unknown), or refused by the kernel (unsent)",
        labels=("cause",),
    )
    not_resent.add_metric(("given_up",), counts.given_up)
    not_resent.add_metric(("unknown",), counts.unknown)
    not_resent.add_metric(("unsent",), counts.unsent)
    yield not_resent
    yield CounterMetricFamily(
        "kubeproxy_rescue_overflows_total",
        "How often the kernel had no room for reports or copies, whose clients then had to retransmit",
        counts.overflows,
    )
    yield CounterMetricFamily(
        "kubeproxy_rescue_process_restarts_total", "Starts of the rescue process after its end", state.restarts
    )
    ejections = CounterMetricFamily(
        "kubeproxy_rescue_ejections_total",
        "Ejections of endpoints on the kernel path, by the last failure and by what noticed it: a client's packet"
        " (rescue), or a dial on the userspace path (worker)",
        labels=("reason", "noticed_by"),
    )
    for (reason, noticed_by), times in sorted(state.ejections.items()):
        ejections.add_metric((reason, noticed_by), times)
    yield ejections
    yield GaugeMetricFamily(
        "kubeproxy_rescue_ejected", "Endpoints that get no new connections from the kernel now", len(state.ejected)
    )


def slots_family(use: SlotUse) -> Metric:
    """Return the metric of slots, which are the places of endpoints in the kernel's maps."""
    slots = GaugeMetricFamily(
        "kubeproxy_kernel_slots",
        "Slots of the kernel path, one for each endpoint of each address of a Service: in use (used), and the most that"
        " kubeproxy.slotMemoryMib allows (limit)",
        labels=("state",),
    )
    slots.add_metric(("used",), use.used)
    slots.add_metric(("limit",), use.limit)
    return slots


def kernel_flow_families(state: KernelFlowsState) -> Iterator[Metric]:
    """Yield the metrics about how connections are counted.

    Call this only if rules of this process have sent connections over the kernel path.
    """
    yield GaugeMetricFamily(
        "kubeproxy_kernel_bytes_counted",
        "1 while the kernel counts bytes of connections (net.netfilter.nf_conntrack_acct=1); 0: there are none in"
        " kubeproxy_kernel_bytes_total",
        state.bytes_counted,
    )
    yield GaugeMetricFamily(
        "kubeproxy_kernel_flows_reading_seconds",
        "How long the last reading of connection tracking took; readings take at most a twentieth of the time",
        state.reading_s,
    )
    yield GaugeMetricFamily(
        "kubeproxy_kernel_flows_readable",
        "1 while open connections of the kernel path can be read; 0: the last reading failed, and its counts are old",
        not state.problem,
    )
    yield CounterMetricFamily(
        "kubeproxy_kernel_ends_total",
        "Ends of connections of the kernel path that the kernel has reported, for the access log",
        state.ends,
    )
    yield CounterMetricFamily(
        "kubeproxy_kernel_end_overflows_total",
        "How often the kernel had no room to report ends of connections, so that the access log lacks lines",
        state.overflows,
    )
