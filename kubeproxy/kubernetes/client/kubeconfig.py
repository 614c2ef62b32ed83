"""Finds the API server and the credentials by the rules of client-go: from flags, kubeconfig files, or a pod's service
account.

Commands, the controller manager and the daemon use this module. Several files are merged by client-go's rules: the
first entry of a name counts, and the first current-context. Paths in a file are relative to the file's directory. Exec
plugins and auth providers are run in `plugins`.
"""

from __future__ import annotations

import base64
import binascii
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from kubeproxy.kubernetes.client.kubeconfig_file import Cluster, Context, ExecPlugin, Kubeconfig, User, read
from kubeproxy.kubernetes.client.memory_files import path_of
from kubeproxy.model.errors import ConfigError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NO_SERVER: Final = "http://localhost:8080"
"""The server that commands use if none is configured, as kubectl does."""
EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"
"""The name of the cluster extension that is passed to exec plugins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """The flags of a command that override the kubeconfig. A flag that was not given is empty."""

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
    """An API server and the credentials for it, which a `Link` uses."""

    host: str
    """The server's base URL."""
    namespace: str = "default"
    namespace_enforced: bool = False
    """Whether the namespace was given by a flag. Commands then refuse objects of other namespaces."""
    ssl_ca_cert: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify_ssl: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    proxy_headers: Mapping[str, str] | None = None
    token: str = ""
    token_file: str = ""
    """The path of a file with the token, which is read for every request."""
    username: str = ""
    password: str = ""
    impersonate: Mapping[str, Any] = field(default_factory=dict)
    """The user to impersonate. ``user`` and ``uid`` are strings, ``groups`` is a list of strings, and ``extra`` is a
    mapping from keys to lists of strings."""
    plugin: Mapping[str, Any] | None = None
    """The ``exec`` or ``auth-provider`` entry of the kubeconfig's user, from which `plugins` gets credentials. With
    ``exec`` there may also be ``cluster``, the information about the cluster for the plugin (provideClusterInfo)."""


def load(overrides: Overrides, environment: Mapping[str, str] | None = None) -> ClientConfig:
    """Load the configuration of a command from its flags, the environment and kubeconfig files. Raise `ConfigError` if
    anything that they name is missing or invalid."""
    environment = os.environ if environment is None else environment
    files = Files(_paths(overrides, environment))
    if not (files.paths or overrides.server or overrides.context or overrides.cluster or overrides.user):
        inside = in_cluster(environment, SERVICE_ACCOUNT)
        if inside is not None:
            return _with_flags(inside, overrides)
    return files.configuration(overrides)


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
class _Place:
    """The file and the field from which an entry was read."""

    path: str = ""
    field: str = ""

    def of(self, key: str) -> str:
        """Return file and path of one of the entry's fields, for messages."""
        return f"{self.path}: {self.field}.{key}" if self.path else f"--{key}"

    def resolved(self, path: str | None) -> str:
        """Resolve a path from the file against the file's directory."""
        return os.path.join(os.path.dirname(os.path.abspath(self.path)), os.path.expanduser(path)) if path else ""


class Files:
    """Several kubeconfig files, merged."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Read the files. A missing file counts as empty. Raise `ConfigError` if a file is not a kubeconfig."""
        self.paths: list[str] = []
        self.current_context = ""
        self._clusters: dict[str, tuple[Cluster, _Place]] = {}
        self._contexts: dict[str, tuple[Context, _Place]] = {}
        self._users: dict[str, tuple[User, _Place]] = {}
        for path in paths:
            try:
                self._add(path, read(path))
            except FileNotFoundError:
                continue

    def _add(self, path: str, file: Kubeconfig) -> None:
        self.paths.append(path)
        self.current_context = self.current_context or file.current_context or ""
        for number, cluster in enumerate(file.clusters or ()):
            place = _Place(path, f"clusters[{number}].cluster")
            self._clusters.setdefault(cluster.name or "", (cluster.cluster or Cluster(), place))
        for number, context in enumerate(file.contexts or ()):
            place = _Place(path, f"contexts[{number}].context")
            self._contexts.setdefault(context.name or "", (context.context or Context(), place))
        for number, user in enumerate(file.users or ()):
            place = _Place(path, f"users[{number}].user")
            self._users.setdefault(user.name or "", (user.user or User(), place))

    def configuration(self, overrides: Overrides, *, server_required: bool = False) -> ClientConfig:
        """Combine the files and the flags. Raise `ConfigError` if anything that they name is missing or invalid. If
        they name no server, use `NO_SERVER`, or raise `ConfigError` if `server_required`."""
        name = overrides.context or self.current_context
        if name and name not in self._contexts:
            if overrides.context:
                raise ConfigError(f"context {_quoted(name)} does not exist")
            raise ConfigError(f"the current context {_quoted(name)} of {', '.join(self.paths)} does not exist")
        context = self._contexts[name][0] if name else Context()
        cluster_name = overrides.cluster or context.cluster or ""
        if cluster_name and cluster_name not in self._clusters:
            raise ConfigError(f"cluster {_quoted(cluster_name)} does not exist")
        user_name = overrides.user or context.user or ""
        if user_name and user_name not in self._users:
            raise ConfigError(f"auth info {_quoted(user_name)} does not exist")
        nowhere = _Place()
        cluster, cluster_place = self._clusters[cluster_name] if cluster_name else (Cluster(), nowhere)
        user, user_place = self._users[user_name] if user_name else (User(), nowhere)
        if server_required and not (overrides.server or cluster.server):
            raise ConfigError(f"cluster {_quoted(cluster_name)} of the current context has no server")
        assembly = _Assembly(overrides, cluster, cluster_place, user, user_place)
        return assembly.configuration(overrides.namespace or context.namespace or "default")


class _Assembly:
    """Combines a cluster, a user and the flags to a configuration, and collects the faults of the files that they
    name."""

    def __init__(
        self, overrides: Overrides, cluster: Cluster, cluster_place: _Place, user: User, user_place: _Place
    ) -> None:
        self._flags = overrides
        self._cluster, self._cluster_place = cluster, cluster_place
        self._user, self._user_place = user, user_place
        self._faults: list[str] = []

    def configuration(self, namespace: str) -> ClientConfig:
        flags, cluster, user, flag = self._flags, self._cluster, self._user, _Place()
        skip = flags.insecure_skip_tls_verify or bool(cluster.insecure_skip_tls_verify)
        authority = self._file(
            (flag, flags.certificate_authority, None),
            (self._cluster_place, cluster.certificate_authority, cluster.certificate_authority_data),
            key="certificate-authority",
        )
        # The flag may override a certificate authority of the kubeconfig. Both in the same place are refused as a
        # mistake, because the certificate would not be verified.
        if skip and (flags.certificate_authority if flags.insecure_skip_tls_verify else authority):
            raise ConfigError(
                "specifying a root certificates file with the insecure flag is not allowed:"
                " give one of certificate-authority and insecure-skip-tls-verify"
            )
        certificate = self._file(
            (flag, flags.client_certificate, None),
            (self._user_place, user.client_certificate, user.client_certificate_data),
            key="client-certificate",
        )
        key = self._file(
            (flag, flags.client_key, None),
            (self._user_place, user.client_key, user.client_key_data),
            key="client-key",
        )
        config = ClientConfig(
            host=_url(flags.server or cluster.server or NO_SERVER, tls=bool(authority or certificate or skip)),
            namespace=namespace,
            namespace_enforced=bool(flags.namespace),
            ssl_ca_cert=None if skip else authority,
            cert_file=certificate,
            key_file=key,
            verify_ssl=not skip,
            tls_server_name=flags.tls_server_name or cluster.tls_server_name or None,
            proxy=cluster.proxy_url or None,
            impersonate=_impersonation(flags, user),
        )
        if not _in_clear_text(config.host):
            self._add_credentials(config)
        if self._faults:
            raise ConfigError(*self._faults)
        return config

    def _add_credentials(self, config: ClientConfig) -> None:
        flags, user, place = self._flags, self._user, self._user_place
        config.token = flags.token or user.token or ""
        config.username, config.password = flags.username or user.username or "", flags.password or user.password or ""
        if flags.token:
            return
        if user.token:  # If both are given, the file's token counts if it can be read, as in client-go.
            config.token_file = place.resolved(user.token_file) if user.token_file else ""
            return
        config.token_file = self._file((place, user.token_file, None), key="tokenFile") or ""
        if flags.username:
            return
        if user.exec is not None:
            told = {"cluster": self._cluster_info(config)} if user.exec.provide_cluster_info else {}
            config.plugin = {"exec": msgspec.to_builtins(self._located(user.exec)), **told}
        elif user.auth_provider is not None:
            config.plugin = {"auth-provider": msgspec.to_builtins(user.auth_provider)}

    def _cluster_info(self, config: ClientConfig) -> dict[str, Any]:
        """Return the cluster for a plugin, in the form of client.authentication.k8s.io, without empty fields."""
        extensions = {it.name: it.extension for it in self._cluster.extensions or ()}
        authority = Path(config.ssl_ca_cert).read_bytes() if config.ssl_ca_cert else b""
        told = {
            "server": config.host,
            "tls-server-name": config.tls_server_name,
            "insecure-skip-tls-verify": not config.verify_ssl,
            "certificate-authority-data": base64.b64encode(authority).decode(),
            "proxy-url": config.proxy,
            "disable-compression": self._cluster.disable_compression,
            "config": extensions.get(EXEC_EXTENSION),
        }
        return {field: value for field, value in told.items() if value}

    def _file(self, *given: tuple[_Place, str | None, str | None], key: str) -> str | None:
        """Return the path of the first given file. A file is given by its path or inline, as ``KEY-data``. Return None
        if none is given, or if the file cannot be read; that is added to the faults."""
        for place, path, data in given:
            if data:
                try:
                    return path_of(base64.b64decode("".join(data.split()), validate=True))
                except binascii.Error as error:
                    raise ConfigError(f"{place.of(key)}-data is not base64: {error}") from None
            if path:
                resolved = place.resolved(path)
                try:
                    with open(resolved, "rb"):
                        return resolved
                except OSError as error:
                    why = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
                    self._faults.append(f"{place.of(key)}: found {resolved} ({why}); allowed: a file that can be read")
                    return None
        return None

    def _located(self, plugin: ExecPlugin) -> ExecPlugin:
        """Return the plugin with the absolute path of its program. A path with a slash is relative to the kubeconfig
        file; other programs are searched in PATH."""
        place, command = self._user_place, plugin.command or ""
        command = place.resolved(command) if "/" in command else command
        if shutil.which(command) is None:
            self._faults.append(
                f"{place.of('exec.command')}: found {_quoted(command)} (no such program); allowed: a program in PATH"
                f"{f'. {plugin.install_hint}' if plugin.install_hint else ''}"
            )
        return msgspec.structs.replace(plugin, command=command)


def _impersonation(overrides: Overrides, user: User) -> Mapping[str, Any]:
    if overrides.impersonate or overrides.impersonate_groups or overrides.impersonate_uid:
        if not overrides.impersonate:
            raise ConfigError("--as-group and --as-uid need --as: a user to act as")
        return {
            "user": overrides.impersonate,
            "groups": list(overrides.impersonate_groups),
            "uid": overrides.impersonate_uid,
        }
    return {
        "user": user.as_ or "",
        "uid": user.as_uid or "",
        "groups": user.as_groups or [],
        "extra": user.as_user_extra or {},
    }


def in_cluster(environment: Mapping[str, str], directory: Path) -> ClientConfig | None:
    """Return the configuration from a pod's service account, whose files are in `directory`. Return None if the process
    does not run in a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    token, authority = directory / "token", directory / "ca.crt"
    if not host or not port or not token.is_file() or not authority.is_file():
        return None
    namespace = directory / "namespace"
    return ClientConfig(
        host=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=(namespace.read_text().strip() if namespace.is_file() else "") or "default",
        ssl_ca_cert=str(authority),
        token_file=str(token),
    )


def _with_flags(inside: ClientConfig, overrides: Overrides) -> ClientConfig:
    return replace(
        inside,
        namespace=overrides.namespace or inside.namespace,
        namespace_enforced=bool(overrides.namespace),
        token=overrides.token,
        token_file="" if overrides.token else inside.token_file,
        impersonate=_impersonation(overrides, User()),
    )


def _url(host: str, *, tls: bool) -> str:
    """Return `host` as a base URL. If it has no scheme, use https if certificates are configured and otherwise http, as
    client-go does."""
    if "://" not in host:
        host = f"{'https' if tls else 'http'}://{host}"
    if not host.startswith(("http://", "https://")) or host.count("://") > 1:
        raise ConfigError(f"server {_quoted(host)}: allowed: an http or https URL")
    return host.rstrip("/")


def _in_clear_text(host: str) -> bool:
    """Return whether credentials would be sent over a network unencrypted. They are then not sent, as by kubectl."""
    name = urlsplit(host).hostname or ""
    return host.startswith("http://") and name not in ("localhost", "::1") and not name.startswith("127.")


def _quoted(text: str) -> str:
    return f'"{text}"'
