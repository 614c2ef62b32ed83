"""The child process that runs an exec plugin, or in which kubernetes_asyncio renews the token of an auth provider.

Its argument is the descriptor of a file that contains a `PluginRequest`. The process writes a `PluginAnswer` to the
file and exits.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from kubeproxy.kubernetes.client.kubeconfig_file import ExecPlugin
from kubeproxy.kubernetes.client.plugins import PluginAnswer, PluginRequest


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    """The ExecCredential that an exec plugin prints."""

    api_version: str
    kind: str
    status: dict[str, Any]


def main(file: int) -> None:
    """Read the request from a file descriptor, and write the answer to it."""
    request = msgspec.json.decode(os.pread(file, os.fstat(file).st_size, 0), type=PluginRequest)
    try:
        answer = asyncio.run(_answer(request))
    except asyncio.CancelledError:  # The time is over, and the library does not end the program.
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(pid), signal.SIGTERM)
        sys.exit(1)
    except Exception as error:  # The library may raise anything, such as KeyError or AssertionError.
        answer = PluginAnswer(fault=" ".join(str(error).split()) or type(error).__name__)
    os.truncate(file, 0)
    os.pwrite(file, msgspec.json.encode(answer), 0)


async def _answer(request: PluginRequest) -> PluginAnswer:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if "exec" in request.user:
        return await _credentials(msgspec.convert(request.user["exec"], ExecPlugin), request.user.get("cluster"))
    return await _renew_token(request)


async def _credentials(plugin: ExecPlugin, cluster: Mapping[str, Any] | None) -> PluginAnswer:
    """Return the credentials of an exec plugin.

    The library is not used. Its import would take longer than most plugins. It would write certificate and key to disk,
    hide the program's messages from the user, not pass the cluster to the program, and always let the program read
    standard input.
    """
    status = await _run_program(plugin, cluster)
    token, certificate, key = (
        str(status.get(name) or "") for name in ("token", "clientCertificateData", "clientKeyData")
    )
    if bool(certificate) != bool(key):
        raise ValueError("exec: the plugin answered one of clientCertificateData and clientKeyData without the other")
    if not token and not certificate:
        raise ValueError("exec: the plugin answered neither a token nor a client certificate")
    expiry = status.get("expirationTimestamp")
    return PluginAnswer(
        token=token,
        certificate=certificate,
        key=key,
        expires_at=datetime.fromisoformat(str(expiry)).timestamp() if expiry and token else None,
    )


async def _run_program(plugin: ExecPlugin, cluster: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Run the program of an exec plugin, and return the status of its ExecCredential."""
    if not plugin.command or not plugin.api_version:
        raise ValueError("exec: command and apiVersion are required")
    interactive = _is_interactive(plugin)
    told = {"interactive": interactive, **({"cluster": cluster} if cluster else {})}
    asked = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": told}
    variables = {it.name: it.value for it in plugin.env or ()}
    process = await asyncio.create_subprocess_exec(
        plugin.command,
        *(plugin.args or ()),
        env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
        stdin=None if interactive else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise ValueError(f"exec: {plugin.command} ended with status {process.returncode}; it says why on stderr")
    try:
        answer = msgspec.json.decode(output, type=_ExecCredential)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"exec: the plugin answered no ExecCredential: {error}") from None
    if (answer.api_version, answer.kind) != (plugin.api_version, "ExecCredential"):
        found = f"{answer.api_version} {answer.kind}"
        raise ValueError(f"exec: the plugin answered {found}; allowed: {plugin.api_version} ExecCredential")
    return answer.status


def _is_interactive(plugin: ExecPlugin) -> bool:
    """Return whether the program may use standard input, according to interactiveMode. Raise ValueError if that is
    invalid or impossible."""
    mode, has_terminal = plugin.interactive_mode or "IfAvailable", os.isatty(0)
    if mode not in ("Never", "IfAvailable", "Always"):
        raise ValueError(f"exec: interactiveMode: found {mode!r}; allowed: Never, IfAvailable or Always")
    if mode == "Always" and not has_terminal:
        raise ValueError("exec: interactiveMode is Always, but standard input is no terminal")
    return has_terminal and mode != "Never"


async def _renew_token(request: PluginRequest) -> PluginAnswer:
    """Return the token of an auth provider (oidc, gcp), which the library renews if it has expired."""
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import load_kube_config_from_dict

    document = {
        "current-context": "plugin",
        "contexts": [{"name": "plugin", "context": {"cluster": "plugin", "user": "plugin"}}],
        "clusters": [{"name": "plugin", "cluster": {"server": request.server}}],
        "users": [{"name": "plugin", "user": request.user}],
    }
    configuration = Configuration()
    await load_kube_config_from_dict(document, client_configuration=configuration)
    token = str(await configuration.get_api_key_with_prefix("BearerToken") or "").removeprefix("Bearer ")
    # The loader writes renewed tokens into `request.user`.
    return PluginAnswer(token=token, expires_at=_expiry(request.user, token), user=request.user)


def _expiry(user: Mapping[str, Any], token: str) -> float | None:
    """Return when the token expires, in Unix seconds, from the provider's configuration or from the token's own ``exp``
    claim, or None if both are missing."""
    if named := (user["auth-provider"].get("config") or {}).get("expiry"):
        return datetime.fromisoformat(str(named)).timestamp()
    parts = token.split(".")
    if len(parts) != 3:
        return None
    claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    return float(claims["exp"]) if isinstance(claims, dict) and "exp" in claims else None


if __name__ == "__main__":
    main(int(sys.argv[1]))
