"""Decides how many slots of the kernel path each namespace may have.

A Service has at least one slot for each endpoint at each of its addresses. So a single Service can need very many
slots: 40 external addresses, 20 ports and 1,000 endpoints need 800,000. Slots take kernel memory, and time at each
start. A frontend whose slots would exceed its namespace's share stays on the userspace path. There it needs only one
element of an nftables map or set for each address.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final, NamedTuple

from kubeproxy.model import Frontend, FrontendName
from kubeproxy.model.snapshot import SlotUse
from kubeproxy.proxier.kernel_slots import slot_count

SLOT_BYTES: Final = 128
"""The kernel memory of one slot in bytes, measured for IPv6: an element of 96 bytes, and its part of the hash table.
For IPv4 the element takes 64 bytes."""
SLOTS_MAX: Final = (128 << 20) // SLOT_BYTES
"""The default limit of slots for all namespaces together. A namespace may have at most half of the slots that other
namespaces do not use, so that some are always left. A single namespace may have 524,288, enough for 5,000 Services with
50 endpoints in both families."""

_LOOKED_AT = 16


class _Refused(NamedTuple):
    """How many slots a frontend asked for in vain, and why it got none."""

    wanted: int
    reason: str


class SlotBudget:
    """Distributes the slots of the kernel path among frontends."""

    def __init__(self) -> None:
        self.limit = SLOTS_MAX
        """The number of slots. A change affects later requests only."""
        self._of: dict[FrontendName, int] = {}
        self._of_namespace: Counter[str] = Counter()
        self._total = 0
        self._refused: dict[FrontendName, _Refused] = {}
        """The frontends that got no slots, the one that waits longest first."""

    @property
    def use(self) -> SlotUse:
        """Return how many slots are in use, and how many frontends got none."""
        return SlotUse(self._total, self.limit, len(self._refused))

    def reserve(self, frontend: Frontend) -> str:
        """Reserve slots for a frontend. Return an empty text, or the reason if the frontend gets none."""
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
        """Return some refused frontends that would get slots now. There may be room for only one of them.

        Each call checks only some of the refused frontends, in turn, because there may be very many.
        """
        looked_at = list(islice(self._refused.items(), _LOOKED_AT))
        for name, _ in looked_at:
            self._refused[name] = self._refused.pop(name)  # This frontend goes to the end of the queue.
        return [it for it, refused in looked_at if self._has_room(it.service_port.namespace, refused.wanted)]

    def release(self, name: FrontendName) -> None:
        """Release the slots of a frontend that leaves the kernel path."""
        self._refused.pop(name, None)
        self._count(name, name.service_port.namespace, -self._of.pop(name, 0))

    def why_refused(self, name: FrontendName) -> str:
        """Return why a frontend got no slots, or an empty text if it has slots or has not asked for any."""
        refused = self._refused.get(name)
        return refused.reason if refused is not None else ""

    def _count(self, name: FrontendName, namespace: str, slots: int) -> None:
        if slots > 0:
            self._of[name] = slots
        self._of_namespace[namespace] += slots
        self._total += slots
        if not self._of_namespace[namespace]:
            del self._of_namespace[namespace]
