"""Compares what two instances serve, because a new one must not take over the node to serve nothing or something else.

A second `kubeproxy run` takes over from the first, which is meant for upgrades. If it was started by mistake, with
other manifests or an empty directory, it would remove the node's Services.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kubeproxy.daemon.takeover.protocol import Accepted
from kubeproxy.model.errors import KubeproxyError

LEAST_SHARE: Final = 0.5
"""The least share of the owner's Services that a new instance must have."""
_LENGTH: Final = 2000
"""The largest total length of all sources in a message, in characters."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What an instance serves."""

    services: int
    """The number of Services of all complete sources, or a negative number if unknown."""
    sources: tuple[str, ...]
    """A text for each source, without secrets, such as ``manifests /etc/kubeproxy/manifests``. It is empty if the
    sources are unknown."""


class TakeoverRefusedError(KubeproxyError):
    """Raised if this instance must not take over: it would serve less than the running one or from other sources, it
    only stands in, or the running one belongs to another user. This instance then does not start."""

    def __init__(self, owner: str, reason: str) -> None:
        super().__init__(f"{owner} {reason}; stop it first, or take over nevertheless with --takeover=force")


def in_message(sources: Sequence[str]) -> tuple[str, ...]:
    """Return the sources as they appear in a message: sorted, or as a single digest if they are too long."""
    texts = tuple(sorted(sources))
    if sum(map(len, texts)) <= _LENGTH:
        return texts
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=8).hexdigest()
    return (f"{len(texts)} sources with the digest {digest}",)


def offer_in(message: Accepted) -> Offer:
    """Return the owner's offer according to its message."""
    return Offer(message.services, message.sources)


def other_sources(owner: Offer, own: Offer) -> str | None:
    """Return why the sources forbid a takeover, or None if they do not. Sources that only the new instance has are
    allowed."""
    missing = [source for source in owner.sources if source not in in_message(own.sources)]
    if not missing:
        return None
    return f"serves from {', '.join(missing)}, and this process from {', '.join(own.sources)}"


def fewer_services(owner: Offer, own: Offer) -> str | None:
    """Return why the number of Services forbids a takeover, or None if it does not."""
    if owner.services <= 0 or own.services >= owner.services * LEAST_SHARE:
        return None
    noun = "Service" if owner.services == 1 else "Services"
    return f"serves {owner.services} {noun}, and this process would serve {own.services or 'none'}"
