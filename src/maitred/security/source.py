"""Where a login attempt comes from, and the network that limits count it for.

An IPv4 address is one customer of a network, or one translator (NAT) in front of many. An IPv6
customer has at least a /64 and can use any address of it, so attempts are counted by /64.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv6Address, IPv6Network
from typing import Any, Final, NamedTuple

NETWORK_BITS: Final = 64
"""Length of the prefix of an IPv6 address that limits count by: the customer chooses the rest."""

LOCAL: Final = "local"
"""The network of peers that have no address, such as those on a Unix socket."""


class Source(NamedTuple):
    """The other end of a connection that authenticates."""

    host: str
    """The address, as the system reports it; empty if the peer has none."""
    port: int = 0

    @classmethod
    def of(cls, peername: Any) -> Source:  # noqa: ANN401 - as transports tell it
        """Return the source of a connection, given its transport's `peername`."""
        if isinstance(peername, tuple) and len(peername) >= 2:
            return cls(str(peername[0]), int(peername[1]))
        return cls("")

    @property
    def network(self) -> str:
        """The network that limits count for: the IPv4 address, or the /64 of an IPv6 address."""
        host = self.host.partition("%")[0]
        if ":" not in host:
            return host or LOCAL
        try:
            six = IPv6Address(host)
        except AddressValueError:
            return host
        if six.ipv4_mapped is not None:
            return str(six.ipv4_mapped)
        return str(IPv6Network((six, NETWORK_BITS), strict=False))

    def __str__(self) -> str:
        if not self.host:
            return LOCAL
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
