"""What a supervisor and its processes say to each other: lines of JSON on a socket pair.

The supervisor begins with Start, or with StartGateway if the process is to be the node's gateway.
The process answers Ready, or Failed and ends. On Stop, or when the channel ends because the
supervisor has ended, the process drains; its exit status tells whether requests were cut off. A
process that meets a fault of its own sends Failed at any time, which tells the supervisor why the
process died.

A process that an operator asked for a reload of the node sends ReloadWanted. The supervisor then
sends ReloadProcess to all processes, each answers Reloaded, and the first one gets all outcomes as
ReloadDone. The supervisor also begins a reload when the settings file has changed.

The supervisor asks its shards for their metrics with Measure, or only for a sign of life, and each
answers Measured.

In a cluster the supervisor is the node's member. It tells its shards every view of the cluster with
TakeView, and with each heartbeat how long the node's lease may be trusted, with TrustLease.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, json

from maitred.errors import MaitredError, RemoteError
from maitred.membership.view import ClusterView  # noqa: TC001 - msgspec reads the annotations
from maitred.node.shard_place import ShardPlace  # noqa: TC001 - msgspec reads the annotations
from maitred.protocol.access import PartState, ProcessState  # noqa: TC001
from maitred.protocol.refusals import CLASSES
from maitred.settings import Node, User  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Callable

LINE_BYTES: Final = 64 * 2**20
"""Longest line: all settings, among them the users, some 200 bytes each."""


class Start(Struct, tag="start"):
    """The supervisor's first line to a process that is to be this shard."""

    settings: Node
    place: ShardPlace
    source_port_socket: int | None
    """The number of an inherited file."""


class StartGateway(Struct, tag="start-gateway"):
    """The supervisor's first line to a process that is to be the gateway of this node."""

    settings: Node
    port: int
    """The port of the HTTP API; the supervisor holds it."""
    node: str
    """Where the node is: `host:port`."""
    secret: str
    """The gateway's own, new at each start of the node."""
    cluster_secret: str = ""
    """The cluster's secret as hexadecimal digits, with which the gateway authenticates at other
    nodes; empty without a cluster."""


class Stop(Struct, tag="stop"):
    """Finish the requests in flight, and end."""


class Ready(Struct, tag="ready"):
    """The process listens."""

    serves: bool = True
    """False: a gateway that does not reach its node; it is not announced."""


class Failed(Struct, tag="failed"):
    """The process cannot continue, and ends."""

    code: str
    sentence: str
    remedy: str | None = None

    @classmethod
    def of(cls, problem: MaitredError) -> Failed:
        return cls(problem.code, problem.sentence, problem.remedy)

    def error(self) -> MaitredError:
        """Return the reported error as an exception of its class."""
        kind = CLASSES.get(self.code)
        if kind is None:
            return RemoteError(self.sentence, remedy=self.remedy, code=self.code)
        return kind(self.sentence, remedy=self.remedy)


class ReloadProcess(Struct, tag="reload-process"):
    """Read users and certificates again."""

    number: int
    users: dict[str, User] | None
    """The users of the settings file as it is now; None if they have not changed."""


class Reloaded(Struct, tag="reloaded"):
    """The outcome of a ReloadProcess."""

    number: int
    parts: list[PartState]


class TakeView(Struct, tag="take-view"):
    """The cluster has a newer view."""

    view: ClusterView


class TrustLease(Struct, tag="trust-lease"):
    """A heartbeat of the node was confirmed by the database."""

    until: float
    """Until when the node's lease may be trusted, in seconds of the machine's boot clock."""
    clock_ahead_seconds: float = 0.0
    """How far the node's wall clock is ahead of the database's."""


class Measure(Struct, tag="measure"):
    """Tell the supervisor the metrics of this process, or nothing but that it answers."""

    number: int
    samples: bool = True


class Measured(Struct, tag="measured"):
    """The answer to a Measure."""

    number: int
    lines: dict[str, list[str]] = {}
    """Rendered samples, by the name of their metric."""


class ReloadWanted(Struct, tag="reload-wanted"):
    """Have the whole node reload, because an operator asked this process for it."""

    number: int


class ReloadDone(Struct, tag="reload-done"):
    """The outcome of a ReloadWanted."""

    number: int
    processes: list[ProcessState]


ClusterNews = TakeView | TrustLease
Command = Start | StartGateway | Stop | ReloadProcess | ReloadDone | Measure | ClusterNews
Report = Ready | Failed | Reloaded | ReloadWanted | Measured

decode_command: Final[Callable[[bytes], Command]] = json.Decoder(Command).decode
"""Decodes a line of the supervisor."""

decode_report: Final[Callable[[bytes], Report]] = json.Decoder(Report).decode
"""Decodes a line of a process to its supervisor."""


async def done_before(task: asyncio.Task[Any], event: asyncio.Event) -> bool:
    """Wait for the task or the event, whichever is first; return whether the task is done."""
    set_first = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((task, set_first), return_when=asyncio.FIRST_COMPLETED)
    finally:
        set_first.cancel()
    return task.done()


def line(message: Command | Report) -> bytes:
    """Encode the message as a line."""
    return json.encode(message) + b"\n"
