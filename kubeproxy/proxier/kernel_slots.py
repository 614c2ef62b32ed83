"""Computes the slots of a frontend on the kernel path: how many each endpoint has, and which slot a client gets."""

from __future__ import annotations

from math import gcd

from kubeproxy.model import Frontend, Scheduler, Target
from kubeproxy.model.maglev import size_for, table_of, usable_at
from kubeproxy.netfilter.ruleset import ClientHash


def slot_count(frontend: Frontend) -> int:
    """Return how many slots a frontend has for each of its addresses."""
    if frontend.balancing.scheduler.hashes:
        return size_for(len(frontend.endpoints))
    weights = frontend.balancing.weights
    return sum(weights) // gcd(*weights) if weights else len(frontend.endpoints)


def client_hash(frontend: Frontend) -> ClientHash | None:
    """Return the hash that selects a client's slot, or None if the slot is random."""
    balancing = frontend.balancing
    if not balancing.scheduler.hashes:
        return None
    return ClientHash(balancing.scheduler is Scheduler.MAGLEV, balancing.seed)


def slots_of(frontend: Frontend, targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """Return the endpoint (one of `targets`) in each slot. An empty result means one slot for each endpoint."""
    balancing = frontend.balancing
    if not targets:
        return ()
    usable = frozenset(targets)
    if balancing.scheduler.hashes:
        table = table_of(frontend.endpoints, balancing)
        if len(targets) == len(frontend.endpoints):
            return table
        # If a client's endpoint is unusable, the client gets the next endpoint in its own order, as it would from a
        # worker.
        return tuple(
            target if target in usable else usable_at(table, place, usable.__contains__) or target
            for place, target in enumerate(table)
        )
    if not balancing.weights:
        return ()
    unit = gcd(*balancing.weights)
    return tuple(
        target
        for number, target in enumerate(frontend.endpoints)
        if target in usable
        for _ in range(balancing.weight_of(number) // unit)
    )
