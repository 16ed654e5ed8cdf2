"""Heartbeats of workers that wait at a partition for news of their tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from maitred.matching.effects import Beat

if TYPE_CHECKING:
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.task import QueueTask, Token


class WaitingHeartbeat(NamedTuple):
    """A heartbeat that waits for news."""

    token: Token
    holder: bytes


class Heartbeats:
    """The waiting heartbeats of a partition, at most one per holder."""

    __slots__ = ("_effects", "_timers", "waiting")

    def __init__(self, state: PartitionState) -> None:
        self._timers = state.timers
        self._effects = state.effects
        self.waiting: dict[bytes, WaitingHeartbeat] = {}
        """By the holder of the attempts: a worker's session and user."""
        state.timers.register(WaitingHeartbeat, ring=self._rings, waits=self._waits)

    def wait(self, token: Token, holder: bytes, until: float) -> None:
        """Answer the token when there is news, or at `until`."""
        one = self.waiting[holder] = WaitingHeartbeat(token, holder)
        self._timers.set(until, one)

    def answer_earlier(self, holder: bytes) -> None:
        """Answer the waiting heartbeat of a holder that has sent another one."""
        earlier = self.waiting.pop(holder, None)
        if earlier is not None:
            self._effects.append(Beat(earlier.token, [], []))

    def tell_revoked(self, task: QueueTask) -> None:
        """Tell the worker that has the task that the task is cancelled."""
        one = self.waiting.pop(task.holder, None)
        if one is not None:
            self._effects.append(Beat(one.token, [], [task.sequence]))

    def withdraw(self, holder: bytes, token: Token) -> None:
        """Drop a heartbeat whose worker no longer waits for the answer."""
        one = self.waiting.get(holder)
        if one is not None and one.token is token:
            del self.waiting[holder]

    def stop(self) -> None:
        """Answer all heartbeats that wait."""
        for holder in list(self.waiting):
            self.answer_earlier(holder)

    def _waits(self, one: WaitingHeartbeat) -> bool:
        return self.waiting.get(one.holder) is one

    def _rings(self, one: WaitingHeartbeat, _now: float) -> None:
        if self._waits(one):
            self.answer_earlier(one.holder)
