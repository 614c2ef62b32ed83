"""The example that is installed, which leaves out all that may be left out, is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lab import Network, write_manifest
from tests.system.e2e.stage import TARGET, VIP, Stage

EXAMPLE = Path(__file__).parents[3] / "systemd/etc/manifests/example.yaml.disabled"

pytestmark = pytest.mark.netns


@pytest.mark.parametrize("workers", [0, 1])
def test_it_is_served(stage: Stage, workers: int) -> None:
    text = EXAMPLE.read_text()
    assert VIP in text
    assert str(TARGET) in text
    for pod, address in enumerate(("192.0.2.11", "192.0.2.12")):
        text = text.replace(address, Network.pod_v4(pod))
    write_manifest(stage.manifests / "example.yaml", text)
    stage.daemon(f"--workers={workers}")
    stage.await_answers(0, 1)
