"""A small DNS server of the cluster, on UDP and TCP port 53: `python -m tests.system.cluster.dns ADDRESS KUBECONFIG`.

It answers A questions for Services, headless Services and ExternalName from the API server. Every question asks the API
server anew: without a cache nothing is late.
"""

from __future__ import annotations

import http.client
import json
import socket
import socketserver
import ssl
import struct
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tests.system.cluster.layout import API_PORT, DOMAIN, SWITCH

SUFFIX: Final = f".svc.{DOMAIN}"
_NO_SUCH_NAME: Final = 3
_SERVER_FAILURE: Final = 2
_A: Final = 1
_CNAME: Final = 5


class Reader(Protocol):
    """What answers a GET of the API server: the object, or None if there is none."""

    def __call__(self, path: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class Found:
    """The records of a name."""

    addresses: tuple[str, ...]
    alias: str | None = None
    """The canonical name behind an ExternalName."""


def resolve(name: str, get: Reader) -> Found | None:
    """Return the records of SERVICE.NAMESPACE.svc… or HOST.SERVICE.NAMESPACE.svc…, or None if there is no such name."""
    labels = name.removesuffix(SUFFIX).split(".")
    if not name.endswith(SUFFIX) or len(labels) not in (2, 3):
        return None
    service, namespace = labels[-2:]
    found = get(f"/api/v1/namespaces/{namespace}/services/{service}")
    if found is None:
        return None
    spec = found["spec"]
    if spec.get("type") == "ExternalName":
        alias = str(spec["externalName"]).rstrip(".")
        behind = resolve(alias, get)
        return Found(behind.addresses if behind else (), alias)
    if spec.get("clusterIP") != "None":
        return Found(tuple(ip for ip in spec["clusterIPs"] if ":" not in ip))
    selector = f"labelSelector=kubernetes.io/service-name={service}"
    slices = get(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{selector}") or {"items": []}
    endpoints = [it for each in slices["items"] if each["addressType"] == "IPv4" for it in each.get("endpoints") or ()]
    ready = [it for it in endpoints if it.get("conditions", {}).get("ready") is not False]
    named = [it for it in ready if len(labels) == 2 or it.get("hostname") == labels[0]]
    return Found(tuple(address for it in named for address in it["addresses"]))


def answer(query: bytes, get: Reader) -> bytes:
    """Return the answer to one DNS message."""
    ident, flags = struct.unpack("!HH", query[:4])
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace"))
        at += 1 + query[at]
    (kind,) = struct.unpack("!H", query[at + 1 : at + 3])
    question = query[12 : at + 5]
    try:
        found, code = resolve(".".join(labels).lower(), get), 0
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer for {labels}: {error!r}", flush=True)
        found, code = None, _SERVER_FAILURE
    records: list[bytes] = []
    if found is None:
        code = code or _NO_SUCH_NAME
    else:
        owner = b"\xc0\x0c"  # the name of the question
        if found.alias is not None:
            target = _encoded(found.alias)
            records.append(_record(owner, _CNAME, target))
            owner = target
        if kind == _A:
            records += [_record(owner, _A, socket.inet_aton(address)) for address in found.addresses]
    header = struct.pack("!HHHHHH", ident, 0x8580 | (flags & 0x0100) | code, 1, len(records), 0, 0)
    return header + question + b"".join(records)


def _record(owner: bytes, kind: int, data: bytes) -> bytes:
    return owner + struct.pack("!HHIH", kind, 1, 0, len(data)) + data


def _encoded(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


class ApiServer(threading.local):
    """Reads objects, with a connection for each thread."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        self._tls = ssl.create_default_context(cafile=config["clusters"][0]["cluster"]["certificate-authority"])
        user = config["users"][0]["user"]
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])

    def __call__(self, path: str) -> Any:
        connection = http.client.HTTPSConnection(SWITCH, API_PORT, context=self._tls, timeout=5)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            body = reply.read()
        finally:
            connection.close()
        return json.loads(body) if reply.status == 200 else None


def main(address: str, kubeconfig: str) -> None:
    """Serve until the process is ended."""
    get = ApiServer(Path(kubeconfig))

    class Udp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, sock = self.request
            sock.sendto(answer(data, get), self.client_address)

    class Tcp(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while head := self.rfile.read(2):
                reply = answer(self.rfile.read(struct.unpack("!H", head)[0]), get)
                self.wfile.write(struct.pack("!H", len(reply)) + reply)

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    tcp = socketserver.ThreadingTCPServer((address, 53), Tcp)
    threading.Thread(target=tcp.serve_forever, daemon=True).start()
    socketserver.ThreadingUDPServer((address, 53), Udp).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
