"""Hints for a query that matches no Service: which ports exist, or why the Service is not served."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from kubeproxy.observability.status.service_index import Index, Query, Row, named

LISTED = 5
"""The largest number of names or ports in one hint."""


def hint(index: Index, query: Query) -> str:
    """Return why no Service matches, or an empty text for a query without a Service."""
    wanted = query.service
    if not wanted:
        return ""
    name, _, port = wanted.rpartition(":")
    if port and name and (rows := [row for row in index.rows.values() if named(row, name)]):
        has = "; ".join(_ports(rows[0])) or "none that is served"
        return f"{rows[0].name} has no port {port}; it has: {has}"
    if wanted.replace(".", "").replace(":", "").isalnum() and any(c.isdigit() for c in wanted) and "." in wanted:
        return f"no Service has the address {wanted}; `kubeproxy trace IP:PORT` shows the path of a connection"
    namespace, _, bare = wanted.partition(":")[0].rpartition("/")
    if reason := index.observation.why_not_served(namespace, bare):
        return f"{wanted} is not served: {reason}"
    return f"no Service {wanted} (of {len(index.rows)}){_similar(index, namespace, bare)}"


def _similar(index: Index, namespace: str, name: str) -> str:
    same = [str(service) for service in index.rows if service.name == name and service.namespace != namespace]
    if not same:
        known_names = {service.name for service in index.rows}
        near = get_close_matches(name, known_names, n=LISTED)
        same = [str(service) for service in index.rows if service.name in near and namespace in ("", service.namespace)]
    if not same:
        return "; `kubeproxy status` without a name lists all"
    return f"; did you mean {' or '.join(same[:LISTED])}?"


def _ports(row: Row) -> Iterator[str]:
    """Yield ``http (80/TCP)`` and the like for each port of a Service."""
    seen: dict[str, set[int]] = {}
    for view in row.frontends:
        frontend = view.frontend
        numbers = {destination.port for destination in frontend.destinations}
        seen.setdefault(f"{frontend.name.service_port.port}|{frontend.protocol}", set()).update(numbers)
    for key, ports in list(seen.items())[:LISTED]:
        name, _, protocol = key.partition("|")
        numbers_text = ", ".join(f"{number}/{protocol}" for number in sorted(ports))
        yield f"{name} ({numbers_text})" if name else numbers_text
