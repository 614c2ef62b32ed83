"""Arranges an observation by Service, each with its state and sums of traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from kubeproxy.model import FrontendName, Protocol, ServiceName, Target, Verdict
from kubeproxy.model.snapshot import FrontendState
from kubeproxy.observability.status.document import State, Traffic
from kubeproxy.observability.status.observation import Observation
from kubeproxy.observability.status.traffic_history import History

SLICE: Final = 250
"""How many Services or frontends are processed between two yields. They take about a millisecond."""

REASONS: Final = 100
"""How many different reasons for the userspace path are counted. The number is limited because some reasons name an
endpoint."""


class Order(StrEnum):
    """The orders in which Services can be listed."""

    PROBLEMS = "problems"
    """By state, the worst first. Services of the same state are ordered by failed connections."""
    NAME = "name"
    ACTIVE = "active"
    """By open connections."""
    CONNECTIONS = "connections"
    """By new connections per second in the last interval, and then by accepted connections."""
    BYTES = "bytes"
    """By bytes per second in the last interval, and then by forwarded bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query: which Services to show, in which order, and how many."""

    service: str = ""
    """The Service to show: ``namespace/name`` or ``name``, each optionally with ``:port`` (its name or number); or
    ``IP`` or ``IP:PORT``. The match is exact."""
    namespace: str = ""
    """The namespace, or an empty text for all."""
    search: str = ""
    """A part of a name, of an address or of an endpoint's address."""
    states: frozenset[State] = frozenset()
    """The states to show, or an empty set for all."""
    order: Order = Order.PROBLEMS
    offset: int = 0
    limit: int | None = None
    """The largest number of Services, or None for all."""


@dataclass(slots=True)
class Row:
    """One Service with its frontends, state and traffic."""

    name: ServiceName
    frontends: list[FrontendState] = field(default_factory=list)
    state: State = State.OK
    ejected: int = 0
    """The number of ejected endpoints."""
    traffic: Traffic = Traffic()  # noqa: RUF009 - frozen


class Index:
    """Holds all Services of one observation. Run `fill` to its end before you use anything else."""

    def __init__(self, observation: Observation) -> None:
        self.observation = observation
        self.rows: dict[ServiceName, Row] = {}
        self.by_state: dict[State, int] = dict.fromkeys(State, 0)
        self.ejected_endpoints = 0
        self.traffic = Traffic()
        self.by_kernel = self.by_userspace = self.refused = 0
        """The number of frontends by the data path of their new connections."""
        self.kernel_open = 0
        """The number of open connections of the kernel path."""
        self.userspace_reasons: dict[str, int] = {}
        """Why frontends do not use the kernel path: at most `REASONS` reasons, each with its number of frontends."""
        self._ejected: dict[Protocol, frozenset[Target]] = {}
        """The endpoints that are ejected on the kernel path."""

    def fill(self, names: list[ServiceName] | None = None) -> Iterator[None]:
        """Read the observation, and yield between slices of work. Pass the `names` of an earlier index to save sorting
        them again."""
        proxier = self.observation.proxier
        if self.observation.rescue is not None:
            pairs = list(self.observation.rescue.ejected)
            self._ejected = {
                protocol: frozenset(target for its, target in pairs if its is protocol) for protocol, _ in pairs
            }
        services = proxier.owners.keys() | proxier.problems.keys()
        if names is None or len(names) != len(services) or not services.issuperset(names):
            names = sorted(services)
        yield
        self.rows = {name: Row(name) for name in names}
        yield
        for number, view in enumerate(proxier.frontends, 1):
            service = view.frontend.name.service_port.service
            row = self.rows.get(service)
            if row is None:
                row = self.rows[service] = Row(service)
            row.frontends.append(view)
            if number % SLICE == 0:
                yield
        for number, row in enumerate(self.rows.values(), 1):
            self._assess(row)
            if number % SLICE == 0:
                yield

    @property
    def names(self) -> list[ServiceName]:
        """Return all Services, sorted."""
        return list(self.rows)

    def _assess(self, row: Row) -> None:
        observation = self.observation
        accepted = active = failed = inward = outward = 0
        for view in row.frontends:
            name = view.frontend.name
            self._count_data_path(view)
            out = frozenset(ejected.target for ejected in observation.ejected.get(name, ()))
            if by_rescue := self._ejected.get(view.frontend.protocol):
                out |= by_rescue.intersection(view.frontend.endpoints)
            row.ejected += len(out)
            counters = observation.counters.get(name)
            if counters is not None:
                accepted += counters.accepted + counters.by_kernel
                active += counters.active + counters.kernel_open
                failed += counters.failed
                inward += counters.bytes_in + counters.kernel_bytes_in
                outward += counters.bytes_out + counters.kernel_bytes_out
                self.kernel_open += counters.kernel_open
        row.traffic = Traffic(accepted, active, failed, inward, outward)
        row.state = self._state(row)
        self.by_state[row.state] += 1
        self.ejected_endpoints += row.ejected
        total = self.traffic
        self.traffic = Traffic(
            total.accepted + accepted,
            total.active + active,
            total.failed + failed,
            total.bytes_in + inward,
            total.bytes_out + outward,
        )

    def _count_data_path(self, view: FrontendState) -> None:
        if view.data_path == "kernel":
            self.by_kernel += 1
            return
        if view.data_path == "refused":
            self.refused += 1
        else:
            self.by_userspace += 1
        reasons, reason = self.userspace_reasons, view.data_path_reason
        if reason in reasons or len(reasons) < REASONS:
            reasons[reason] = reasons.get(reason, 0) + 1

    def _state(self, row: Row) -> State:
        if row.name in self.observation.proxier.problems:
            return State.PROBLEM
        if row.ejected:
            return State.EJECTED
        if not all(view.frontend.endpoints or view.frontend.when_empty is Verdict.DROP for view in row.frontends):
            return State.EMPTY
        if any(view.proxy_port is None for view in row.frontends):
            return State.WAITING
        return State.OK

    def select(self, query: Query, history: History) -> Iterator[list[Row] | None]:
        """Yield None after each slice of work, and finally the matching rows in order."""
        matched: list[Row] = []
        matches = _matcher(query)
        for number, row in enumerate(self.rows.values(), 1):
            if matches(row):
                matched.append(row)
            if number % SLICE == 0:
                yield None
        key = _KEYS[query.order]
        if key is not None:
            matched.sort(key=lambda row: key(row, history))
        yield matched


def _matcher(query: Query) -> Callable[[Row], bool]:
    wanted, search = query.service, query.search.lower()
    name, port = split_port(wanted)

    def is_wanted(row: Row) -> bool:
        if named(row, name):
            return not port or any(has_port(view, port) for view in row.frontends)
        return any(has_address(view, wanted) for view in row.frontends)

    def matches(row: Row) -> bool:
        if query.states and row.state not in query.states:
            return False
        if query.namespace and row.name.namespace != query.namespace:
            return False
        if wanted and not is_wanted(row):
            return False
        return not search or search in str(row.name).lower() or _mentions(row, search)

    return matches


def split_port(wanted: str) -> tuple[str, str]:
    """Split ``name:port`` into the name of a Service and its port, which may be empty."""
    name, _, port = wanted.partition(":")
    return name, port


def named(row: Row, name: str) -> bool:
    """Return whether a Service has this name, given with or without its namespace."""
    return name in (str(row.name), row.name.name)


def has_port(view: FrontendState, port: str) -> bool:
    """Return whether a frontend's service port has this name or number, or this node port."""
    frontend = view.frontend
    if frontend.name.service_port.port == port:
        return True
    return port.isdecimal() and any(destination.port == int(port) for destination in frontend.destinations)


def has_address(view: FrontendState, wanted: str) -> bool:
    """Return whether an address is one of a frontend's own or of its endpoints'. If it includes a port, the port must
    match, too."""
    frontend = view.frontend
    for address, _, port in frontend.destinations:
        if wanted in (address, str(Target(address, port))):
            return True
    return any(wanted in (target.address, str(target)) for target in frontend.endpoints)


def _mentions(row: Row, search: str) -> bool:
    """Return whether the text occurs in an address of the Service or of one of its endpoints. The addresses include
    ports."""
    if not any(character.isdigit() for character in search) and ":" not in search:
        return False
    for view in row.frontends:
        frontend = view.frontend
        for address, _, port in frontend.destinations:
            if search in f"{address}:{port}":
                return True
        if any(search in str(target) for target in frontend.endpoints):
            return True
    return False


_RANK: Final = {state: rank for rank, state in enumerate(State)}


def _by_problems(row: Row, history: History) -> tuple[int, bool]:
    rates = history.rates(row.name)
    return _RANK[row.state], not (rates and rates.failures)


def _by_active(row: Row, history: History) -> tuple[int, int]:
    return -row.traffic.active, -row.traffic.accepted


def _by_connections(row: Row, history: History) -> tuple[float, int]:
    rates = history.rates(row.name)
    return -(rates.connections if rates else 0.0), -row.traffic.accepted


def _by_bytes(row: Row, history: History) -> tuple[float, int]:
    rates = history.rates(row.name)
    moved = row.traffic.bytes_in + row.traffic.bytes_out
    return -(rates.bytes_in + rates.bytes_out if rates else 0.0), -moved


_KEYS: Final[Mapping[Order, Callable[[Row, History], Any] | None]] = {
    Order.PROBLEMS: _by_problems,
    Order.NAME: None,
    Order.ACTIVE: _by_active,
    Order.CONNECTIONS: _by_connections,
    Order.BYTES: _by_bytes,
}


def frontends_of(row: Row, port: str) -> list[FrontendState]:
    """Return the frontends of one port, or of all ports if `port` is empty, sorted by port, family and scope."""
    chosen = [view for view in row.frontends if not port or has_port(view, port)]
    return sorted(chosen, key=_frontend_name)


def _frontend_name(view: FrontendState) -> FrontendName:
    return view.frontend.name
