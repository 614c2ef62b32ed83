"""The shape of a ReplicationController, as far as an update reads it, checked once, where the plain JSON comes in."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from kubeproxy.commands.rolling_update.controller import Controller
from kubeproxy.kubernetes.client.errors import Garbage
from kubeproxy.kubernetes.invalid_field import type_error

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Texts = dict[str, str] | None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    deletion_timestamp: str | None = None
    labels: Texts = None
    annotations: Texts = None
    finalizers: list[str] | None = None


class _Container(msgspec.Struct, rename="camel"):
    name: str | None = None
    image: str | None = None
    image_pull_policy: str | None = None


class _PodSpec(msgspec.Struct):
    containers: list[_Container] | None = None


class _Template(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _PodSpec | None = None


class _Spec(msgspec.Struct, rename="camel"):
    replicas: Count | None = None
    min_ready_seconds: Count | None = None
    selector: Texts = None
    template: _Template | None = None


class _Condition(msgspec.Struct):
    type: str | None = None
    status: str | None = None
    reason: str | None = None
    message: str | None = None


class _Status(msgspec.Struct, rename="camel"):
    replicas: Count | None = None
    ready_replicas: Count | None = None
    observed_generation: int | None = None
    conditions: list[_Condition] | None = None


class _Shape(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None


def checked(answer: Any) -> Controller:
    """The controller in an answer of the server; `Garbage` if it is none."""
    try:
        msgspec.convert(answer, _Shape)
    except msgspec.ValidationError as error:
        problem, path = type_error(error)
        where = f"{path}: " if path else ""
        raise Garbage(
            f"the server answered what is no ReplicationController: {where}{problem}", cause="garbage"
        ) from None
    return Controller({"apiVersion": "v1", "kind": "ReplicationController"} | _without_nulls(answer))


def _without_nulls(value: Any) -> Any:
    """A null is as good as no field."""
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(each) for key, each in value.items() if each is not None}
