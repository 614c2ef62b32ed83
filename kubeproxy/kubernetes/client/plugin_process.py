"""The process in which kubernetes_asyncio runs a plugin, or renews the token of an auth provider.

It is started with the descriptor of a file that holds a `PluginRequest`, writes a `PluginAnswer` there, and ends.
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
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import load_kube_config_from_dict
from kubernetes_asyncio.config.exec_provider import ExecProvider
from kubernetes_asyncio.config.kube_config import ConfigNode

from kubeproxy.kubernetes.client.plugins import PluginAnswer, PluginRequest


def main(file: int) -> None:
    """Answer the request in the file."""
    request = msgspec.json.decode(os.pread(file, os.fstat(file).st_size, 0), type=PluginRequest)
    try:
        answer = asyncio.run(_answer(request))
    except asyncio.CancelledError:  # It is too late for an answer, and the library leaves the program running.
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(pid), signal.SIGTERM)
        sys.exit(1)
    except Exception as error:  # The library lets any exception through: KeyError, AssertionError, OSError, ...
        answer = PluginAnswer(fault=" ".join(str(error).split()) or type(error).__name__)
    os.truncate(file, 0)
    os.pwrite(file, msgspec.json.encode(answer), 0)


async def _answer(request: PluginRequest) -> PluginAnswer:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if "exec" in request.user:
        return await _run_program(request.user["exec"])
    return await _renew_token(request)


async def _run_program(settings: Mapping[str, Any]) -> PluginAnswer:
    """Run an exec plugin. `ExecProvider` returns the certificate itself. The library's loader would write the
    certificate and its key to files."""
    status = await ExecProvider(ConfigNode("exec", settings)).run()
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


async def _renew_token(request: PluginRequest) -> PluginAnswer:
    """Have the library's loader renew the token of an auth provider (oidc, gcp) if it has expired."""
    document = {
        "current-context": "plugin",
        "contexts": [{"name": "plugin", "context": {"cluster": "plugin", "user": "plugin"}}],
        "clusters": [{"name": "plugin", "cluster": {"server": request.server}}],
        "users": [{"name": "plugin", "user": request.user}],
    }
    configuration = Configuration()
    await load_kube_config_from_dict(document, client_configuration=configuration)
    token = str(await configuration.get_api_key_with_prefix("BearerToken") or "").removeprefix("Bearer ")
    # The loader has put renewed tokens into the document that it was given.
    return PluginAnswer(token=token, expires_at=_expiry(request.user, token), user=request.user)


def _expiry(user: Mapping[str, Any], token: str) -> float | None:
    """Return when the token expires, as the provider tells or as a claim in a JSON Web Token tells."""
    if named := (user["auth-provider"].get("config") or {}).get("expiry"):
        return datetime.fromisoformat(str(named)).timestamp()
    parts = token.split(".")
    if len(parts) != 3:
        return None
    claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    return float(claims["exp"]) if isinstance(claims, dict) and "exp" in claims else None


if __name__ == "__main__":
    main(int(sys.argv[1]))
