"""The test API server as a program: ``python -m tests.support.apiserver --port 8001 --generate 10000x10``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.apiserver.cluster import KINDS, Cluster
from tests.support.apiserver.generate import fill
from tests.support.apiserver.server import ApiServer
from tests.support.apiserver.version import VERSIONS


def load(cluster: Cluster, path: Path) -> None:
    """Put a file's objects (JSON or YAML, lists flattened) into a cluster."""
    text = path.read_text()
    documents: list[Any] = [json.loads(text)] if path.suffix == ".json" else list(yaml.safe_load_all(text))
    resources = {kind.kind: kind.resource for kind in KINDS.values()}
    while documents:
        item = documents.pop(0)
        if not item:
            continue
        if "items" in item:
            kind = str(item.get("kind", "")).removesuffix("List")
            documents.extend({"kind": kind, **each} for each in item["items"])
        else:
            item.setdefault("metadata", {}).setdefault("namespace", "default")
            cluster.put(resources[item["kind"]], item)


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    cluster = Cluster()
    if arguments.generate:
        services, _, each = arguments.generate.partition("x")
        fill(cluster, services=int(services), endpoints_each=int(each or 1))
    for path in arguments.objects:
        load(cluster, path)
    server = ApiServer(
        cluster,
        version=VERSIONS[arguments.version],
        tokens=set(arguments.token) or None,
        bookmark_s=arguments.bookmark_seconds,
    )
    server.keep_requests = False
    await server.start(arguments.host, arguments.port)
    print(server.url, flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await server.stop()


def main() -> int:
    """Run the server; print its URL once it listens."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.apiserver", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any")
    parser.add_argument("--version", choices=sorted(VERSIONS), default="v1.36")
    parser.add_argument("--objects", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--generate", metavar="SERVICESxENDPOINTS", help="such as 10000x10")
    parser.add_argument("--token", action="append", default=[], help="admit only requests with one of these")
    parser.add_argument("--bookmark-seconds", type=float, default=60.0)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
