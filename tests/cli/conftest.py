"""No test of a command line may reach the machine that it runs on, whatever is broken."""

from __future__ import annotations

import pytest

from kubeproxy.daemon import lifecycle
from kubeproxy.netfilter import cleanup


@pytest.fixture(autouse=True)
def _out_of_reach(monkeypatch: pytest.MonkeyPatch, logging_restored: None) -> None:
    def refuse(*args: object, **kwargs: object) -> int:
        raise AssertionError("a test would have started the daemon, or changed the packet filter of this machine")

    monkeypatch.setattr(lifecycle, "run", refuse)
    monkeypatch.setattr(cleanup, "cleanup_all", refuse)
