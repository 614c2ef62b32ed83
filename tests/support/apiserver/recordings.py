"""Recorded exchanges and watch streams of kube-apiserver 1.36.2 and 1.20.2.

Under ``data/``: ``NAME.json`` is an exchange (or its ``pages``), managedFields left out; ``NAME.ndjson`` the body of a
watch, byte for byte, with ``NAME.meta.json`` beside it. The key under ``data/tls`` was made for these tests alone.
"""

from __future__ import annotations

import gzip
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
TLS = DATA / "tls"


@dataclass(frozen=True)
class Exchange:
    """One request and its answer; status 0: the connection was closed without one."""

    name: str
    path: str
    request_headers: Mapping[str, str]
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Stream:
    """A watch's answer."""

    name: str
    path: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool
    """Whether the stream was cut off."""

    @property
    def lines(self) -> list[bytes]:
        """The lines, without line ends."""
        return self.body.splitlines()


def exchanges(pattern: str) -> list[Exchange]:
    """The single exchanges in matching files."""
    files = sorted(path for path in DATA.glob(pattern) if ".json" in path.name and ".meta." not in path.name)
    found = [exchange(str(path.relative_to(DATA))) for path in files]
    return [one for one in found if one is not None]


@cache
def exchange(name: str) -> Exchange | None:
    """The exchange in a file; None if it holds several, or no HTTP exchange."""
    loaded = _load(name)
    return _exchange(name, loaded) if "status" in loaded else None


def pages(name: str) -> list[Exchange]:
    """The pages of a list, in order."""
    return [_exchange(name, page) for page in _load(name)["pages"]]


def streams(pattern: str) -> list[Stream]:
    """The watches in matching files."""
    return [stream(str(path.relative_to(DATA))) for path in sorted(DATA.glob(pattern)) if ".ndjson" in path.name]


@cache
def stream(name: str) -> Stream:
    """The watch in a file like ``v1.36/watch/services.ndjson``."""
    meta = json.loads((DATA / f"{name.removesuffix('.gz').removesuffix('.ndjson')}.meta.json").read_text())
    how = str(meta["end"]["how"])
    return Stream(name, meta["request"]["path"], meta["status"], meta["headers"], _read(name), "no-terminating" in how)


def _load(name: str) -> Any:
    return json.loads(_read(name))


def _read(name: str) -> bytes:
    body = (DATA / name).read_bytes()
    return gzip.decompress(body) if name.endswith(".gz") else body


def _exchange(name: str, loaded: Mapping[str, Any]) -> Exchange:
    if "body" in loaded:
        body = json.dumps(loaded["body"], separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    else:
        body = str(loaded.get("bodyText", "")).encode()
    request = loaded["request"]
    return Exchange(
        name, request["path"], request.get("headers") or {}, loaded["status"] or 0, loaded.get("headers") or {}, body
    )


def server_tls() -> ssl.SSLContext:
    """The context of a server with the certificate that the recordings bring."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.crt", TLS / "server.key")
    return context
