"""The certificate of a server: from files that may be replaced at any time, or self-signed and kept in memory."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from kubeproxy.model.errors import ConfigError

CHECK_S: Final = 10.0
"""The number of seconds between two checks of the files."""
SELF_SIGNED_DAYS: Final = 365
"""For how many days the self-signed certificate is valid, as with kube-controller-manager. Each start makes a new
one."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The paths of PEM files, which may be empty."""

    certificate: str = ""
    """The server's certificate followed by its chain. If the path is empty, a self-signed certificate is made in
    memory."""
    key: str = ""
    client_ca: str = ""
    """The CA certificates for client certificates. If the path is empty, clients are not asked for certificates."""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            given = f"--tls-cert-file is {self.certificate!r}, --tls-private-key-file {self.key!r}"
            raise ConfigError(f"{given}; allowed: both or none")


class ServingTls:
    """The TLS context of a server. New handshakes use replaced files within `CHECK_S`."""

    def __init__(self, files: TlsFiles, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Load the files. Raise ConfigError if one cannot be used."""
        self._files = files
        self._clock = clock
        self._context = self._load()
        self._stamp = self._stamps()
        self._checked_at = clock()

    def context(self) -> ssl.SSLContext:
        """Return the context for the next handshake. If a file has become unusable, log that and use the files as they
        were before."""
        now = self._clock()
        if now - self._checked_at >= CHECK_S:
            self._checked_at = now
            stamp = self._stamps()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._context = self._load()
                except ConfigError as error:
                    log.warning("TLS files cannot be used", error=str(error), remedy="the earlier ones stay in use")
                else:
                    log.info("TLS files loaded", certificate=self._files.certificate, client_ca=self._files.client_ca)
        return self._context

    def _load(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if files.certificate:
            try:
                context.load_cert_chain(files.certificate, files.key)
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"--tls-cert-file {files.certificate}, --tls-private-key-file {files.key}: {error}"
                ) from error
        else:
            _load_self_signed(context)
        if files.client_ca:
            try:
                context.load_verify_locations(files.client_ca)
            except (OSError, ValueError) as error:
                raise ConfigError(f"--client-ca-file {files.client_ca}: {error}") from error
            context.verify_mode = ssl.CERT_OPTIONAL
            # As in Go, the CA in the file need not be a root CA.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    def _stamps(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self._files.certificate, self._files.key, self._files.client_ca))


def _stamp(path: str) -> tuple[int, int] | None:
    """Return a value that changes with the file, even if a link in its path is replaced, as in a mounted Secret."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _load_self_signed(context: ssl.SSLContext) -> None:
    """Load a new self-signed certificate for this host's names and loopback addresses. Its key is never written to
    disk."""
    import ipaddress
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    host = socket.gethostname()[:64] or "localhost"
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    names: list[x509.GeneralName] = [x509.DNSName(dns_name) for dns_name in dict.fromkeys((host, "localhost"))]
    names += [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    descriptor = os.memfd_create("serving")  # ssl accepts only paths.
    with open(descriptor, "wb") as file:
        file.write(secret + certificate.public_bytes(pem))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
