"""The paths between hosts: their delays and faults, what blocks them, and what uses them.

Flows read this for every segment, so the values that a segment needs are plain attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from maitred.simulation.faults import Faults
    from maitred.simulation.loop import SimulatedLoop
    from maitred.simulation.trace import Trace


class PathEnd(Protocol):
    """A host, as the paths to and from it see it."""

    @property
    def name(self) -> str:
        """The name of the host."""

    @property
    def up(self) -> bool:
        """Whether the host has power."""


class PathTransport(Protocol):
    """One end of a connection, as the network sees it."""

    def discard(self) -> None:
        """Discard the transport without a warning, because the world is over."""


class PathFlow(Protocol):
    """One direction of a connection, as the network sees it."""

    @property
    def outstanding_bytes(self) -> int:
        """The bytes that are under way or unread."""

    @property
    def sender(self) -> PathTransport | None:
        """The transport that sends; None until it is created."""

    def resume(self) -> None:
        """Send what was held, if the path is open again."""


class PathConnection(Protocol):
    """An established connection, as the network sees it."""

    @property
    def outgoing(self) -> PathFlow:
        """The direction from the client to the server."""

    @property
    def incoming(self) -> PathFlow:
        """The direction from the server to the client."""

    @property
    def over(self) -> bool:
        """Whether nothing more can happen on this connection."""

    def forgotten(self) -> None:
        """Free what the connection holds, when it is over."""


class Paths:
    """The paths between the hosts of a network, and the connections on them."""

    def __init__(
        self, loop: SimulatedLoop, trace: Trace, faults: Faults, random: Callable[[str], Random]
    ) -> None:
        self.loop = loop
        self.trace = trace
        self.troubled = False
        """Whether some path is blocked; while none is, flows skip the check of their path."""
        self.faults = faults
        self.random = random
        self.context = loop.bare_context
        """The context of the network's own events, which run in no process: no kill stops them."""
        self.connections: dict[int, PathConnection] = {}
        self.zombies: list[PathTransport] = []
        """The closed transports of dead processes."""
        self._ends: list[PathEnd] = []
        self._partitions: dict[tuple[str, str], None] = {}
        self._connection_number = 0
        self._process_number = 0

    @property
    def faults(self) -> Faults:
        """The faults of segments that are sent from now on; may be replaced at any time."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        # What every segment needs, at hand.
        self.window_bytes = faults.window_bytes
        self.split_probability = faults.split_probability
        self.delay_min_seconds = faults.delay_min_seconds
        self.delay_range_seconds = faults.delay_max_seconds - faults.delay_min_seconds
        self.trouble_probability = (
            faults.spike_probability + faults.cut_probability + faults.half_open_probability
        )

    def blocked(self, source: PathEnd, target: PathEnd) -> bool:
        """Whether nothing sent now would arrive."""
        if not target.up or not source.up:
            return True
        return bool(self._partitions) and (source.name, target.name) in self._partitions

    def path_changed(self) -> None:
        """Tell all flows that a path has opened or closed."""
        self.troubled = bool(self._partitions) or not all(end.up for end in self._ends)
        for connection in list(self.connections.values()):
            connection.outgoing.resume()
            connection.incoming.resume()

    def next_connection_number(self) -> int:
        """Return the number of the next connection, which identifies it in the trace."""
        self._connection_number += 1
        return self._connection_number

    def next_process_number(self) -> int:
        """Return the number of the next process, which identifies it in the trace."""
        self._process_number += 1
        return self._process_number

    def forget_if_over(self, number: int) -> None:
        """Drop a connection when both ends are closed and nothing is under way."""
        connection = self.connections.get(number)
        if connection is not None and connection.over:
            del self.connections[number]
            connection.forgotten()

    def leaves_orderly(self, random: Random) -> bool:
        """Draw whether the peer of a killed process sees an end of stream instead of a reset."""
        probability = self.faults.kill_orderly_probability
        return probability > 0.0 and random.random() < probability
