"""Addresses and address blocks in the configuration, each with its parser (see `value_types`)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import ClassVar, Self

from kubeproxy.model import Address, Family, family_of, parse_address


class IP(str):
    """An IP address in canonical form."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "IP"
    ALLOWED: ClassVar[str] = "an IP address, such as 0.0.0.0, 192.0.2.1 or ::"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse any form of an IPv4 or IPv6 address without zone."""
        return cls(parse_address(text))

    @property
    def address(self) -> Address:
        """Return the address as a type of the model."""
        return Address(str(self))

    @property
    def family(self) -> Family:
        """Return the address's family."""
        return family_of(self.address)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The IP address and port of an HTTP server. Port 0 means no server."""

    NOTATION: ClassVar[str] = "IP:PORT"
    ALLOWED: ClassVar[str] = (
        "an IP address with or without a port up to 65535, such as 127.0.0.1:{port} or [::1]:{port};"
        " port 0 for no server"
    )
    DEFAULT_PORT: ClassVar[int] = 0

    address: Address
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``IP:port``, ``[IPv6]:port``, or an address alone, which gets the default port."""
        if match := re.fullmatch(r"\[([^]]*)](?::(\d{1,5}))?|([^:]*)(?::(\d{1,5}))?", text, re.ASCII):
            address = parse_address(match[1] if match[1] is not None else match[3])
            if (family_of(address) is Family.IPV6) != (match[1] is not None):
                raise ValueError(text)
            digits = match[2] or match[4]
        else:
            address, digits = parse_address(text), None
        port = cls.DEFAULT_PORT if digits is None else int(digits)
        if port > 65535:
            raise ValueError(text)
        return cls(address, port)

    @property
    def served(self) -> bool:
        """Return whether there is a server."""
        return self.port != 0

    @property
    def loopback(self) -> Address:
        """Return the address at which this host reaches the server: its own if it is loopback, and otherwise a loopback
        address."""
        address = ipaddress.ip_address(self.address)
        if address.is_loopback:
            return self.address
        return Address("127.0.0.1" if address.version == 4 else "::1")

    @property
    def is_everywhere(self) -> bool:
        """Return whether the address is the unspecified one, which stands for all addresses of its family."""
        return ipaddress.ip_address(self.address).is_unspecified

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class HealthzAddress(ServerAddress):
    """The address of the health server."""

    __slots__ = ()
    ALLOWED = ServerAddress.ALLOWED.format(port=10256)
    DEFAULT_PORT = 10256


class MetricsAddress(ServerAddress):
    """The address of the metrics server."""

    __slots__ = ()
    ALLOWED = ServerAddress.ALLOWED.format(port=10249)
    DEFAULT_PORT = 10249


class CIDR(str):
    """An address block in canonical form, host bits cleared as Go's ParseCIDR does."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "CIDR"
    ALLOWED: ClassVar[str] = "an address block, such as 10.100.0.0/16 or fde4:8dba:82e1::/48"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``address/bits``."""
        address, slash, bits = text.partition("/")
        if not slash or not (bits.isascii() and bits.isdecimal()):
            raise ValueError(text)
        return cls(ipaddress.ip_network(f"{parse_address(address)}/{int(bits)}", strict=False))


class ClusterCIDR(str):
    """The pods' address block, or one per family separated by a comma. Empty if it is not known."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "CIDR"
    ALLOWED: ClassVar[str] = (
        "an address block or one of each family, such as 10.100.0.0/16 or 10.100.0.0/16,fde4:8dba:82e1::/48"
    )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse one block, two, or an empty text."""
        if not text:
            return cls("")
        blocks = [CIDR.parse(part.strip()) for part in text.split(",")]
        if len(blocks) > 2 or (len(blocks) == 2 and (":" in blocks[0]) == (":" in blocks[1])):
            raise ValueError(text)
        return cls(",".join(blocks))

    @property
    def blocks(self) -> tuple[str, ...]:
        """Return one block, or one per family."""
        return tuple(self.split(",")) if self else ()


class _CIDROrWord(str):
    """An address block, or one of some words."""

    __slots__ = ()
    WORDS: ClassVar[tuple[str, ...]]
    NOTATION: ClassVar[str] = "CIDR"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a block or a word."""
        return cls(text if text in cls.WORDS else CIDR.parse(text))


class NodePortAddress(_CIDROrWord):
    """Node addresses for node ports: an address block, or one of kube-proxy's words."""

    __slots__ = ()
    WORDS = ("primary", "localhost", "all")
    ALLOWED: ClassVar[str] = f"an address block, such as 192.0.2.0/24, or one of {', '.join(WORDS)}"


class DeniedEndpoints(_CIDROrWord):
    """Denied endpoints: an address block, or the word for this node's own addresses."""

    __slots__ = ()
    NODE: ClassVar[str] = "node"
    WORDS = (NODE,)
    ALLOWED: ClassVar[str] = f"an address block, such as 192.0.2.0/24, or the word {NODE}"
