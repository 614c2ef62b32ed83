"""Credentials from exec plugins and auth providers, by kubernetes_asyncio.

That is a small part of the library: its packages import some 700 models of API objects, which cost more time and memory
than all of ours. So the modules that are needed are imported, and not the packages that they are in.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any, Final

from kubeproxy.kubernetes.client.kubeconfig import ClientConfig
from kubeproxy.kubernetes.client.memory_files import path_of
from kubeproxy.model.errors import ConfigError

PLUGIN_S: Final = 60.0
"""How long a plugin may run."""


class Plugin:
    """A plugin of a kubeconfig's user. The library remembers when its credentials expire."""

    def __init__(self, loader: Any, answers: Any, *, is_program: bool) -> None:
        self._loader = loader
        self._answers = answers
        self._is_program = is_program

    @classmethod
    async def load(cls, config: ClientConfig) -> Plugin:
        """Import the library, in a thread: it takes a tenth of a second."""
        client, library = await asyncio.to_thread(_import_library)
        document = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": config.host}}],
            "users": [{"name": "it", "user": dict(config.plugin or {})}],
        }
        try:
            loader = library.KubeConfigLoader(document)
        except Exception as error:  # the library raises what it meets
            raise _failed(error) from error
        return cls(loader, client.Configuration(), is_program="exec" in (config.plugin or {}))

    @property
    def expires(self) -> bool:
        """Whether the credentials may run out by time. A program that names no expiry runs again only after a 401, as
        with client-go."""
        return not self._is_program or hasattr(self._loader, "exec_plugin_expiry")

    async def answer(self, config: ClientConfig) -> ClientConfig:
        """The configuration with the token or the certificate that the plugin answers; it runs unless its last answer
        still holds. `ConfigError` where it fails."""
        found = self._answers
        try:
            async with asyncio.timeout(PLUGIN_S):
                await self._loader.load_and_set(found)
                token = await found.get_api_key_with_prefix("BearerToken")
        except TimeoutError:
            raise ConfigError(f"getting credentials: the plugin did not answer within {PLUGIN_S:.0f} s") from None
        except Exception as error:  # the library lets whatever it meets through: KeyError, AssertionError, OSError, ...
            raise _failed(error) from error
        return replace(
            config,
            token=(token or "").removeprefix("Bearer ").strip(),
            cert_file=found.cert_file or config.cert_file,
            key_file=found.key_file or config.key_file,
        )


def _failed(error: Exception) -> ConfigError:
    return ConfigError(f"getting credentials: {' '.join(str(error).split()) or type(error).__name__}")


def _import_library() -> tuple[ModuleType, ModuleType]:
    """What stands for ``kubernetes_asyncio.client``, and the library's reader of kubeconfigs. The first has
    `Configuration`, and nothing else but a name for the `ApiClient` that the second imports and that is never made
    here. Where the true package has been imported already, it is that."""
    if "kubernetes_asyncio" not in sys.modules:
        for name in ("kubernetes_asyncio", "kubernetes_asyncio.config", "kubernetes_asyncio.client"):
            spec = importlib.util.find_spec(name)
            if spec is None:
                raise ConfigError(
                    f"the library {name} is not installed; plugins of a kubeconfig cannot be run without it"
                )
            sys.modules[name] = importlib.util.module_from_spec(spec)  # made, and not executed
        client = sys.modules["kubernetes_asyncio.client"]
        configuration = importlib.import_module("kubernetes_asyncio.client.configuration")
        client.__dict__.update(Configuration=configuration.Configuration, ApiClient=None)
    library = importlib.import_module("kubernetes_asyncio.config.kube_config")
    library.FileOrData._create_temp_file_with_content = _in_memory  # its own writes keys to /tmp
    return importlib.import_module("kubernetes_asyncio.client"), library


def _in_memory(_: object, content: str | bytes) -> str:
    return path_of(content.encode() if isinstance(content, str) else content)
