"""Controllers with fields of odd types, absurd sizes and endless numbers: an error, and never a traceback."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest

from kubeproxy.commands.rolling_update.controller import (
    DESIRED_REPLICAS,
    MARKS,
    Controller,
    UpdateError,
    desired_size,
    in_progress,
    original_size,
)
from kubeproxy.commands.rolling_update.requests import checked
from kubeproxy.kubernetes.client.errors import GarbageError
from tests.commands.rolling_update.stage import Stage, controller, play
from tests.support.places import places, replaced

ODD = [None, True, -1, 10**30, 1.5, "x", "", [], {}, [1], {"a": 1}, [None], "9" * 5000, "A" * 300_000, "\x1b]0;x\x07"]


def _read(it: Controller) -> None:
    """Everything that an update reads."""
    for name in ("name", "uid", "replicas", "selector", "template_labels", "deleting", "present", "synced", "failure"):
        getattr(it, name)
    for mark in MARKS:
        assert isinstance(it.annotations.get(mark, ""), str)
    assert all(isinstance(each, dict) for each in it.containers)
    in_progress(it, None)
    original_size(it)
    desired_size(it)


def test_every_field_of_every_type() -> None:
    whole = controller(replicas=2) | {
        "status": {"replicas": 2, "observedGeneration": 1, "conditions": [{"type": "ReplicaFailure", "status": "True"}]}
    }
    whole["metadata"] |= {"uid": "u", "generation": 1, "annotations": dict.fromkeys(MARKS, "2")}
    _read(checked(copy.deepcopy(whole)))
    for path in places(whole):
        for odd in ODD:
            _survives(replaced(whole, path, copy.deepcopy(odd)))


def _survives(answer: Any) -> None:
    with contextlib.suppress(GarbageError, UpdateError):
        _read(checked(answer))


@pytest.mark.parametrize("text", ["9" * 5000, "99999999999", "-1", "x" * 300_000, "٣"])
def test_a_mark_that_a_tenant_has_written(text: str) -> None:
    with pytest.raises(UpdateError, match="Unable to parse annotation") as raised:
        checked(replaced(controller(replicas=1), ("metadata", "annotations"), {DESIRED_REPLICAS: text})).number(
            DESIRED_REPLICAS
        )
    assert len(str(raised.value)) < 300


def test_the_command_says_so() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=1)
        it.api.patch("replicationcontrollers", "default", "web", {"metadata": {"annotations": {DESIRED_REPLICAS: 7}}})
        ran = await it.run("web", image="web:2")
        assert ran.status == 1
        assert "no ReplicationController: metadata.annotations[...]: Expected `str`, got `int`" in ran.err

    play(scenario)
