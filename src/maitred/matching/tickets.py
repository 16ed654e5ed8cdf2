"""Answers to requests of several parts: given once, when each part is safe or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.errors import OutcomeUnknown
from maitred.matching.effects import Settle

if TYPE_CHECKING:
    from maitred.errors import MaitredError
    from maitred.matching.effects import Effect
    from maitred.matching.task import Ticket


class Tickets:
    """Takes the parts off tickets, and settles those that have none left."""

    __slots__ = ("_effects",)

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects

    def release(self, ticket: Ticket) -> None:
        """Take off a part that holds no task, or one that was refused."""
        ticket.left -= 1
        if not ticket.left:
            self.settle(ticket)

    def safe(self, ticket: Ticket) -> None:
        """Take off a part whose task is safe."""
        ticket.left -= 1
        ticket.done += 1
        if not ticket.left:
            self.settle(ticket)

    def unknown(self, ticket: Ticket, sentence: str) -> None:
        """Take off a part whose task may have begun and is not in the store."""
        ticket.problem = OutcomeUnknown(sentence)
        self.release(ticket)

    def settle(self, ticket: Ticket) -> None:
        """Answer a request that has no part left, unless it was answered before."""
        if ticket.told:
            return
        if ticket.done and ticket.problem is not None:
            ticket.problem = OutcomeUnknown(
                f"{ticket.done} tasks of the batch were taken, the others were not: "
                f"{ticket.problem}"
            )
        self._effects.append(Settle(ticket))

    def settle_early(self, ticket: Ticket, problem: MaitredError) -> None:
        """Answer a request before its parts are settled; their end is not reported any more."""
        ticket.problem = problem
        ticket.told = True
        self._effects.append(Settle(ticket))
