"""Chooses the data path of each frontend: through a worker, or by the kernel straight to endpoints.

Every frontend also has the rules of the userspace path, and a spread takes precedence over them. So only the spread has
to change when a frontend changes its path, and its listener stays. Without the fallback to user space (strict kernel
path) the rules reject clients that a listener would otherwise serve. ``docs/data-paths.md`` explains this for
operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kubeproxy.model import Family, Frontend, Protocol, Scheduler, Target
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.slot_budget import SLOTS_MAX

Ejected = Mapping[tuple[Protocol, Target], bool]
"""The endpoints that get no new connections from the kernel. The value is true for a *silent* endpoint. Silent
endpoints keep their slots if their Service has no other endpoint, because a network policy may make an endpoint silent
to one client or to this node, but not to other clients."""


class Wanted(StrEnum):
    """The values of the setting dataPath."""

    USERSPACE = "userspace"
    KERNEL = "kernel"
    AUTO = "auto"
    """The kernel path, as long as its failed connections are rescued."""


@dataclass(frozen=True, slots=True)
class DataPathPolicy:
    """The settings that decide the data path of all frontends. By default the kernel path is not used."""

    wanted: Wanted = Wanted.USERSPACE
    refusal: str = ""
    """Why this host does not support the kernel path. It is empty if the host does."""
    rescue: bool = False
    """Whether failed connections of the kernel path are rescued now."""
    rescue_starts: bool = False
    """Whether the rescue is still starting. The kernel path waits for it, so that no client meets a dead endpoint
    before the rescue works."""
    fallback: bool = True
    """Whether a worker serves clients that the kernel path cannot serve. Otherwise they are rejected. This never
    changes."""
    masquerade_all: bool = False
    """Whether all clients of cluster IPs reach endpoints from an address of this node (kube-proxy's masqueradeAll)."""
    slots: int = SLOTS_MAX
    """How many slots the kernel's maps may have for the endpoints of all Services (`SlotBudget`)."""


USERSPACE_ONLY = DataPathPolicy()

_SYSCTLS = {Family.IPV4: "net.ipv4.ip_forward", Family.IPV6: "net.ipv6.conf.all.forwarding"}


def why_userspace(frontend: Frontend, policy: DataPathPolicy, facts: NodeFacts) -> str:
    """Return why new connections of a frontend cannot take the kernel path, or an empty text if they can."""
    if policy.wanted is Wanted.USERSPACE:
        return "kubeproxy.dataPath is userspace"
    if policy.refusal:
        return policy.refusal
    family = frontend.name.family
    if family not in facts.forwarding:
        return f"this node does not forward {family}; set {_SYSCTLS[family]}=1"
    if policy.wanted is Wanted.AUTO and not policy.rescue:
        return "kubeproxy.dataPath is auto, and failed connections of the kernel path are not rescued at present"
    if policy.wanted is Wanted.KERNEL and policy.rescue_starts:
        return "the rescue of failed connections is starting"
    if policy.fallback and frontend.balancing.scheduler is Scheduler.LEAST_CONNECTIONS:
        return "the scheduler is least-connections, and only workers count what is open"
    unreachable = next((target for target in frontend.endpoints if _is_loopback(target.address)), None)
    if unreachable is not None:
        return f"endpoint {unreachable} is a loopback address, to which the kernel does not forward"
    return "" if frontend.endpoints else "there is no endpoint"


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
