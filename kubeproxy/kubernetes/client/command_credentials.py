"""The credentials of a command: the headers that its configuration amounts to, and how they are renewed."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from multidict import CIMultiDict

from kubeproxy.kubernetes.client.credentials import FORCED_FILES_S, FORCED_PLUGIN_S
from kubeproxy.kubernetes.client.kubeconfig import ClientConfig
from kubeproxy.model.errors import ConfigError


class CommandAccess:
    """A command's configuration, as `Client` asks for it."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self.forced_renewal_s = FORCED_FILES_S if config.plugin is None else FORCED_PLUGIN_S
        """The shortest time between two renewals of refused credentials, in seconds."""

    async def configuration(self) -> ClientConfig:
        """Server and credentials; a plugin runs every time. `ConfigError` where it fails."""
        if self._config.plugin is None:
            return self._config
        from kubeproxy.kubernetes.client.plugins import with_credentials

        return await with_credentials(self._config)

    async def headers(self, configuration: ClientConfig) -> CIMultiDict[str]:
        """The headers of a request; a token file is read for each."""
        return headers(configuration)

    def last_headers(self, configuration: ClientConfig) -> CIMultiDict[str]:
        """No older token is kept: a token file that cannot be read is the end of it."""
        return CIMultiDict()


def headers(config: ClientConfig) -> CIMultiDict[str]:
    """The headers that carry the credentials. `ConfigError` where a header cannot carry them."""
    found = _impersonation(config.impersonate)
    token = config.token
    if config.token_file:
        try:
            with open(config.token_file, encoding="utf-8") as file:
                token = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"tokenFile {config.token_file}: {error}") from None
    if token:
        found["Authorization"] = f"Bearer {_header(token.strip(), 'the token')}"
    elif config.username:
        pair = f"{config.username}:{config.password}".encode()
        found["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    return found


def _impersonation(impersonate: Mapping[str, Any]) -> CIMultiDict[str]:
    found: CIMultiDict[str] = CIMultiDict()
    user = impersonate.get("user")
    if not user:
        return found
    found["Impersonate-User"] = _header(str(user), "the user to act as")
    if uid := impersonate.get("uid"):
        found["Impersonate-Uid"] = _header(str(uid), "the uid to act as")
    for group in impersonate.get("groups") or ():
        found.add("Impersonate-Group", _header(str(group), "a group to act as"))
    for key, values in (impersonate.get("extra") or {}).items():
        for value in values:
            found.add(f"Impersonate-Extra-{quote(key, safe='')}", _header(str(value), "what to act with"))
    return found


def _header(text: str, what: str) -> str:
    if not text.isprintable():
        raise ConfigError(f"{what} has characters that no HTTP header may have")
    return text
