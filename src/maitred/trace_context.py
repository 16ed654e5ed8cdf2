"""The trace that a task or query belongs to: W3C Trace Context in a few bytes.

A producer sends the context of its span with a task; the partition keeps the bytes and hands them
to the worker, whose span becomes a child of the producer's. No code between the two needs
OpenTelemetry for that, or knows more about the bytes than this file does.

The ids of the spans in between are computed, not sent (`derived_span_id`): whoever has the context,
the task and the number of an attempt knows the id of that attempt's span. So a retry can name the
span of the attempt before it, although another worker ran that one, and nothing more has to be
stored with a task.

The bytes are: a version, the W3C flags, a number of the round, what else is true of the context,
the trace id (16), the span id (8), and the `tracestate` as text. A single byte, `NOT_RECORDED`,
stands for a trace of which no span is recorded and whose id does not matter.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

SAMPLED: Final = 1
"""The W3C flag of a trace whose spans are recorded."""

STATE_LETTERS: Final = 512
"""Longest `tracestate` that is sent along: what W3C asks for at least. A longer one is dropped,
whole, as W3C allows; the trace goes on without it."""

NOT_RECORDED: Final = b"\x00"
"""The context of a task or query whose producer decided that its trace is not recorded."""

_VERSION: Final = 1
HEAD_BYTES: Final = 28
"""Length of a context without `tracestate`."""

_WAIT_RECORDED: Final = 1

TRACE_BYTES_MAX: Final = HEAD_BYTES + STATE_LETTERS
"""Longest context."""

_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-[^,]*)?"
)
_NO_TRACE: Final = bytes(16)
_NO_SPAN: Final = bytes(8)


def packed(trace_id: int, span_id: int, flags: int, state: str = "") -> bytes:
    """Return the context with these ids."""
    if len(state) > STATE_LETTERS or not state.isascii():
        state = ""
    head = bytes((_VERSION, flags & 0xFF, 0, 0))
    return head + trace_id.to_bytes(16) + span_id.to_bytes(8) + state.encode()


def is_context(trace: bytes) -> bool:
    """Return whether the bytes name a trace. Others, also those of a later version, are carried
    along and not used."""
    return (
        HEAD_BYTES <= len(trace) <= TRACE_BYTES_MAX
        and trace[0] == _VERSION
        and trace[4:20] != _NO_TRACE
        and trace[20:28] != _NO_SPAN
    )


def is_recorded(trace: bytes) -> bool:
    """Return whether the spans of this trace are recorded."""
    return len(trace) >= HEAD_BYTES and trace[1] & SAMPLED == SAMPLED and is_context(trace)


def trace_id_of(trace: bytes) -> int:
    """Return the id of the trace of a context."""
    return int.from_bytes(trace[4:20])


def span_id_of(trace: bytes) -> int:
    """Return the id of the span that the context was sent from."""
    return int.from_bytes(trace[20:28])


def flags_of(trace: bytes) -> int:
    """Return the W3C flags of a context."""
    return trace[1]


def state_of(trace: bytes) -> str:
    """Return the `tracestate` of a context; empty if it has none that can stand in a header."""
    state = trace[HEAD_BYTES:].decode("latin-1")
    return state if state.isascii() and state.isprintable() else ""


def round_of(trace: bytes) -> int:
    """Return the number of the round (`in_round`); 0 of bytes that name no trace."""
    return trace[2] if is_context(trace) else 0


def in_round(trace: bytes, number: int) -> bytes:
    """Return the context for another round: the attempts of a round are counted from 1, and the
    ids of their spans differ from those of other rounds. A dead letter that is tried again begins
    a round. The round of a query is the number of the attempt, 0 for the first (`next_attempt`).
    The number is counted modulo 256."""
    if not is_context(trace):
        return trace
    return trace[:2] + bytes((number & 0xFF,)) + trace[3:]


def child_of(trace: bytes, span_id: int) -> bytes:
    """Return the context of another span of the same trace."""
    return (
        bytes((_VERSION, trace[1], 0, 0)) + trace[4:20] + span_id.to_bytes(8) + trace[HEAD_BYTES:]
    )


def waits_recorded(trace: bytes) -> bytes:
    """Return the context for a worker whose node has recorded how long the task waited."""
    return trace[:3] + bytes((trace[3] | _WAIT_RECORDED,)) + trace[4:]


def is_wait_recorded(trace: bytes) -> bool:
    """Return whether the node recorded a span for the time that the task waited."""
    return trace[3] & _WAIT_RECORDED == _WAIT_RECORDED


def next_attempt(trace: bytes) -> bytes:
    """Return the context for the next attempt at a query, after one that may have begun."""
    return in_round(trace, max(round_of(trace), 1) + 1)


def derived_span_id(trace: bytes, what: str, item: str, attempt: int) -> int:
    """Return the id of the span of one attempt at one task or query; `what` tells apart the spans
    that the attempt has."""
    named = f"{trace[2]} {what} {item} {attempt}".encode()
    found = int.from_bytes(blake2b(named, digest_size=8, key=trace[4:28]).digest())
    return found or 1  # 0 is no valid id


def traceparent(trace: bytes) -> str:
    """Return the context as the value of the header `traceparent`."""
    return f"00-{trace[4:20].hex()}-{trace[20:28].hex()}-{trace[1]:02x}"


def headers_of(trace: bytes, item: str) -> dict[str, str]:
    """Return the headers `traceparent` and `tracestate` for a request on behalf of a task or query
    with this context; empty if it belongs to no trace. `item` names the task or query: a trace that
    is not recorded and has no id gets one, so that the server does not record its part either."""
    if trace == NOT_RECORDED:
        ids = blake2b(item.encode(), digest_size=24).digest()
        trace = packed(int.from_bytes(ids[:16]) or 1, int.from_bytes(ids[16:]) or 1, 0)
    if not is_context(trace):
        return {}
    headers = {"traceparent": traceparent(trace)}
    state = state_of(trace)
    if state:
        headers["tracestate"] = state
    return headers


def from_headers(parent: str, state: str = "") -> bytes:
    """Return the context in the headers `traceparent` and `tracestate`; empty if the first is not
    valid, or was sent twice and joined. W3C demands that such a header is ignored, not refused."""
    found = _TRACEPARENT.fullmatch(parent.strip())
    if found is None or (parent.startswith("00") and len(parent.strip()) != 55):
        return b""
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    if not trace_id or not span_id:
        return b""
    # W3C allows tabs between the entries, and a state with control characters is not sent on.
    return packed(trace_id, span_id, flags & SAMPLED, state.strip().replace("\t", " "))
