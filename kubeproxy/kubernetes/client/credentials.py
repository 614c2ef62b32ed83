"""Credentials for as long as a client lives: they are read, renewed, and turned into headers."""

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
"""How often a plugin is asked whether its token has expired, in seconds. client-go asks every minute."""
FORCED_FILES_S = 1.0
FORCED_PLUGIN_S = 10.0
"""The shortest time between two renewals forced by a 401, because running a plugin costs much more than reading
files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Server, source of the credentials, and rate limit, of the daemon and the controller manager."""

    kubeconfig: str = ""
    """Path of a file. Empty means in-cluster, unless `master` is given."""
    master: str = ""
    """The server's URL, which overrides the kubeconfig's. Without a kubeconfig there are no credentials."""
    qps: float = 5.0
    """Requests a second; 0 or less means no limit."""
    burst: int = 10
    service_account: Path = SERVICE_ACCOUNT
    """The in-cluster directory of the token and the CA."""

    def read(self) -> ClientConfig:
        """Read the configuration that the settings name. Raise `ConfigError` if it is missing or wrong, or names
        no server."""
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
    """The server and the credentials, for `Client`."""

    def __init__(self, read: Callable[[], ClientConfig]) -> None:
        """`read` reads the configuration from scratch, now and at each renewal. It may raise `ConfigError`."""
        self._read = read
        self.config = read()
        """The configuration as it was read last, without the credentials from a plugin."""
        self._unused = True
        self._plugin: Plugin | None = None
        self._asked_at = 0.0
        self.last_headers: Mapping[str, str] | None = None
        """The headers of the last request, in case new ones cannot be had. None before the first request."""
        self.forced_renewal_s = FORCED_FILES_S
        """The shortest time between two renewals of refused credentials, in seconds."""

    async def configuration(self) -> ClientConfig:
        """Read server and credentials from scratch, and run the plugin if there is one. Raise `ConfigError` if
        they are unusable."""
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
        """Return the headers of a request. A token file is read for each. Raise `ConfigError` if that fails."""
        now = asyncio.get_running_loop().time()
        if self._plugin is not None and self._plugin.expires and now - self._asked_at >= RENEW_S:
            self._asked_at = now
            configuration.token = (await self._plugin.answer(configuration)).token
        self.last_headers = headers(configuration)
        return self.last_headers


def headers(config: ClientConfig) -> CIMultiDict[str]:
    """Make the headers that carry the credentials. Raise `ConfigError` if a header cannot carry them."""
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
