"""Credentials from exec plugins and auth providers, by kubernetes_asyncio.

Its import takes most of a second, so it happens only for users of a kubeconfig that name such a thing.
"""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import replace
from typing import Final

from kubeproxy.kubernetes.client.kubeconfig import ClientConfig
from kubeproxy.model.errors import ConfigError

PLUGIN_S: Final = 60.0
"""How long a plugin may run."""


async def with_credentials(config: ClientConfig) -> ClientConfig:
    """The configuration with the token or the certificate that its plugin answers. `ConfigError` where it fails."""
    assert config.plugin is not None
    library = await asyncio.to_thread(importlib.import_module, "kubernetes_asyncio.config.kube_config")
    client = importlib.import_module("kubernetes_asyncio.client")
    document = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {**config.plugin_cluster, "server": config.host}}],
        "users": [{"name": "it", "user": dict(config.plugin)}],
    }
    found = client.Configuration()
    try:
        async with asyncio.timeout(PLUGIN_S):
            loader = library.KubeConfigLoader(document, config_base_path=config.plugin_directory)
            await loader.load_and_set(found)
            token = await found.get_api_key_with_prefix("BearerToken")
    except TimeoutError:
        raise ConfigError(f"getting credentials: the plugin did not answer within {PLUGIN_S:.0f} s") from None
    except Exception as error:  # the library lets whatever it meets through: KeyError, AssertionError, OSError, ...
        raise ConfigError(f"getting credentials: {' '.join(str(error).split()) or type(error).__name__}") from error
    return replace(
        config,
        token=(token or "").removeprefix("Bearer ").strip(),
        cert_file=found.cert_file or config.cert_file,
        key_file=found.key_file or config.key_file,
    )
