"""The result of `maitred.connect`: a client before it connects, for asyncio or for threads.

    async with maitred.connect("maitred://localhost") as client: ...
    client = await maitred.connect("maitred://localhost")

    with maitred.connect("maitred://localhost") as client: ...
    client = maitred.connect("maitred://localhost").wait()

`token` is an API token or a JWT, and `token_file` a file that holds one, which is read at each
handshake; either replaces the user and the secret of the address.

Its use decides whether it becomes an `AsyncClient` or a `Client`, so that there is one function to
know. Until then only the address and the settings are checked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from maitred.client.address import parse_address, settings_of, with_token
from maitred.client.client import AsyncClient
from maitred.client.credentials import TokenFile
from maitred.client.credentials import token as shown
from maitred.client.sync import Client
from maitred.errors import InvalidArgument, MaitredError
from maitred.surroundings import Surroundings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Generator
    from typing import Any

    from maitred.client.connection_attempt import MemberTerms


class PendingClient:
    """A client that does not connect before it is used, in one of the four ways, once."""

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None,
        surroundings: Surroundings | None = None,
        token: str | None = None,
        token_file: str | None = None,
        members: MemberTerms | None = None,
        **settings: object,
    ) -> None:
        self._address = parse_address(url)
        if token is not None:
            self._address = with_token(self._address, shown(token))
        if token_file is not None:
            self._address = with_token(self._address, TokenFile(token_file))
        self._settings = settings_of(self._address, settings)
        self._tls = tls
        self._members = members
        self._surroundings = surroundings
        self._client: AsyncClient | Client | None = None
        if tls is not None and self._address.tls is None:
            raise InvalidArgument(
                "A TLS context was given for an address without TLS.",
                remedy="Write maitreds:// for TLS.",
            )

    def __repr__(self) -> str:
        return f"<Connecting to {self._address}>"

    def wait(self) -> Client:
        """Connect, and return a client for code without asyncio; close it in the end."""
        return Client(self._open)

    async def _open(self) -> AsyncClient:
        return await AsyncClient(
            self._address,
            self._settings,
            self._surroundings or Surroundings.real(),
            self._context(),
            members=self._members,
        ).open()

    def _context(self) -> Callable[[], ssl.SSLContext] | None:
        """Return a function that makes a TLS context for a connection from the current files."""
        files, tls = self._address.tls, self._tls
        if tls is not None:
            return tls if callable(tls) else lambda: tls
        if files is None:
            return None
        # Imported late, because most programs do not need OpenSSL.
        from maitred.security.tls import DiallerTls, client_context

        return DiallerTls(lambda: client_context(*files), files, _tell)

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = client = await self._open()
        return client

    async def __aexit__(self, *_: object) -> None:
        if isinstance(self._client, AsyncClient):
            await self._client.close()

    def __enter__(self) -> Client:
        self._client = client = self.wait()
        return client

    def __exit__(self, *_: object) -> None:
        if isinstance(self._client, Client):
            self._client.close()


def _tell(problem: MaitredError) -> None:
    """Report the problem to the exception handler of the program's loop."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"TLS files not read again; the old state stays: {problem}"}
    )
