"""The same histories under kube-controller-manager's controllers and under ours end alike, on a real API server.

Skipped unless KUBERNETES_BINARIES names the directory of etcd, kube-apiserver and kube-controller-manager
(tests/tools/kubernetes.sh builds them).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.controllers.live.control_plane import BINARIES, ControlPlane, binaries
from tests.controllers.live.histories import SCRIPTED, generated, play_all, versions
from tests.controllers.live.node import Nodes

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(binaries() is None, reason=f"{BINARIES} is not set: no real API server to start"),
]

GENERATED = int(os.environ.get("KUBEPROXY_HISTORIES", "24"))
HISTORIES = {**SCRIPTED, **{f"seed-{seed}": generated(seed) for seed in range(GENERATED)}}
COLLECTOR = "garbagecollector,namespace,resourcequota"
"""What runs beside the controllers in every case."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    programs = binaries()
    assert programs is not None
    directory: Path = tmp_path_factory.mktemp("plane")
    with ControlPlane(directory, programs) as made:
        yield made


async def _play(plane: ControlPlane, prefix: str, upstream: str, ours: str) -> dict[str, Any]:
    """The outcomes; under ``taken over`` what was written to objects of upstream's histories meanwhile."""
    client = await plane.connect()
    nodes = Nodes(client)
    with ExitStack() as stack:
        stack.enter_context(plane.upstream(f"{upstream},{COLLECTOR}" if upstream else COLLECTOR))
        if ours:
            stack.enter_context(plane.ours(f"--controllers={ours}"))
        task = asyncio.create_task(nodes.run())
        try:
            before = await versions(client, "upstream")
            found = await play_all(client, prefix, HISTORIES)
            after = await versions(client, "upstream")
            return {**found, "taken over": {key: value for key, value in before.items() if after.get(key) != value}}
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()


_ALL = "deployment,replicaset,replicationcontroller"
_SPLITS = {
    "upstream": (_ALL, ""),
    "ours": ("", "*"),
    "our-deployments": ("replicaset,replicationcontroller", "deployment"),
    "our-replicasets": ("deployment", "replicaset,replicationcontroller"),
}


@pytest.fixture(scope="module")
def expected(plane: ControlPlane) -> dict[str, Any]:
    """What upstream's controllers make of the histories."""
    return asyncio.run(_play(plane, "upstream", *_SPLITS["upstream"]))


@pytest.mark.parametrize("split", ["ours", "our-deployments", "our-replicasets"])
def test_the_histories_end_alike(plane: ControlPlane, expected: dict[str, Any], split: str) -> None:
    found = asyncio.run(_play(plane, split, *_SPLITS[split]))
    assert found["taken over"] == {}, "a controller that takes over from another one has nothing to write"
    differences = [
        f"{name}: upstream {json.dumps(expected[name][part], sort_keys=True)}\n"
        f"{' ' * len(name)}  {split} {json.dumps(found[name][part], sort_keys=True)}"
        for name in HISTORIES
        for part in ("deployments", "replicaSets", "controllers", "pods", "events")
        if json.dumps(expected[name][part], sort_keys=True) != json.dumps(found[name][part], sort_keys=True)
    ]
    assert not differences, "\n".join([f"{len(differences)} differences", *differences[:6]])
