"""Every error of ours travels whole, and no driver stumbles over one."""

from __future__ import annotations

import pytest
from cassandra.protocol import ErrorMessage, error_classes
from hypothesis import given
from hypothesis import strategies as st

from maitred import errors
from maitred.errors import (
    InvalidArgument,
    MaitredError,
    ProtocolViolation,
    RemoteError,
    RequestOutcome,
    RetryAdvice,
    printable,
)
from maitred.protocol.frames import Opcode
from maitred.protocol.notation import SHORT_MAX, Reader, integer, string, string_map
from maitred.protocol.refusals import CLASSES, decode_error, encode_error, number_of
from tests.protocol.driver import read_by_driver

texts = st.text(st.characters(codec="utf-8"), max_size=60)


def all_classes(kind: type[MaitredError] = MaitredError) -> list[type[MaitredError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in all_classes(below))]


OURS = [
    kind for kind in all_classes() if kind.__module__ == errors.__name__ and kind is not RemoteError
]
EACH = pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.code)


def test_every_code_is_known_once() -> None:
    assert len(OURS) > 20
    assert set(CLASSES.values()) == set(OURS)
    assert len({kind.code for kind in OURS}) == len(OURS)


UNKNOWN = ("not known", "may have been done")
NOTHING = ("nothing was done", "Nothing was done")


@EACH
def test_the_outcome_is_what_the_docstring_says(kind: type[MaitredError]) -> None:
    said = " ".join((kind.__doc__ or "").split())
    if any(words in said for words in UNKNOWN):
        assert kind.outcome == "unknown"
    if any(words in said for words in NOTHING):
        assert kind.outcome == "nothing"


def test_only_refusals_say_that_nothing_was_done() -> None:
    """Whoever hears it sends the request again: whatever is in doubt must not say so."""
    doubtful = {kind for kind in OURS if kind.outcome == "unknown"}
    assert doubtful >= {
        errors.DeadlineExceeded,
        errors.ConnectionLost,
        errors.CutOff,
        errors.Closed,
        errors.Cancelled,
        errors.InternalError,
        errors.OutcomeUnknown,
        errors.WorkerLost,
    }
    assert RemoteError.outcome == "unknown"
    assert errors.StoreUnavailable.outcome == errors.NotOwner.outcome == "nothing"
    assert errors.TaskFailed.outcome == errors.QueryFailed.outcome == "over"


@given(sentence=texts, remedy=st.none() | texts.filter(bool))
def test_an_error_travels_whole(sentence: str, remedy: str | None) -> None:
    """Whoever wrote it: nothing in it commands the terminal of whoever reads it."""
    shown = (printable(sentence), None if remedy is None else printable(remedy))
    for kind in OURS:
        read = decode_error(encode_error(kind(sentence, remedy=remedy)))
        assert type(read) is kind
        assert (read.code, read.sentence, read.remedy) == (kind.code, *shown)


@given(texts, st.none() | texts.filter(bool), texts.filter(lambda code: code not in CLASSES))
def test_a_code_from_the_future_is_kept(sentence: str, remedy: str | None, code: str) -> None:
    for outcome in RequestOutcome:
        sent = RemoteError(sentence, remedy=remedy, code=code, outcome=outcome)
        read = decode_error(encode_error(sent))
        assert type(read) is RemoteError
        shown = (printable(sentence), None if remedy is None else printable(remedy))
        assert (read.code, read.sentence, read.remedy) == (printable(code), *shown)
        assert read.outcome is outcome


def test_an_outcome_that_is_not_told_or_not_known_is_unknown() -> None:
    """An older peer sends none, and one of the future may have a further word."""
    for told in ({}, {"outcome": ""}, {"outcome": "half"}):
        read = decode_error(integer(0) + string("Odd.") + string_map({"code": "odd", **told}))
        assert read.outcome is RequestOutcome.UNKNOWN


@EACH
def test_the_details_tell_the_outcome(kind: type[MaitredError]) -> None:
    """For clients of other languages, which have no classes to look it up in."""
    reader = Reader(encode_error(kind("It went wrong.")))
    reader.integer()
    reader.string()
    assert reader.string_map() == {"code": kind.code, "outcome": kind.outcome.value}


@EACH
def test_only_what_may_succeed_is_sent_again(kind: type[MaitredError]) -> None:
    assert kind.outcome is not RequestOutcome.OVER or kind.retry is RetryAdvice.NO
    if issubclass(kind, InvalidArgument | errors.PermissionDenied | errors.Unauthenticated):
        assert kind.retry is RetryAdvice.NO
    refused = issubclass(kind, errors.Unavailable | errors.Overloaded)
    assert not refused or kind("It went wrong.").nothing_done


@EACH
def test_a_driver_reads_it_and_looks_for_nothing_further(kind: type[MaitredError]) -> None:
    error = kind("What is wrong. Überall.", remedy="What to do.")
    number = number_of(error)
    read = read_by_driver(Opcode.ERROR, encode_error(error))
    assert isinstance(read, ErrorMessage)
    assert (read.code, read.message, read.info) == (number, error.sentence, None)
    # Looking for fields is a method of its own; what we use has only the one that does nothing.
    assert error_classes[number].recv_error_info is ErrorMessage.recv_error_info


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (errors.ProtocolViolation, 0x000A),
        (errors.UnsupportedVersion, 0x000A),
        (errors.Unauthenticated, 0x0100),
        (errors.TooManyInFlight, 0x1001),
        (errors.PermissionDenied, 0x2100),
        (errors.InvalidName, 0x2200),
        (errors.DeadlineExceeded, 0x0000),
        (errors.InternalError, 0x0000),
    ],
)
def test_cql_has_a_number_for_it(kind: type[MaitredError], number: int) -> None:
    assert number_of(kind("x")) == number


@given(st.integers(-(2**31), 2**31 - 1), texts)
def test_an_error_of_another_server(number: int, sentence: str) -> None:
    """Without our map it keeps its sentence, and its number becomes the code."""
    read = decode_error(integer(number) + string(sentence))
    assert type(read) is RemoteError
    assert read.sentence == printable(sentence)
    assert read.code == f"cql-{number:04x}"


def test_the_map_decides_not_the_number() -> None:
    body = integer(0x2200) + string("Stop.") + string_map({"code": "draining", "news": "none"})
    assert type(decode_error(body)) is errors.Draining


@pytest.mark.parametrize("letter", ["a", "ä", "€"])
def test_long_sentences_are_cut_and_still_read(letter: str) -> None:
    fitting = letter * (SHORT_MAX // len(letter.encode()))
    body = encode_error(errors.Cancelled(fitting + "more", remedy=fitting + "more"))
    read = decode_error(body)
    assert read.code == "cancelled"
    assert read.sentence.startswith(fitting)
    assert len(read.sentence.encode()) <= SHORT_MAX
    assert read.remedy == read.sentence
    assert read_by_driver(Opcode.ERROR, body).message == read.sentence


def test_an_error_that_ends_early() -> None:
    body = encode_error(errors.Cancelled("Enough.", remedy="None."))
    without_map = len(integer(0) + string("Enough."))
    for size in set(range(len(body))) - {without_map}:
        with pytest.raises(ProtocolViolation):
            decode_error(body[:size])
    assert decode_error(body[:without_map]).code == "cql-0000"


@given(st.binary(max_size=60))
def test_anything_is_an_error_or_is_refused(body: bytes) -> None:
    try:
        read: MaitredError = decode_error(body)
    except ProtocolViolation as problem:
        read = problem
    assert isinstance(read.code, str)
