"""The address at which gateways reach a worker; the worker announces it, the node passes it on.

The text is `HOST:PORT` or, if the worker's listener speaks TLS, `HOST:PORT#FINGERPRINT`. The
fingerprint is the SHA-256 of the listener's certificate in DER form, in hexadecimal. The host is an
IP address, so that no gateway resolves a name that a third party controls. Between a worker and its
node it may be missing (`:PORT`): the node fills in the address that the worker's connection comes
from.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from maitred.errors import InvalidAddress

FINGERPRINT_BYTES: Final = 32
PORT_MAX: Final = 65_535

IpAddress = IPv4Address | IPv6Address


class WorkerAddress(NamedTuple):
    """The address of one worker's listener."""

    host: str
    """An IP address; empty if the node is to fill it in."""
    port: int
    fingerprint: bytes = b""
    """The SHA-256 of the listener's certificate; empty if the listener speaks plain frames."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        pin = f"#{self.fingerprint.hex()}" if self.fingerprint else ""
        return f"{host}:{self.port}{pin}"


def parse_worker_address(text: str) -> WorkerAddress:
    """Parse an announced address; raise `InvalidAddress` unless it is valid."""
    place, mark, pin = text.partition("#")
    host, colon, port = place.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        fingerprint = bytes.fromhex(pin)
        number = int(port) if port.isascii() and port.isdigit() else 0
        if host:
            host = str(comparable(host))
    except ValueError:
        raise _no_address(text) from None
    if not colon or not 1 <= number <= PORT_MAX:
        raise _no_address(text)
    if len(fingerprint) != (FINGERPRINT_BYTES if mark else 0):
        raise _no_address(text)
    return WorkerAddress(host, number, fingerprint)


def comparable(host: str) -> IpAddress:
    """Return the IP address, with an IPv4-mapped IPv6 address as the IPv4 address; raise
    `ValueError` unless the text is an IP address."""
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _no_address(text: str) -> InvalidAddress:
    return InvalidAddress(
        f"{text[:80]!r} is not a worker's address.",
        remedy="A worker announces IP:PORT, or IP:PORT#FINGERPRINT if its listener speaks TLS.",
    )
