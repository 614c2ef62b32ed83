"""Decides by owner references which objects a controller keeps, adopts or releases.

`kubeproxy.kubernetes.controller.claim` carries that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kubeproxy.kubernetes.metadata import Meta, Object, OwnerReference, controller_of, to_wire

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Claims(Generic[T]):
    """The decisions about the candidates of one controller."""

    keep: list[T] = field(default_factory=list)
    """The objects that the controller owns and that still match."""
    adopt: list[T] = field(default_factory=list)
    """The orphans that match."""
    release: list[T] = field(default_factory=list)
    """The objects that the controller owns and that no longer match."""


def decide_claims(controller: Meta, candidates: Iterable[T], matches: Callable[[Mapping[str, str]], bool]) -> Claims[T]:
    """Sort the candidates. A controller that is being deleted keeps its objects, and neither adopts nor releases
    any."""
    claims: Claims[T] = Claims()
    leaving = controller.deletion_timestamp is not None
    for item in candidates:
        owner = controller_of(item)
        fits = matches(item.metadata.labels)
        if owner is not None:
            if owner.uid != controller.uid:
                continue
            if fits:
                claims.keep.append(item)
            elif not leaving:
                claims.release.append(item)
        elif fits and not leaving and item.metadata.deletion_timestamp is None:
            claims.adopt.append(item)
    return claims


def controller_reference(api_version: str, kind: str, controller: Meta) -> OwnerReference:
    """Return the owner reference to this controller that its objects carry."""
    return OwnerReference(
        api_version=api_version,
        kind=kind,
        name=controller.name,
        uid=controller.uid,
        controller=True,
        block_owner_deletion=True,
    )


def adoption_patch(item: Meta, reference: OwnerReference) -> dict[str, Any]:
    """Return a strategic merge patch that adds the owner. The UID makes it fail for another object of the same name."""
    return {"metadata": {"uid": item.uid, "ownerReferences": [to_wire(reference)]}}


def release_patch(item: Meta, owner_uid: str) -> dict[str, Any]:
    """Return a strategic merge patch that removes the owner."""
    return {"metadata": {"uid": item.uid, "ownerReferences": [{"$patch": "delete", "uid": owner_uid}]}}
