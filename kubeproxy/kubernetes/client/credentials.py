"""The credentials of a client: reads them, renews them, and makes HTTP headers from them."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from multidict import CIMultiDict

from kubeproxy.kubernetes.client.kubeconfig import SERVICE_ACCOUNT, ClientConfig, Files, Overrides, in_cluster
from kubeproxy.model.errors import ConfigError

if TYPE_CHECKING:
    from kubeproxy.kubernetes.client.plugins import Plugin

RENEW_S: Final = 60.0
"""The interval in seconds at which a plugin's token is checked for its expiry. client-go checks every minute."""
FORCED_FILES_S = 1.0
FORCED_PLUGIN_S = 10.0
"""The shortest time in seconds between two runs of a plugin after a 401. It is longer than for files, because running a
plugin costs much more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings of the API client of the daemon and of the controller manager: server, source of the credentials,
    and rate limit."""

    kubeconfig: str = ""
    """The path of a kubeconfig file. If it is empty and `master` is, too, the in-cluster configuration is used."""
    master: str = ""
    """The server's URL, which overrides the kubeconfig's. Without a kubeconfig there are no credentials."""
    qps: float = 5.0
    """The average number of requests per second. There is no limit if it is 0 or less."""
    burst: int = 10
    service_account: Path = SERVICE_ACCOUNT
    """The directory of the in-cluster configuration, with the token and the CA."""

    def read(self) -> ClientConfig:
        """Read the configuration that the settings name. Raise `ConfigError` if it is missing or invalid, or names no
        server."""
        if self.kubeconfig or self.master:
            return self._from_files()
        inside = in_cluster(os.environ, self.service_account)
        if inside is None:
            raise ConfigError(
                "no API server configured: neither --kubeconfig nor --master is given, and the in-cluster configuration"
                " (KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT,"
                f" {self.service_account}/token and ca.crt) is not complete"
            )
        return inside

    def _from_files(self) -> ClientConfig:
        path = self.kubeconfig
        files = Files([path] if path else [])
        if path and not files.paths:
            raise ConfigError(f"{path}: no such file; allowed: a kubeconfig")
        if path and not files.current_context:
            raise ConfigError(f"{path}: current-context: found nothing; allowed: one of its contexts")
        try:
            return files.configuration(Overrides(server=self.master), server_required=True)
        except ConfigError as error:
            raise ConfigError(*(fault if path in fault else f"{path}: {fault}" for fault in error.faults)) from None


class Access:
    """Reads the server and the credentials for a `Client`, and renews them."""

    def __init__(self, read: Callable[[], ClientConfig]) -> None:
        """`read` is called now and at each renewal. It returns the configuration, read again, or raises
        `ConfigError`."""
        self._read = read
        self.config = read()
        """The configuration that was read last, without a plugin's credentials."""
        self._unused = True
        self._plugin: Plugin | None = None
        self._asked_at = 0.0
        self.last_headers: Mapping[str, str] | None = None
        """The headers of the last request, which are used again if new headers cannot be made. It is None before the
        first request."""
        self.forced_renewal_s = FORCED_FILES_S
        """The shortest time between two renewals of refused credentials, in seconds."""

    async def configuration(self) -> ClientConfig:
        """Read server and credentials again, and run the plugin if there is one. Raise `ConfigError` if they are
        invalid or the plugin fails."""
        if not self._unused:
            self.config = self._read()
        self._unused = False
        if self.config.plugin is None:
            self._plugin, self.forced_renewal_s = None, FORCED_FILES_S
            return self.config
        from kubeproxy.kubernetes.client.plugins import Plugin

        self.forced_renewal_s = FORCED_PLUGIN_S
        self._plugin = Plugin(self.config.plugin)
        self._asked_at = asyncio.get_running_loop().time()
        return await self._plugin.answer(self.config)

    async def headers(self, configuration: ClientConfig) -> Mapping[str, str]:
        """Return the headers with the credentials for one request. A token file is read for every request. Raise
        `ConfigError` if that fails."""
        now = asyncio.get_running_loop().time()
        if self._plugin is not None and self._plugin.expires and now - self._asked_at >= RENEW_S:
            self._asked_at = now
            configuration.token = (await self._plugin.answer(configuration)).token
        self.last_headers = headers(configuration)
        return self.last_headers


def headers(config: ClientConfig) -> CIMultiDict[str]:
    """Return the HTTP headers with the credentials of a configuration. Raise `ConfigError` if they contain characters
    that no header may have."""
    carried = _impersonation(config.impersonate)
    token = config.token
    if config.token_file:
        try:
            with open(config.token_file, encoding="utf-8") as file:
                token = file.read()
        except (OSError, UnicodeDecodeError) as error:
            if not token:
                raise ConfigError(f"tokenFile {config.token_file}: {error}") from None
    if token:
        carried["Authorization"] = f"Bearer {_header(token.strip(), 'the token')}"
    elif config.username:
        pair = f"{config.username}:{config.password}".encode()
        carried["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    return carried


def _impersonation(impersonate: Mapping[str, Any]) -> CIMultiDict[str]:
    carried: CIMultiDict[str] = CIMultiDict()
    user = impersonate.get("user")
    if not user:
        return carried
    carried["Impersonate-User"] = _header(str(user), "the user to act as")
    if uid := impersonate.get("uid"):
        carried["Impersonate-Uid"] = _header(str(uid), "the uid to act as")
    for group in impersonate.get("groups") or ():
        carried.add("Impersonate-Group", _header(str(group), "a group to act as"))
    for key, values in (impersonate.get("extra") or {}).items():
        for value in values:
            carried.add(f"Impersonate-Extra-{quote(key, safe='')}", _header(str(value), "what to act with"))
    return carried


def _header(text: str, what: str) -> str:
    if not text.isprintable():
        raise ConfigError(f"{what} has characters that no HTTP header may have")
    return text
