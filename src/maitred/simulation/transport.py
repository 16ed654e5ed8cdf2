"""One end of a simulated connection, as asyncio protocols see it.

The order of callbacks follows asyncio's selector transport: connection_made, then reading starts,
then the coroutine that connected is woken; connection_lost comes from a callback of its own,
exactly once, and the socket closes after it. The conformance tests run the same code on both.

Closing is as kernels do it: with everything read, the peer sees the end of the stream; with bytes
unread, or bytes that come later, it sees a reset. A reset is noticed by an end that reads or has
something to write; a protocol that does neither learns of it at its next write.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
from asyncio.transports import _FlowControlMixin
from collections import deque
from errno import ECONNRESET, ENOTCONN, EPIPE
from typing import TYPE_CHECKING, Any, cast

from maitred.simulation.flow import END, RESET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maitred.simulation.flow import Flow
    from maitred.simulation.process import Process

_READ_MAX_BYTES = 256 * 1024
"""Most bytes of one data_received; asyncio's own limit."""

_BYTES_LIKE = (bytes, bytearray, memoryview)


class SimulatedTransport(_FlowControlMixin):
    """A stream transport whose socket is a pair of flows. When its protocol is told to pause and to
    resume writing is decided by asyncio's own class."""

    def __init__(
        self,
        protocol: asyncio.BaseProtocol,
        outgoing: Flow,
        process: Process,
        names: dict[str, Any],
        server: asyncio.Server | None = None,
    ) -> None:
        super().__init__(names, outgoing.network.loop)
        self._loop = outgoing.network.loop
        self.buffer = bytearray()
        """The bytes that the window had no room for."""
        self.set_protocol(protocol)
        self.outgoing = outgoing
        self.incoming = outgoing.reverse
        self.process = process
        self.context = contextvars.copy_context()
        self.gone = False
        """Whether the socket is closed: what arrives now is answered with a reset."""
        self._server = server
        self._unread: deque[bytes] = deque()
        self._end_unread = False
        self._end_read = False
        self._end_written = False
        self.end_sent = False
        """Whether the end of the stream was really sent, not only asked for."""
        self._reset_error: OSError | None = None
        self._write_error: OSError | None = None
        """The error of the next write; over TCP, of the next read as well."""
        self._reading = False
        self._stopped_reading = False
        """Whether to read on when the paused process is resumed."""
        self._paused = False
        self._closing = False
        self._lost = False
        self._attach()

    def __repr__(self) -> str:
        state = "closed" if self.gone else "closing" if self._closing else "open"
        names = f"{self.get_extra_info('sockname')} to {self.get_extra_info('peername')}"
        return f"<SimulatedTransport {names} {state} buffered={len(self.buffer)}>"

    def start(self, waiter: asyncio.Future[None] | None = None) -> None:
        """Call connection_made, then read, then wake the waiter: in this order, as asyncio does."""
        self._soon(self._protocol.connection_made, self)
        self._soon(self._start_reading)
        if waiter is not None:
            self._soon(_set_unless_done, waiter)

    # Methods that protocols call

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol that gets the callbacks from the next delivery on."""
        self._protocol: asyncio.BaseProtocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that gets the callbacks."""
        return self._protocol

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the window had no room for."""
        return len(self.buffer)

    def is_closing(self) -> bool:
        """Whether close or abort was called, or the connection failed."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether deliveries reach the protocol."""
        return not self._closing and not self._paused

    def pause_reading(self) -> None:
        """Leave what arrives in the window, which fills it and stops the peer."""
        if self.is_reading():
            self._paused = True

    def resume_reading(self) -> None:
        """Read on, from the next turn of the loop."""
        if self._closing or not self._paused:
            return
        self._paused = False
        # A kernel says again what it said before, and asyncio calls eof_received again.
        self._end_read = False
        self._soon(self._read)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it, or keep what the window has no room for."""
        if not isinstance(data, _BYTES_LIKE):
            raise TypeError(
                f"data argument must be a bytes-like object, not {type(data).__name__!r}"
            )
        if self._end_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._lost:
            return
        if self._write_error is not None:
            self.fail(self._write_error)
            return
        if not self.buffer:
            if isinstance(data, memoryview):
                data = data.cast("B")
            sent = self.outgoing.send(data)
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        self.buffer += data
        self.outgoing.stalled()
        self._maybe_pause_protocol()  # type: ignore[attr-defined]

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Write the parts as one."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """End the stream in this direction, after what is buffered; reading goes on."""
        if self._closing or self._end_written:
            return
        self._end_written = True
        if self._reset_error is not None:  # asyncio lets this one through to the caller
            raise OSError(ENOTCONN, os.strerror(ENOTCONN))
        if not self.buffer:
            self._send_end()

    def can_write_eof(self) -> bool:
        """Return True: every simulated connection can be half-closed."""
        return True

    def close(self) -> None:
        """Stop reading, send what is buffered, then close."""
        if self._closing:
            return
        self._closing = True
        if not self.buffer:
            self._lost = True
            self._soon(self._call_connection_lost, None)

    def abort(self) -> None:
        """Close without sending what is buffered."""
        self._force_close(None)

    # Methods that the network calls, outside this end's context

    def receive(self, data: bytes, finish: str | None) -> None:
        """Take a segment that has arrived."""
        if (
            finish is None
            and self._reading
            and not (self._unread or self._paused or self._closing or self._buffered)
            and len(data) <= _READ_MAX_BYTES
        ):
            # The usual case, without the detours below.
            self.incoming.consumed(len(data))
            try:
                self.context.run(self._protocol.data_received, data)  # type: ignore[attr-defined]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - the handler decides
                self._protocol_failed("data_received", error)
            return
        if self._reset_error is not None:
            # Nothing follows a reset; a peer that goes on has not heard, and is told again.
            if data:
                self.outgoing.send_reset()
            return
        if data:
            self._unread.append(data)
        if finish is END:
            self._end_unread = True
        elif finish is RESET:
            code = EPIPE if self._end_unread else ECONNRESET
            self._reset_error = self._write_error = OSError(code, os.strerror(code))
            if self.buffer:
                self.fail(self._reset_error)
        if self._reading:
            self.context.run(self._read)

    def window_opened(self) -> None:
        """Send more of the buffer: the window has room."""
        if self.buffer and not self._lost and not self.process.paused:
            self.context.run(self._send_buffered)

    def fail(self, error: BaseException) -> None:
        """Lose the connection for that reason."""
        self._force_close(error)

    def kill(self) -> None:
        """Close as the kernel of a killed process does; the faults decide whether in order."""
        self.vanish(orderly=self.outgoing.network.leaves_orderly(self.outgoing.random))

    def pause(self) -> None:
        """Leave in the window what arrives, and in the buffer what waits for room."""
        self._stopped_reading |= self._reading  # a process may be paused again before it reads
        self._reading = False

    def resume(self) -> None:
        """Read and send on, from the next turn of the loop."""
        if self._stopped_reading:
            self._stopped_reading = False
            self._soon(self._start_reading)
        if self.buffer:
            self._loop.call_soon(self.window_opened, context=self.outgoing.network.context)

    def vanish(self, *, orderly: bool = False, silent: bool = False) -> None:
        """Close as the kernel of a dead process does; if `silent`, as a host without power."""
        self._closing = self._lost = True
        self.buffer.clear()
        if silent:
            self.incoming.lose_in_flight()
            self.outgoing.stop_sending()
            self._release()
            return
        # What was on its way here has no one to arrive at: the reset answers for it.
        if self._leaves_unread or not orderly:
            self.outgoing.send_reset()
        else:
            self._send_end()
        self._release()

    def discard(self) -> None:
        """Discard the transport without a warning, because the world is over."""
        self._closing = self._lost = self.gone = True

    # Within this end's context

    def _start_reading(self) -> None:
        self._reading = True
        self._read()

    def _read(self) -> None:
        while self._unread and self.is_reading():
            if self._buffered:
                self._read_into_buffer()
            else:
                self._read_data()
        if not self.is_reading() or self._end_read:
            return
        if self._end_unread:
            self._read_end()
        elif self._reset_error is not None:
            self.fail(self._reset_error)

    def _read_data(self) -> None:
        data = self._take(_READ_MAX_BYTES)
        protocol = cast("asyncio.Protocol", self._protocol)
        self._guarded("data_received", protocol.data_received, data)

    def _read_into_buffer(self) -> None:
        protocol = cast("asyncio.BufferedProtocol", self._protocol)
        buffer = self._guarded("get_buffer", protocol.get_buffer, -1)
        if buffer is None:
            return
        view = memoryview(buffer).cast("B")
        if not len(view):
            self._protocol_failed(
                "get_buffer", RuntimeError("get_buffer() returned an empty buffer")
            )
            return
        data = self._take(len(view))
        view[: len(data)] = data
        view.release()
        self._guarded("buffer_updated", protocol.buffer_updated, len(data))

    def _guarded(self, name: str, callback: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        """Call the protocol; if it raises, report it and, like asyncio, drop the connection."""
        try:
            return callback(*arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the handler decides
            self._protocol_failed(name, error)
            return None

    def _protocol_failed(self, name: str, error: BaseException) -> None:
        # asyncio does not report a failing callback's OSError; it takes it for the socket's.
        if not isinstance(error, OSError):
            self._loop.call_exception_handler(
                {
                    "message": f"protocol.{name}() failed",
                    "exception": error,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
        self._force_close(error)

    def _take(self, size_max: int) -> bytes:
        data = self._unread.popleft() if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        if len(data) > size_max:
            self._unread.append(data[size_max:])
            data = data[:size_max]
        self.incoming.consumed(len(data))
        return data

    def _read_end(self) -> None:
        self._end_read = True
        protocol = cast("asyncio.Protocol", self._protocol)
        keep_open = self._guarded("eof_received", protocol.eof_received)
        if not keep_open:
            self.close()

    def _send_buffered(self) -> None:
        sent = self.outgoing.send(self.buffer)
        del self.buffer[:sent]
        self._maybe_resume_protocol()  # type: ignore[attr-defined]
        if self.buffer:
            return
        if self._closing:
            self._lost = True
            self._call_connection_lost(None)
        elif self._end_written:
            self._send_end()

    def _send_end(self) -> None:
        if not self.end_sent:
            self.end_sent = True
            self.outgoing.send_end()

    def _force_close(self, error: BaseException | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self.buffer.clear()
        self._soon(self._call_connection_lost, error)

    def _call_connection_lost(self, error: BaseException | None) -> None:
        try:
            self._protocol.connection_lost(error if isinstance(error, Exception) else None)
        finally:
            self._close_socket(failed=isinstance(error, OSError))

    def _close_socket(self, *, failed: bool) -> None:
        if failed:
            self.outgoing.stop_sending()
        elif self._leaves_unread:
            self.outgoing.send_reset()
        else:
            self._send_end()
        self._release()

    @property
    def _leaves_unread(self) -> bool:
        """Whether bytes of the peer stay unread, which makes the kernel send a reset."""
        return bool(self._unread)

    def _release(self) -> None:
        if self.gone:
            return
        self.gone = True
        self.process.transports.pop(self, None)
        if self.process.dead:
            # Kept, for what a collected StreamWriter does would not be repeatable.
            self.outgoing.network.zombies.append(self)
        self._detach()
        self.outgoing.network.forget_if_over(self.outgoing.number)

    def _soon(self, callback: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon(callback, *arguments, context=self.context)

    def _attach(self) -> None:
        self.process.transports[self] = None
        if self._server is not None:
            # asyncio's own server counts its connections, since 3.13 by name.
            attach: Any = self._server._attach  # type: ignore[attr-defined]  # noqa: SLF001
            attach(*((self,) if sys.version_info >= (3, 13) else ()))

    def _detach(self) -> None:
        server, self._server = self._server, None
        if server is not None and not self.process.dead:
            detach: Any = server._detach  # type: ignore[attr-defined]  # noqa: SLF001
            detach(*((self,) if sys.version_info >= (3, 13) else ()))


def _set_unless_done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
