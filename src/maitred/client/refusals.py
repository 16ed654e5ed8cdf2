"""Slots that workers refused, though they had offered them: whoever gave them out is told.

It is told without haste: what is refused while the word of others is on its way goes together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maitred.errors import MaitredError
from maitred.protocol.queries import SLOTS_MAX, Suspect
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.client.client import AsyncClient
    from maitred.dispatch.hung_workers import Place
    from maitred.protocol.queries import Allocation

    Key = tuple[Place, bytes]

TELL_SECONDS: Final = 5.0


class Refusals:
    """All that one gateway has met."""

    def __init__(
        self, client: AsyncClient, spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._client = client
        self._spawn = spawn
        self._untold: dict[Key, list[bytes]] = {}
        """By partition and worker, while somebody tells: what came up meanwhile."""

    def add(self, place: Place, allocation: Allocation) -> None:
        """The worker refused this slot, which that partition gave us."""
        key = (place, allocation.session)
        waiting = self._untold.get(key)
        if waiting is None:
            self._untold[key] = [allocation.token]
            self._spawn(self._tell(key))
        elif len(waiting) < SLOTS_MAX:
            waiting.append(allocation.token)

    async def _tell(self, key: Key) -> None:
        (namespace, queue, partition), session = key
        try:
            while refused := self._untold[key]:
                self._untold[key] = []
                message = Suspect(namespace, queue, TASKS, partition, 0, session, refused)
                await self._client.request(message, TELL_SECONDS)
        except MaitredError:
            return  # then it hears of the next one
        finally:
            del self._untold[key]
