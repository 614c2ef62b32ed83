"""Keeps tests of command lines from changing the machine, even if the code is wrong."""

from __future__ import annotations

import pytest

from kubeproxy.daemon import control_process
from kubeproxy.netfilter import cleanup


@pytest.fixture(autouse=True)
def _out_of_reach(monkeypatch: pytest.MonkeyPatch, logging_restored: None) -> None:
    def refuse(*args: object, **kwargs: object) -> int:
        raise AssertionError("a test tried to start the daemon or to change the packet filter of this machine")

    monkeypatch.setattr(control_process, "run", refuse)
    monkeypatch.setattr(cleanup, "cleanup_all", refuse)
