"""Reads a kubeconfig file and checks the types of its fields.

YAML is read as kubectl reads it. A field of a wrong type is refused, so that a quoted "false" does not count as true.
Unknown fields are ignored, as by kubectl.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from kubeproxy.kubernetes.invalid_field import type_error
from kubeproxy.kubernetes.manifests.go_yaml import GoComposer
from kubeproxy.kubernetes.manifests.parse import ManifestSyntaxError, compose_yaml, text_of
from kubeproxy.model.errors import ConfigError

MAX_BYTES: Final = 10_000_000
"""The largest file that is read. A kubeconfig usually has some thousand bytes."""

Text = str | None
"""A string that may be null. As in Go, null means the same as an absent field."""
Texts = list[str] | None


class NamedExtension(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `extensions`."""

    name: Text = None
    extension: Any = None


class Cluster(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A cluster: the URL of its API server, and how the server's certificate is verified."""

    server: Text = None
    tls_server_name: Text = None
    insecure_skip_tls_verify: bool | None = None
    certificate_authority: Text = None
    certificate_authority_data: Text = None
    proxy_url: Text = None
    disable_compression: bool | None = None
    extensions: list[NamedExtension] | None = None


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """A context: the names of a cluster and a user, and a namespace."""

    cluster: Text = None
    user: Text = None
    namespace: Text = None


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable for an exec plugin's environment."""

    name: str
    value: str


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An exec plugin, which is a program that prints credentials."""

    api_version: Text = None
    command: Text = None
    args: Texts = None
    env: list[Variable] | None = None
    install_hint: Text = None
    provide_cluster_info: bool | None = None
    interactive_mode: Text = None


class AuthProvider(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An auth provider, such as oidc, which kubernetes_asyncio implements."""

    name: Text = None
    config: dict[str, str] | None = None


class User(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The credentials of a user."""

    client_certificate: Text = None
    client_certificate_data: Text = None
    client_key: Text = None
    client_key_data: Text = None
    token: Text = None
    token_file: Text = msgspec.field(default=None, name="tokenFile")
    username: Text = None
    password: Text = None
    as_: Text = msgspec.field(default=None, name="as")
    as_uid: Text = None
    as_groups: Texts = None
    as_user_extra: dict[str, list[str]] | None = None
    exec: ExecPlugin | None = None
    auth_provider: AuthProvider | None = None


class NamedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `clusters`."""

    name: Text = None
    cluster: Cluster | None = None


class NamedContext(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `contexts`."""

    name: Text = None
    context: Context | None = None


class NamedUser(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `users`."""

    name: Text = None
    user: User | None = None


class Kubeconfig(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The contents of a kubeconfig file."""

    kind: Text = None
    api_version: Text = msgspec.field(default=None, name="apiVersion")
    current_context: Text = None
    clusters: list[NamedCluster] | None = None
    contexts: list[NamedContext] | None = None
    users: list[NamedUser] | None = None


def read(path: str) -> Kubeconfig:
    """Read a file. Raise FileNotFoundError if it does not exist, and `ConfigError` if it is not a kubeconfig."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; allowed: a file that can be read") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: found more than {MAX_BYTES} bytes; allowed: a kubeconfig")
    try:
        documents = compose_yaml(text_of(data, 1), 1, GoComposer)
    except ManifestSyntaxError as error:
        raise ConfigError(f"{path}: {error.fault}") from None
    document = documents[0] if documents else None
    found = _typed({} if document is None else document, path)
    if (found.kind or "Config") != "Config":
        raise ConfigError(f"{path}: kind: found {found.kind!r}; allowed: Config")
    for field, entries in (("clusters", found.clusters), ("contexts", found.contexts), ("users", found.users)):
        _refuse_repeated(entries or (), f"{path}: {field}")
    return found


def _typed(document: object, path: str) -> Kubeconfig:
    try:
        return msgspec.convert(document, Kubeconfig)
    except msgspec.ValidationError as error:
        problem, field = type_error(error)
        raise ConfigError(f"{path}: {f'{field}: ' if field else ''}{_explained(problem, document, field)}") from None


_MISMATCH: Final = re.compile(r"Expected `([a-z]+)(?: \| null)?`, got `([a-z]+)`")
_MISSING: Final = re.compile(r"Object missing required field `([a-z]+)`")
_ALLOWED: Final = {"str": "a text", "bool": "true or false", "array": "a list", "object": "a mapping"}
_FOUND: Final = _ALLOWED | {"int": "a number", "float": "a number", "null": "nothing"}


def _explained(problem: str, document: object, field: str) -> str:
    """Return a message with what was found and what is allowed. It contains no values, because they may be secrets,
    except a string in place of true or false, where the quotes are the mistake."""
    if missing := _MISSING.match(problem):
        return f"found no {missing[1]}; allowed: a mapping with name and value"
    match = _MISMATCH.match(problem)
    if match is None:
        return problem
    allowed, got = match.groups()
    found = _FOUND.get(got, got)
    if (allowed, got) == ("bool", "str"):
        found = f'the text "{_value(document, field)}"'
    return f"found {found}; allowed: {_ALLOWED.get(allowed, allowed)}"


def _value(document: Any, field: str) -> str:
    for part in re.findall(r"[^.\[\]]+", field):
        document = document[int(part)] if isinstance(document, list) else document[part]
    return str(document)[:40]


def _refuse_repeated(entries: Sequence[NamedCluster | NamedContext | NamedUser], where: str) -> None:
    names: set[str | None] = set()
    for number, entry in enumerate(entries):
        if entry.name in names:
            raise ConfigError(f"{where}[{number}].name: {entry.name!r} is there twice; allowed: each name once")
        names.add(entry.name)
