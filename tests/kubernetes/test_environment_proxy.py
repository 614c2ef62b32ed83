"""Which servers are asked by the environment's proxy."""

from __future__ import annotations

import pytest

from kubeproxy.kubernetes.environment_proxy import environment_proxy

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("", "https://10.96.0.1:443", False),
        ("", "https://api.example:6443", False),
        ("", "https://127.0.0.1:6443", True),
        ("", "https://[::1]:6443", True),
        ("", "https://localhost:6443", True),
        ("*", "https://10.96.0.1", True),
        ("10.96.0.0/12,.svc", "https://10.96.0.1:443", True),
        ("10.96.0.0/12,.svc", "https://10.112.0.1:443", False),
        ("10.96.0.0/12,.svc", "https://kubernetes.default.svc", True),
        (".example", "https://api.example:6443", True),
        ("api.example:6443", "https://api.example:6443", True),
        ("api.example:6443", "https://api.example", False),
        ("10.0.0.1", "https://10.0.0.1:6443", True),
        ("10.0.0.1:443", "https://10.0.0.1", True),
        ("10.0.0.1:6443", "https://10.0.0.1", False),
        ("10.0.0.1", "https://10.0.0.11", False),
        ("fd00::/8", "https://[fd00::1]:6443", True),
        ("[fd00::1]:6443", "https://[fd00::1]:6443", True),
        ("10.0.0.1:x, fd00::zz,,", "https://10.0.0.1", False),
    ],
)
def test_which_servers_are_asked_directly(
    no_proxy: str, url: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", PROXY)
    monkeypatch.setenv("no_proxy", no_proxy)
    assert environment_proxy(url) == (None if direct else PROXY)
