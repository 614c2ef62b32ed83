"""A server to write to, and the command against it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kubeproxy.commands.create.command import create
from kubeproxy.commands.create.options import CreateOptions
from kubeproxy.commands.create.report import Report
from kubeproxy.kubernetes.client.kubeconfig import Overrides
from tests.support.apiserver import ApiServer, command_cluster


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """As kube-apiserver 1.36."""
    async with ApiServer(command_cluster(), tokens={"good"}) as found:
        yield found


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run came to."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Of standard output."""
        return self.out.splitlines()


Run = Callable[..., Awaitable[Ran]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command with a text for its file (or `filenames`), in this process."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    async def runs(
        server: ApiServer, text: str | bytes = b"", *, client: dict[str, Any] | None = None, **more: Any
    ) -> Ran:
        path = tmp_path / "it.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        settings: dict[str, Any] = {"filenames": (str(path),), "cache_directory": str(tmp_path / "cache")} | more
        options = CreateOptions(
            client=Overrides(**({"server": server.url, "token": "good"} | (client or {}))), **settings
        )
        out, err = io.StringIO(), io.StringIO()
        status = await create(options, Report(progress=False, out=out, err=err))
        return Ran(status, out.getvalue(), err.getvalue().replace(f"{tmp_path}/", ""))

    return runs


def config_map(name: str, **more: Any) -> str:
    """One as a YAML document in braces, with a separator before it."""
    import json

    metadata = {"name": name} | more.pop("metadata", {})
    return "---\n" + json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata} | more) + "\n"
