"""Which objects a controller keeps, adopts and releases."""

from __future__ import annotations

from typing import Any

import pytest

from kubeproxy.controllers.api_types import Pod
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.controller.claim import ClaimError, claim
from kubeproxy.kubernetes.controller.controller_ref import controller_reference, decide_claims, release_patch
from kubeproxy.kubernetes.metadata import Meta, Metadata
from kubeproxy.model.errors import ClusterError
from tests.controllers.builders import pod

MINE = Metadata(name="rs", namespace="default", uid="mine")
LEAVING = Metadata(name="rs", namespace="default", uid="mine", deletion_timestamp="2026-01-01T00:00:00Z")
OTHER_LABELS = {"app": "other"}
REFERENCE = controller_reference("apps/v1", "ReplicaSet", MINE)


def _matches(labels: Any) -> bool:
    return bool(labels.get("app") == "web")


def _names(pods: list[Pod]) -> list[str]:
    return [item.metadata.name for item in pods]


CANDIDATES = [
    pod("kept", owner="mine"),
    pod("kept-while-it-ends", owner="mine", deleted=True),
    pod("released", owner="mine", labels=OTHER_LABELS),
    pod("foreign", owner="theirs"),
    pod("orphan"),
    pod("other-orphan", labels=OTHER_LABELS),
    pod("ending-orphan", deleted=True),
]


def test_the_rules() -> None:
    claims = decide_claims(MINE, CANDIDATES, _matches)
    assert _names(claims.keep) == ["kept", "kept-while-it-ends"]
    assert _names(claims.adopt) == ["orphan"]
    assert _names(claims.release) == ["released"]


def test_a_controller_that_is_deleted_changes_no_owner() -> None:
    claims = decide_claims(LEAVING, CANDIDATES, _matches)
    assert _names(claims.keep) == ["kept", "kept-while-it-ends"]
    assert not claims.adopt
    assert not claims.release


def test_the_patches_name_the_uid() -> None:
    assert release_patch(pod("a").metadata, "mine") == {
        "metadata": {"uid": "uid-a", "ownerReferences": [{"$patch": "delete", "uid": "mine"}]}
    }


class _Server:
    def __init__(self, live: Metadata = MINE, refuse: dict[str, ApiError] | None = None) -> None:
        self.live_reads = 0
        self.patched: list[str] = []
        self._live = live
        self._refuse = refuse or {}

    async def live(self) -> Meta:
        self.live_reads += 1
        return self._live

    async def patch(self, item: Meta, body: Any) -> None:
        assert body["metadata"]["uid"] == item.uid
        self.patched.append(item.name)
        if item.name in self._refuse:
            raise self._refuse[item.name]


async def _claim(server: _Server, candidates: list[Pod]) -> list[str]:
    return _names(await claim(MINE, REFERENCE, candidates, _matches, live=server.live, patch=server.patch))


def _status(code: int) -> ApiError:
    return ApiError("no", cause=f"status {code}", status=code)


async def test_claiming() -> None:
    server = _Server()
    assert await _claim(server, [*CANDIDATES, pod("orphan-2")]) == ["kept", "kept-while-it-ends", "orphan", "orphan-2"]
    assert server.patched == ["released", "orphan", "orphan-2"]
    assert server.live_reads == 1


async def test_nothing_to_adopt_reads_nothing() -> None:
    server = _Server()
    await _claim(server, [pod("kept", owner="mine"), pod("foreign", owner="theirs")])
    assert (server.live_reads, server.patched) == (0, [])


@pytest.mark.parametrize("live", [LEAVING, Metadata(name="rs", namespace="default", uid="newer")])
async def test_no_adoption_for_a_controller_that_is_gone(live: Metadata) -> None:
    server = _Server(live)
    with pytest.raises(ClaimError, match="can't adopt"):
        await _claim(server, [pod("orphan")])
    assert server.patched == []


@pytest.mark.parametrize("code", [404, 422])
async def test_a_release_that_is_not_needed(code: int) -> None:
    assert await _claim(_Server(refuse={"released": _status(code)}), CANDIDATES) == [
        "kept",
        "kept-while-it-ends",
        "orphan",
    ]


async def test_an_orphan_that_is_gone() -> None:
    assert await _claim(_Server(refuse={"orphan": _status(404)}), CANDIDATES) == ["kept", "kept-while-it-ends"]


async def test_every_candidate_is_tried_before_an_error_is_raised() -> None:
    server = _Server(refuse={"released": _status(500), "orphan": _status(409)})
    with pytest.raises(ClusterError):
        await _claim(server, [*CANDIDATES, pod("orphan-2")])
    assert server.patched == ["released", "orphan", "orphan-2"]
