"""The test API server as a program, with its control endpoint."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.support.apiserver.generate import endpoint_slice, service


@asynccontextmanager
async def program(*arguments: str) -> AsyncIterator[str]:
    """The URL of a running server."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.apiserver", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            yield (await process.stdout.readline()).decode().strip()
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ask(session: aiohttp.ClientSession, url: str, body: Any = None) -> tuple[int, Any]:
    async with session.request("GET" if body is None else "POST", url, json=body) as response:
        return response.status, await response.json(content_type=None)


async def test_a_program_with_a_control_endpoint(tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text(
        yaml.safe_dump_all([{"kind": "Service", **service(5)}, {"kind": "EndpointSlice", **endpoint_slice(5, [])}])
    )
    (tmp_path / "more.json").write_text(json.dumps({"kind": "ServiceList", "items": [service(6)]}))
    files = ("--objects", str(tmp_path / "some.yaml"), "--objects", str(tmp_path / "more.json"))
    async with program("--generate", "3x2", *files) as url, aiohttp.ClientSession() as session:
        _, found = await ask(session, f"{url}/api/v1/services")
        names = [item["metadata"]["name"] for item in found["items"]]
        assert names == ["service-0", "service-1", "service-2", "service-5", "service-6"]
        status, _ = await ask(session, f"{url}/_control/put", {"resource": "services", "objects": [service(8)]})
        assert status == 200
        gone = {"resource": "services", "namespace": "demo", "name": "service-0"}
        assert (await ask(session, f"{url}/_control/delete", gone))[0] == 200
        assert (await ask(session, f"{url}/_control/delete", gone))[0] == 400
        _, found = await ask(session, f"{url}/api/v1/services")
        assert len(found["items"]) == 5
        await ask(session, f"{url}/_control/fault", {"status": 503, "path": "/api/v1/services", "times": 1})
        assert (await ask(session, f"{url}/api/v1/services"))[0] == 503
        assert (await ask(session, f"{url}/api/v1/services"))[0] == 200
        assert (await ask(session, f"{url}/_control/fault", {"kind": "nonsense"}))[0] == 400
        assert (await ask(session, f"{url}/_control/nonsense", {}))[0] == 404
        _, state = await ask(session, f"{url}/_control/state")
        assert state["requests"]["list services"] == 4
