"""Reads the new controller from a file, a URL or standard input, which must contain exactly one object, a
ReplicationController."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kubeproxy.commands.create.field_check import FieldCheck
from kubeproxy.commands.create.options import DryRun, Validation
from kubeproxy.commands.rolling_update.controller import Controller, without_marks
from kubeproxy.commands.rolling_update.options import UpdateOptions
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.resource_builder.builder import Builder, Query
from kubeproxy.kubernetes.resource_builder.discovery import DiscoveryCache, cache_directory
from kubeproxy.kubernetes.resource_builder.mapper import Mapper
from kubeproxy.kubernetes.resource_builder.openapi import SchemaSource
from kubeproxy.model.errors import ConfigError


class _TemplateMetadata(msgspec.Struct):
    labels: dict[str, str] | None = None


class _PodSpec(msgspec.Struct):
    containers: list[dict[str, Any]] | None = None


class _Template(msgspec.Struct):
    metadata: _TemplateMetadata
    spec: _PodSpec


class _Spec(msgspec.Struct):
    template: _Template
    replicas: int | None = None
    selector: dict[str, str] | None = None


class _Shape(msgspec.Struct):
    """The fields of a controller that an update reads."""

    spec: _Spec


async def read(options: UpdateOptions, client: Client, on_warning: Callable[[str], None]) -> Controller:
    """Return the controller in the file of the options. Raise ConfigError if the file contains anything else, and
    StatusError if the server refuses a request."""
    directory = cache_directory(options.cache_directory)
    mapper = Mapper(client, DiscoveryCache(directory, client.config.host))
    level = Validation.STRICT if options.validate else Validation.IGNORE
    # The server would check the fields only after the old controller is marked, which is too late.
    check = FieldCheck(level, DryRun.CLIENT, mapper, SchemaSource(client, directory), on_warning)
    config = client.config
    query = Query(
        filenames=[options.filename], namespace=config.namespace, namespace_enforced=config.namespace_enforced
    )
    objects = await Builder(query, mapper, validate=check).objects()
    if len(objects) > 1:
        raise ConfigError(f"{options.filename} specifies multiple items")
    if not objects:
        raise ConfigError(f"please make sure {options.filename} exists and is not empty")
    found = objects[0]
    if (found.group, found.kind) != ("", "ReplicationController"):
        group, _, version = found.api_version.rpartition("/")
        raise ConfigError(
            f"{options.filename} contains a {group}/{version}, Kind={found.kind} not a ReplicationController"
        )
    try:
        msgspec.convert(found.data, _Shape)
    # With --validate=false, nothing else has checked the shape.
    except msgspec.ValidationError as error:
        raise ConfigError(f"{options.filename} is no ReplicationController: {error}") from None
    controller = Controller(found.data)
    if not controller.name:
        raise ConfigError(f"{options.filename} has no metadata.name: the new controller needs a name of its own")
    controller.metadata.pop("resourceVersion", None)
    without_marks(controller)
    if not controller.selector:
        raise ConfigError(f"{options.filename} has neither spec.selector nor labels in spec.template")
    return controller
