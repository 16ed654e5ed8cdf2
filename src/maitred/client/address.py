"""Addresses of nodes, as one line of text.

    maitred://[user:secret@]host[:port][,host2[:port2]...][?option=value&...]

`maitreds://` is the same over TLS, with the files `ca`, `cert` and `key` as options. The option
`token_file` names a file with an API token or a JWT, in place of a user and a secret; the token
itself may be given as the secret of the user `token`. Every field of `settings.ClientSettings` is
an option, too. Anything can be percent-encoded; an IPv6 address stands in brackets. A secret is
shown in the handshake only: not in an error, not in a `repr`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from maitred.client.credentials import Credentials, TokenFile
from maitred.errors import InvalidAddress, InvalidName, InvalidSetting, UnknownSetting
from maitred.routing.names import check_host
from maitred.schema import fields_of, fit
from maitred.settings import PORT, ClientSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORM: Final = "maitred://[user:secret@]host[:port][,host2[:port2]...]"
_SCHEMES: Final = {"maitred": False, "maitreds": True}
_TOKEN_FILE: Final = "token_file"  # noqa: S105 - an option
_FILES: Final = ("ca", "cert", "key", _TOKEN_FILE)
_PORT_MAX: Final = 65_535
_HOST: Final = re.compile(r"(\[(?P<six>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(:(?P<port>.*))?", re.DOTALL)
_SHOWN_LETTERS: Final = 60


class HostPort(NamedTuple):
    """The address of one node."""

    host: str
    port: int

    @property
    def name(self) -> str:
        """The node's name in the hash ring."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class TlsFiles(NamedTuple):
    """PEM files; without `authorities`, the system's authorities are trusted."""

    authorities: str | None = None
    certificate: str | None = None
    key: str | None = None


class Address(NamedTuple):
    """A parsed address."""

    nodes: tuple[HostPort, ...]
    credentials: Credentials | TokenFile | None
    tls: TlsFiles | None
    """None without TLS."""
    settings: dict[str, object]
    """The settings that the address names, checked."""

    @property
    def is_anonymous(self) -> bool:
        """Whether the address has no credentials."""
        return self.credentials is None

    def __str__(self) -> str:
        scheme = "maitreds" if self.tls is not None else "maitred"
        user = f"{self.credentials.user}:***@" if self.credentials is not None else ""
        return f"{scheme}://{user}{','.join(node.name for node in self.nodes)}"


def parse_address(text: str) -> Address:
    """Parse an address; raise `InvalidAddress`, or `UnknownSetting` for an unknown option."""
    if not isinstance(text, str):
        raise InvalidAddress(f"An address is text, not {type(text).__name__}.", remedy=_remedy())
    scheme, separator, rest = text.strip().partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        raise InvalidAddress(
            "The address does not start with maitred:// or maitreds://.", remedy=_remedy()
        )
    has_tls = _SCHEMES[scheme.lower()]
    place, _, query = rest.partition("?")
    user, at, hosts = place.rpartition("@")
    if any(sign in hosts.removesuffix("/") for sign in "/#") or "#" in query:
        raise InvalidAddress(
            "The address has a path or a fragment behind its hosts.", remedy=_remedy()
        )
    nodes = tuple(_host_port(one) for one in hosts.removesuffix("/").split(","))
    for number, node in enumerate(nodes):
        if node in nodes[:number]:
            raise InvalidAddress(
                f"The address names {node.name} twice.", remedy="Name each node once."
            )
    files, token_file, settings = _options(query)
    if files and not has_tls:
        raise InvalidAddress(
            f"The option {next(iter(files))!r} is for TLS, and maitred:// is without.",
            remedy="Write maitreds:// for TLS.",
        )
    if "cert" not in files and "key" in files:
        raise InvalidAddress(
            "The address names a TLS key and no certificate.", remedy="Add the option 'cert'."
        )
    tls = TlsFiles(files.get("ca"), files.get("cert"), files.get("key")) if has_tls else None
    address = Address(nodes, _credentials(user) if at else None, tls, settings)
    return address if token_file is None else with_token(address, TokenFile(token_file))


def with_token(address: Address, shown: Credentials | TokenFile) -> Address:
    """Return the address with a token as its credentials."""
    if address.credentials is not None:
        raise InvalidAddress(
            "The address has credentials, and a token is given as well.",
            remedy="Keep one of them.",
        )
    return address._replace(credentials=shown)


def settings_of(address: Address, given: Mapping[str, object]) -> ClientSettings:
    """Return the defaults, overridden by the address, overridden by `given`."""
    known = fields_of(ClientSettings)
    fitted = dict(address.settings)
    for name, value in given.items():
        if name not in known:
            raise UnknownSetting.named("setting of a client", name, known)
        fitted[name] = fit(known[name].kind, value, name, "maitred.connect")
    return msgspec.convert(fitted, ClientSettings)


def _credentials(text: str) -> Credentials:
    user, colon, secret = text.partition(":")
    if not colon or not user or not secret:
        raise InvalidAddress(
            "The address has an @, but not a user and a secret before it.",
            remedy="Write user:secret@, and %40 for an @ that belongs to either.",
        )
    try:
        return Credentials(_decoded(user), _decoded(secret))
    except InvalidAddress:
        raise InvalidAddress("The user or the secret in the address is not UTF-8.") from None


def _host_port(text: str) -> HostPort:
    found = _HOST.fullmatch(text)
    if found is None:
        raise InvalidAddress(
            f"{_shown(text)} is not a host with a port.",
            remedy="An IPv6 address stands in brackets: [::1]:4747.",
        )
    host = _decoded(found["six"] if found["six"] is not None else found["name"])
    port = PORT
    if found["port"] is not None:
        digits = found["port"]
        # isdecimal alone would let through digits of other scripts.
        if not (digits.isascii() and digits.isdecimal() and 0 < int(digits[:9]) <= _PORT_MAX):
            raise InvalidAddress(
                f"{_shown(digits)} is not a port.",
                remedy=f"Ports are numbers from 1 to {_PORT_MAX}; without one it is {PORT}.",
            )
        port = int(digits)
    if not host:
        raise InvalidAddress("The address has a host without a name.", remedy=_remedy())
    try:
        check_host(f"{host}:{port}")
    except InvalidName as problem:
        raise InvalidAddress(problem.sentence, remedy=_remedy()) from None
    if found["six"] is not None and ":" not in host:
        raise InvalidAddress(
            f"{_shown(host)} is in brackets, but is no IPv6 address.", remedy="Leave them out."
        )
    return HostPort(host, port)


def _options(query: str) -> tuple[dict[str, str], str | None, dict[str, object]]:
    known = fields_of(ClientSettings)
    files: dict[str, str] = {}
    settings: dict[str, object] = {}
    for pair in filter(None, query.split("&")):
        name, equals, value = pair.partition("=")
        name, value = _decoded(name), _decoded(value)
        if name not in known and name not in _FILES:
            raise UnknownSetting.named("option of an address", name, [*known, *_FILES])
        if not equals or not value:
            raise InvalidAddress(
                f"The option {name!r} has no value.", remedy=f"Write {name}=value."
            )
        if name in files or name in settings:
            raise InvalidAddress(f"The option {name!r} is given twice.", remedy="Keep one of them.")
        if name in _FILES:
            files[name] = value
            continue
        try:
            settings[name] = fit(known[name].kind, value, name, "the address", text=True)
        except InvalidSetting as problem:
            raise InvalidAddress(problem.sentence, remedy=problem.remedy) from None
    return files, files.pop(_TOKEN_FILE, None), settings


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidAddress(f"{_shown(text)} is not UTF-8 when it is decoded.") from None


def _shown(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= _SHOWN_LETTERS else shown[:_SHOWN_LETTERS] + "..."


def _remedy() -> str:
    return f"Write {_FORM}."
