"""Reports to partitions about workers that hang, or refuse slots that they have offered (SUSPECT).

A worker offers the same slots at many partitions, and a gateway that finds it hanging can tell only
the partitions whose slots it had. If another partition allocates a slot of that worker, the gateway
tells that one as well, and its query asks again. Each partition is told once: the worker may have
woken up by then, and offered the slot anew.

Slots that are refused while a report about the same worker is on its way to the same partition are
reported together, when that has arrived.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from maitred.protocol.queries import SLOTS_MAX, Suspect
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.dispatch.effects import Effects
    from maitred.protocol.queries import Allocation

    Place = tuple[str, str, int]
    """Namespace, queue and partition."""

REMEMBERED_MAX: Final = 1_000
"""Hung workers that are remembered; the one that hung longest ago is forgotten first."""

TELL_SECONDS: Final = 5.0
"""Deadline of a report. If it does not arrive, the node notices the worker's absence by itself."""


class WorkerReports:
    """The reports of one gateway."""

    def __init__(self, effects: Effects, hung_seconds: float) -> None:
        self._effects = effects
        self._hung_seconds = hung_seconds
        self.hung: dict[bytes, tuple[float, set[Place]]] = {}
        """Hung workers by session: until when each is avoided, and the partitions that were
        told."""
        self._refused: dict[tuple[Place, bytes], list[bytes]] = {}
        """By partition and session, while a report is on its way: the tokens to report next."""
        self._closed = False

    def close(self) -> None:
        """Send no more reports."""
        self._closed = True

    # Workers that hang

    def hangs(self, session: bytes, places: set[Place], now: float) -> None:
        """Report a worker that hangs to the partitions that allocated its slots."""
        self.hung.pop(session, None)
        if len(self.hung) >= REMEMBERED_MAX:
            del self.hung[next(iter(self.hung))]
        self.hung[session] = (now + self._hung_seconds, places)
        for place in sorted(places):
            self.suspect(place, session)

    def still_hangs(self, place: Place, allocation: Allocation, now: float) -> bool:
        """Return whether the slot is of a worker that hangs and its partition did not know, and
        report the worker then."""
        session = allocation.session
        known = self.hung.get(session)
        if known is None or (session, allocation.address) in self._effects.open_links:
            return False
        until, told = known
        if now >= until:
            del self.hung[session]
            return False
        if place in told:
            return False
        told.add(place)
        self.suspect(place, session)
        return True

    def suspect(self, place: Place, session: bytes) -> None:
        """Tell the partition that the worker does not answer."""
        self._tell(place, session, [], None)

    # Slots that workers refuse

    def slot_refused(self, place: Place, allocation: Allocation) -> None:
        """Tell the partition that the worker refused a slot which it had offered."""
        key = (place, allocation.session)
        waiting = self._refused.get(key)
        if waiting is None:
            self._report([allocation.token], key)
        elif len(waiting) < SLOTS_MAX:
            waiting.append(allocation.token)

    def _report(self, tokens: list[bytes], key: tuple[Place, bytes]) -> None:
        self._refused[key] = []
        self._tell(*key, tokens, partial(self._reported, key))

    def _reported(self, key: tuple[Place, bytes], arrived: bool) -> None:
        tokens = self._refused.pop(key)
        if tokens and arrived:  # otherwise the next refusal is reported
            self._report(tokens, key)

    def _tell(
        self,
        place: Place,
        session: bytes,
        tokens: list[bytes],
        told: Callable[[bool], None] | None,
    ) -> None:
        if not self._closed:
            namespace, queue, partition = place
            message = Suspect(namespace, queue, TASKS, partition, 0, session, tokens)
            self._effects.tell_node(message, TELL_SECONDS, told)
