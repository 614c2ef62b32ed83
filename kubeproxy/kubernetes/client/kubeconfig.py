"""The API server and the credentials, by the rules of kubectl: flags, kubeconfig files, a pod's service account.

Files are merged as client-go does: of entries with the same name the first counts, and so does the first
current-context; paths in a file are relative to it. Exec plugins and auth providers are left to `plugins`.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from kubeproxy.model.errors import ConfigError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NO_SERVER: Final = "http://localhost:8080"
"""What kubectl asks where nothing is configured."""
_PARTS: Final = (("clusters", "cluster"), ("contexts", "context"), ("users", "user"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """The flags of a command; empty: not given."""

    kubeconfig: str = ""
    context: str = ""
    cluster: str = ""
    user: str = ""
    namespace: str = ""
    server: str = ""
    token: str = ""
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_key: str = ""
    certificate_authority: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    impersonate: str = ""
    impersonate_groups: tuple[str, ...] = ()
    impersonate_uid: str = ""


@dataclass(slots=True, kw_only=True)
class ClientConfig:
    """An API server and the credentials for it, as `Link` takes them."""

    host: str
    """The base URL."""
    namespace: str = "default"
    namespace_enforced: bool = False
    """A flag named the namespace: objects of other ones are refused."""
    ssl_ca_cert: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify_ssl: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    proxy_headers: Mapping[str, str] | None = None
    token: str = ""
    token_file: str = ""
    """A file that holds the token; read again after a 401."""
    username: str = ""
    password: str = ""
    impersonate: Mapping[str, Any] = field(default_factory=dict)
    """``user``, ``uid`` (texts), ``groups`` (a list) and ``extra`` (lists by key)."""
    plugin: Mapping[str, Any] | None = None
    """The user entry of a kubeconfig that names an exec plugin or an auth provider."""
    plugin_cluster: Mapping[str, Any] = field(default_factory=dict)
    plugin_directory: str = ""
    """Where relative paths of the plugin's entry begin."""


def load(overrides: Overrides, environment: Mapping[str, str] | None = None) -> ClientConfig:
    """The configuration that the flags, the environment and the files amount to. `ConfigError` where something that is
    named is missing or wrong."""
    environment = os.environ if environment is None else environment
    merged = _merge(_paths(overrides, environment))
    name = overrides.context or merged.current_context
    context = merged.find("contexts", name) if name else None
    if context is None and overrides.context:
        raise ConfigError(f"context {_quoted(overrides.context)} does not exist")
    if context is None and name:
        raise ConfigError(f"the current context {_quoted(name)} of {merged.sources} does not exist")
    context = context or _Entry({}, "")
    cluster_name = overrides.cluster or context.text("cluster")
    cluster = merged.find("clusters", cluster_name) if cluster_name else None
    if cluster is None and cluster_name:
        raise ConfigError(f"cluster {_quoted(cluster_name)} does not exist")
    user_name = overrides.user or context.text("user")
    user = merged.find("users", user_name) if user_name else None
    if user is None and user_name:
        raise ConfigError(f"auth info {_quoted(user_name)} does not exist")
    if cluster is None and not overrides.server and not merged.found:
        inside = _in_cluster(environment, overrides)
        if inside is not None:
            return inside
    return _assembled(overrides, context, cluster or _Entry({}, ""), user or _Entry({}, ""))


def _paths(overrides: Overrides, environment: Mapping[str, str]) -> list[str]:
    if overrides.kubeconfig:
        path = os.path.expanduser(overrides.kubeconfig)
        if not os.path.isfile(path):
            raise ConfigError(f"--kubeconfig: {path}: no such file")
        return [path]
    if listed := environment.get("KUBECONFIG"):
        return list(dict.fromkeys(os.path.expanduser(path) for path in listed.split(os.pathsep) if path))
    home = environment.get("HOME") or os.path.expanduser("~")
    return [os.path.join(home, ".kube", "config")]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cluster, a context or a user, and the directory that its paths are relative to."""

    fields: Mapping[str, Any]
    directory: str

    def text(self, key: str) -> str:
        found = self.fields.get(key)
        if found is None:
            return ""
        if not isinstance(found, str):
            raise ConfigError(f"kubeconfig: {key}: found {found!r}; allowed: a text")
        return found

    def path(self, key: str) -> str:
        found = self.text(key)
        return os.path.join(self.directory, os.path.expanduser(found)) if found else ""

    def file(self, key: str) -> str | None:
        """The path of a file with what is given inline (``KEY-data``) or by its path."""
        if data := self.text(f"{key}-data"):
            try:
                return in_memory(base64.b64decode("".join(data.split()), validate=True))
            except binascii.Error as error:
                raise ConfigError(f"kubeconfig: {key}-data is not base64: {error}") from None
        path = self.path(key)
        if path and not os.path.isfile(path):
            raise ConfigError(f"kubeconfig: {key}: {path}: no such file")
        return path or None


class _Merged:
    """Several kubeconfigs as one."""

    def __init__(self) -> None:
        self.current_context = ""
        self.found: list[str] = []
        self._entries: dict[tuple[str, str], _Entry] = {}

    @property
    def sources(self) -> str:
        return ", ".join(self.found)

    def add(self, path: str, document: Mapping[str, Any]) -> None:
        self.found.append(path)
        if (kind := _text(document, "kind", path)) not in ("", "Config"):
            raise ConfigError(f"error loading config file {_quoted(path)}: kind: found {kind!r}; allowed: Config")
        self.current_context = self.current_context or _text(document, "current-context", path)
        directory = os.path.dirname(os.path.abspath(path))
        for part, inner in _PARTS:
            names: set[str] = set()
            for item in _list(document, part, path):
                name = _text(item, "name", f"{path}: {part}")
                if name in names:
                    raise ConfigError(f"error loading config file {_quoted(path)}: {part}: {name!r} is there twice")
                names.add(name)
                fields = item.get(inner)
                if fields is not None and not isinstance(fields, dict):
                    raise ConfigError(
                        f"error loading config file {_quoted(path)}: {part}: {inner} of {name!r} is no mapping"
                    )
                self._entries.setdefault((part, name), _Entry(fields or {}, directory))

    def find(self, part: str, name: str) -> _Entry | None:
        return self._entries.get((part, name))


def _merge(paths: list[str]) -> _Merged:
    merged = _Merged()
    for path in paths:
        try:
            with open(path, "rb") as file:
                document = yaml.load(file, Loader=yaml.CSafeLoader)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"error loading config file {_quoted(path)}: {error.strerror}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"error loading config file {_quoted(path)}: {reason}") from None
        if document is None:
            document = {}
        if not isinstance(document, dict):
            raise ConfigError(f"error loading config file {_quoted(path)}: found no mapping")
        merged.add(path, document)
    return merged


def _assembled(overrides: Overrides, context: _Entry, cluster: _Entry, user: _Entry) -> ClientConfig:
    here = _Entry(
        {
            "certificate-authority": overrides.certificate_authority,
            "client-certificate": overrides.client_certificate,
            "client-key": overrides.client_key,
        },
        "",
    )
    named = overrides.server or cluster.text("server") or NO_SERVER
    skip = overrides.insecure_skip_tls_verify or bool(cluster.fields.get("insecure-skip-tls-verify"))
    authority = here.file("certificate-authority") or cluster.file("certificate-authority")
    # The flag wins over a kubeconfig's authority; of one place both are a mistake that would switch the check off.
    if skip and (overrides.certificate_authority if overrides.insecure_skip_tls_verify else authority):
        raise ConfigError(
            "specifying a root certificates file with the insecure flag is not allowed:"
            " give one of certificate-authority and insecure-skip-tls-verify"
        )
    token = overrides.token or user.text("token")
    username, password = overrides.username or user.text("username"), overrides.password or user.text("password")
    token_file = "" if token else user.path("tokenFile")
    certificate = here.file("client-certificate") or user.file("client-certificate")
    plugin = None
    if ("exec" in user.fields or "auth-provider" in user.fields) and not token and not overrides.username:
        plugin = user.fields
    host = _url(named, tls=bool(authority or certificate or skip))
    if _in_clear_text(host):
        token, token_file, username, password, plugin = "", "", "", "", None
    return ClientConfig(
        host=host,
        namespace=overrides.namespace or context.text("namespace") or "default",
        namespace_enforced=bool(overrides.namespace),
        ssl_ca_cert=None if skip else authority,
        cert_file=certificate,
        key_file=here.file("client-key") or user.file("client-key"),
        verify_ssl=not skip,
        tls_server_name=overrides.tls_server_name or cluster.text("tls-server-name") or None,
        proxy=cluster.text("proxy-url") or None,
        token=token,
        token_file=token_file,
        username=username,
        password=password,
        impersonate=_impersonation(overrides, user),
        plugin=plugin,
        plugin_cluster=cluster.fields,
        plugin_directory=user.directory,
    )


def _impersonation(overrides: Overrides, user: _Entry) -> Mapping[str, Any]:
    if overrides.impersonate or overrides.impersonate_groups or overrides.impersonate_uid:
        if not overrides.impersonate:
            raise ConfigError("--as-group and --as-uid need --as: a user to act as")
        return {
            "user": overrides.impersonate,
            "groups": list(overrides.impersonate_groups),
            "uid": overrides.impersonate_uid,
        }
    return {
        "user": user.text("as"),
        "uid": user.text("as-uid"),
        "groups": user.fields.get("as-groups") or [],
        "extra": user.fields.get("as-user-extra") or {},
    }


def _in_cluster(environment: Mapping[str, str], overrides: Overrides) -> ClientConfig | None:
    """As a pod's service account; None outside of pods."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    token = SERVICE_ACCOUNT / "token"
    if not host or not port or not token.is_file():
        return None
    namespace = ""
    if (SERVICE_ACCOUNT / "namespace").is_file():
        namespace = (SERVICE_ACCOUNT / "namespace").read_text().strip()
    return ClientConfig(
        host=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=overrides.namespace or namespace or "default",
        namespace_enforced=bool(overrides.namespace),
        ssl_ca_cert=str(SERVICE_ACCOUNT / "ca.crt"),
        token=overrides.token,
        token_file="" if overrides.token else str(token),
        impersonate=_impersonation(overrides, _Entry({}, "")),
    )


def in_memory(data: bytes) -> str:
    """A path under which this process reads the data: keys do not get onto a disk."""
    descriptor = os.memfd_create("kubeconfig", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    return f"/proc/self/fd/{descriptor}"


def _url(host: str, *, tls: bool) -> str:
    """`host` as a base URL; without a scheme it is https where certificates are configured, else http (client-go)."""
    if "://" not in host:
        host = f"{'https' if tls else 'http'}://{host}"
    if not host.startswith(("http://", "https://")) or host.count("://") > 1:
        raise ConfigError(f"server {_quoted(host)}: allowed: an http or https URL")
    return host.rstrip("/")


def _in_clear_text(host: str) -> bool:
    """Whether credentials would cross a network unencrypted: then they are not sent, as by kubectl."""
    name = urlsplit(host).hostname or ""
    return host.startswith("http://") and name not in ("localhost", "::1") and not name.startswith("127.")


def _text(document: Mapping[str, Any], key: str, where: str) -> str:
    found = document.get(key)
    if found is not None and not isinstance(found, str):
        raise ConfigError(f"error loading config file {_quoted(where)}: {key}: found {found!r}; allowed: a text")
    return found or ""


def _list(document: Mapping[str, Any], key: str, path: str) -> list[Mapping[str, Any]]:
    found = document.get(key) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ConfigError(f"error loading config file {_quoted(path)}: {key}: allowed: a list of mappings")
    return found


def _quoted(text: str) -> str:
    return f'"{text}"'
