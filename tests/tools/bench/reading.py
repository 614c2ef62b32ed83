"""How long a reading of manifests takes, and how much of it other processes could take over.

``python -m tests.tools.bench.reading``: 10,000 Services with ten endpoints each, in one YAML file; the best of three.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from kubeproxy.kubernetes.manifests.parse import parse
from kubeproxy.kubernetes.manifests.split import split
from kubeproxy.sources.manifests.documents import read
from kubeproxy.sources.manifests.objects import Terms
from tests.tools.bench.clusters import manifest

SERVICES = 10_000
ROUNDS = 3


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall time and CPU time in seconds; the best of `ROUNDS`, each by itself."""
    samples = []
    for _ in range(ROUNDS):
        wall, cpu = time.monotonic(), time.process_time()
        work()
        samples.append((time.monotonic() - wall, time.process_time() - cpu))
    return min(wall for wall, _ in samples), min(cpu for _, cpu in samples)


def main() -> None:
    """Print the figures."""
    text = manifest(range(SERVICES)).encode()
    machine = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    print(f"{SERVICES:,} Services, {len(text):,} bytes of YAML; {machine}")
    wall_s, cpu_s = _timed(lambda: read(text, Terms()))
    print(f"reading, whole:     {wall_s:5.2f} s, {cpu_s:5.2f} CPU s")
    wall_s, cpu_s = _timed(lambda: [parse(document, line) for line, document in split(text)])
    print(f"of it YAML parsing: {wall_s:5.2f} s, {cpu_s:5.2f} CPU s")


if __name__ == "__main__":
    main()
