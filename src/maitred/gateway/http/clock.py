"""The states in which an HTTP connection waits, and the time limit of each.

A connection is in exactly one of these states, and each has a limit: the table is complete, so that
no connection lives for ever in a state without a limit. The listener checks all connections about
once a second (`HttpListener._sweep`); `Connection.look_at_clock` compares.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from maitred.gateway.http.request import TIMEOUT_MAX_SECONDS

if TYPE_CHECKING:
    from maitred.settings import GatewaySettings

LINGER_SECONDS: Final = 2.0
"""How long a refused connection is kept open so that the answer can arrive: closing it while the
caller still sends would discard what the caller has not read yet."""

ANSWER_SECONDS: Final = TIMEOUT_MAX_SECONDS + 60.0
"""No request may take longer than a day, so the gateway has lost one that is unanswered by then."""


class WaitState(Enum):
    """What a connection waits for."""

    REQUEST = auto()
    """The connection is idle: nothing of a request has arrived."""
    HEAD = auto()
    """The caller has to send the rest of the request line and the headers."""
    LOGIN = auto()
    """The gateway verifies the credentials of a request; its body is not read meanwhile."""
    BODY = auto()
    """The caller has to send the rest of a body."""
    ANSWER = auto()
    """The gateway has a request that it has not answered yet."""
    CALLER = auto()
    """The caller does not read the answers that were written."""
    CLOSE = auto()
    """The gateway sends nothing more; the caller has to close, or the transport to finish."""


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
