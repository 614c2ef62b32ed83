"""How many slots of the kernel path each namespace may have.

A Service has at least one slot for each endpoint of each of its addresses. One object can have millions of them: 40
external addresses, 20 ports and 1,000 endpoints are 800,000. They take the kernel's memory, and time at each start.
Beyond its part, a namespace's frontends stay in user space, where they cost one element for an address.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final, NamedTuple

from kubeproxy.model import Frontend, FrontendName
from kubeproxy.model.snapshot import SlotUse
from kubeproxy.proxier.kernel_slots import slot_count

SLOT_BYTES: Final = 128
"""Memory of the kernel for one slot. Measured for IPv6: an element of 96 bytes, and its part of the map's hash table.
IPv4 takes 64 instead of 96."""
SLOTS_MAX: Final = (128 << 20) // SLOT_BYTES
"""Slots of all namespaces by default. A namespace may have half of what the others have left: alone 524,288, which are
5,000 Services with 50 endpoints in both families. So some are always left."""

_LOOKED_AT = 16


class _Refused(NamedTuple):
    """What a frontend without slots has asked for, and why it got nothing."""

    wanted: int
    reason: str


class SlotBudget:
    """The slots of the frontends on the kernel path."""

    def __init__(self) -> None:
        self.limit = SLOTS_MAX
        """Another limit counts for what asks from then on."""
        self._of: dict[FrontendName, int] = {}
        self._of_namespace: Counter[str] = Counter()
        self._total = 0
        self._refused: dict[FrontendName, _Refused] = {}
        """The frontends without slots. Those come first that have waited longest for a look."""

    @property
    def use(self) -> SlotUse:
        """Return how many slots there are, and how many frontends got none."""
        return SlotUse(self._total, self.limit, len(self._refused))

    def reserve(self, frontend: Frontend) -> str:
        """Count a frontend's slots. Return why it gets none if they are too many, and otherwise an empty text."""
        name = frontend.name
        namespace = name.service_port.namespace
        self.release(name)
        addresses = len(frontend.destinations)
        slots = slot_count(frontend)
        wanted, had = addresses * slots, self._of_namespace[namespace]
        if not self._has_room(namespace, wanted):
            reason = (
                f"{wanted} slots ({addresses} addresses with {slots} each) are more than"
                f" namespace {namespace} may have besides its {had}; raise kubeproxy.slotMemoryMib"
            )
            self._refused[name] = _Refused(wanted, reason)
            return reason
        self._count(name, namespace, wanted)
        return ""

    def _has_room(self, namespace: str, wanted: int) -> bool:
        had = self._of_namespace.get(namespace, 0)
        return had + wanted <= (self.limit - (self._total - had)) // 2

    def admissible(self) -> list[FrontendName]:
        """Return frontends that were refused and would get slots now. There may be room for only one of them.

        Each call looks at some of the refused frontends, in turn, because a namespace may have very many."""
        looked_at = list(islice(self._refused.items(), _LOOKED_AT))
        for name, _ in looked_at:
            self._refused[name] = self._refused.pop(name)  # behind the others
        return [it for it, refused in looked_at if self._has_room(it.service_port.namespace, refused.wanted)]

    def release(self, name: FrontendName) -> None:
        """Stop counting the slots of a frontend, because it leaves the kernel path."""
        self._refused.pop(name, None)
        self._count(name, name.service_port.namespace, -self._of.pop(name, 0))

    def why_refused(self, name: FrontendName) -> str:
        """Return why a frontend has no slots, or an empty text if it has some or has not asked."""
        refused = self._refused.get(name)
        return refused.reason if refused is not None else ""

    def _count(self, name: FrontendName, namespace: str, slots: int) -> None:
        if slots > 0:
            self._of[name] = slots
        self._of_namespace[namespace] += slots
        self._total += slots
        if not self._of_namespace[namespace]:
            del self._of_namespace[namespace]
