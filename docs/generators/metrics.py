"""``docs/metrics.md``, written from a scrape that holds everything: see the command at the end of the page's head."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kubeproxy.dataplane.interface import Counters, EjectedEndpoint
from kubeproxy.kubernetes.client.request_metrics import Requests
from kubeproxy.model import Address, Family, Target
from kubeproxy.observability.metrics.metrics import Metrics
from kubeproxy.observability.metrics.slis import PROXY
from kubeproxy.observability.metrics.traffic import SERIES, Traffic
from kubeproxy.observability.views import Picture
from tests.observability.conftest import WEB_IPV4, Listening, Manifests, State, Watch, worker_status

HEAD = """\
# Metrics

What `/metrics` on the metrics port (127.0.0.1:10249) tells. kube-proxy's own names, types, labels and buckets are kept
where there is something to tell, so that its dashboards and alerts work as they are; the rest is ours.

- **Services.** Labels are `namespace`, `service` and `port` (the port's name), never an address. The two families and
  all scopes of a service port are one sum. A Service that nobody on this node has used has only
  `kubeproxy_connections_accepted_total`; the others begin with its first client, and those of UDP, of session affinity
  and of endpoints set aside with their first value that is not 0. A sum never falls while its service port exists,
  whatever frontends and processes come and go.
- **Processes.** `process_*` is the process that watches and programs; the processes that move bytes are
  `kubeproxy_worker_*`, by number. A replacement inherits the number of the one that died.
- **Not there:** `go_*` (there is no Go); `kubernetes_build_info` (dashboards take it for a release of Kubernetes);
  kube-proxy's counts of iptables rules (a Service costs map elements, not rules) and of packets counted by nfacct.
- **Answers** are compressed where the scraper asks for it. With 10,000 services in two families (20,000 frontends) the
  traffic's text takes 15 to 40 ms where few have news since the last scrape, 100 to 180 ms where all have, in slices of
  a millisecond or a few between which the event loop turns:
  `python -m pytest -s tests/observability/metrics/test_traffic.py -k ten_thousand` prints the figures of this machine.

`/metrics/slis` is what every component of Kubernetes serves there: `kubernetes_healthcheck` (gauge; labels `name`,
`type`) and `kubernetes_healthchecks_total` (counter; and `status`: `success` or `error`), for the health server's pages
(`name="{proxy}"`, `type` `healthz`, `livez`, `readyz`) and the metrics server's (`name="ping"`).

This page is written by `python -m docs.generators.metrics > docs/metrics.md`; a test compares them.
"""

KUBE_PROXY = "As in kube-proxy"
GROUPS = (
    (KUBE_PROXY, ()),
    ("Connections, by service port", ("connections_", "dial_retries", "forwarded", "udp_datagrams", "udp_sessions_e")),
    ("Endpoints and affinity, by service port", ("endpoints_", "affinity")),
    (
        "The data plane",
        ("worker_", "data_plane", "accept_paused", "memory", "dial", "ephemeral_ports", "udp_sessions", "descriptors"),
    ),
    ("Packet filter and connection tracking", ("netfilter", "conntrack")),
    ("Where Services come from", ("source", "watch", "manifests", "services", "frontends")),
    ("This process", ("build", "loop", "events", "access", "http", "process_")),
)
"""Titles, and the beginnings of the names below them, after ``kubeproxy_``; the first group that fits."""

THEIRS = (
    "kubeproxy_sync_",
    "kubeproxy_network_",
    "kubeproxy_proxy_",
    "kubeproxy_conntrack_reconciler_",
    "rest_client_",
)

Row = tuple[str, str, str, str]
"""Name, type, labels, meaning."""


class Told:
    """Kubernetes Events."""

    sent = 1
    dropped = 1


def scrape() -> bytes:
    """Everything that there can be in one."""
    metrics, requests = Metrics(families=Family), Requests(host="10.96.0.1:443")
    requests.answered("GET", 200, 0.1)
    state = State(frontends=[Listening(40001)], sources={"kubernetes": True})
    watches = [Watch(failures={"expired": 1})]
    metrics.state.read(Picture(state, watches=watches, manifests=Manifests(), requests=requests, events=Told()))
    metrics.workers.see([worker_status(0, pid=os.getppid())])
    metrics.synced(0.1, full=True, adapter="nftables")
    metrics.apply_failed("nftables")
    ejected = EjectedEndpoint(
        target=Target(Address("10.0.0.1"), 80), worker=0, reason="refused", failures=1, retry_in_s=1.0
    )
    every = Counters(**{series.counter: 1 for series in SERIES if series.counter})
    return generate_latest(metrics.registry) + b"".join(Traffic().exposition({WEB_IPV4: every}, {WEB_IPV4: [ejected]}))


def rows() -> Iterator[Row]:
    """Every metric."""
    for family in text_string_to_metric_families(scrape().decode()):
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        name = family.name + ("_total" if family.type == "counter" else "")
        assert family.samples, f"{name} has no sample to take its labels from"
        yield name, family.type, ", ".join(f"`{label}`" for label in labels), family.documentation


def render() -> str:
    """The page."""
    left = list(rows())
    parts = [HEAD.format(proxy=PROXY)]
    for title, beginnings in GROUPS:
        if title == KUBE_PROXY:
            found = [row for row in left if row[0].startswith(THEIRS)]
        else:
            found = [row for row in left if row[0].removeprefix("kubeproxy_").startswith(beginnings)]
        left = [row for row in left if row not in found]
        parts.append(f"\n## {title}\n\n{table(found)}")
    assert not left, f"in no group: {[row[0] for row in left]}"
    return "".join(parts)


def table(found: Iterable[Row]) -> str:
    """As Markdown."""
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in sorted(found)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")
