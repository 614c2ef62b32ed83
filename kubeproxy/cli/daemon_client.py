"""Sends HTTP requests of commands to the metrics server of a running daemon."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from kubeproxy.config.address_types import HealthzAddress, MetricsAddress
from kubeproxy.config.load import read_partly
from kubeproxy.config.schema import Configuration
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.model.printable import printable
from kubeproxy.netfilter.conntrack import usage
from kubeproxy.runtime.output import echo

T = TypeVar("T")

TIMEOUT_S = 10.0
INSTALLED = "/etc/kubeproxy/config.yaml"
"""The path of an installed daemon's configuration file."""
KUBE_PROXY_MODES = ("iptables", "ipvs", "nftables", "userspace")
"""The modes that kube-proxy's page /proxyMode may show."""
REFUSED = (403, 421)
"""The HTTP statuses if the daemon does not serve a page to this client or under this host name. The body says why."""

ADDRESS = click.option(
    "--address", metavar="HOST:PORT", default="", help="Address of the daemon's metrics server.  [metricsBindAddress]"
)
CONFIG = click.option(
    "--config",
    metavar="FILE",
    default="",
    help=f"The daemon's configuration file, which has that address.  [{INSTALLED}]",
)


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon, given by the address of its metrics server."""

    host: str
    port: int

    def get(self, path: str) -> bytes:
        """Request a page, and return the body of the answer. Raise KubeproxyError if the daemon does not answer, and
        ConfigError if it refuses the request."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) and (room := usage.look()) is not None and room.is_full:
                raise KubeproxyError(
                    f"no answer from {self}: connection tracking of this node is full ({room.entries} entries of"
                    f" {room.limit}), so the kernel drops new connections, this one, too; raise"
                    " net.netfilter.nf_conntrack_max"
                ) from error
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise KubeproxyError(
                f"no daemon answers at {self}: {reason}; check that it runs on this host and that "
                "this is its metricsBindAddress; give another one with --address or --config"
            ) from error
        finally:
            connection.close()
        if not (answer.getheader("Server") or "").startswith("kubeproxy"):
            raise KubeproxyError(f"{self._stranger()} answers at {self}; give kubeproxy's own address by --address")
        if answer.status == 400:
            raise ConfigError(body.decode(errors="replace").strip())
        if answer.status in REFUSED:
            raise KubeproxyError(f"{self} refuses {path.partition('?')[0]}: {body.decode(errors='replace').strip()}")
        if answer.status != 200:
            raise KubeproxyError(
                f"{self} answered {answer.status} to {path.partition('?')[0]}: it is no kubeproxy of this version"
            )
        return body

    def _stranger(self) -> str:
        """Return a text that says which program answers instead of the daemon. During a migration it may be
        kube-proxy."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/proxyMode", headers={"Connection": "close"})
            mode = connection.getresponse().read(32).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            mode = ""
        finally:
            connection.close()
        return f"kube-proxy (mode {mode})" if mode in KUBE_PROXY_MODES else "another program"

    def ask(self, path: str, answer: type[T]) -> T:
        """Request a page, and return its JSON decoded to the type `answer`. Raise the errors of `get`, and
        KubeproxyError if the JSON does not match the type."""
        return decode(self.get(path), answer)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def decode(body: bytes, answer: type[T]) -> T:
    """Decode a daemon's JSON to the type `answer`. Raise KubeproxyError if it does not match, perhaps because the
    daemon has another version."""
    try:
        return msgspec.convert(_printable(msgspec.json.decode(body)), answer)
    except msgspec.DecodeError as error:
        raise KubeproxyError(
            f"the answer is not of a kubeproxy of this version ({error}); use the command of the daemon's version"
        ) from error


def _printable(value: Any) -> Any:
    """Return a JSON value with all strings made safe for a terminal. This has to be done before columns are aligned."""
    match value:
        case str():
            return printable(value)
        case list():
            return [_printable(each) for each in value]
        case dict():
            return {printable(key): _printable(each) for key, each in value.items()}
        case _:
            return value


def daemon_at(address: str, config: str) -> Daemon:
    """Return the daemon at the address of --address, or else of the configuration file, or else at the default address.
    Raise ConfigError for an invalid address or file."""
    if address:
        return _parse(address)
    bound = _bound(config)
    if not bound.served:
        raise ConfigError(f"metricsBindAddress: found {bound}: the daemon serves no metrics, and so no status")
    return Daemon(bound.loopback, bound.port)  # Only the loopback address always serves the status.


def _bound(config: str) -> MetricsAddress:
    settings, path, faults = _settings(config)
    if faults:
        echo(f"warning: {path}: {'; '.join(faults)}", err=True)
    bound: MetricsAddress = settings.get("metricsBindAddress", Configuration().metrics_bind_address)
    return bound


def health_address(config: str) -> str:
    """Return the address of the daemon's health server as HOST:PORT, or an empty text if the server is off."""
    default = Configuration().healthz_bind_address
    bound: HealthzAddress = _settings(config)[0].get("healthzBindAddress", default)
    return str(Daemon(bound.loopback, bound.port)) if bound.served else ""


def _settings(config: str) -> tuple[Mapping[str, Any], Path, Sequence[str]]:
    """Return the settings of a configuration file, its path, and its faults. An invalid file is read as far as
    possible, because its faults may be the reason why the user wants the status."""
    path = Path(config or INSTALLED)
    if not config and not os.access(path, os.R_OK):
        return {}, path, ()
    settings, faults = read_partly(path)
    return settings, path, faults


def _parse(text: str) -> Daemon:
    try:
        parsed = MetricsAddress.parse(text)
    except ValueError:
        host, _, port = text.rpartition(":")
        if not host or ":" in host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise ConfigError(
                f"--address: found {json.dumps(text)}; allowed: HOST:PORT, such as 127.0.0.1:10249 or [::1]:10249"
            ) from None
        return Daemon(host, int(port))
    return Daemon(parsed.loopback if parsed.is_everywhere else parsed.address, parsed.port)
