"""Holds the configuration in force. It is created first, so that every part reads the configuration from it and sees a
reload at once."""

from __future__ import annotations

import time
from collections.abc import Callable

from kubeproxy.config.schema import Configuration
from kubeproxy.model.errors import ConfigError
from kubeproxy.observability.picture import ConfigurationState
from kubeproxy.runtime.threads import in_thread


class CurrentConfiguration:
    """The configuration in force, and how it differs from the file on disk. `Reloader` replaces both."""

    def __init__(self, value: Configuration, read: Callable[[], Configuration], *, file: str = "") -> None:
        """`read` reads the configuration again, from `file` and the flags. It raises ConfigError if the configuration
        is faulty."""
        self.value = value
        self.state = ConfigurationState(file, time.time())
        self._read = read

    async def read(self) -> Configuration:
        """Read the configuration from disk. Raise ConfigError if it is faulty."""
        return await in_thread(self._read)

    async def why_unusable(self) -> str | None:
        """Return why the configuration on disk cannot be used, or None if it can be used."""
        try:
            await self.read()
        except ConfigError as error:
            return "; ".join(error.faults)
        return None
