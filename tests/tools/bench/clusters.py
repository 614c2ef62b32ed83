"""Generated clusters for an API server or manifests: Services, each with ten endpoints that answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.apiserver.generate import endpoint_slice, service
from tests.support.lab.node import CLIENT_V4
from tests.tools.bench.cpu_pinning import pinned
from tests.tools.bench.stage import Stage

ENDPOINTS = 10
"""The number of endpoints of each Service."""
NETWORK = "10.0.0.0/15"
"""The network of the endpoints."""
PORT = 80
"""The only port of the Services."""
API_PORT = 8001


def address_of(number: int) -> str:
    """The cluster IP of a Service."""
    address: str = service(number)["spec"]["clusterIP"]
    return address


def endpoints_of(number: int) -> list[str]:
    """The ten endpoint addresses of one Service."""
    return [f"10.{i >> 16}.{(i >> 8) & 255}.{i & 255}" for i in range(number * ENDPOINTS, (number + 1) * ENDPOINTS)]


def newcomer(number: int) -> str:
    """An endpoint that no Service has at first."""
    return f"10.1.{250 + number // 250}.{1 + number % 250}"


def spare(number: int) -> str:
    """Another endpoint that no Service has at first, of some 29,000; the same again after these."""
    number %= 116 * 250
    return f"10.1.{140 + number // 250}.{1 + number % 250}"


def slice_of(number: int, addresses: list[str]) -> dict[str, Any]:
    """The EndpointSlice with these addresses, as the API server has it."""
    return endpoint_slice(number, addresses)


def start_apiserver(stage: Stage, *, services: int, endpoints: int = ENDPOINTS, objects: Sequence[Path] = ()) -> str:
    """Start the test API server with so many Services, and the objects in files, on the client's host; its URL."""
    process: subprocess.Popen[str] = stage.client.popen(
        [
            *pinned(stage.cores.load, sys.executable, "-m", "tests.support.apiserver", "--host", CLIENT_V4),
            *("--port", str(API_PORT), "--generate", f"{services}x{endpoints}"),
            *(f"--objects={path}" for path in objects),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    if not url:
        raise AssertionError("the API server did not start")
    return url


def write_manifests(directory: Path, *, services: int, per_file: int = 100) -> int:
    """Write the same Services and slices as YAML files; their size in bytes."""
    directory.mkdir()
    size = 0
    for first in range(0, services, per_file):
        text = manifest(range(first, min(first + per_file, services)))
        size += (directory / f"services-{first:05}.yaml").write_text(text)
    return size


def manifest(numbers: range) -> str:
    """These Services and their slices as YAML."""
    text: str = yaml.dump_all(list(_documents(numbers)), Dumper=yaml.CSafeDumper, sort_keys=False)
    return text


def _documents(numbers: range) -> Iterator[dict[str, Any]]:
    for number in numbers:
        yield {"apiVersion": "v1", "kind": "Service", **service(number)}
        found = slice_of(number, endpoints_of(number))
        yield {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", **found}
