"""An API server on a host of the laboratory, in its own thread. Its objects outlive its restarts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from copy import deepcopy
from typing import Any, Self, TypeVar

from tests.support.apiserver import V1_36, ApiServer, Cluster, Version
from tests.support.apiserver.cluster import KINDS
from tests.support.apiserver.recordings import server_tls
from tests.support.lab import Host
from tests.system.e2e.stage import Object

T = TypeVar("T")

_RESOURCES = {kind.kind: kind.resource for kind in KINDS.values()}


class ApiHost:
    """Serves at `address`; a context manager."""

    def __init__(
        self,
        host: Host,
        *objects: Object,
        address: tuple[str, int] = ("10.2.0.2", 8001),
        version: Version = V1_36,
        tokens: set[str] | None = None,
    ) -> None:
        """With `tokens` it speaks TLS, because a client sends no token in clear text."""
        tls = server_tls() if tokens else None
        self.url = f"{'https' if tls else 'http'}://{address[0]}:{address[1]}"
        self.server = ApiServer(Cluster(), version=version, tokens=tokens, tls=tls)
        self._host = host
        self._address = address
        self._put(objects)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def do(self, act: Callable[[], T]) -> T:
        """Call a function of the server in the server's thread."""

        async def acting() -> T:
            return act()

        return self._wait(acting())

    def start(self) -> None:
        """Listen."""
        self._wait(self.server.start(sock=self._host.listen(self._address)))

    def stop(self) -> None:
        """Close all connections and refuse new ones."""
        self._wait(self.server.stop())

    def put(self, *objects: Object) -> None:
        """Create or change these objects."""
        self.do(lambda: self._put(objects))

    def _put(self, objects: Sequence[Object]) -> None:
        for item in objects:
            self.server.cluster.put(_RESOURCES[item["kind"]], deepcopy(item))

    def delete(self, item: Object) -> None:
        """Remove this object."""
        metadata = item["metadata"]
        self.do(lambda: self.server.cluster.delete(_RESOURCES[item["kind"]], metadata["namespace"], metadata["name"]))

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.stop()
        finally:
            self._end()

    def _run(self) -> None:
        """Run the event loop of the thread. At the end cancel all tasks and close the loop."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
