"""The address that a node announces to its cluster: where clients and other nodes reach it."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import InvalidName, InvalidSetting
from maitred.routing.names import check_host

if TYPE_CHECKING:
    from maitred.settings import Node

_FORM: Final = re.compile(
    r"\[(?P<six>[^\[\]]*)\](:(?P<six_port>.*))?|(?P<name>[^:\[\]]*)(:(?P<port>[^:]*))?", re.DOTALL
)
_HOST_NAME: Final = re.compile(r"(?!.{254})\w([\w-]{0,61}\w)?(\.\w([\w-]{0,61}\w)?)*")
"""Labels of letters, digits and hyphens, with dots between them, as the domain name system has
them."""
_PORT_MAX: Final = 65_535
_REMEDY: Final = (
    "Name the host as other machines reach it: a host name or an address of this machine, such as "
    "10.0.0.7."
)


class AnnouncedAddress(NamedTuple):
    """A host, and a port if one was given."""

    host: str
    port: int | None


def is_wildcard(host: str) -> bool:
    """Whether the host stands for all addresses of a machine, as 0.0.0.0 and :: do."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def parse_announced(text: str, setting: str = "cluster.announce") -> AnnouncedAddress:
    """Return the host and the port of HOST or HOST:PORT; raise `InvalidSetting` unless other
    machines could reach a node there. An IPv6 address with a port stands in brackets."""
    try:
        ip_address(text)
    except ValueError:
        found = _FORM.fullmatch(text)
    else:
        return _checked(text, None, setting)
    if found is None:
        raise InvalidSetting(f"{setting} has {text[:60]!r}, which is not a host.", remedy=_REMEDY)
    host = found["name"] if found["six"] is None else found["six"]
    port = found["port"] if found["six"] is None else found["six_port"]
    return _checked(host, port, setting)


def _checked(host: str, port: str | None, setting: str) -> AnnouncedAddress:
    try:
        check_host(host)
    except InvalidName as problem:
        raise InvalidSetting(
            f"{setting} does not name a host. {problem.sentence}", remedy=_REMEDY
        ) from None
    if is_wildcard(host):
        raise InvalidSetting(
            f"{setting} is {host}, which stands for all addresses of a machine: no other machine "
            "can connect to it.",
            remedy=_REMEDY,
        )
    if not _is_host(host):
        raise InvalidSetting(f"{setting} has {host[:60]!r}, which is not a host.", remedy=_REMEDY)
    if port is None:
        return AnnouncedAddress(host, None)
    if not (port.isascii() and port.isdigit() and len(port) <= len(str(_PORT_MAX))):
        raise InvalidSetting(f"{setting} has the port {port[:60]!r}.", remedy="Write HOST:4747.")
    if not 0 < int(port) <= _PORT_MAX:
        raise InvalidSetting(
            f"{setting} has the port {int(port):,}.", remedy=f"Ports are 1 to {_PORT_MAX:,}."
        )
    return AnnouncedAddress(host, int(port))


def _is_host(host: str) -> bool:
    try:
        return not ip_address(host).is_multicast
    except ValueError:
        return _HOST_NAME.fullmatch(host) is not None and _has_ascii_form(host)


def _has_ascii_form(host: str) -> bool:
    """Whether the name can be looked up and verified: letters beyond ASCII need a Punycode form."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def announced(settings: Node, port: int) -> tuple[str, int]:
    """Return the host and port at which clients and other nodes reach the node that listens on
    `port`, for settings that were checked."""
    if settings.cluster.announce is None:
        return settings.host, port
    return parse_announced(settings.cluster.announce).host, port
