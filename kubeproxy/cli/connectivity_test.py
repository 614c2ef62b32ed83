"""Implements ``kubeproxy connectivity-test``, which connects to Services and compares the results with the daemon's
predictions."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

import click
import msgspec

from kubeproxy.cli.bridge_pod import NoPodError, pod_on_bridge
from kubeproxy.cli.daemon_client import ADDRESS, CONFIG, Daemon, daemon_at, health_address
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.observability.status.document import FrontendStatus, ServiceStatus, Status
from kubeproxy.observability.status.trace_report import Outcome, TraceReport
from kubeproxy.runtime.output import echo, write_data

AT_ONCE: Final = 32
"""The largest number of connections in progress at once."""
MOST_ENDPOINTS: Final = 10
"""The largest number of endpoints of a service port that are dialed directly."""
NOT_AS_TRACED: Final = 2
"""The exit status if a connection does not have the result that the daemon predicts."""
IPV4: Final = 4
ANSWERED, REFUSED, SILENT, UNREACHABLE = "answered", "refused", "silent", "unreachable"
_EXPECTED: Final = {
    Outcome.PROXIED: ANSWERED,
    Outcome.FORWARDED: ANSWERED,
    Outcome.REFUSED: REFUSED,
    Outcome.DROPPED: SILENT,
}
"""The result that a client sees, by the outcome of a trace. There is no prediction for addresses that are no
Service's."""


class Check(msgspec.Struct, kw_only=True):
    """The test of one address of a Service from one place."""

    service: str
    address: str
    client: str
    """``node`` or ``pod``."""
    expected: str
    """The result that the daemon's trace predicts, or empty if there is no prediction."""
    seen: str
    ms: float
    """The duration of the test, in milliseconds."""
    endpoints: str
    """How many of the Service's endpoints answer this node directly, such as ``2/3``. It is empty for a health
    server."""
    verdict: str
    """``ok``, ``endpoints`` if the Service cannot be served because no endpoint answers, or ``FAILED``."""


class Result(msgspec.Struct):
    """The results of all checks, and the reasons for missing checks."""

    checks: list[Check] = []
    not_tested: list[str] = []


@click.command(short_help="Connect to Services from this node and from its pods' bridge, and compare with the rules.")
@click.argument("services", metavar="[SERVICE]...", nargs=-1)
@click.option("--bridge", metavar="NAME", default="", help="The bridge of this node's pods.  [found by its name]")
@click.option("--no-pod", is_flag=True, help="Test from the node only; make no namespace on the bridge.")
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(0.1, 60.0), default=3.0, show_default=True)
@click.option(
    "--limit", type=click.IntRange(1), default=200, show_default=True, help="The most Services, problems first."
)
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
@ADDRESS
@CONFIG
def connectivity_test(
    services: tuple[str, ...],
    bridge: str,
    no_pod: bool,
    timeout: float,
    limit: int,
    output: str,
    as_json: bool,
    address: str,
    config: str,
) -> int:
    """Open TCP connections to all Services, or to those that are named as in `kubeproxy status`, from this node and
    from a network namespace on the bridge of its pods. Open TCP connections to their endpoints and health ports, too.

    Each result is compared with the daemon's trace of the same connection. Connections are closed at once, and nothing
    is sent. The cluster is not changed. UDP is not tested, because a missing answer would prove nothing. The namespace
    requires root and the command `ip`, and is removed at the end.

    Exit status: 0 all results are as the daemon predicts; 2 some are not; 1 nothing can be tested; 64 the command line
    is wrong.
    """
    daemon = daemon_at(address, config)
    found = list(_services(daemon, services, limit))
    result = Result()
    with contextlib.ExitStack() as stack:
        places: dict[str, tuple[str, ThreadPoolExecutor]] = {"node": ("", stack.enter_context(_pool()))}
        if not no_pod:
            try:
                pod = stack.enter_context(pod_on_bridge(bridge))
            except NoPodError as error:
                result.not_tested.append(f"from a pod: {error}")
            else:
                places["pod"] = (pod.address, stack.enter_context(_pool(pod.enter)))
        test = Test(daemon, places, timeout, result)
        for service in found:
            test.check(service)
        if healthz := health_address(config):
            test.check_health("this node's health", healthz)
        test.finish()
    if as_json or output == "json":
        write_data(sys.stdout, f"{msgspec.json.format(msgspec.json.encode(result), indent=2).decode()}\n")
    else:
        echo(*_table(result))
    return NOT_AS_TRACED if any(check.verdict == "FAILED" for check in result.checks) else 0


def _pool(enter: Callable[[], None] | None = None) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_ONCE, initializer=enter)


def _services(daemon: Daemon, names: Sequence[str], limit: int) -> Iterator[ServiceStatus]:
    """Yield the Services with these names, or all Services if `names` is empty, at most `limit`. Raise KubeproxyError
    if a name is unknown."""
    for name in names or ("",):
        query = {"format": "json", "limit": str(limit), **({"service": name} if name else {})}
        found = daemon.ask(f"/statusz?{urlencode(query)}", Status)
        if name and not found.services:
            raise KubeproxyError(found.hint or f"no Service {name}")
        yield from found.services


@dataclass(slots=True)
class Test:
    """Runs the checks. The connections to one Service are made in parallel."""

    daemon: Daemon
    places: dict[str, tuple[str, ThreadPoolExecutor]]
    """The places from which connections are made, by name: the address, which is empty for this node, and the threads
    that connect from there."""
    timeout_s: float
    result: Result
    _udp: set[str] = field(default_factory=set)

    def check(self, service: ServiceStatus) -> None:
        """Check every TCP address of a Service from every place, and its health port from this node."""
        name = f"{service.namespace}/{service.name}"
        for frontend in service.frontends:
            if frontend.protocol != "TCP":
                self._udp.add(name)
                continue
            answering, asked = self._endpoints(frontend)
            port = f"{name}:{frontend.port}" if frontend.port else name
            # Skip node ports, which are described in words and not by an address.
            addresses = [it for it in (*frontend.addresses, *frontend.own_addresses) if ":" in it]
            places = [place for place in self.places if place == "node" or frontend.family == IPV4]
            begun = [(it, place, self._begin(it, place)) for it in addresses for place in places]
            for address, place, connecting in begun:
                expected = self._expected(address, self.places[place][0])
                seen, seconds = connecting.result()
                self._add(port, address, place, expected, seen, seconds, endpoints=(answering, asked))
        if service.health_port:
            self.check_health(f"{name} health", f"127.0.0.1:{service.health_port}")

    def check_health(self, name: str, address: str) -> None:
        """Check that a health server answers this node."""
        seen, seconds = self._begin(address, "node").result()
        self._add(name, address, "node", ANSWERED, seen, seconds)

    def finish(self) -> None:
        """Add what was not tested to the result."""
        if self._udp:
            self.result.not_tested.append(f"UDP ports of {len(self._udp)} Services: silence says nothing there")

    def _begin(self, address: str, place: str) -> Future[tuple[str, float]]:
        return self.places[place][1].submit(connect, address, self.timeout_s)

    def _endpoints(self, frontend: FrontendStatus) -> tuple[int, int]:
        """Return how many of a frontend's endpoints answer this node, and how many were dialed."""
        asked = [endpoint.address for endpoint in frontend.endpoints if endpoint.used][:MOST_ENDPOINTS]
        answers = [connecting.result()[0] for connecting in [self._begin(it, "node") for it in asked]]
        return answers.count(ANSWERED), len(asked)

    def _expected(self, address: str, source: str) -> str:
        query = {"to": address, "protocol": "tcp", **({"from": source} if source else {})}
        return _EXPECTED.get(self.daemon.ask(f"/trace?{urlencode(query)}", TraceReport).outcome, "")

    def _add(
        self,
        name: str,
        address: str,
        place: str,
        expected: str,
        seen: str,
        seconds: float,
        *,
        endpoints: tuple[int, int] | None = None,
    ) -> None:
        good = not expected or seen == expected
        unserved = expected == ANSWERED and endpoints is not None and not endpoints[0]
        self.result.checks.append(
            Check(
                service=name,
                address=address,
                client=place,
                expected=expected,
                seen=seen,
                ms=round(seconds * 1000, 1),
                endpoints="" if endpoints is None else f"{endpoints[0]}/{endpoints[1]}",
                # A worker accepts a connection before it dials, so the answer does not prove that an endpoint answers.
                verdict="endpoints" if unserved else "ok" if good else "FAILED",
            )
        )


def connect(address: str, timeout_s: float) -> tuple[str, float]:
    """Open and close a TCP connection to IP:PORT or [IP]:PORT. Return the result, and the duration in seconds."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    began = time.monotonic()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect((host, int(port)))
            seen = ANSWERED
        except TimeoutError:
            seen = SILENT
        except OSError as error:
            seen = REFUSED if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET) else UNREACHABLE
    return seen, time.monotonic() - began


def _table(result: Result) -> Iterator[str]:
    heads = ("SERVICE", "ADDRESS", "FROM", "EXPECTED", "SEEN", "MS", "ENDPOINTS", "VERDICT")
    order = {"FAILED": 0, "endpoints": 1, "ok": 2}
    rows = [
        (
            check.service,
            check.address,
            check.client,
            check.expected or "-",
            check.seen,
            f"{check.ms:.1f}",
            check.endpoints,
            check.verdict,
        )
        for check in sorted(result.checks, key=lambda check: order[check.verdict])
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    counts = {verdict: sum(check.verdict == verdict for check in result.checks) for verdict in order}
    yield ""
    yield (
        f"{len(result.checks)} connections: {counts['ok']} as the daemon says, {counts['FAILED']} not, "
        f"{counts['endpoints']} whose Service has no endpoint that answers this node"
    )
    for text in result.not_tested:
        yield f"not tested: {text}"
