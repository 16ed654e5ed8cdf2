"""One end of a Unix connection: where it differs from TCP.

Both ends are in one kernel. What is written lies in the peer's socket at once, so that closing
knows whether anything stays unread, and a write knows that the peer is gone: it fails with EPIPE,
also after a reset, which only a read sees. A killed process is therefore no matter of chance: its
peer reads the end of the stream, or a reset if it had written bytes that stayed unread.
"""

from __future__ import annotations

import os
from errno import EPIPE

from maitred.simulation.flow import RESET
from maitred.simulation.transport import SimulatedTransport


class UnixTransport(SimulatedTransport):
    """One end of a Unix connection; `UnixListener` and `UnixConnection` create it."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write as over TCP, but fail with a broken pipe at once if the peer is gone."""
        if self._peer_gone:
            self._write_error = _broken_pipe()
        super().write(data)

    def write_eof(self) -> None:
        """End the stream as over TCP, but without an error if the peer is gone."""
        if not self._peer_gone:
            super().write_eof()
        elif not self._closing:
            self._end_written = True

    def receive(self, data: bytes, finish: str | None) -> None:
        """Take a segment that has arrived."""
        if finish is RESET:
            self._end_unread = False  # a reader sees the reset, and no end before it
            if self._paused and self.buffer:
                self.fail(_broken_pipe())  # it only writes, and a write does not see the reset
        super().receive(data, finish)

    def window_opened(self) -> None:
        """Send more, because the window has room; fail with a broken pipe if the peer is gone."""
        if self.buffer and self._peer_gone:
            self.fail(_broken_pipe())
        else:
            super().window_opened()

    def vanish(self, *, orderly: bool = False, silent: bool = False) -> None:
        """Close as the kernel of a dead process does: a reset only if bytes stay unread."""
        del orderly
        super().vanish(orderly=True, silent=silent)

    @property
    def _peer_gone(self) -> bool:
        """Whether the peer is gone. Before the accept it is not: a server or a reset follows."""
        receiver = self.outgoing.receiver
        return self._reset_error is not None or (receiver is not None and receiver.gone)

    @property
    def _leaves_unread(self) -> bool:
        return bool(self._unread) or self.incoming.carries_bytes


def _broken_pipe() -> OSError:
    return OSError(EPIPE, os.strerror(EPIPE))
