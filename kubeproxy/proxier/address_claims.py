"""Decides which service port gets a destination that several service ports claim.

The claim with the lowest `Place` wins, in any scope; when it is withdrawn, the next one wins. So after a restart the
same service port gets the destination again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kubeproxy.model import Claim, Destination, Frontend, FrontendName, Origin, ServicePortName, Traffic


class Place(NamedTuple):
    """The rank of a claim among those on the same destination. The lowest rank wins.

    A Service from a manifest has no creation time. The operator of the node wrote the manifest, so its claim ranks
    before those of all Services with a creation time. Among Services from manifests, the one that was known first stays
    first.
    """

    claim: Claim
    created: int
    service: tuple[str, str]
    """The Service's namespace and name. Both are empty if the Service has no creation time."""

    @classmethod
    def of(cls, frontend: Frontend, destination: Destination) -> Place:
        """Return the rank of a frontend's claim on a destination."""
        service = frontend.name.service_port
        return cls(
            frontend.claims.get(destination, Claim.ALLOCATED),
            frontend.created,
            (service.namespace, service.name) if frontend.created else ("", ""),
        )


class Claimant(NamedTuple):
    """A frontend's claim on a destination, for packets of one origin."""

    name: FrontendName
    origin: Origin
    place: Place


class Contest(NamedTuple):
    """A destination that several service ports claim."""

    destination: Destination
    holder: FrontendName
    claim: Claim
    """The kind of the winning claim."""
    others: Mapping[FrontendName, Claim]
    """One frontend of each other service port that claims the destination, with the kind of its claim."""


class AddressClaims:
    """Holds the claims on all destinations."""

    def __init__(self) -> None:
        self._of: dict[Destination, tuple[Claimant, ...]] = {}
        """The claims on each destination, sorted by place."""
        self._contested: dict[Destination, None] = {}

    def __contains__(self, destination: object) -> bool:
        return destination in self._of

    def __iter__(self) -> Iterator[Destination]:
        return iter(self._of)

    def put(self, destination: Destination, claimant: Claimant) -> None:
        """Add a frontend's claim, or replace its earlier claim."""
        claims = self._of.get(destination, ())
        if any(known.name == claimant.name for known in claims):
            claims = tuple(claimant if known.name == claimant.name else known for known in claims)
        else:
            claims = (*claims, claimant)
        self._set(destination, tuple(sorted(claims, key=_place_of)))

    def withdraw(self, destination: Destination, name: FrontendName) -> None:
        """Withdraw a frontend's claim."""
        self._set(destination, tuple(claim for claim in self._of[destination] if claim.name != name))

    def holder(self, traffic: Traffic) -> FrontendName | None:
        """Return the frontend that gets this traffic, or None if none claims it. Any thread may call this."""
        claims = self._of.get(traffic.destination, ())
        return next(
            (
                claim.name
                for claim in claims
                if claim.origin is traffic.origin and claim.name.service_port == claims[0].name.service_port
            ),
            None,
        )

    def contests(self) -> list[Contest]:
        """Return the destinations that several service ports claim."""
        found = []
        for destination in self._contested:
            first: dict[ServicePortName, Claimant] = {}
            for claimant in self._of[destination]:
                first.setdefault(claimant.name.service_port, claimant)
            holder, *others = first.values()
            found.append(
                Contest(destination, holder.name, holder.place.claim, {it.name: it.place.claim for it in others})
            )
        return found

    def _set(self, destination: Destination, claims: tuple[Claimant, ...]) -> None:
        if claims:
            self._of[destination] = claims
        else:
            del self._of[destination]
        if any(claim.name.service_port != claims[0].name.service_port for claim in claims):
            self._contested[destination] = None
        else:
            self._contested.pop(destination, None)


def _place_of(claimant: Claimant) -> Place:
    return claimant.place
