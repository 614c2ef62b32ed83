"""Writes the texts about Services that are not served, or only in part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeproxy.model import NODE_PORTS, Claim, Destination, FrontendName, ServiceName, Target
from kubeproxy.proxier.availability import Availability
from kubeproxy.proxier.ruleset_builder import RuleSetBuilder

_REASONS = {
    Claim.ALLOCATED: "to which it is allocated",
    Claim.LOAD_BALANCER: "which has it as load balancer address",
}
"""Why a destination belongs to the Service that has it and not to one with a weaker claim, by the kind of the stronger
claim."""


def problems(
    remarks: Mapping[ServiceName, tuple[str, ...]],
    faults: Mapping[FrontendName, str],
    availability: Availability,
    rules: RuleSetBuilder,
) -> dict[ServiceName, tuple[str, ...]]:
    """Return the Services with problems, each with its texts. The resolver's texts (`remarks`) come first. `faults` has
    the frontends whose listener failed, each with the reason."""
    texts = dict(remarks)
    for service, text in (*_of_frontends(faults, availability, rules), *_of_destinations(availability, rules)):
        texts[service] = (*texts.get(service, ()), text)
    return texts


def _of_frontends(
    faults: Mapping[FrontendName, str], availability: Availability, rules: RuleSetBuilder
) -> Iterator[tuple[ServiceName, str]]:
    for name, fault in faults.items():
        yield name.service_port.service, f"{name}: {fault}"
    for name, reason in rules.refused.items():
        text = f"{name}: clients are refused, as {reason}"
        yield name.service_port.service, text
    for name, looping in availability.left_out.items():
        yield name.service_port.service, f"{name}: {_looping(looping)}"


def _of_destinations(availability: Availability, rules: RuleSetBuilder) -> Iterator[tuple[ServiceName, str]]:
    claims = availability.claims
    for destination, text in (*claims.faults.items(), *claims.notes.items()):
        for service in sorted({name.service_port.service for name in claims.claimants(destination)}):
            yield service, text
    for destination, holder, claim, others in rules.claims.contests():
        for name, lesser in others.items():
            reason = _REASONS[claim] if claim < lesser else "which comes first"
            yield name.service_port.service, f"{name}: {_words(destination)} belongs to {holder}, {reason}"


def _looping(endpoints: Mapping[Target, str]) -> str:
    (target, what), more = next(iter(endpoints.items())), len(endpoints) - 1
    others = f", as do {more} more" if more else ""
    return f"endpoint {target} is left out: it is {what}, so it leads back to this proxy{others}"


def _words(destination: Destination) -> str:
    if destination.address in NODE_PORTS.values():
        return f"{destination.protocol} node port {destination.port}"
    return f"{destination.protocol} {Target(destination.address, destination.port)}"
