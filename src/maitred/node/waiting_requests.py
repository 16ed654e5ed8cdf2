"""Requests that wait for their partition to be loaded, and what they create."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from msgspec import Struct

    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.owned import Owned
    from maitred.protocol.tasks import Counts

Serve = Callable[["Owned", Any, "DeferredReply"], None]
"""Serves a request at a partition that is loaded."""

Absent = Callable[[Any, "Counts | None"], "Struct | None"]
"""Answers a request for a partition that does not exist; the queue's counts come in, if the queue
exists. None: the request is refused with `UnknownQueue`."""


class Makes(IntEnum):
    """What a request creates if it does not exist."""

    NOTHING = 0
    PARTITIONS = 1
    """A partition that the counts of its queue name."""
    QUEUES = 2
    """The queue, too."""


class RequestKind(NamedTuple):
    """How the requests of one opcode are served, and whether they create the queue they name."""

    serve: Serve
    makes: Makes | Callable[[Any], Makes]
    absent: Absent | None
    otherwise: Struct | None = None
    """The answer if the partition is not loaded, whatever the reason; None: the reason is the
    answer."""


class WaitingRequest(NamedTuple):
    """A request that waits for its partition to be loaded."""

    kind: RequestKind
    message: Any
    held: DeferredReply

    @property
    def makes(self) -> Makes:
        makes = self.kind.makes
        return makes if isinstance(makes, Makes) else makes(self.message)
