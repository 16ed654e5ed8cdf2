"""Slots that workers refused though they had offered them: their partitions are told.

What is refused while an earlier report is on its way is reported together, when that has arrived.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from maitred.protocol.queries import SLOTS_MAX, Suspect
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from maitred.dispatch.effects import Effects
    from maitred.dispatch.hung_workers import Place
    from maitred.protocol.queries import Allocation

    Key = tuple[Place, bytes]
    """A partition and a worker's session."""

TELL_SECONDS: Final = 5.0


class RefusedSlots:
    """The refusals that one gateway has to report."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._untold: dict[Key, list[bytes]] = {}
        """The tokens to report next, while a report to the partition about the worker is on its
        way."""

    def add(self, place: Place, allocation: Allocation) -> None:
        """The worker refused this slot, which that partition allocated."""
        key = (place, allocation.session)
        waiting = self._untold.get(key)
        if waiting is None:
            self._tell(key, [allocation.token])
        elif len(waiting) < SLOTS_MAX:
            waiting.append(allocation.token)

    def _tell(self, key: Key, tokens: list[bytes]) -> None:
        self._untold[key] = []
        (namespace, queue, partition), session = key
        message = Suspect(namespace, queue, TASKS, partition, 0, session, tokens)
        self._effects.tell_node(message, TELL_SECONDS, partial(self._told, key))

    def _told(self, key: Key, arrived: bool) -> None:
        tokens = self._untold.pop(key)
        if tokens and arrived:  # otherwise the partition hears of the next one
            self._tell(key, tokens)
