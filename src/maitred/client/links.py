"""Connections of a gateway to workers, one per worker, made when the first query needs it.

A worker whose address has a fingerprint is dialled by TLS, and its certificate has to have that
fingerprint. A client that reached its node by TLS dials no other workers: the node relays their
queries, so that a query which is encrypted on one part of its way is not readable on another.

A worker that cannot be reached is not dialled again for a while; the node relays its queries. If
another worker answers at its address, the worker is gone, and its queries ask for other slots.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, Final

from maitred.client.worker_link import WorkerLink
from maitred.errors import MaitredError, TlsFailed, UnknownWorker
from maitred.protocol.query_link import CHALLENGE_BYTES
from maitred.protocol.worker_address import parse_worker_address
from maitred.security.worker_tls import pinning_context
from maitred.wire.background_tasks import BackgroundTasks
from maitred.wire.memory import keep_large_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.client.worker_link import LinkOwner
    from maitred.dispatch.effects import ConnectionWaiter
    from maitred.protocol.queries import Allocation
    from maitred.settings import Querying

REMEMBERED_MAX: Final = 10_000
"""Unreachable workers that are remembered; at this number all are forgotten."""


Key = tuple[bytes, str]
"""A worker's session and its address."""


class Links:
    """The links of one gateway."""

    def __init__(
        self,
        owner: LinkOwner,
        settings: Querying,
        *,
        frame_bytes: int,
        name: str,
        secret: Callable[[int], bytes],
        encrypted: bool,
    ) -> None:
        """If the client's own connections are `encrypted`, only workers with TLS are dialled."""
        keep_large_blocks()  # streams come over links
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._settings = settings
        self._frame_bytes = frame_bytes
        self._name = name
        self._secret = secret
        self._encrypted = encrypted
        self._tls: ssl.SSLContext | None = None
        self.open: dict[Key, WorkerLink] = {}
        """By the worker's session and address. A thief of a worker's session that offers slots with
        it elsewhere gets the queries for its own address, and none of the worker's."""
        self._keys: dict[WorkerLink, Key] = {}
        self._waiting: dict[Key, list[ConnectionWaiter]] = {}
        self._dialing = BackgroundTasks(self._loop)
        self._unreachable: dict[Key, float] = {}
        self._closed = False

    def connect(self, allocation: Allocation, waiter: ConnectionWaiter, now: float) -> None:
        """Dial a worker to which there is no link, and tell the waiter how that ended."""
        key = (allocation.session, allocation.address)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(waiter)
        elif not allocation.address or self._is_unreachable(key, now):
            waiter.unreachable(now)
        elif self._closed:
            waiter.gone("the gateway is closed", now)
        else:
            self._waiting[key] = [waiter]
            self._dialing.start(self._dial(key, allocation))

    def opened(self, key: Key, link: WorkerLink) -> None:
        """Use this link to the worker until it ends."""
        self.open[key], self._keys[link] = link, key

    def _is_unreachable(self, key: Key, now: float) -> bool:
        until = self._unreachable.get(key)
        if until is None:
            return False
        if now < until:
            return True
        del self._unreachable[key]
        return False

    async def _dial(self, key: Key, allocation: Allocation) -> None:
        link: WorkerLink | None = None
        why = ""
        gone = False
        try:
            address = parse_worker_address(allocation.address)
            link = WorkerLink(
                self._loop,
                allocation.session,
                self._owner,
                settings=self._settings,
                frame_bytes=self._frame_bytes,
                name=self._name,
                challenge=self._secret(CHALLENGE_BYTES),
                fingerprint=address.fingerprint,
            )
            options = self._tls_options(address.fingerprint)
            async with asyncio.timeout(self._settings.dial_seconds):
                await self._loop.create_connection(
                    lambda: link, address.host, address.port, **options
                )
                await link.greeted
        except UnknownWorker as problem:
            why, gone = problem.sentence, True
        except (OSError, MaitredError) as problem:
            why = str(problem) or type(problem).__name__
            # A worker that does not answer at all is away; any other reason is reported.
            if isinstance(problem, ssl.SSLError):
                self._owner.link_refused(
                    allocation, TlsFailed(f"The listener does not speak TLS: {why}.")
                )
            elif isinstance(problem, MaitredError):
                self._owner.link_refused(allocation, problem)
        except BaseException:
            self._drop(link)
            for waiter in self._waiting.pop(key, ()):
                waiter.gone("the gateway is closed", self._loop.time())
            raise
        waiting = self._waiting.pop(key, [])
        now = self._loop.time()
        if link is not None and not why and not link.closing:
            self.opened(key, link)
            for waiter in waiting:
                # A waiter may end the link for those after it.
                if self.open.get(key) is link:
                    waiter.linked(link, now)
                else:
                    waiter.gone("its connection was lost", now)
            return
        self._drop(link)
        if not gone:
            if len(self._unreachable) >= REMEMBERED_MAX:
                self._unreachable.clear()
            self._unreachable[key] = now + self._settings.unreachable_seconds
        for waiter in waiting:
            if gone:
                waiter.gone(why, now)
            else:
                waiter.unreachable(now)

    def _tls_options(self, fingerprint: bytes) -> dict[str, Any]:
        """Return the TLS arguments of `create_connection`. Simulated loops accept none."""
        if fingerprint:
            if self._tls is None:
                self._tls = pinning_context()
            return {"ssl": self._tls}
        if self._encrypted:
            raise TlsFailed(
                "The worker's listener does not speak TLS, and the connection to the node does.",
                remedy="Connect the worker to its node by maitreds://; until then the node relays.",
            )
        return {}

    def _drop(self, link: WorkerLink | None) -> None:
        if link is None:
            return
        if hasattr(link, "transport"):
            link.end("it is not needed")
        elif not link.greeted.done():
            link.greeted.cancel()

    def ended(self, link: WorkerLink) -> None:
        """Forget a link that has ended."""
        key = self._keys.pop(link, None)
        if key is not None:
            del self.open[key]

    async def close(self) -> None:
        """Close all links, and stop dialling."""
        self._closed = True
        for link in list(self.open.values()):
            link.end("the gateway is closed")
        await self._dialing.stop()
