"""What a connection waits for, and for how long at most.

A connection is in exactly one of these states, and each has a limit: the table is complete, so that
no connection lives for ever because nobody thought of what it does. The listener looks at all
connections about once a second (`HttpDoor._sweep`); `Connection.look_at_clock` compares.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from maitred.gateway.http.request import TIMEOUT_MAX_SECONDS

if TYPE_CHECKING:
    from maitred.settings import GatewaySettings

LINGER_SECONDS: Final = 2.0
"""How long a connection that was refused is kept open to let the answer arrive: closing it while
the caller still sends would destroy what it has not read yet."""

ANSWER_SECONDS: Final = TIMEOUT_MAX_SECONDS + 60.0
"""No request may take longer than a day, so one that is not answered by then was lost by us."""


class WaitState(Enum):
    """What a connection waits for."""

    REQUEST = auto()
    """Nothing of a request has arrived."""
    HEAD = auto()
    """The rest of a request line and its headers."""
    LOGIN = auto()
    """The credentials of a request are being verified; its body is not read meanwhile."""
    BODY = auto()
    """The rest of a body."""
    ANSWER = auto()
    """The gateway has a request that is not answered."""
    CALLER = auto()
    """The caller does not take what was written to it."""
    CLOSE = auto()
    """Nothing follows from here; the caller has to close, or the transport to finish."""


def limits(settings: GatewaySettings) -> dict[WaitState, float]:
    """Return the longest time of each state, in seconds."""
    return {
        WaitState.REQUEST: settings.idle_seconds,
        WaitState.HEAD: settings.header_seconds,
        WaitState.LOGIN: settings.header_seconds,
        WaitState.BODY: settings.body_seconds,
        WaitState.ANSWER: ANSWER_SECONDS,
        WaitState.CALLER: settings.body_seconds,
        WaitState.CLOSE: LINGER_SECONDS,
    }
