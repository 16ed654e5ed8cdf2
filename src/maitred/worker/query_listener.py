"""The listener at which gateways connect to a worker, with one link for each gateway.

The listener uses TLS if the worker reached its node by TLS, or has a certificate of its own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from maitred.errors import CannotStart, MaitredError
from maitred.protocol.worker_address import WorkerAddress
from maitred.security.hosts import is_loopback
from maitred.security.worker_tls import WorkerTls
from maitred.wire.memory import keep_large_blocks
from maitred.wire.tls_handshakes import TlsHandshakes
from maitred.worker.gateway_link import FAREWELL_SECONDS, GatewayLink, too_many

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.worker.context import WorkerContext
    from maitred.worker.worker_queries import WorkerQueries

SWEEP_SECONDS: Final = 1.0
"""Seconds between two looks at the links and at the files of the certificate."""


class QueryListener:
    """The listener of one worker, and its links."""

    def __init__(
        self,
        context: WorkerContext,
        querying: WorkerQueries,
        secret: Callable[[int], bytes],
        reloaded: Callable[[MaitredError | None], None],
    ) -> None:
        """`reloaded` is called when a certificate has changed: `address` is another one then, or
        the problem says why the old certificate stays."""
        keep_large_blocks()
        self.loop = asyncio.get_running_loop()
        self.settings = context.settings
        self.session = context.session
        self.querying = querying
        self.secret = secret
        self._statistics = context.statistics
        self._log = context.log
        self._reloaded = reloaded
        self.links: dict[GatewayLink, None] = {}
        self.address = ""
        """The address as it is announced to gateways; empty: the worker does not listen."""
        self._tls: WorkerTls | None = None
        self._handshakes: TlsHandshakes | None = None
        self._looking_at_files: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        """Set while there are no links."""
        self._empty.set()

    def __repr__(self) -> str:
        return f"<QueryListener {self.address or 'closed'}, {len(self.links)} links>"

    async def open(self, *, encrypted: bool) -> None:
        """Listen, unless the settings name no host; by TLS if the node was reached by TLS
        (`encrypted`)."""
        settings = self.settings
        if settings.host is None:
            return
        factory: Callable[[], asyncio.Protocol] = lambda: GatewayLink(self)  # noqa: E731
        if encrypted or settings.certificate is not None:
            self._tls = tls = WorkerTls(settings.certificate, settings.key)
            self._handshakes = TlsHandshakes(
                lambda: tls.context,
                settings.link_seconds,
                self._log,
                self._count_tls_failure,
                most=settings.links,
            )
            factory = self._handshakes.before(factory)
        elif not settings.public_without_tls and not is_loopback(settings.host):
            raise CannotStart(
                f"The worker would listen at {settings.host}, where others can reach it, without "
                "TLS: arguments and results would be readable on the way.",
                remedy="Give the node TLS (maitreds://) or the worker a --certificate and --key, "
                "or accept it with --public-without-tls.",
            )
        try:
            self._server = await self.loop.create_server(factory, settings.host, settings.port)
        except OSError as problem:
            raise CannotStart(
                f"The worker cannot listen at {settings.host}:{settings.port}: {problem}.",
                remedy="Choose another --listen and --listen-port; none for no listener at all.",
            ) from None
        self._announce(self._server)
        if settings.certificate is not None:
            self._look_at_files()

    def _announce(self, server: asyncio.Server) -> None:
        """Compute the address, with the fingerprint by which gateways recognise the certificate."""
        host, port = server.sockets[0].getsockname()[:2]
        # Without a host, gateways use the host from which the node sees the worker.
        everywhere = ip_address(host).is_unspecified
        fingerprint = b"" if self._tls is None else self._tls.identity.fingerprint
        self.address = str(WorkerAddress("" if everywhere else host, port, fingerprint))

    def _look_at_files(self) -> None:
        """Once a second: use a certificate that has changed for new connections, and announce it.
        Queries of a gateway that knows only the old one are relayed by the node meanwhile."""
        self._looking_at_files = self.loop.call_later(SWEEP_SECONDS, self._look_at_files)
        tls, server = self._tls, self._server
        if tls is None or server is None or not server.sockets or not tls.has_changed():
            return
        try:
            tls.reload()
        except MaitredError as problem:
            self._reloaded(problem)
        else:
            self._announce(server)
            self._reloaded(None)

    def _count_tls_failure(self) -> None:
        self._statistics.tls_failures += 1

    def entered(self, link: GatewayLink) -> bool:
        """Accept a new connection; return False if there are too many.

        At the limit the oldest connection that has not proved itself is closed, so that peers that
        connect and stay silent keep no gateway out, which needs one exchange for its proof.
        """
        self.links[link] = None
        self._empty.clear()
        if self._sweep is None:
            self._sweep = self.loop.call_later(SWEEP_SECONDS, self._look_at_clocks)
        if len(self.links) <= self.settings.links:
            return True
        stranger = next(one for one in self.links if not one.ready)
        if stranger is link:
            return False
        self.querying.complaints.say("a connection was refused", stranger.gateway, too_many())
        self.left(stranger)
        stranger.abort()
        return True

    def left(self, link: GatewayLink) -> None:
        """Forget a connection that is closed."""
        self.links.pop(link, None)
        if not self.links:
            self._empty.set()

    async def close(self) -> None:
        """Stop listening, say goodbye to all gateways, and close the links of those that do not
        leave."""
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            self._handshakes.close()
        if self._looking_at_files is not None:
            self._looking_at_files.cancel()
        for link in list(self.links):
            link.finish()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._empty.wait()
        finally:
            if self._sweep is not None:
                self._sweep.cancel()
            for link in list(self.links):
                link.abort()

    def _look_at_clocks(self) -> None:
        # Set first: an exception at one link must not end the time limits of all.
        self._sweep = self.loop.call_later(SWEEP_SECONDS, self._look_at_clocks)
        now = self.loop.time()
        for link in list(self.links):
            link.look_at_clock(now, self.settings)
        if not self.links:
            self._sweep.cancel()
            self._sweep = None
