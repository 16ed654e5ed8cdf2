"""Parse parameters of the query string, or of headers of the same name: `delay=5` is
`Maitred-Delay: 5`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from maitred.errors import InvalidArgument, UnknownChoice
from maitred.gateway.http.routes import ROUTES

if TYPE_CHECKING:
    from maitred.gateway.http.request import HttpRequest
    from maitred.gateway.http.routes import HttpRoute

PARAMETERS_MAX: Final = 32
"""The most parameters of one request; no route has as many."""

PREFIX: Final = "Maitred-"


def _headers(route: HttpRoute) -> list[tuple[str, bytes]]:
    named = [name for name in route.parameters if route.body or name.startswith(PREFIX)]
    return [
        (name, (PREFIX + name.removeprefix(PREFIX)).lower().replace("_", "-").encode())
        for name in named
    ]


HEADERS: Final = {route.handler: _headers(route) for route in ROUTES}
"""The parameters of each route that may come as headers, and the header of each."""

HEADER_NAMES: Final = {
    name: frozenset(header for _, header in found) for name, found in HEADERS.items()
}


def parsed(request: HttpRequest, route: HttpRoute, query: bytes) -> None:
    """Fill `request.query`; raise for a parameter that the route does not know."""
    found: dict[str, str] = {}
    parts = query.split(b"&", PARAMETERS_MAX) if query else []
    if len(parts) > PARAMETERS_MAX:
        raise InvalidArgument(f"The request has more than {PARAMETERS_MAX} parameters.")
    for part in filter(None, parts):
        key, _, text = part.partition(b"=")
        name = _decoded(key)
        if name not in route.parameters or name.startswith(PREFIX):
            known = [one for one in route.parameters if not one.startswith(PREFIX)]
            if not known:
                raise InvalidArgument("This path takes no parameters behind a question mark.")
            raise UnknownChoice.named("parameter", name[:60], known)
        if name in found:
            raise InvalidArgument(f"The parameter {name!r} is given twice.")
        found[name] = _decoded(text)
    headers = request.headers
    for name, header in HEADERS[route.handler]:
        if header in headers:
            if name in found:
                raise InvalidArgument(f"{name!r} is given twice: as a parameter and as a header.")
            found[name] = headers[header].decode("latin-1")
    request.query = found or None


def may_have(headers: dict[bytes, bytes], route: HttpRoute) -> bool:
    """Return whether a header may be a parameter; quick, as most requests have few headers."""
    return not HEADER_NAMES[route.handler].isdisjoint(headers)


def _decoded(text: bytes) -> str:
    try:
        return unquote_to_bytes(text.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise InvalidArgument("A parameter is not UTF-8 when it is decoded.") from None
