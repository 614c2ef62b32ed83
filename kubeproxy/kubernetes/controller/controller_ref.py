"""Decides by owner references which objects a controller owns, adopts or releases. It is pure.

`kubeproxy.kubernetes.controller.claim` sends the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kubeproxy.kubernetes.metadata import Meta, Object, OwnerReference, controller_of, to_wire

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Claims(Generic[T]):
    """The candidates of one controller, grouped by what happens to them."""

    keep: list[T] = field(default_factory=list)
    """The objects that the controller owns and that match its selector."""
    adopt: list[T] = field(default_factory=list)
    """The objects without controller that match, to be adopted."""
    release: list[T] = field(default_factory=list)
    """The objects that the controller owns and that no longer match, to be released."""


def decide_claims(controller: Meta, candidates: Iterable[T], matches: Callable[[Mapping[str, str]], bool]) -> Claims[T]:
    """Group the candidates. A controller that is being deleted neither adopts nor releases objects. `matches` tells
    whether labels match the controller's selector."""
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
    """Return the owner reference with which an object refers to this controller."""
    return OwnerReference(
        api_version=api_version,
        kind=kind,
        name=controller.name,
        uid=controller.uid,
        controller=True,
        block_owner_deletion=True,
    )


def adoption_patch(item: Meta, reference: OwnerReference) -> dict[str, Any]:
    """Return a strategic merge patch that adds the owner reference. It contains the object's UID, so it fails for a
    successor of the same name."""
    return {"metadata": {"uid": item.uid, "ownerReferences": [to_wire(reference)]}}


def release_patch(item: Meta, owner_uid: str) -> dict[str, Any]:
    """Return a strategic merge patch that removes the owner reference with this UID."""
    return {"metadata": {"uid": item.uid, "ownerReferences": [{"$patch": "delete", "uid": owner_uid}]}}
