"""Credentials from exec plugins and auth providers, by kubernetes_asyncio.

Importing `kubernetes_asyncio.config` imports the whole package, with some 850 modules of API objects: 0.15 to 0.2 s
of processor time, and 35 MiB (PSS) for as long as the process lives. A daemon on every node, 42 MiB without it, would
pay that for a task of a second an hour, and a command would start slower than kubectl. So the library works in a
process of its own, `plugin_process`, which ends with its answer, and only a kubeconfig with a plugin starts it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from kubeproxy.kubernetes.client.kubeconfig import ClientConfig
from kubeproxy.kubernetes.client.memory_files import path_of
from kubeproxy.model.errors import ConfigError

PLUGIN_S: Final = 60.0
"""How long a plugin may run if it cannot ask the user."""
INTERACTIVE_S: Final = 900.0
"""How long a plugin may run if it may ask the user. Most codes that a user types into a browser are valid that long."""
EARLY_S: Final = 300.0
"""A token counts as expired this long before its time, because clocks differ. kubernetes_asyncio does the same."""
MAX_ANSWER_BYTES: Final = 1 << 20
"""The longest answer of the process. Real ones have some thousand bytes."""


class PluginRequest(msgspec.Struct, frozen=True):
    """The request to the process."""

    server: str
    user: dict[str, Any]
    """See `ClientConfig.plugin`."""


class PluginAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the process."""

    token: str = ""
    certificate: str = ""
    key: str = ""
    expires_at: float | None = None
    """When the token expires, in Unix seconds, or None if that is not known."""
    user: dict[str, Any] | None = None
    """The user with the tokens that the provider has renewed, for the next request."""
    fault: str = ""
    """Why there are no credentials. It is empty if there are some."""


class Plugin:
    """A plugin of a kubeconfig's user, and its last answer."""

    def __init__(self, user: Mapping[str, Any]) -> None:
        """`user` is the value of `ClientConfig.plugin`."""
        self._user = dict(user)
        self._last = PluginAnswer()

    @property
    def expires(self) -> bool:
        """Return whether the credentials may run out by time. If no expiry is known, the plugin runs again only after a
        401, as with client-go."""
        return self._last.expires_at is not None

    async def answer(self, config: ClientConfig) -> ClientConfig:
        """Return the configuration with the plugin's token or certificate. The plugin runs unless its last token is
        still valid. Raise `ConfigError` if it fails."""
        if (self._last.expires_at or 0.0) - EARLY_S <= time.time():
            last = await _run(PluginRequest(config.host, self._user))
            self._user = last.user or self._user  # An identity provider may give a new refresh token with each use.
            self._last = last
        last = self._last
        return replace(
            config,
            token=last.token.strip(),
            cert_file=path_of(last.certificate.encode()) if last.certificate else config.cert_file,
            key_file=path_of(last.key.encode()) if last.key else config.key_file,
        )


async def _run(request: PluginRequest) -> PluginAnswer:
    """Run the library in its process. Raise `ConfigError` if that gives no credentials."""
    # A file in memory carries the request, and then the answer. Other users can read arguments, and keys must not reach
    # a disk; standard input and output stay the terminal's, for plugins that ask for a password.
    file = os.memfd_create("plugin", os.MFD_CLOEXEC)
    try:
        os.pwrite(file, msgspec.json.encode(request), 0)
        await _wait_for_process(file)
        body = os.pread(file, MAX_ANSWER_BYTES, 0)
    except OSError as error:
        raise ConfigError(f"getting credentials: the process of the plugin: {error}") from None
    finally:
        os.close(file)
    try:
        answer = msgspec.json.decode(body, type=PluginAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"getting credentials: the process of the plugin gave no answer ({error})") from None
    if answer.fault:
        raise ConfigError(f"getting credentials: {answer.fault}")
    return answer


async def _wait_for_process(file: int) -> None:
    limit_s = INTERACTIVE_S if os.isatty(0) else PLUGIN_S
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "kubeproxy.kubernetes.client.plugin_process", str(file)), pass_fds=(file,)
    )
    try:
        async with asyncio.timeout(limit_s):
            code = await process.wait()
    except TimeoutError:
        raise ConfigError(f"getting credentials: the plugin did not answer within {limit_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.terminate()  # This ends the plugin, and then the process itself.
            await process.wait()
    if code != 0:
        raise ConfigError(f"getting credentials: the process of the plugin exited with {code}")
