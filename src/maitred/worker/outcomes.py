"""Endings of attempts, as they are reported: a number and a body. No function but `row` raises."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final

from msgspec import msgpack

from maitred.app.signature import UNWRITABLE, encode
from maitred.errors import ResultTooLarge
from maitred.protocol.tasks import DONE, FAILED, STOPPED, TIMED_OUT, Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from maitred.errors import InvalidArguments
    from maitred.redaction import Redaction

    Ending = tuple[int, bytes]

NIL: Final = b"\xc0"
NOTHING: Final = (DONE, NIL)
"""The handler returned None."""
MESSAGE_LETTERS: Final = 2_000
"""Longest text of an exception; it is for people, and is stored with every dead letter."""
TRACEBACK_LETTERS: Final = 8_000
"""Longest traceback. Its end says where the exception was raised, so its beginning is cut."""

decode_failure: Final = msgpack.Decoder(Failure).decode

UNSERIALISABLE: Final = "unserialisable-result"
TOO_LARGE: Final = "payload-too-large"
QUERY_TOO_LARGE: Final = ResultTooLarge.code


class Unfit(Exception):
    """A row or a result that cannot be sent, with the ending that says why."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


def returned(result: object, most_bytes: int, too_large: str = TOO_LARGE) -> Ending:
    """Return the ending of an attempt whose handler returned this."""
    if result is None:
        return NOTHING
    try:
        body = encode(result)
    except UNWRITABLE as problem:
        return failure(UNSERIALISABLE, f"The result cannot be serialised: {problem}")
    except Exception as problem:  # noqa: BLE001 - a user's class, whose attributes may do anything
        return failure(UNSERIALISABLE, f"The result cannot be serialised: {_text(problem)}")
    if len(body) > most_bytes:
        return failure(
            too_large,
            f"The result has {len(body):,} bytes; the node allows {most_bytes:,}.",
        )
    return DONE, body


def row(value: object) -> bytes:
    """Return a row of a stream in msgpack; raise `Unfit` if it cannot be serialised."""
    try:
        return encode(value)
    except UNWRITABLE as problem:
        why = str(problem)
    except Exception as problem:  # noqa: BLE001 - a user's class, whose attributes may do anything
        why = _text(problem)
    raise Unfit(failure(UNSERIALISABLE, f"A row cannot be serialised: {why}"))


def raised(problem: BaseException) -> Ending:
    """Return the ending of an attempt whose handler raised this."""
    if isinstance(problem, Unfit):
        return problem.ending
    return failure(type(problem).__qualname__, _text(problem), _traceback(problem))


def misfit(problem: InvalidArguments) -> Ending:
    """Return the ending of an attempt whose arguments do not fit its handler. The node retries it
    like any failure: another worker may have the version of the handler that they fit."""
    return failure(problem.code, str(problem))


def timed_out(seconds: float, what: str = "attempt") -> Ending:
    """Return the ending of an attempt that exceeded its time limit."""
    return TIMED_OUT, encode(Failure("timed-out", f"The {what} took longer than {seconds:g} s."))


def stopped(what: str = "task") -> Ending:
    """Return the ending of an attempt that was cancelled."""
    return STOPPED, encode(Failure("cancelled", f"The {what} was cancelled."))


def failure(kind: str, message: str, trace: str = "") -> Ending:
    """Return the ending of an attempt that failed."""
    told = Failure(kind, message[:MESSAGE_LETTERS], trace)
    try:
        return FAILED, encode(told)
    except UNWRITABLE:  # half of a surrogate pair
        return FAILED, encode(Failure(*(_printable(text) for text in (kind, told.message, trace))))


def without_traceback(body: bytes) -> bytes:
    """Return the same failure without its traceback, for callers that may not see it."""
    told = decode_failure(body)
    return encode(Failure(told.kind, told.message))


def redacted(body: bytes, redaction: Redaction) -> bytes:
    """Return the same failure without the hidden arguments. Its kind stays: the class of an
    exception is part of the code."""
    told = decode_failure(body)
    message, trace = redaction.text(told.message), redaction.text(told.traceback)
    return encode(Failure(told.kind, message, trace))


def called(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    most_bytes: int,
    too_large: str = TOO_LARGE,
) -> Ending:
    """Call a plain function in a thread, and return how that ended, whatever it raises."""
    try:
        return returned(function(*args, **kwargs), most_bytes, too_large)
    except BaseException as problem:  # noqa: BLE001 - also what would end the thread
        return raised(problem)


def _text(problem: BaseException) -> str:
    try:
        return str(problem)
    except Exception:  # noqa: BLE001 - a user's __str__
        return "(its text cannot be read)"


def _traceback(problem: BaseException) -> str:
    try:
        trace = problem.__traceback__
        while trace is not None and _is_ours(trace):
            trace = trace.tb_next
        lines = traceback.format_exception(type(problem), problem, trace)
        return "".join(lines)[-TRACEBACK_LETTERS:]
    except Exception:  # noqa: BLE001 - a user's __str__, or a missing source file
        return ""


def _is_ours(trace: TracebackType) -> bool:
    """Whether the frame is the worker's, which calls the handler."""
    return str(trace.tb_frame.f_globals.get("__name__")).startswith("maitred.worker.")


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
