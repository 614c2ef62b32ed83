"""The types of addresses and address blocks in the configuration, each with its parser (see `value_types`)."""

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
        """Parse an IPv4 or IPv6 address in any notation, without zone. Raise ValueError if the text is invalid."""
        return cls(parse_address(text))

    @property
    def address(self) -> Address:
        """Return the address as a `model.address.Address`."""
        return Address(str(self))

    @property
    def family(self) -> Family:
        """Return the address's family."""
        return family_of(self.address)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The IP address and port of an HTTP server. With port 0, the server is off."""

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
        """Parse ``IP:port``, ``[IPv6]:port``, or an address without port, which gets the default port. Raise ValueError
        if the text is invalid."""
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
        """Return whether the server is on."""
        return self.port != 0

    @property
    def loopback(self) -> Address:
        """Return the address at which this host reaches the server: the server's address if it is a loopback address,
        and otherwise the loopback address of its family."""
        address = ipaddress.ip_address(self.address)
        if address.is_loopback:
            return self.address
        return Address("127.0.0.1" if address.version == 4 else "::1")

    @property
    def is_everywhere(self) -> bool:
        """Return whether the server listens on all addresses, because its address is the unspecified address."""
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
    """An address block in canonical form. Like Go's ParseCIDR, it has no host bits."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "CIDR"
    ALLOWED: ClassVar[str] = "an address block, such as 10.100.0.0/16 or fde4:8dba:82e1::/48"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``address/bits``. Raise ValueError if the text is invalid."""
        address, slash, bits = text.partition("/")
        if not slash or not (bits.isascii() and bits.isdecimal()):
            raise ValueError(text)
        return cls(ipaddress.ip_network(f"{parse_address(address)}/{int(bits)}", strict=False))


class ClusterCIDR(str):
    """The address block of the cluster's pods, or one block of each family, separated by a comma. It is empty if the
    block is unknown."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "CIDR"
    ALLOWED: ClassVar[str] = (
        "an address block or one of each family, such as 10.100.0.0/16 or 10.100.0.0/16,fde4:8dba:82e1::/48"
    )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse one block, two blocks, or an empty text. Raise ValueError if the text is invalid."""
        if not text:
            return cls("")
        blocks = [CIDR.parse(part.strip()) for part in text.split(",")]
        if len(blocks) > 2 or (len(blocks) == 2 and (":" in blocks[0]) == (":" in blocks[1])):
            raise ValueError(text)
        return cls(",".join(blocks))

    @property
    def blocks(self) -> tuple[str, ...]:
        """Return the blocks: none, one, or one of each family."""
        return tuple(self.split(",")) if self else ()


class _CIDROrWord(str):
    """An address block, or one of the words in `WORDS`."""

    __slots__ = ()
    WORDS: ClassVar[tuple[str, ...]]
    NOTATION: ClassVar[str] = "CIDR"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a block or a word. Raise ValueError if the text is neither."""
        return cls(text if text in cls.WORDS else CIDR.parse(text))


class NodePortAddress(_CIDROrWord):
    """The node addresses that serve node ports, as an address block or one of kube-proxy's words."""

    __slots__ = ()
    WORDS = ("primary", "localhost", "all")
    ALLOWED: ClassVar[str] = f"an address block, such as 192.0.2.0/24, or one of {', '.join(WORDS)}"


class DeniedEndpoints(_CIDROrWord):
    """The addresses of denied endpoints, as an address block or the word for this node's addresses."""

    __slots__ = ()
    NODE: ClassVar[str] = "node"
    WORDS = (NODE,)
    ALLOWED: ClassVar[str] = f"an address block, such as 192.0.2.0/24, or the word {NODE}"
