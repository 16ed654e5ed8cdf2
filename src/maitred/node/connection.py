"""The requests of one connection at a shard.

Requests that can be answered at once are answered in the loop turn in which they arrived: no task,
no timer, one write for all of them. The others are `Work`, in a table by stream id.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from maitred.errors import (
    Cancelled,
    Draining,
    MaitredError,
    NotOwner,
    Overloaded,
    PermissionDenied,
    ProtocolViolation,
    TooManyInFlight,
    UnknownRequest,
)
from maitred.node.audited import OF_OPERATORS, tell_of_refusal, tell_of_request
from maitred.node.deferred_reply import HeldWork
from maitred.node.handshake import OWN_OPCODES, Handshake
from maitred.node.work import ForwardedWork, expired
from maitred.protocol.frames import Frame, Opcode
from maitred.protocol.messages import REQUEST_DECODERS, UNREADABLE, not_understood
from maitred.protocol.requests import PartitionRequest
from maitred.security.permissions import EVERYTHING, denied

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from maitred.protocol.messages import AnyRequest


ALSO_WHILE_DRAINING: Final = frozenset(
    {
        Opcode.STATUS,
        Opcode.FINISH,
        Opcode.RELAY,
        Opcode.FETCH,
        Opcode.DELIVER,
        Opcode.HAND_OVER,
        Opcode.TELL_VIEW,
    }
)
"""The requests that a draining node still serves: its status, the ends of tasks, relayed queries,
handovers of partitions, and views of the cluster."""


class NodeConnection(Handshake):
    """The shard's end of a connection, with its requests."""

    __slots__ = ()

    def frames_received(self, frames: list[Frame], now: float) -> None:
        for frame in frames:
            try:
                if frame[2] >= OWN_OPCODES and self.version:
                    self._request(frame, now)
                else:
                    self._cql(frame)
            except MaitredError as problem:
                if isinstance(problem, PermissionDenied):
                    self.record_refusal(frame.opcode, problem)
                self.refuse(frame.stream, problem)
            except (Exception, CancelledError) as problem:  # noqa: BLE001 - every request gets an answer
                self.blame_ourselves(frame.stream, problem)
            if self.closing:
                return

    def record_refusal(self, opcode: int, problem: MaitredError) -> None:
        """Record in the audit log that its user is not permitted to make a request, or to see all
        of its answer."""
        if self.shard.audit is not None:
            tell_of_refusal(self.shard.audit, opcode, problem, self)

    def _request(self, frame: Frame, now: float) -> None:
        flags, stream, opcode, body = frame
        under_way = self.under_way
        if flags or stream < 0 or (under_way and stream in under_way):
            self._request_out_of_place(frame)
            return
        shard = self.shard
        if len(under_way) >= self._in_flight_max and opcode != Opcode.CANCEL:
            raise TooManyInFlight(
                f"This connection has {self._in_flight_max:,} requests under way already.",
                remedy="Wait for answers; SUPPORTED tells how many may be under way.",
            )
        handler = shard.handlers.get(opcode)
        if handler is None and opcode not in shard.holders:
            if opcode == Opcode.CANCEL:
                return  # the cancelled request has been answered
            raise UnknownRequest(f"There is no request with the opcode 0x{opcode:02x}.")
        try:
            message = REQUEST_DECODERS[opcode](body)
        except UNREADABLE as problem:
            raise not_understood(opcode, problem) from None
        owner = None
        if isinstance(message, PartitionRequest):
            owner = shard.settled.get(
                (message.namespace, message.queue, message.queue_type, message.partition)
            )
        if owner is None:
            owner = shard.owner_of(message)
        if self.permissions is not EVERYTHING or message.between_shards:
            self._check_permission(message)
        deadline = self.arrived_at + message.timeout_milliseconds * 0.001
        if now >= deadline:
            raise expired()
        if shard.draining and opcode not in ALSO_WHILE_DRAINING:
            if self._peer and owner != shard.number:
                self._check_owner(message)  # the next owner serves it
            raise Draining("The node is stopping.", remedy="Ask another node, or again later.")
        size = len(body)
        if shard.under_way_bytes + size > shard.limits.under_way_bytes:
            raise Overloaded(
                "The requests under way take as much memory as they may.", remedy="Try later."
            )
        if opcode in shard.admissions and not self._peer:
            shard.admissions[opcode](message, self)
        if shard.audit is not None and message.permission in OF_OPERATORS and not self._peer:
            tell_of_request(shard.audit, message, self)
        if owner != shard.number and not (message.stays and shard.keeps(message)):
            if not self._peer:
                shard.forward(ForwardedWork(self, stream, opcode, size, owner), message, deadline)
                return
            self._check_owner(message)
        if self._peer:
            shard.received_forwarded += 1
        running: Coroutine[Any, Any, Struct] | None = None
        if handler is not None:
            answer = handler(message)
            if isinstance(answer, Struct):
                self.answer(stream, opcode, answer)
                return
            running = answer
        held = HeldWork(self, stream, opcode, size, deadline)
        try:
            if running is None:
                shard.holders[opcode](message, held)
            else:
                shard.answer_with(held, running)
        except MaitredError as problem:
            held.refuse(problem)
        except Exception as problem:  # noqa: BLE001 - every request gets an answer
            self.work_ends(stream, held, size)
            self.blame_ourselves(stream, problem)

    def serve(self, message: AnyRequest, stream: int, size: int, deadline: float) -> None:
        """Serve a request that had been forwarded, and that this shard owns by now."""
        shard, opcode = self.shard, message.opcode
        held = HeldWork(self, stream, opcode, size, deadline)
        with held.refused_on_error(shard.log):
            handler = shard.handlers.get(opcode)
            if handler is None:
                shard.holders[opcode](message, held)
                return
            answer = handler(message)
            if isinstance(answer, Struct):
                held.answer(answer)
            else:
                shard.answer_with(held, answer)

    def _check_owner(self, message: AnyRequest) -> None:
        """Refuse a request of another shard for a partition that this shard does not own by its
        view, which is at least as new as the view of the other shard. The request for a handover
        goes to the previous owner."""
        if (
            self.shard.clustered
            and isinstance(message, PartitionRequest)
            and message.opcode != Opcode.HAND_OVER
        ):
            raise NotOwner("Another shard owns this partition.")

    def _request_out_of_place(self, frame: Frame) -> None:
        work = self.under_way.get(frame.stream)
        if work is not None and frame.opcode == Opcode.CANCEL and not frame.flags:
            if isinstance(work, HeldWork) and work.on_recall is not None:
                work.on_recall()
                return
            work.stop(Cancelled("The caller cancelled the request."))
        elif not self._stream_refused(frame.stream):
            raise ProtocolViolation(
                f"Requests of maitred have no flags; this one has {frame.flags:#04x}."
            )

    def _check_permission(self, message: AnyRequest) -> None:
        if message.between_shards:
            if not self._peer:
                raise PermissionDenied("Only shards of a node send this request to each other.")
            return
        if message.permission is None:  # every authenticated user may send it
            return
        namespace = message.namespace if isinstance(message, PartitionRequest) else "*"
        if message.anywhere and self.permissions.namespaces(message.permission) != []:
            return
        if not self.permissions.allows(namespace, message.permission):
            raise denied(self.user or None, message.permission, namespace)
