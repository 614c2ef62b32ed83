"""Imports that a start does not wait for."""

from __future__ import annotations

import subprocess
import sys

LATER = (
    "aiohttp",
    "kubernetes_asyncio",
    "rich",
    "pygments",
    "kubeproxy.observability.status.document",
    "iptc",
    "kubeproxy.kubernetes.client.client",
    "kubeproxy.observability.http.server",
)
"""Modules that take long to import, and that the first answer does not need."""


def test_slow_modules_are_not_imported_before_clients_are_served() -> None:
    look = (
        "import sys; from kubeproxy.cli.run import _import_structlog; _import_structlog(); "
        "import kubeproxy.daemon.lifecycle; "
        f"print([name for name in {LATER} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
