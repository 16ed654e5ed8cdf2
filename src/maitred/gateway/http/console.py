"""The files of the web console, `gateway/console/`, as the gateway serves them.

The console is a static page: it holds no data, so everybody may load it. It asks for everything
through the HTTP API, as the user who logs in. The headers below are its second line of defence: the
browser runs no script but these files, sends requests to this gateway only, refuses to parse any
text as HTML (Trusted Types), and shows the page inside no other.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import UnknownRoute

if TYPE_CHECKING:
    from maitred.gateway.http.connection import HttpConnection
    from maitred.gateway.http.request import HttpRequest

TYPES: Final = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
}
"""The content types of the console's files, by their ending."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

HEADERS: Final = (
    f"Content-Security-Policy: {POLICY}\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
).encode()

CHECKED_AGAIN: Final = b"Cache-Control: no-cache\r\n"
"""Browsers keep the files, and ask whether they have changed: after an upgrade the page and the
API are of one release."""


class ConsoleFile(NamedTuple):
    """One file of the console, ready to be sent."""

    content_type: bytes
    body: bytes
    tag: bytes
    """The entity tag: a hash of the body."""


class ConsoleFiles:
    """Serves the console's files, which are read once."""

    def __init__(self) -> None:
        self._files: dict[str, ConsoleFile] = {}

    def leading(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Lead from /console to /console/: the files are named relative to it, so that a proxy may
        serve them under another path."""
        connection.answer(request, 307, TYPES["html"], b"", b"Location: console/\r\n" + HEADERS)

    def file(self, connection: HttpConnection, request: HttpRequest, name: str) -> None:
        """Answer with a file; without a name, with the page."""
        found = self._all().get(name or "index.html")
        if found is None:
            raise UnknownRoute(
                f"The console has no file {name[:60]!r}.", remedy="The console is at /console."
            )
        extra = b"ETag: %b\r\n" % found.tag + CHECKED_AGAIN + HEADERS
        status = 200
        if request.headers.get(b"if-none-match") == found.tag:
            status = 304
            request.method = b"HEAD"  # the same headers, the length included, and no body
        connection.answer(request, status, found.content_type, found.body, extra)

    def _all(self) -> dict[str, ConsoleFile]:
        if not self._files:
            self._files = read_files()
        return self._files


def read_files() -> dict[str, ConsoleFile]:
    """Return all files of the console by their names."""
    found = {}
    for path in (files("maitred.gateway") / "console").iterdir():
        content_type = TYPES.get(path.name.rpartition(".")[2])
        if content_type is not None:
            body = path.read_bytes()
            tag = b'"%b"' % sha256(body).hexdigest()[:32].encode()
            found[path.name] = ConsoleFile(content_type, body, tag)
    return found
