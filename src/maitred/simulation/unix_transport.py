"""One end of a Unix connection: where it differs from TCP.

Both ends are in one kernel. What is written lies in the peer's socket at once, so that closing
knows whether anything stays unread, and a write knows that the peer is gone: it fails with EPIPE,
also after a reset, which only a read sees. A killed process is therefore no matter of chance: its
peer reads the end of the stream, or a reset if it had written something that nobody read.
"""

from __future__ import annotations

import os
from errno import EPIPE

from maitred.simulation.flow import RESET
from maitred.simulation.transport import SimulatedTransport


class UnixTransport(SimulatedTransport):
    """Made by `UnixListener` and `UnixConnection`."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """As over TCP, but a peer that is gone breaks the pipe at once."""
        if self._peer_gone:
            self._write_error = _broken_pipe()
        super().write(data)

    def write_eof(self) -> None:
        """As over TCP, but it does not mind a peer that is gone."""
        if not self._peer_gone:
            super().write_eof()
        elif not self._closing:
            self._end_written = True

    def receive(self, data: bytes, finish: str | None) -> None:
        """A segment has arrived."""
        if finish is RESET:
            self._end_unread = False  # whoever reads sees the reset, and no end before it
            if self._paused and self.buffer:
                self.fail(_broken_pipe())  # it only writes, and a write does not see the reset
        super().receive(data, finish)

    def window_opened(self) -> None:
        """There is room to send more, or nobody to send it to."""
        if self.buffer and self._peer_gone:
            self.fail(_broken_pipe())
        else:
            super().window_opened()

    def vanish(self, *, orderly: bool = False, silent: bool = False) -> None:
        """The process is dead; only what is unread makes its kernel reset the connection."""
        del orderly
        super().vanish(orderly=True, silent=silent)

    @property
    def _peer_gone(self) -> bool:
        """Whether nobody is left to read. Before the accept somebody will come, or a reset."""
        receiver = self.outgoing.receiver
        return self._reset_error is not None or (receiver is not None and receiver.gone)

    @property
    def _leaves_unread(self) -> bool:
        return bool(self._unread) or self.incoming.carries_bytes


def _broken_pipe() -> OSError:
    return OSError(EPIPE, os.strerror(EPIPE))
