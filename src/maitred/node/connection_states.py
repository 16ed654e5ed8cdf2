"""The states of a client's connection at a shard, as a table.

`Accepted` changes its state by the table alone. Each request looks only at `Accepted.version`,
which is 0 until the connection is ready, and at `closing`, which the link itself sets when it
closes: a lookup per request would cost more than the request's other checks together.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from maitred.states import StateTable


class ConnectionState(Enum):
    """How far a connection has come."""

    FRESH = auto()
    """No STARTUP has arrived."""
    AUTHENTICATING = auto()
    """The shard waits for the client's credentials."""
    VERIFYING = auto()
    """The shard verifies the credentials."""
    GREETED = auto()
    """A process of another node of the cluster has connected; the shard waits for its nonce."""
    CHALLENGED = auto()
    """The shard has proved who it is, and waits for the proof of that process."""
    READY = auto()
    """The client may send requests."""
    CLOSING = auto()
    """The shard has sent its last frame, or gave up sending, and ignores what arrives."""
    CLOSED = auto()


class ConnectionEvent(Enum):
    """What can happen to a connection."""

    ASK_CREDENTIALS = auto()
    """STARTUP arrived, and the client has to authenticate."""
    VERIFY = auto()
    """AUTH_RESPONSE arrived."""
    VERIFICATION_FAILED = auto()
    """The shard could not verify the credentials; the client may send them again."""
    GREET = auto()
    """STARTUP of a process of another node arrived."""
    CHALLENGE = auto()
    """Its nonce arrived."""
    ADMIT = auto()
    """The client is authenticated, or the node has no users."""
    CLOSE = auto()
    """The shard closes the connection."""
    LOSE = auto()
    """The transport is closed."""


_STATE, _EVENT = ConnectionState, ConnectionEvent
_END: Final = {_EVENT.CLOSE: _STATE.CLOSING, _EVENT.LOSE: _STATE.CLOSED}

CONNECTION_TABLE: Final = StateTable[ConnectionState, ConnectionEvent](
    "connection",
    {_STATE.FRESH: "a client connects", _STATE.READY: "another shard connects"},
    {
        _STATE.FRESH: {
            _EVENT.ASK_CREDENTIALS: _STATE.AUTHENTICATING,
            _EVENT.GREET: _STATE.GREETED,
            _EVENT.ADMIT: _STATE.READY,
            **_END,
        },
        _STATE.AUTHENTICATING: {_EVENT.VERIFY: _STATE.VERIFYING, **_END},
        _STATE.VERIFYING: {
            _EVENT.ADMIT: _STATE.READY,
            _EVENT.VERIFICATION_FAILED: _STATE.AUTHENTICATING,
            **_END,
        },
        _STATE.GREETED: {_EVENT.CHALLENGE: _STATE.CHALLENGED, **_END},
        _STATE.CHALLENGED: {_EVENT.ADMIT: _STATE.READY, **_END},
        _STATE.READY: _END,
        # The shard ends a connection at once whose peer does not close.
        _STATE.CLOSING: _END,
        _STATE.CLOSED: {},
    },
)

HANDSHAKE: Final = frozenset(
    (
        _STATE.FRESH,
        _STATE.AUTHENTICATING,
        _STATE.VERIFYING,
        _STATE.GREETED,
        _STATE.CHALLENGED,
    )
)
"""The states before the client is authenticated."""
