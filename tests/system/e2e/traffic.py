"""Traffic that goes on in the background while something happens."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Self

from tests.support.lab import Host
from tests.system.e2e.stage import VIP, ask


class Traffic:
    """Asks a service again and again, on a new connection each time, from several threads; a context manager.

    Every answer is checked: it must be the whole name of a backend. Failures are kept with the time since the start.
    """

    def __init__(self, host: Host, address: tuple[str, int] = (VIP, 80), *, threads: int = 4, pause_s: float = 0.005):
        self._host = host
        self._address = address
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(threads)]
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []

    def _ask(self) -> None:
        while not self._stop.wait(self._pause_s):
            began = time.monotonic() - self._started
            try:
                seen = ask(self._host, self._address)
                failure = "" if seen.startswith("pod-") and len(seen) == 5 else f"answered {seen!r}"
            except OSError as error:
                seen, failure = "", repr(error)
            with self._lock:
                if failure:
                    self.failures.append(f"{began:.3f} s to {time.monotonic() - self._started:.3f} s: {failure}")
                else:
                    self.answers[seen] += 1

    @property
    def count(self) -> int:
        """Answers so far."""
        return self.answers.total()

    def more(self, count: int = 20, *, within_s: float = 30.0) -> None:
        """Back when so many more have been answered, or something failed."""
        wanted, deadline = self.count + count, time.monotonic() + within_s
        while self.count < wanted and not self.failures:
            assert time.monotonic() < deadline, f"{count} more answers did not come within {within_s} s"
            time.sleep(0.005)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
