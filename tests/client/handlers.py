"""What a shard does with an echo, replaced, so that a test sees it and decides when it ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from maitred.protocol.frames import Opcode
from maitred.protocol.messages import Echo, Echoed

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.node.shard import Shard


class Held:
    """Echoes that are answered when the test says so."""

    def __init__(self, *shards: Shard) -> None:
        self.started: asyncio.Queue[Echo] = asyncio.Queue()
        self.stopped: asyncio.Queue[Echo] = asyncio.Queue()
        """Those that were cancelled."""
        self.under_way = 0
        self.most_under_way = 0
        self.release = asyncio.Event()
        for shard in shards:
            self._take_over(shard)

    def _take_over(self, shard: Shard) -> None:
        async def hold(message: Echo) -> Echoed:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            self.started.put_nowait(message)
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.stopped.put_nowait(message)
                raise
            finally:
                self.under_way -= 1
            return Echoed(message.payload, shard.number)

        shard.handlers[Opcode.ECHO] = hold


def answer_echo(shard: Shard, handler: Callable[[Echo], Echoed]) -> None:
    """Have this shard answer echoes in this way."""
    shard.handlers[Opcode.ECHO] = handler
