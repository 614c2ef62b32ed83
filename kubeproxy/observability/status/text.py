"""The status as plain text: one fact per line, in fixed columns, without terminal control sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kubeproxy.dataplane.interface import WorkerStatus
from kubeproxy.observability.picture import ConfigurationState
from kubeproxy.observability.status import wording as words
from kubeproxy.observability.status.document import (
    DataPathsStatus,
    FrontendStatus,
    RecentWarning,
    ServiceStatus,
    Standing,
    Status,
    Traffic,
)
from kubeproxy.observability.status.table import laid_out

WARNINGS_SHOWN: Final = 5
"""How many recent warnings a summary shows."""
NOT_ASKED: Final = "kubeproxy.dataPath is userspace"
"""The default reason for the userspace path, which is not repeated for each frontend."""


def summary(status: Status) -> Iterator[str]:
    """Yield the daemon's state, the Services as a table, and the recent warnings and errors."""
    yield from head(status)
    yield ""
    if not status.services:
        yield "no such service" if status.totals.services else "no services"
    else:
        yield from table(status.services)
        if (left := status.matched - status.offset - len(status.services)) > 0:
            yield f"... and {left} more"
    if status.recent_warnings:
        yield ""
        yield "recent warnings and errors"
        yield from (f"  {line}" for line in map(recent_warning, status.recent_warnings[:WARNINGS_SHOWN]))


def headline(status: Status) -> str:
    """Return the first line, such as ``kubeproxy 1.0 on node-1: healthy, up 5h03m (pid 4242)``."""
    up = words.duration(max(0.0, status.now - status.began))
    return f"kubeproxy {status.version} on {status.node}: {status.summary}, up {up} (pid {status.pid})"


def head(status: Status) -> Iterator[str]:
    """Yield the lines about the daemon, without its Services."""
    yield headline(status)
    for problem in status.problems:
        yield f"  {problem}"
    for name, text in facts(status):
        yield f"{name:<11} {text}"


def facts(status: Status) -> Iterator[tuple[str, str]]:
    """Yield the daemon's facts, each as a label and a line."""
    if status.configuration is not None:
        yield from configuration(status.configuration)
    yield "netfilter", netfilter(status)
    if status.data_paths is not None and status.data_paths.wanted != "userspace":
        yield "data paths", data_paths(status.data_paths)
        if status.data_paths.rescue is not None:
            yield "rescue", words.rescue(status.data_paths.rescue)
    if status.data_paths is not None and status.data_paths.flows is not None:
        yield "flows", words.kernel_flows(status.data_paths.flows)
    for source in status.sources:
        yield "source", f"{source.name}: {words.source(source)}"
        for problem in source.problems:
            yield "", f"  {problem}"
    for worker in status.workers:
        yield "worker", worker_status(worker, status.now)
    if status.restarts:
        yield "", f"{status.restarts} workers died and were replaced"
    yield "traffic", traffic(status)
    counts = ", ".join(f"{count} {state}" for state, count in status.totals.by_state.items() if count)
    yield "services", f"{status.totals.services}{f': {counts}' if counts else ''}"


def configuration(state: ConfigurationState) -> Iterator[tuple[str, str]]:
    """Yield the configuration file, and which parts of it are not in effect."""
    file = state.file or "flags"
    if state.faults:
        first, more = state.faults[0], f" (and {len(state.faults) - 1} more)" if len(state.faults) > 1 else ""
        since = words.moment(state.refused_at or state.loaded_at)
        yield "config", f"{file}: INVALID since {since}, the previous one is in effect"
        yield "", f"  {first}{more}"
    elif state.file or state.needs_restart:
        yield "config", f"{file}: in effect since {words.moment(state.loaded_at)}"
    if state.needs_restart:
        yield "", f"  restart needed for: {', '.join(state.needs_restart)}"


def netfilter(status: Status) -> str:
    """Return the state of the packet filter, such as ``nftables; last transaction 3s ago; everything is in effect``."""
    filter_ = status.netfilter
    if filter_.programmed_ago_s is None:
        done = "no transaction yet"
    else:
        done = f"last transaction {words.duration(filter_.programmed_ago_s)} ago"
    if filter_.pending_s is None:
        waiting = "" if filter_.programmed_ago_s is None else "; everything is in effect"
    else:
        changes = filter_.changes_pending
        # With no counted change, something on this node itself has changed.
        what = words.several(changes, "change pending", "changes pending") if changes else "not everything is in effect"
        waiting = f"; {what}, for {words.duration(filter_.pending_s)}"
    failures = f"; {words.several(filter_.failures, 'failure', 'failures')} in a row" if filter_.failures else ""
    return f"{filter_.adapter}; {done}{waiting}{failures}"


def data_paths(paths: DataPathsStatus) -> str:
    """Return the number of frontends by data path, such as ``120 frontends by the kernel, 3 by userspace (2: there is
    no endpoint)``."""
    kernel = words.several(paths.kernel, "frontend", "frontends")
    reason, count = next(iter(paths.reasons.items()), ("", 0))
    others = paths.userspace + paths.refused
    why = "" if not reason else f" ({reason})" if count == others else f" ({count}: {reason})"
    rest = f"{paths.refused} refused" if paths.refused else f"{paths.userspace} by userspace"
    return f"{kernel} by the kernel, {rest}{why}"


def worker_status(worker: WorkerStatus, now: float) -> str:
    """Return the state of one worker."""
    waited = f"; {worker.accept_paused} clients waited for descriptors" if worker.accept_paused else ""
    return (
        f"{worker.number}: pid {worker.pid}, up {words.duration(max(0.0, now - worker.began))}; "
        f"{worker.connections} connections, {worker.udp_sessions} UDP sessions; "
        f"{worker.descriptors} of {worker.descriptors_limit} descriptors; "
        f"loop lag {worker.lag_s * 1000:.1f} ms{waited}"
    )


def traffic(status: Status) -> str:
    """Return the sums of traffic over all Services."""
    total, rates = status.totals.traffic, status.totals.rates
    now = "" if rates is None else f"; now {words.rate(rates.connections)} connections/s, {_bytes_rate(status)}"
    return f"{_sums(total)}{now}"


def _bytes_rate(status: Status) -> str:
    rates = status.totals.rates
    return f"{words.size(rates.bytes_in + rates.bytes_out)}/s" if rates else "-"


def _sums(total: Traffic) -> str:
    return (
        f"{total.active} open, {total.accepted} accepted, {total.failed} failed, "
        f"{words.size(total.bytes_in)} in, {words.size(total.bytes_out)} out"
    )


def table(services: Sequence[ServiceStatus]) -> Iterator[str]:
    """Yield a table with one line per Service."""
    for header_or_row in laid_out(services, width=None):
        yield from header_or_row.lines


def details(service: ServiceStatus) -> Iterator[str]:
    """Yield one Service with its frontends, endpoints and counters."""
    yield f"{service.namespace}/{service.name}: {service.state} ({words.MEANING[service.state]})"
    yield f"  source      {service.source or 'none'}"
    for problem in service.problems:
        yield f"  problem     {problem}"
    yield f"  traffic     {_sums(service.traffic)}"
    if service.rates is not None:
        moved = service.rates.bytes_in + service.rates.bytes_out
        yield f"  now         {words.rate(service.rates.connections)} connections/s, {words.size(moved)}/s"
    for frontend in service.frontends:
        yield ""
        yield from (f"  {line}" for line in listener(frontend))


def listener(frontend: FrontendStatus) -> Iterator[str]:
    """Yield the lines of one frontend, with its counters and endpoints."""
    port = f"proxy port {frontend.proxy_port}" if frontend.proxy_port is not None else "does not listen yet"
    yield f"{words.listener(frontend)}: {port}"
    yield f"  addresses   {', '.join(frontend.addresses) or 'none for other hosts'}"
    if frontend.own_addresses:
        yield f"  this node   {', '.join(frontend.own_addresses)}"
    if frontend.source_ranges:
        yield f"  sources     {', '.join(frontend.source_ranges)} (for load balancer addresses)"
    yield from (f"  {line}" for line in data_path(frontend))
    weighed = len({endpoint.weight for endpoint in frontend.endpoints if endpoint.used}) > 1
    yield f"  scheduler   {frontend.scheduler}{', by weight' if weighed else ''}"
    counters = frontend.counters
    if frontend.affinity_s is not None:
        yield f"  affinity    ClientIP, {frontend.affinity_s} s; {counters.affinity_entries} clients bound"
    yield (
        f"  counters    {counters.active} open, {counters.accepted} accepted, {counters.dial_retries} retries; "
        f"{counters.failed} failed{words.failures(counters)}"
    )
    if counters.dropped or counters.evicted:
        yield f"  datagrams   {counters.dropped} dropped; {counters.evicted} sessions evicted"
    if not any(endpoint.used for endpoint in frontend.endpoints):
        refused = frontend.when_empty == "refuse"
        yield f"  endpoints   none{'; clients are refused' if refused else ' on this node; clients are dropped'}"
    for endpoint in frontend.endpoints:
        node = f" on {endpoint.node}" if endpoint.node else ""
        by = f" (workers {', '.join(map(str, endpoint.workers))})" if len(endpoint.workers) > 1 else ""
        reason = words.endpoint(endpoint)
        preserved = ", dialed from the client's address" if endpoint.preserved else ""
        weight = f", weight {endpoint.weight} ({endpoint.share:.1%})" if weighed and endpoint.used else ""
        opened = f", {endpoint.open} open" if endpoint.open and endpoint.standing is not Standing.DRAINING else ""
        remarks = f"{node}{preserved}{weight}{opened}"
        yield f"  {endpoint.standing:<11} {endpoint.address}{remarks}{f': {reason}' if reason else ''}{by}"


def data_path(frontend: FrontendStatus) -> Iterator[str]:
    """Yield the data path of a frontend if the kernel path is configured, and its traffic on the kernel path if there
    is any."""
    if frontend.data_path == "kernel":
        count = words.several(len(frontend.targets), "endpoint", "endpoints")
        yield f"data path   kernel, to {count} {_shares(frontend)}; {frontend.counters.by_kernel} connections so far"
    elif frontend.data_path_reason and frontend.data_path_reason != NOT_ASKED:
        yield f"data path   {frontend.data_path}: {frontend.data_path_reason}"
    counters = frontend.counters
    if frontend.data_path == "kernel" or counters.kernel_open or counters.kernel_bytes_in:
        yield f"by kernel   {words.kernel_traffic(frontend)}"


def _shares(frontend: FrontendStatus) -> str:
    """Return how the kernel distributes clients over the endpoints."""
    if frontend.scheduler in ("source-hash", "maglev"):
        return "by a hash of the client"
    weighed = len({endpoint.weight for endpoint in frontend.endpoints if endpoint.used}) > 1
    return "by weight" if weighed else "in equal shares"


def recent_warning(one: RecentWarning) -> str:
    """Return a warning as one line, such as ``04:05:06 warning watch ended source=kubernetes``."""
    times = f" ({one.times} times)" if one.times > 1 else ""
    return f"{words.moment(one.at)} {one.level:<7} {one.text}{f' {one.details}' if one.details else ''}{times}"


def verdict(status: Status) -> str | None:
    """Return one line that says why the daemon is not healthy, or None if it is."""
    if status.healthy:
        return None
    return f"{status.node} is not healthy: {'; '.join(status.problems)}; see its log"
