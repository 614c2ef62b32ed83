"""Picks an endpoint for a client. It has neither sockets nor a clock.

Session affinity comes first, as in kube-proxy: a bound client keeps its endpoint. For any other client, the policy of
the frontend's scheduler picks an endpoint that is neither ejected nor tried already. The balancer also counts the open
connections to each endpoint, for all policies.

A node has thousands of frontends that never have a client in user space. Their endpoints are kept as bytes until one
is needed, because an endpoint takes 16 bytes so, and more than 200 as objects.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from kubeproxy.dataplane.balancing.affinity import Affinity
from kubeproxy.dataplane.balancing.ejections import Ejection, Ejections
from kubeproxy.dataplane.balancing.open_counts import OpenCounts, SharedRows
from kubeproxy.dataplane.balancing.policies import policy_for
from kubeproxy.dataplane.messages import Binding
from kubeproxy.model import ROUND_ROBIN, Balancing, FrontendName, Target

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(tuple[tuple[Target, ...], Balancing]).decode


class Balancer:
    """The endpoints of one frontend, and the choice among them."""

    __slots__ = (
        "_affinity",
        "_balancing",
        "_counts",
        "_ejections",
        "_failing",
        "_members",
        "_packed",
        "_policy",
        "_rng",
        "frontend",
    )

    def __init__(
        self,
        *,
        rng: random.Random,
        probes_beside: bool = False,
        shared: SharedRows | None = None,
        failing: set[Balancer] | None = None,
    ) -> None:
        """`probes_beside` is explained in `Ejections`. `shared` has the numbers of open connections in all workers, or
        is None if there is only one process. The balancer adds itself to `failing` when it ejects an endpoint of a
        served frontend."""
        self.frontend: FrontendName | None = None
        """The frontend of these endpoints while it is served, or None."""
        self._failing = failing
        self._rng = rng
        self._ejections = Ejections(probes_beside=probes_beside)
        self._affinity = Affinity()
        self._balancing = ROUND_ROBIN
        self._counts = OpenCounts(shared)
        self._policy = policy_for(ROUND_ROBIN, rng=rng, counts=self._counts)
        self._members: frozenset[Target] = frozenset()
        self._packed: bytes | None = b""
        """The endpoints and the balancing as bytes until they are first needed, and then None. Empty bytes mean no
        endpoints."""

    def update(
        self, endpoints: Sequence[Target], affinity_timeout_s: float | None, balancing: Balancing = ROUND_ROBIN
    ) -> None:
        """Replace the endpoints, the scheduler, and the affinity timeout in seconds (None without affinity). A client
        stays with its endpoint for that time after its last connection."""
        self._affinity.set_timeout(affinity_timeout_s)
        if self._packed is None:
            self._replace(endpoints, balancing)
        else:
            self._packed = _encode((endpoints, balancing))

    def _unpack(self) -> None:
        """Make objects of the endpoints, unless that has been done."""
        if self._packed:
            self._replace(*_decode(self._packed))
        self._packed = None  # Only now, so that no endpoint is lost if there is no memory for the objects.

    def _replace(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        members = frozenset(endpoints)
        if balancing.scheduler is not self._balancing.scheduler:
            self._policy, self._members = policy_for(balancing, rng=self._rng, counts=self._counts), frozenset()
        if members != self._members or balancing != self._balancing:
            self._policy.update(endpoints, balancing)
            self._members, self._balancing = members, balancing
            self._ejections.keep(members)

    def pick(self, client: str, now: float, avoid: Container[Target] = (), *, port: int = 0) -> Target | None:
        """Return the endpoint for a client's connection, or None if all endpoints are in `avoid`. `client` is the
        client's address as text. With affinity, this binds the client to the endpoint."""
        if self._packed is not None:
            self._unpack()
        affinity = self._affinity
        if affinity.timeout_s is None:
            return self._next(client, port, avoid, now)
        target = affinity.of(client, now)
        if target in self._members and target not in avoid and self._ejections.admits(target, now):
            self._ejections.mark_probing(target, now)
            affinity.bind(client, target, now)
            return target
        picked = self._next(client, port, avoid, now)
        if picked is not None:
            affinity.bind(client, picked, now)
        return picked

    def _next(self, client: str, port: int, avoid: Container[Target], now: float) -> Target | None:
        ejections = self._ejections
        if not ejections.by_target:
            return self._policy.pick(client, port, lambda target: target not in avoid)
        picked = self._policy.pick(client, port, lambda target: target not in avoid and ejections.admits(target, now))
        if picked is not None:
            ejections.mark_probing(picked, now)
            return picked
        # All are ejected. Try one of the likeliest nevertheless.
        likeliest = ejections.likeliest([target for target in self._members if target not in avoid])
        return self._policy.pick(client, port, likeliest.__contains__)

    def preview(
        self, client: str, now: float, *, limit: int, port: int = 0
    ) -> tuple[Target | None, tuple[Target, ...]]:
        """Return the endpoint to which a client is bound (None without a binding), and up to `limit` endpoints in the
        order in which its next connection would try them. This is computed on a copy, and changes nothing."""
        self._unpack()
        copy = Balancer(rng=self._rng)
        copy._packed = None
        copy._policy = self._policy.copy()
        copy._members = self._members
        copy._ejections = self._ejections.copy()
        copy._affinity.set_timeout(self._affinity.timeout_s)
        bound = self._affinity.of(client, now)
        if bound in self._members:
            copy._affinity.bind(client, bound, now)
        else:
            bound = None
        order: dict[Target, None] = {}
        while len(order) < limit and (target := copy.pick(client, now, order, port=port)) is not None:
            order[target] = None
        return bound, tuple(order)

    # Open connections.

    def share(self, endpoints: Sequence[Target], columns: Sequence[int]) -> None:
        """From now on count together with the other workers. Each endpoint has a column in the shared table; if
        `columns` is empty, this process counts alone."""
        self._counts.share(endpoints, columns)

    def opened(self, target: Target) -> None:
        """Count a connection or session to an endpoint. Call this when its dial begins."""
        self._counts.opened(target)

    def closed(self, target: Target) -> None:
        """Stop counting a connection or session. Its endpoint may have left the Service meanwhile."""
        self._counts.closed(target)

    @property
    def open(self) -> Mapping[Target, int]:
        """Return how many connections and sessions this process has open to each endpoint. Endpoints without any are
        left out."""
        return self._counts.here

    # Session affinity.

    def settle(self, client: str, target: Target, now: float) -> None:
        """Bind a client to the endpoint of its established connection, even if another endpoint was picked later."""
        self._unpack()
        if target in self._members:
            self._affinity.bind(client, target, now)

    def restore_bindings(self, bindings: Iterable[Binding], now: float) -> None:
        """Add bindings of another process, the client seen longest ago first. Clients that already have a binding here
        keep it. Bindings to endpoints that this frontend does not have are dropped."""
        self._unpack()
        self._affinity.restore_bindings((each for each in bindings if each.target in self._members), now)

    @property
    def affinity_entries(self) -> int:
        """Return the number of bound clients. Expired bindings count until they are removed."""
        return len(self._affinity)

    def bindings(self, now: float, *, since: float) -> Iterator[Binding]:
        """Yield the bindings made or used since `since`, the client seen longest ago first."""
        return self._affinity.bindings(now, since=since)

    # Ejection.

    def failed(self, target: Target, now: float, reason: str) -> None:
        """Eject an endpoint that did not answer. `reason` is a value of `EjectedEndpoint.reason`."""
        self._unpack()
        if target in self._members:
            self._ejections.eject(target, now, reason)
            if self._failing is not None and self.frontend is not None:
                self._failing.add(self)

    def answered(self, target: Target) -> None:
        """End the ejection of an endpoint that answered."""
        self._ejections.end(target)

    def due(self, now: float) -> Target | None:
        """Return an endpoint whose ejection is over and which the caller has to probe now, or None if there is none."""
        return self._ejections.due(now)

    @property
    def ejected(self) -> Mapping[Target, Ejection]:
        """Return the ejected endpoints."""
        return self._ejections.by_target

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints in the order of their turns, the next one first."""
        self._unpack()
        return self._policy.endpoints

    def __len__(self) -> int:
        self._unpack()
        return len(self._members)

    def __repr__(self) -> str:
        return f"<Balancer {self._balancing.scheduler} [{', '.join(map(str, self.endpoints))}]>"
