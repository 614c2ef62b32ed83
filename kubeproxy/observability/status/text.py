"""The status as plain text: one fact a line, columns that stay, nothing that only a terminal can show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from kubeproxy.dataplane.interface import WorkerStatus
from kubeproxy.observability.status import wording as words
from kubeproxy.observability.status.document import FrontendStatus, Incident, ServiceStatus, Status, Traffic

COLUMNS: Final = ("STATE", "SERVICE", "ACTIVE", "ACCEPTED", "FAILED", "CONN/S", "BYTES/S", "ENDPOINTS", "NOTE")
_RIGHT: Final = frozenset({"ACTIVE", "ACCEPTED", "FAILED", "CONN/S", "BYTES/S", "ENDPOINTS"})
INCIDENTS: Final = 5
"""Warnings and errors shown with a summary."""


def summary(status: Status) -> Iterator[str]:
    """The daemon as a whole, the Services as a table, the last warnings and errors."""
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
        yield "last warnings and errors"
        yield from (f"  {line}" for line in map(incident, status.recent_warnings[:INCIDENTS]))


def headline(status: Status) -> str:
    """``kubeproxy 1.0 on node-1: healthy, up 5h03m (pid 4242)``."""
    state = "draining" if status.draining else "healthy" if status.healthy else "NOT HEALTHY"
    up = words.duration(max(0.0, status.now - status.began))
    return f"kubeproxy {status.version} on {status.node}: {state}, up {up} (pid {status.pid})"


def head(status: Status) -> Iterator[str]:
    """The daemon as a whole."""
    yield headline(status)
    for complaint in status.complaints:
        yield f"  {complaint}"
    for name, text in facts(status):
        yield f"{name:<11} {text}"


def facts(status: Status) -> Iterator[tuple[str, str]]:
    """What there is to say of the daemon as a whole: a word, and a line."""
    yield "netfilter", netfilter(status)
    for source in status.sources:
        yield "source", f"{source.name}: {words.source(source)}"
        for remark in source.remarks:
            yield "", f"  {remark}"
    for worker in status.workers:
        yield "worker", worker_status(worker, status.now)
    if status.restarts:
        yield "", f"{status.restarts} workers died and were replaced"
    yield "traffic", traffic(status)
    counts = ", ".join(f"{count} {state}" for state, count in status.totals.by_state.items() if count)
    yield "services", f"{status.totals.services}{f': {counts}' if counts else ''}"


def netfilter(status: Status) -> str:
    """``nftables; last transaction 3s ago; everything is in effect``."""
    filter_ = status.netfilter
    if filter_.programmed_ago_s is None:
        done = "no transaction yet"
    else:
        done = f"last transaction {words.duration(filter_.programmed_ago_s)} ago"
    if filter_.pending_s is None:
        waiting = "" if filter_.programmed_ago_s is None else "; everything is in effect"
    else:
        changes = filter_.changes_pending
        # This node may have changed, of which nothing is counted.
        what = words.several(changes, "change pending", "changes pending") if changes else "not everything is in effect"
        waiting = f"; {what}, for {words.duration(filter_.pending_s)}"
    failures = f"; {words.several(filter_.failures, 'failure', 'failures')} in a row" if filter_.failures else ""
    return f"{filter_.adapter}; {done}{waiting}{failures}"


def worker_status(worker: WorkerStatus, now: float) -> str:
    """One worker."""
    turned = f"; {worker.accept_paused} clients waited for descriptors" if worker.accept_paused else ""
    return (
        f"{worker.number}: pid {worker.pid}, up {words.duration(max(0.0, now - worker.began))}; "
        f"{worker.connections} connections, {worker.udp_sessions} UDP sessions; "
        f"{worker.descriptors} of {worker.descriptors_limit} descriptors; "
        f"longest turn {worker.lag_s * 1000:.1f} ms{turned}"
    )


def traffic(status: Status) -> str:
    """All Services together."""
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
    """One line for each Service."""
    return columns(COLUMNS, [cells(service) for service in services], right=_RIGHT)


def cells(service: ServiceStatus) -> tuple[str, ...]:
    """What stands in the columns."""
    total, rates = service.traffic, service.rates
    return (
        service.state,
        f"{service.namespace}/{service.name}",
        str(total.active),
        str(total.accepted),
        str(total.failed),
        words.rate(rates.connections if rates else None),
        words.size(rates.bytes_in + rates.bytes_out) if rates else "-",
        words.endpoint_count(service),
        words.note(service),
    )


def columns(names: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[str] = ()) -> Iterator[str]:
    """A table, two blanks between columns; the last one has no end."""
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    aligned = [">" if name in right else "<" for name in names]
    for row in (names, *rows):
        line = "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths, strict=True))
        yield line.rstrip()


def details(service: ServiceStatus) -> Iterator[str]:
    """One Service with everything: its listeners, endpoints and counters."""
    yield f"{service.namespace}/{service.name}: {service.state} ({words.MEANING[service.state]})"
    yield f"  from        {service.source or 'nowhere'}"
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
    """One frontend."""
    port = f"proxy port {frontend.proxy_port}" if frontend.proxy_port is not None else "does not listen yet"
    yield f"{words.listener(frontend)}: {port}"
    yield f"  takes       {', '.join(frontend.addresses) or 'nothing from outside'}"
    if frontend.own_addresses:
        yield f"  from here   {', '.join(frontend.own_addresses)}"
    if frontend.source_ranges:
        yield f"  admits      {', '.join(frontend.source_ranges)} (load balancer addresses)"
    counters = frontend.counters
    if frontend.affinity_s is not None:
        yield f"  affinity    ClientIP, {frontend.affinity_s} s; {counters.affinity_entries} clients bound"
    yield (
        f"  counters    {counters.active} open, {counters.accepted} accepted, {counters.dial_retries} retries; "
        f"{counters.failed} failed ({counters.refused} refused, {counters.silent} silent, "
        f"{counters.no_endpoint} nobody there, {counters.unable} unable, {counters.looped} looped)"
    )
    if counters.dropped or counters.evicted:
        yield f"  datagrams   {counters.dropped} dropped; {counters.evicted} sessions made room for others"
    if not any(endpoint.used for endpoint in frontend.endpoints):
        no_endpoint = "none; clients are refused"
        yield f"  endpoints   {no_endpoint if frontend.when_empty == 'refuse' else 'none on this node; clients are dropped'}"
    for endpoint in frontend.endpoints:
        node = f" on {endpoint.node}" if endpoint.node else ""
        by = f" (workers {', '.join(map(str, endpoint.workers))})" if len(endpoint.workers) > 1 else ""
        say = words.endpoint(endpoint)
        preserved = ", dialed from the client's address" if endpoint.preserved else ""
        yield f"  {endpoint.standing:<11} {endpoint.address}{node}{preserved}{f': {say}' if say else ''}{by}"


def incident(one: Incident) -> str:
    """``04:05:06 warning watch ended source=kubernetes``."""
    moment = datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    times = f" ({one.times} times)" if one.times > 1 else ""
    return f"{moment} {one.level:<7} {one.text}{f' {one.details}' if one.details else ''}{times}"


def verdict(status: Status) -> str | None:
    """What is wrong and what to do, in one line; None: the daemon is healthy."""
    if status.healthy:
        return None
    return f"{status.node} is not healthy: {'; '.join(status.complaints)}; its log says more"
