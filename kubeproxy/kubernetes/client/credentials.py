"""Server address and credentials of long-running clients, through kubernetes_asyncio.

The library reads in-cluster configuration and kubeconfigs, runs exec plugins and keeps tokens fresh. That is a small
part of it: its packages import some 700 models of API objects, which cost more time and memory than all of ours. So
`Access.load` imports the modules that are needed, and not the packages that they are in.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from kubeproxy.model.errors import ConfigError

PLUGIN_S = 60.0
"""Time limit for reading credentials, including an exec plugin's run."""
RENEW_S = 60.0
"""Interval of reading working credentials again (client-go: token files every minute)."""
FORCED_FILES_S = 1.0
FORCED_PLUGIN_S = 10.0
"""The shortest time between two renewals forced by a 401: reading files is cheap, running a plugin is not."""
MAX_MEMORY_FILES = 16
"""Certificates and keys of kubeconfigs held as files in memory; one configuration has three."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Address of the API server, source of the credentials, and rate limit."""

    kubeconfig: str = ""
    """Path; empty: in-cluster, unless `master` is given."""
    master: str = ""
    """The server's URL; overrides the kubeconfig's. Without a kubeconfig there are no credentials."""
    qps: float = 5.0
    """Requests a second; 0 or less: no limit."""
    burst: int = 10
    service_account: Path = SERVICE_ACCOUNT
    """The in-cluster directory of the token and the CA."""


class Access:
    """Reads the settings' configuration with kubernetes_asyncio, as often as needed."""

    def __init__(self, settings: ClientSettings, *, client: Any, kube_config: Any, in_cluster: Any) -> None:
        self._settings = settings
        self._client = client
        self._kube_config = kube_config
        self._in_cluster = in_cluster
        self.forced_renewal_s = FORCED_FILES_S
        """The shortest time between two renewals of refused credentials, in seconds."""

    @classmethod
    def load(cls, settings: ClientSettings) -> Self:
        """Import the library. Takes a tenth of a second: call it from a thread."""
        client = _import_configuration()
        kube_config = in_cluster = None
        if settings.kubeconfig:
            kube_config = importlib.import_module("kubernetes_asyncio.config.kube_config")
            kube_config.FileOrData._create_temp_file_with_content = _in_memory
        elif not settings.master:
            in_cluster = importlib.import_module("kubernetes_asyncio.config.incluster_config")
        return cls(settings, client=client, kube_config=kube_config, in_cluster=in_cluster)

    async def configuration(self) -> Any:
        """A ``kubernetes_asyncio.client.Configuration`` read from scratch, with a hook that keeps its token fresh.
        `ConfigError` when files or variables are missing or wrong."""
        kubeconfig, master = self._settings.kubeconfig, self._settings.master
        if kubeconfig:
            found = await self._from_kubeconfig(kubeconfig)
        elif master:
            found = self._client.Configuration()
        else:
            found = self._from_service_account(self._settings.service_account)
        if master:
            found.host = _url(master, like=found.host if kubeconfig else "http://")
        return found

    async def headers(self, configuration: Any) -> Mapping[str, str]:
        """The header with the bearer token, which may be renewed for that."""
        return _bearer(await configuration.get_api_key_with_prefix("BearerToken"))

    def last_headers(self, configuration: Any) -> Mapping[str, str]:
        """The same with the token that was read last."""
        return _bearer(configuration.api_key.get("BearerToken"))

    def _from_service_account(self, directory: Path) -> Any:
        configuration = self._client.Configuration()
        token, ca = str(directory / "token"), str(directory / "ca.crt")
        try:
            self._in_cluster.InClusterConfigLoader(token_filename=token, cert_filename=ca).load_and_set(configuration)
        except (self._in_cluster.ConfigException, OSError) as error:
            raise ConfigError(
                "no API server configured: neither --kubeconfig nor --master is given, and the in-cluster configuration"
                f" (KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT, {token}, {ca}) is not complete: {error}"
            ) from error
        return configuration

    async def _from_kubeconfig(self, path: str) -> Any:
        if not Path(path).is_file():  # noqa: ASYNC240 - one stat, and the library reads the file synchronously anyway
            raise ConfigError(f"kubeconfig {path}: there is no such file")
        configuration = self._client.Configuration()
        try:
            async with asyncio.timeout(PLUGIN_S):
                loader = await self._kube_config.load_kube_config(
                    config_file=path, client_configuration=configuration, persist_config=False
                )
        except Exception as error:  # the library raises KeyError, TypeError and AssertionError, too
            raise ConfigError(
                f"kubeconfig {path}: {type(error).__name__}: {error}; allowed: a file with current-context, contexts,"
                " clusters and users, and the files that it names"
            ) from error
        if "://" not in configuration.host:
            raise ConfigError(f"kubeconfig {path}: server is {configuration.host!r}, not an http or https URL")
        renewal = _Renewal(loader)
        self.forced_renewal_s = FORCED_PLUGIN_S if renewal.runs_program else FORCED_FILES_S
        configuration.refresh_api_key_hook = renewal
        return configuration


def _bearer(token: str | None) -> Mapping[str, str]:
    token = (token or "").strip()  # token files often end in a newline, which a header must not contain
    return {"Authorization": token} if token else {}


def _import_configuration() -> ModuleType:
    """What stands for ``kubernetes_asyncio.client``: its `Configuration`, and nothing else of it but a name for the
    `ApiClient` that kube_config imports and that is never made here. Where the true package has been imported already,
    it is that."""
    if "kubernetes_asyncio" not in sys.modules:
        for name in ("kubernetes_asyncio", "kubernetes_asyncio.config", "kubernetes_asyncio.client"):
            spec = importlib.util.find_spec(name)
            if spec is None:
                raise ConfigError(f"the library {name} is not installed; an API server cannot be asked without it")
            sys.modules[name] = importlib.util.module_from_spec(spec)  # made, and not executed
        client = sys.modules["kubernetes_asyncio.client"]
        configuration = importlib.import_module("kubernetes_asyncio.client.configuration")
        client.__dict__.update(Configuration=configuration.Configuration, ApiClient=None)
    return importlib.import_module("kubernetes_asyncio.client")


_memory_files: dict[bytes, int] = {}


def _in_memory(_: object, content: str | bytes) -> str:
    """The path of a file that has this content and no name on any disk: a client's key stays nowhere, however this
    process ends. In place of the library's own, which writes to /tmp and removes it at an orderly exit."""
    data = content.encode() if isinstance(content, str) else content
    descriptor = _memory_files.pop(data, None)
    if descriptor is None:
        descriptor = os.memfd_create("kubeconfig")
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
    _memory_files[data] = descriptor
    while len(_memory_files) > MAX_MEMORY_FILES:
        os.close(_memory_files.pop(next(iter(_memory_files))))
    return f"/proc/self/fd/{descriptor}"


class _Renewal:
    """Reads a kubeconfig's credentials again, at most every `RENEW_S`: tokenFiles change, and plugins' tokens expire. A
    plugin that names no expiry runs again only after a 401, as with client-go."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._at = asyncio.get_running_loop().time()
        user = loader._user  # private, but the library's own refresh_token reads it, too
        self.runs_program = user is not None and ("exec" in user or "auth-provider" in user)
        self._lasting = user is None or ("exec" in user and not hasattr(loader, "exec_plugin_expiry"))

    async def __call__(self, configuration: Any) -> None:
        now = asyncio.get_running_loop().time()
        if self._lasting or now - self._at < RENEW_S:
            return
        self._at = now
        await self._loader.load_and_set(configuration)

    def __deepcopy__(self, memo: object) -> _Renewal:
        return self


def _url(master: str, *, like: str) -> str:
    """`master` as a base URL; without a scheme it takes that of the kubeconfig's server, or http (as client-go)."""
    if "://" in master:
        return master.rstrip("/")
    return f"{like.split('://', 1)[0]}://{master.rstrip('/')}"
