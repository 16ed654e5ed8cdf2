"""Checks the addresses that workers announce, so that no worker can make gateways dial any host.

Gateways dial the address that a worker announces. By default a worker may announce only the address
from which it connects to the node. An operator can allow more networks.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING

from maitred.errors import PermissionDenied
from maitred.node.request_table import RequestTable
from maitred.protocol.frames import Opcode
from maitred.protocol.worker_address import WorkerAddress, comparable, parse_worker_address

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from maitred.node.request_origin import RequestOrigin
    from maitred.protocol.queries import Attend
    from maitred.protocol.shared_offers import OfferMany
    from maitred.protocol.tasks import Offer
    from maitred.settings import WorkerAddresses


class Announced:
    """Checks and completes the addresses in OFFER, OFFER_MANY and ATTEND at the shard that receives
    them."""

    def __init__(self, settings: WorkerAddresses) -> None:
        self._settings = settings
        self._networks = [ip_network(one, strict=False) for one in settings.networks]
        opcodes = (Opcode.OFFER, Opcode.OFFER_MANY, Opcode.ATTEND)
        self.requests = RequestTable(admissions=dict.fromkeys(opcodes, self._admit))

    def _admit(self, message: Offer | OfferMany | Attend, connection: RequestOrigin) -> None:
        announced = message.address
        if not announced:
            return
        known = connection.announced
        if known is None or known[0] != announced:
            seen = connection.peer_host
            # Without a host the connection has been closed, and no gateway is told the address.
            told = admitted(announced, seen, self._networks, self._settings) if seen else ""
            connection.announced = known = (announced, told)
        message.address = known[1]


def admitted(
    announced: str,
    seen: str,
    networks: list[IPv4Network | IPv6Network],
    settings: WorkerAddresses,
) -> str:
    """Return the address that gateways are told, for a worker whose connection comes from `seen`.

    It is empty, and the node relays the worker's queries, if only the worker's own machine could
    reach it. Raise `PermissionDenied` for an address that the worker may not announce, and
    `InvalidAddress` for text that is not an address.
    """
    address = parse_worker_address(announced)
    origin = comparable(seen)
    host = comparable(address.host) if address.host else origin
    if host.is_unspecified or host.is_multicast:
        raise PermissionDenied(
            f"A worker announced {host}, which is no address of one machine.",
            remedy="Listen at an address of the worker's machine, or at all with --listen 0.0.0.0.",
        )
    own = host == origin or (host.is_loopback and origin.is_loopback)
    if not own and not any(host in network for network in networks):
        if host.is_loopback:
            return ""
        raise PermissionDenied(
            f"A worker whose connection comes from {origin} may not announce the address {host}.",
            remedy=f"Start it with --listen {origin} or --listen 0.0.0.0, or add the network of "
            f"{host} to the node's setting worker_addresses.networks.",
        )
    if address.port < settings.lowest_port:
        raise PermissionDenied(
            f"A worker may not announce the port {address.port}; {settings.lowest_port} is the "
            "lowest.",
            remedy="Choose another --listen-port, or lower worker_addresses.lowest_port.",
        )
    return str(WorkerAddress(str(host), address.port, address.fingerprint))
