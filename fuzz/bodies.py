"""Whatever reads a body either understands it or refuses it with an error of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fuzz.violated import require
from maitred.errors import MaitredError
from maitred.protocol import cql
from maitred.protocol.description import Description
from maitred.protocol.frames import Opcode
from maitred.protocol.messages import (
    REQUEST_DECODERS,
    UNREADABLE,
    decode_answer,
    encode,
    not_understood,
    without_home,
)
from maitred.protocol.notation import Reader
from maitred.protocol.refusals import decode_error, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable


def _request(opcode: int) -> Callable[[bytes], object]:
    def read(body: bytes) -> object:
        try:
            message = REQUEST_DECODERS[opcode](body)
        except UNREADABLE as problem:
            raise not_understood(opcode, problem) from None
        written = encode(message)
        # As bytes: a number that is none, which some fields may hold, equals nothing.
        require(encode(REQUEST_DECODERS[opcode](written)) == written, "a request changes")
        return message

    return read


def _answer(opcode: int) -> Callable[[bytes], object]:
    def read(body: bytes) -> object:
        return decode_answer(opcode, body)

    return read


def _error(body: bytes) -> None:
    problem = decode_error(body)
    again = decode_error(encode_error(problem))
    require(
        (again.code, again.sentence) == (problem.code, problem.sentence),
        "an error changes its text",
    )


def _described(body: bytes) -> None:
    description = Description.from_supported(cql.decode_supported(body))
    require(
        Description.from_supported(description.supported()) == description,
        "a description changes",
    )


_LATER: Final = (
    Opcode.SERIES,
    Opcode.QUEUE_STATES,
    Opcode.LIST_WORKERS,
    Opcode.WORKER_TASKS,
    Opcode.WORKER_SERIES,
    Opcode.SHARD_SERIES,
)
"""Exchanges that came after others with a higher opcode: inputs choose readers by number."""

_TASKS: Final = [
    *(one for one in sorted(REQUEST_DECODERS) if one >= Opcode.ADD and one not in _LATER),
    *_LATER,
]

READERS: Final[tuple[Callable[[bytes], object], ...]] = (
    _request(Opcode.ECHO),
    _request(Opcode.STATUS),
    _answer(Opcode.ECHO),
    _answer(Opcode.STATUS),
    without_home,
    _error,
    _described,
    cql.decode_startup,
    cql.decode_credentials,
    cql.decode_register,
    cql.decode_event,
    cql.decode_query,
    lambda body: Reader(body).inet(),
    lambda body: Reader(body).bytes_map(),
    # Each exchange that comes has its two readers at the end: inputs choose them by number.
    *(reader for opcode in _TASKS for reader in (_request(opcode), _answer(opcode))),
)
"""What the second byte of an input chooses from."""


def examine_body(chosen: int, body: bytes) -> None:
    """Read the body with one of the readers."""
    try:
        READERS[chosen % len(READERS)](body)
    except MaitredError as problem:
        require(problem.sentence, "an error without a sentence")
