"""Metrics of how the kernel path's connections are counted, read from its state at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from kubeproxy.observability.picture import KernelFlowsState


def kernel_flow_families(state: KernelFlowsState) -> Iterator[Metric]:
    """Yield the metrics. Its caller has a state only after a rule has led a connection by the kernel path."""
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
        "Times that the kernel had no room for ends of connections, so that lines of the access log are missing",
        state.overflows,
    )
