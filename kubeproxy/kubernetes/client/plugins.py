"""Gets credentials from exec plugins and auth providers, in a child process.

Auth providers need `kubernetes_asyncio.config`. It imports the whole package, with some 850 modules of API objects.
That costs 0.15 to 0.2 s of processor time, and 35 MiB (PSS) until the process ends. The daemon uses 42 MiB without it,
and needs credentials for about a second an hour. The child process, `plugin_process`, exits after its answer. It is
started only if the kubeconfig has a plugin or a provider.
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
"""The longest run of a plugin that cannot ask the user, in seconds."""
INTERACTIVE_S: Final = 900.0
"""The longest run of a plugin that may ask the user, in seconds. Most codes that a user types into a browser are valid
for this time."""
EARLY_S: Final = 300.0
"""A token counts as expired this many seconds before its expiry, because clocks differ, as in kubernetes_asyncio."""
MAX_ANSWER_BYTES: Final = 1 << 20
"""The longest answer of the child process. Usual answers have some thousand bytes."""


class PluginRequest(msgspec.Struct, frozen=True):
    """The request to the child process."""

    server: str
    user: dict[str, Any]
    """See `ClientConfig.plugin`."""


class PluginAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the child process."""

    token: str = ""
    certificate: str = ""
    key: str = ""
    expires_at: float | None = None
    """When the token expires, in Unix seconds, or None if that is not known."""
    user: dict[str, Any] | None = None
    """The kubeconfig's user entry with renewed tokens, for the next request, or None."""
    fault: str = ""
    """Why there are no credentials, or empty if there are some."""


class Plugin:
    """The plugin of a kubeconfig's user, with its last answer."""

    def __init__(self, user: Mapping[str, Any]) -> None:
        """`user` is the value of `ClientConfig.plugin`."""
        self._user = dict(user)
        self._last = PluginAnswer()

    @property
    def expires(self) -> bool:
        """Return whether the time of expiry is known. If it is not, the plugin runs again only after a 401, as in
        client-go."""
        return self._last.expires_at is not None

    async def answer(self, config: ClientConfig) -> ClientConfig:
        """Return the configuration with the plugin's token or certificate. Run the plugin unless its last token is
        still valid. Raise `ConfigError` if the plugin fails."""
        if (self._last.expires_at or 0.0) - EARLY_S <= time.time():
            last = await _run(PluginRequest(config.host, self._user))
            self._user = last.user or self._user  # The identity provider may have issued a new refresh token.
            self._last = last
        last = self._last
        return replace(
            config,
            token=last.token.strip(),
            cert_file=path_of(last.certificate.encode()) if last.certificate else config.cert_file,
            key_file=path_of(last.key.encode()) if last.key else config.key_file,
        )


async def _run(request: PluginRequest) -> PluginAnswer:
    """Send a request to a new child process, and return its answer. Raise `ConfigError` if there are no credentials."""
    # Request and answer are passed in a file in memory. Arguments are visible to other users, a disk must not contain
    # keys, and standard input and output are left to plugins that ask for a password.
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
            process.terminate()  # The child process first ends the plugin.
            await process.wait()
    if code != 0:
        raise ConfigError(f"getting credentials: the process of the plugin exited with {code}")
