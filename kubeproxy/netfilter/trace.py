"""What a rule set does to a packet, decided as the kernel would. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kubeproxy.model import Destination
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet


class Fate(StrEnum):
    """What becomes of a client's first packet."""

    PASSED = "passed"
    """Not ours: the kernel routes it as if we were not there."""
    PROXIED = "proxied"
    REFUSED = "refused"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Trace:
    """The fate of a packet, and the proxy port that it was redirected to (None: to none)."""

    fate: Fate
    proxy_port: int | None = None


def trace(rules: RuleSet, destination: Destination, *, for_this_host: bool = False) -> Trace:
    """What meets a client that sends to `destination`; `for_this_host` tells that this is an address of the node
    itself, where a proxy port may be hit directly."""
    port = rules.redirects.get(destination)
    if port is None:
        direct = for_this_host and ProxyPort(destination.protocol, destination.port) in rules.guarded
        return Trace(Fate.DROPPED if direct else Fate.PASSED)
    proxy_port = ProxyPort(destination.protocol, port)
    if proxy_port in rules.dropped:
        return Trace(Fate.DROPPED, port)
    return Trace(Fate.REFUSED if proxy_port in rules.refused else Fate.PROXIED, port)
