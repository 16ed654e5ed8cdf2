"""The engines of membership tables, each as a place that many nodes can open."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Protocol

from maitred.logs import silent
from maitred.simulation.member_table import SimulatedMembers, SimulatedMemberTable
from maitred.simulation.store import DiskFaults, SimulatedDisk
from maitred.store.postgres_members import open_members

if TYPE_CHECKING:
    from maitred.membership.table import MembershipTable


class TableEngine(Protocol):
    """What lasts, and how a node opens it."""

    async def open(self) -> MembershipTable:
        """A handle as one node has it; may be called while others are open."""


class SimulatedTables:
    def __init__(self) -> None:
        # Real time passes here, so it takes next to none.
        self.disk = SimulatedDisk(
            Random(4711), DiskFaults(delay_min_seconds=0.0, delay_max_seconds=1e-6)
        )
        self.members = SimulatedMembers("maitred", Random(4711))

    async def open(self) -> MembershipTable:
        return SimulatedMemberTable(self.members, self.disk)


class PostgresTables:
    def __init__(self, location: str) -> None:
        self.location = location

    async def open(self) -> MembershipTable:
        return await open_members(self.location, "maitred", silent())
