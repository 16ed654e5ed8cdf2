"""Connections to workers: one for each that was ever allocated, made when it is first needed.

A worker whose address has a fingerprint is dialled by TLS, and its certificate has to have it. A
client that reached its node by TLS dials no other workers: the node relays what is for them, so
that nothing that was encrypted on one part of its way is readable on another.

A worker that cannot be reached is not tried again for a while; the node relays what is for it. One
that turns out to be another worker by now is gone: what was for it is asked for again.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, Final

from maitred.client.worker_link import WorkerLink
from maitred.errors import MaitredError, TlsFailed, UnknownWorker
from maitred.protocol.worker_address import parse_worker_address
from maitred.security.worker_tls import pinning_context
from maitred.wire.memory import keep_large_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.dispatch.effects import ConnectionWaiter
    from maitred.protocol.queries import Allocation
    from maitred.protocol.query_link import Load
    from maitred.settings import Querying

REMEMBERED_MAX: Final = 10_000
"""Workers that are remembered as unreachable."""


Key = tuple[bytes, str]
"""A worker's session and its address."""


class Links:
    """All of one gateway."""

    def __init__(
        self,
        settings: Querying,
        frame_bytes: int,
        name: str,
        on_stray: Callable[[WorkerLink], None],
        on_load: Callable[[bytes, Load, float], None],
        on_end: Callable[[WorkerLink, float, bool], None],
        on_refused: Callable[[Allocation, MaitredError], None],
        secret: Callable[[int], bytes],
        *,
        encrypted: bool,
    ) -> None:
        """If the client's own connections are `encrypted`, only workers with TLS are dialled."""
        keep_large_blocks()  # streams come over links
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._frame_bytes = frame_bytes
        self._name = name
        self._on_stray = on_stray
        self._on_load = on_load
        self._on_end = on_end
        self._on_refused = on_refused
        """Told why a worker was not dialled, or what was wrong with whoever answered there."""
        self._secret = secret
        self._encrypted = encrypted
        self._tls: ssl.SSLContext | None = None
        self.open: dict[Key, WorkerLink] = {}
        """By the worker's session and address. One who knows a worker's session and offers slots
        with it elsewhere gets what is for his own address, and nothing that is for the worker."""
        self._keys: dict[WorkerLink, Key] = {}
        self._waiting: dict[Key, list[ConnectionWaiter]] = {}
        self._dialing: dict[asyncio.Task[None], None] = {}
        self._unreachable: dict[Key, float] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self.open)

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
            task = self._loop.create_task(self._dial(key, allocation))
            self._dialing[task] = None
            task.add_done_callback(self._dialing.pop)

    def opened(self, key: Key, link: WorkerLink) -> None:
        """There is a link to the worker from now on, until it ends."""
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
                self._settings,
                self._frame_bytes,
                self._name,
                self._ended,
                self._on_stray,
                self._on_load,
                self._secret,
                address.fingerprint,
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
            # A worker that does not answer at all is away; everything else should not happen.
            if isinstance(problem, ssl.SSLError):
                self._on_refused(allocation, TlsFailed(f"The listener does not speak TLS: {why}."))
            elif isinstance(problem, MaitredError):
                self._on_refused(allocation, problem)
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
                # What one of them does may end it for the others.
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
        """As the loop takes them. Simulated loops know no TLS, not even its absence."""
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

    def _ended(self, link: WorkerLink, now: float, hung: bool) -> None:
        key = self._keys.pop(link, None)
        if key is not None:
            del self.open[key]
        self._on_end(link, now, hung)

    async def close(self) -> None:
        """Close them all."""
        self._closed = True
        dialing = list(self._dialing)
        for task in dialing:
            task.cancel()
        for link in list(self.open.values()):
            link.end("the gateway is closed")
        if dialing:
            await asyncio.wait(dialing)
