"""Adopts and releases objects as `controller_ref` decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.controller.controller_ref import adoption_patch, decide_claims, release_patch
from kubeproxy.kubernetes.metadata import Meta, Object, OwnerReference
from kubeproxy.kubernetes.object_client import is_invalid, is_not_found
from kubeproxy.model.errors import ClusterError

T = TypeVar("T", bound=Object)
Patch = Callable[[Meta, Mapping[str, Any]], Awaitable[None]]
"""A function that sends a strategic merge patch to a candidate."""


class ClaimError(ClusterError):
    """Raised if candidates cannot be adopted or released, for example because the controller was deleted. The sync is
    repeated."""


async def claim(
    controller: Meta,
    reference: OwnerReference,
    candidates: Iterable[T],
    matches: Callable[[Mapping[str, str]], bool],
    *,
    live: Callable[[], Awaitable[Meta]],
    patch: Patch,
) -> list[T]:
    """Adopt and release candidates, and return those that belong to the controller.

    `live` reads the controller from the server. It is called once, before the first adoption, because the cache may
    still have a deleted controller. Raise ApiError or `ClaimError` if an adoption or release fails.
    """
    claims = decide_claims(controller, candidates, matches)
    errors: list[ApiError] = []
    claimed = list(claims.keep)
    for item in claims.release:
        try:
            await patch(item.metadata, release_patch(item.metadata, controller.uid))
        except ApiError as error:
            # The object was deleted, or this controller no longer owns it, so there is nothing to release.
            if not (is_not_found(error) or is_invalid(error)):
                errors.append(error)
    if claims.adopt:
        _demand_alive(controller, reference.kind, await live())
    for item in claims.adopt:
        try:
            await patch(item.metadata, adoption_patch(item.metadata, reference))
        except ApiError as error:
            if not is_not_found(error):
                errors.append(error)
        else:
            claimed.append(item)
    if errors:
        raise errors[0] if len(errors) == 1 else ClaimError("; ".join(map(str, errors)))
    return claimed


def _demand_alive(known: Meta, kind: str, live: Meta) -> None:
    where = f"{known.namespace}/{known.name}"
    if live.uid != known.uid:
        raise ClaimError(f"can't adopt: original {kind} {where} is gone: got uid {live.uid}, wanted {known.uid}")
    if live.deletion_timestamp is not None:
        raise ClaimError(f"can't adopt: {where} has just been deleted at {live.deletion_timestamp}")
