"""What must hold of a whole cluster when it is calm: one view, and one owner of everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.record import until_nothing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.simulation.member_table import SimulatedMembers
    from maitred.simulation.scenarios.cluster_node import ClusterNode


class ClusterChecks:
    """Looks at all nodes and the membership table from outside of the world."""

    def __init__(self, nodes: Sequence[ClusterNode], members: SimulatedMembers) -> None:
        self._nodes = nodes
        self._members = members

    async def until_converged(self, seconds: float) -> None:
        """Wait until every node that is wanted is active, and all shards have the newest view."""
        await until_nothing(
            self._astray, f"After {seconds} s the view has not converged", seconds, every=0.25
        )

    def _astray(self) -> list[str]:
        found = self._members.read(0.0).view
        active = {one.id: one for one in found.active}
        wanted = [node for node in self._nodes if node.wanted]
        left = [
            f"{node.host.name} is not active, as {node.member}"
            for node in wanted
            if node.member not in active
        ]
        ids = {node.member for node in wanted}
        left += [f"{one} is still there" for one in found.members if one.id not in ids]
        for node in wanted:
            serving = len(node.running)
            if serving < node.shards:
                left.append(f"{node.host.name} has {serving} of {node.shards} shards")
            for number, shard in node.running.items():
                version = shard.view.version if shard.view is not None else 0
                if version != found.version:
                    left.append(
                        f"{node.host.name} shard {number} has view {version}, not {found.version}"
                    )
        return left

    def check_places(self) -> None:
        """Raise `Violation` if a shard serves a partition that it does not own by its view."""
        for node in self._nodes:
            for number, shard in node.running.items():
                partitions = shard._partitions  # noqa: SLF001 - a look from outside of the world
                if partitions is None:
                    continue
                for key, owned in partitions.owned.items():
                    partition = owned.partition
                    waiting = (
                        partition.offers.free,
                        len(partition.results.tokens()),
                        len(owned.asked),
                    )
                    owner = shard.owners.home(key, node.host.wall_clock())[0]
                    if owner != number and any(waiting):
                        raise Violation(
                            f"{node.host.name} shard {number} holds {waiting} of {key}, which "
                            f"belongs to {owner}."
                        )

    def check_left(self) -> None:
        """Raise `Violation` unless every member has left the table."""
        left = self._members.living
        if left:
            raise Violation(f"All nodes have stopped in order, and the table has {left}.")
